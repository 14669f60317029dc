"""A group in one turn of client-side assignment, and what the turn does about asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..membership import Membership
from ..snapshot import AskView, Snapshot, SyncRequestView
from ..target import Wanted
from ..zk.commands import Command
from ..zk.paths import ask_name, ask_number
from ..zk.state import ClientSide
from ..zk.sync import Ask, AskMember


@dataclass(frozen=True, slots=True)
class Asking:
    """What a turn does about asks.

    :ivar want: the target that holds: the adopted answer's, or the one that the group has.
    :ivar client: what `state` says of it afterwards.
    :ivar is_adopted: whether an answer becomes the target in this turn.
    :ivar made: the name and content of an ask to create.
    :ivar assign: the command for its leader, or the one that is sent again.
    :ivar notices: who is told that the assignment has failed.
    :ivar unneeded: asks to remove.  :ivar superseded: those to remove when every member has been told of a later one.
    :ivar answered: the request of a leader that the new ask is made for.
    :ivar waits: why the group is not Stable; empty when there is nothing to wait for.
    :ivar has_failed: whether the last leader failed and no other has been asked yet.
    :ivar timers: seconds until something of this is due.
    :ivar reason: what asked for the adopted answer.
    """

    want: Wanted
    client: ClientSide | None = None
    strategy: str = ""
    is_adopted: bool = False
    made: tuple[str, Ask] | None = None
    assign: tuple[str, Command] | None = None
    notices: tuple[tuple[str, Command], ...] = ()
    unneeded: tuple[AskView, ...] = ()
    superseded: tuple[AskView, ...] = ()
    answered: SyncRequestView | None = None
    waits: str = ""
    has_failed: bool = False
    timers: tuple[float, ...] = ()
    reason: str = ""


@dataclass(slots=True)
class Group:
    """A group in one turn, with what is derived from its snapshot once."""

    snapshot: Snapshot
    who: Membership
    trigger: str
    timeout_s: float
    members: Mapping[str, AskMember] = field(default_factory=dict)
    is_held: bool = False

    @property
    def before(self) -> ClientSide:
        """What `state` says; where it says nothing, every answer that stands is of an earlier time."""
        if self.snapshot.state.client is not None:
            return self.snapshot.state.client
        asks = self.snapshot.asks
        return ClientSide(self.who.protocol_type, floor=asks[-1].name if asks else "")

    def view(self, name: str) -> AskView | None:
        return next((view for view in self.snapshot.asks if view.name == name), None)

    @property
    def next_name(self) -> str:
        """The name of the next ask: above all that stand or `state` names, and none that a member knows another by."""
        names = [view.name for view in self.snapshot.asks]
        told = {view.channel.ask for view in self.snapshot.channels.values() if view.channel is not None}
        number = 1 + max(map(ask_number, (*names, self.before.ask, self.before.failed_ask, self.before.floor)))
        while ask_name(number) in told:
            number += 1
        return ask_name(number)

    @property
    def out(self) -> AskView | None:
        """The ask that has neither been adopted nor failed."""
        handled = max(map(ask_number, (self.before.ask, self.before.failed_ask, self.before.floor)))
        open_ones = [view for view in self.snapshot.asks if ask_number(view.name) > handled]
        return open_ones[-1] if open_ones else None
