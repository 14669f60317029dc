"""How the members of a group have obeyed, for this term's coordinator.

The eviction clock of a member counts from the sending of the first command that it has not obeyed: an acknowledgement
alone does not stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..planning.obedience import (
    LOSSES_WITHIN_S,
    disobeyed,
    is_left,
    is_move,
    pause_after_losses_s,
    pause_after_s,
    refused_free,
    shown_partitions,
    unapplied,
)
from ..planning.plan import Plan
from ..planning.snapshot import ChannelView
from ..zk.runtime import Runtime
from ..zk.znodes.commands import DRAIN, START_FETCHER, STOP_FETCHER, Command
from ..zk.znodes.partitions import NONE, PartitionSet

ASTRAY = "astray"
"""The kind of strike of a member that has moved without a command: what it runs has changed, or its channel has gone
back. Others are forgotten once it has nothing left to do."""

REFUSED = "refused"
"""The kind of reason of a start that it refuses, which is no strike."""


@dataclass(slots=True)
class _Conduct:
    """One incarnation's.

    :ivar sent: the stop or start to be judged once it is gone.  :ivar before: what the member ran then.
    :ivar since: when the first command was sent that it has not obeyed; None: it has obeyed all.
    :ivar strikes: option (or `ASTRAY`) -> commands disobeyed in a row.  :ivar whys: the last of each kind.
    :ivar refusals: starts in a row with partitions refused, and free.
    :ivar uncounted: what it says it runs, and no start has named to it.
    :ivar at: epoch and generation of its channel, which never go back within an incarnation.
    :ivar command: the last command that its channel names.
    :ivar lacks_owners: whether it runs partitions without owner znodes.
    :ivar is_unowned: whether that may begin a generation.  :ivar losses: generations that this began in a row, the last
        at `lost_at`.
    :ivar had_commands: whether it had commands in the last read.
    """

    incarnation: str
    sent: Command | None = None
    before: PartitionSet = NONE
    claimed: PartitionSet = NONE
    since: float | None = None
    strikes: dict[str, int] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)
    refusals: int = 0
    not_before: float = 0.0
    uncounted: PartitionSet = NONE
    ask: str = ""
    at: tuple[int, int] = 0, 0
    command: str = ""
    had_commands: bool = False
    lacks_owners: bool = False
    is_unowned: bool = False
    losses: int = 0
    lost_at: float = float("-inf")

    @property
    def is_late(self) -> bool:
        """Whether it has not done what a command that is gone said."""
        return bool(self.strikes.keys() - {ASTRAY} or self.refusals)

    @property
    def worst(self) -> int:
        return max(self.strikes.values(), default=0)

    @property
    def why(self) -> str:
        """The last disobedience of the kind with most of them; without one the last refusal."""
        kind = max(self.strikes, key=lambda kind: self.strikes[kind]) if self.strikes else REFUSED
        return self.whys.get(kind, "") if self.strikes or self.refusals else ""

    def strike(self, kind: str, why: str) -> None:
        """Another disobedience of this kind in a row."""
        self.whys[kind] = why
        self.strikes[kind] = self.strikes.get(kind, 0) + 1

    def judge(self, sent: Command, view: ChannelView, owners: PartitionSet, has_owners: bool, now: float) -> None:
        """Judge a command that is gone from the channel, or that was applied and left there."""
        self.sent = None
        refused = refused_free(sent, view, owners) if sent.option == START_FETCHER else NONE
        if sent.option == START_FETCHER:
            self.refusals = self.refusals + 1 if refused else 0
        if refused:
            self.whys[REFUSED] = f"it refuses {shown_partitions(refused)}, which no owner znode keeps from it"
        if why := disobeyed(sent, self.before, view, owners, has_owners):
            self.strike(sent.option, why)
        elif sent.started <= (view.claimed & owners if has_owners else view.claimed):
            self.strikes.pop(sent.option, None)
        if not self.refusals and not unapplied(sent, self.before, view, has_owners):
            self.since = None
        self.not_before = now + pause_after_s(self.strikes.get(sent.option, 0), self.refusals)


def _is_begun(view: ChannelView) -> bool:
    """Whether its channel names a pending command: one applied in several multis, or whose state is being restored."""
    return view.channel is not None and view.channel.command in {sent.name for sent in view.commands}


class Conducts:
    """The conduct of each member of one group."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._of: dict[str, _Conduct] = {}

    def observed(
        self, channels: Mapping[str, ChannelView], owners: PartitionSet, has_owners: bool
    ) -> dict[str, ChannelView]:
        """`channels` as just read, with how their members have obeyed."""
        now = self._runtime.monotonic()
        found = {}
        for name, view in channels.items():
            found[name] = self._observed(view, owners, has_owners, now)
        self._of = {name: one for name, one in self._of.items() if name in channels}
        return found

    def _observed(self, view: ChannelView, owners: PartitionSet, has_owners: bool, now: float) -> ChannelView:
        channel = view.channel
        if channel is None:
            return view
        if not channel.is_live:
            self._of.pop(view.consumer, None)
            return view
        one = self._of.get(view.consumer)
        if one is None or one.incarnation != channel.incarnation:
            one = self._of[view.consumer] = _Conduct(
                channel.incarnation, command=channel.command, claimed=view.claimed, ask=channel.ask
            )
        pending = [sent.command for sent in view.commands if not sent.is_drain]
        moves = [command for command in pending if command is not None and is_move(command)]
        was_left = one.sent in moves and one.sent is not None and is_left(one.sent, one.before, view)
        if moves and one.sent not in moves:
            one.sent, one.before = moves[-1], view.claimed
        elif one.sent is not None and (was_left or not moves):
            one.judge(one.sent, view, owners, has_owners, now)
        elif not one.is_late and channel.command != one.command and (one.sent is None or _is_begun(view)):
            one.since = None  # it has applied something that cannot be judged, or begins with what is pending
        at = channel.epoch, channel.generation
        if at < one.at:
            one.strike(ASTRAY, f"its channel went from epoch and generation {one.at} back to {at}")
        one.at = at
        had_none = not view.commands and not one.had_commands and one.sent is None
        is_untouched = had_none and not view.uncounted and channel.command == one.command
        if is_untouched and (view.claimed, channel.ask) != (one.claimed, one.ask):
            one.strike(ASTRAY, "what it runs has changed without a command")
        one.ask = channel.ask
        one.command, one.claimed, one.uncounted = channel.command, view.claimed, view.uncounted
        one.lacks_owners = has_owners and not view.running <= owners
        one.is_unowned = one.lacks_owners and not view.commands
        self._wait(one, bool(pending) and not was_left, now)
        waits_s = now - one.since if one.since is not None and (pending or one.is_late) else 0.0
        pause_s = max(0.0, one.not_before - now)
        loss_pause_s = max(0.0, one.lost_at + pause_after_losses_s(one.losses) - now) if one.is_unowned else 0.0
        return replace(
            view,
            waits_s=waits_s, pause_s=pause_s, loss_pause_s=loss_pause_s, strikes=one.worst,
            disobeyed=one.why,
        )  # fmt: skip

    def _wait(self, one: _Conduct, has_commands: bool, now: float) -> None:
        """The clock goes on over one read without commands: a turn that withdraws one may send the next one later."""
        if has_commands:
            one.since = now if one.since is None else one.since
        elif not one.is_late and not one.had_commands:
            one.since = None
        one.had_commands = has_commands

    def deciding(self, plan: Plan) -> None:
        """Before a plan is written: commands that it replaces are not judged, also when it is written in part."""
        for name in {name for name, _ in (*plan.withdrawn, *plan.commands)} & self._of.keys():
            self._of[name].sent = None

    def decided(self, plan: Plan) -> None:
        """A plan was written, or had nothing to write: the clocks of its commands start now."""
        now = self._runtime.monotonic()
        busy = plan.outstanding.union(plan.draining, (name for name, _ in (*plan.commands, *plan.withdrawn)))
        for name in plan.unsettled - busy:
            if (waiting := self._of.get(name)) is not None and now >= waiting.not_before:
                waiting.since = None  # it waits for others, and has nothing to obey
        for name, command in plan.commands:
            one = self._of.get(name)
            if one is None or one.incarnation != command.incarnation or command.option == DRAIN:
                continue
            one.since = now if one.since is None else one.since
            one.had_commands = True
            if is_move(command):
                one.sent, one.before = command, one.claimed
            if command.option == STOP_FETCHER and one.uncounted:
                one.strike(ASTRAY, f"it runs {shown_partitions(one.uncounted)}, which no start has named to it")
        for name, one in self._of.items():
            is_settled = name not in plan.unsettled and not one.lacks_owners
            if plan.is_new_generation and one.is_unowned:
                one.losses = one.losses + 1 if now - one.lost_at < LOSSES_WITHIN_S else 1
                one.lost_at, one.is_unowned = now, False
            if is_settled and one.sent is None and now >= one.not_before:
                one.strikes, one.refusals = {kind: n for kind, n in one.strikes.items() if kind == ASTRAY}, 0
