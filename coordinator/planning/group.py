"""A group in one turn of client-side assignment, and the turn's actions on asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..zk.znodes.group_state import Ask, AskMember, ClientSide
from ..zk.znodes.paths import ask_name, ask_number
from ..zk.znodes.records import Command
from .membership import Membership
from .snapshot import AskView, Snapshot, SyncRequestView
from .target import Wanted


@dataclass(frozen=True, slots=True)
class Asking:
    """A turn's actions on asks.

    :ivar assignment: the target in force: the adopted answer's, or the group's previous one.
    :ivar client: the next `client` of `state`.
    :ivar is_adopted: whether an answer becomes the target in this turn.
    :ivar made: the name and content of an ask to create.
    :ivar assign: the command for its leader, or the one that is sent again.
    :ivar notices: `assignment-failed` commands, each with its member.
    :ivar unneeded: asks to remove.  :ivar superseded: those to remove once every member has a later one's command.
    :ivar answered: the leader's request that the new ask fulfils.
    :ivar waits: why the group is not Stable; empty otherwise.
    :ivar has_failed: whether the last leader failed and no other has been asked yet.
    :ivar timers: seconds until the next timed action.
    :ivar reason: trigger of the adopted answer.
    """

    assignment: Wanted
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
    """A group in one turn, with values derived from its snapshot once."""

    snapshot: Snapshot
    membership: Membership
    trigger: str
    timeout_s: float
    members: Mapping[str, AskMember] = field(default_factory=dict)
    is_held: bool = False

    @property
    def before(self) -> ClientSide:
        """`client` of `state`; without one, every existing answer is outdated."""
        if self.snapshot.state.client is not None:
            return self.snapshot.state.client
        asks = self.snapshot.asks
        return ClientSide(self.membership.protocol_type, floor=asks[-1].name if asks else "")

    def view(self, name: str) -> AskView | None:
        return next((view for view in self.snapshot.asks if view.name == name), None)

    @property
    def next_name(self) -> str:
        """The name of the next ask: above all asks in ZooKeeper, in `state` and in members' channels."""
        names = [view.name for view in self.snapshot.asks]
        named = {view.channel.ask for view in self.snapshot.channels.values() if view.channel is not None}
        known = (self.before.ask, self.before.failed_ask, self.before.floor)
        number = 1 + max(map(ask_number, (*names, *known)))
        if not ask_number(ask_name(number)):  # it could not be read: a stray znode leaves no room
            number = 1 + max(map(ask_number, known))
        while ask_name(number) in named:
            number += 1
        return ask_name(number)

    @property
    def out(self) -> AskView | None:
        """The pending ask: neither adopted nor failed."""
        handled = max(map(ask_number, (self.before.ask, self.before.failed_ask, self.before.floor)))
        open_ones = [view for view in self.snapshot.asks if ask_number(view.name) > handled]
        return open_ones[-1] if open_ones else None
