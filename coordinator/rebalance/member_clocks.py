"""What this term's coordinator has seen of each member of a group: how long it has not carried out its commands, and
when it last fetched, at the earliest.

The clock of an eviction (KIP-848's rebalance timeout) counts from the first command that a member's channel does not
show; an acknowledgement alone does not stop it, and commands that replace one another do not restart it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..planning.membership import End
from ..planning.plan import Plan
from ..planning.snapshot import ChannelView, Member, Wave, wave_of
from ..planning.target import is_live
from ..zk.lease import LEASE_SHARE
from ..zk.runtime import Runtime
from ..zk.znodes.group_state import STABLE, GroupState
from ..zk.znodes.partitions import PartitionSet
from ..zk.znodes.records import DRAIN, START_FETCHER, STOP_FETCHER, Command

AT_ONCE = 2
"""So many stops, and so many starts, of one generation are sent to a member without a pause."""
PAUSE_S = 1.0
"""Between further ones: a member may remove its commands without carrying them out."""
LOSS_PAUSE_S = 2.0
"""Between generations that a member's lost owner znodes begin."""


def is_carried_out(command: Command, view: ChannelView, has_owners: bool = True) -> bool:
    """Whether a member's channel shows a stop or start. Owner znodes are not looked at: another may have removed them.

    :param has_owners: False for a protocol type without owners.
    """
    channel = view.channel
    if channel is None:
        return False
    if command.option == STOP_FETCHER:
        is_stopped = not view.running & (command.partitions or view.running)
        return is_stopped and (has_owners or not channel.ask)
    progress, region = channel.region, command.region
    return (
        command.started <= view.running
        and all(channel.topics.get(topic) == topic_id for topic, topic_id in command.topics.items())
        and channel.generation == command.generation
        and command.ask in ("", channel.ask)
        and (region is None or (progress is not None and progress.reset == progress.ready == region.reset))
    )


def _is_in_the_way(command: Command, view: ChannelView, owners: PartitionSet) -> bool:
    """Whether a member's channel shows a start but for partitions that have owners: it has refused those, and waits."""
    missing, channel = command.started - view.running, view.channel
    is_answered = channel is not None and channel.generation == command.generation
    return is_answered and bool(missing) and missing <= owners


@dataclass(slots=True)
class _Clock:
    """One incarnation's.

    :ivar since: when the first command was sent, or first read, that it has not carried out; None without one.
    :ivar sent: the last stop or start that it has not carried out, of those that this coordinator has sent or left.
    :ivar begun: the last pending one that its channel has named: it takes several multis, or restores a state.
    :ivar withdrawn: the name of the last `sent` that was withdrawn before it was seen to be begun.
    :ivar waves: option -> the wave of its last command, how many that has, and when the last was sent.
    :ivar pending: name -> command, those that it had in the last read; None for those that were withdrawn since.
    :ivar is_unowned: whether it runs partitions without owner znodes, and has no commands.
    :ivar lost_at: when this last began a generation.
    """

    incarnation: str
    since: float | None = None
    sent: Command | None = None
    begun: Command | None = None
    withdrawn: str = ""
    waves: dict[str, tuple[Wave, int, float]] = field(default_factory=dict)
    pending: dict[str, Command | None] = field(default_factory=dict)
    is_unowned: bool = False
    lost_at: float = float("-inf")


class EvictionClocks:
    """The clock of each member of one group, and the pace of its commands."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._of: dict[str, _Clock] = {}

    def observed(
        self, channels: Mapping[str, ChannelView], owners: PartitionSet, has_owners: bool
    ) -> dict[str, ChannelView]:
        """`channels` as just read, with the time that their members have not carried out a command."""
        now = self._runtime.monotonic()
        self._of = {name: one for name, one in self._of.items() if name in channels}
        return {name: self._observed(view, owners, has_owners, now) for name, view in channels.items()}

    def _observed(self, view: ChannelView, owners: PartitionSet, has_owners: bool, now: float) -> ChannelView:
        channel = view.channel
        if channel is None:
            return view
        if not channel.is_live:
            self._of.pop(view.consumer, None)
            return view
        # Without its contribution a checkpoint is aborted, and the member stays.
        pending = {sent.name: sent.command for sent in view.commands if sent.option != DRAIN}
        one = self._of.get(view.consumer)
        if one is None or one.incarnation != channel.incarnation:
            one = self._of[view.consumer] = _Clock(channel.incarnation)
            one.sent = next(filter(_is_move, pending.values()), None)
        elif one.sent is not None and is_carried_out(one.sent, view, has_owners):
            # Commands are read before the channel: this one may have been removed meanwhile.
            pending = {name: command for name, command in pending.items() if command != one.sent}
            one.since = one.sent = None
        elif one.sent is not None and one.sent not in pending.values() and _is_in_the_way(one.sent, view, owners):
            one.since = one.sent = None
        if pending:
            one.since = now if one.since is None else one.since
        begun = pending.get(channel.command)
        if begun is not None and begun == one.sent != one.begun:
            one.begun, one.since = begun, now
        elif one.withdrawn and channel.command == one.withdrawn:  # begun before it was withdrawn, and after the read
            one.withdrawn, one.since = "", now if one.since is not None else None
        one.pending = pending
        one.is_unowned = has_owners and not view.commands and not view.running <= owners
        is_late = one.since is not None and (pending or one.sent is not None or one.is_unowned)
        if not (is_late or one.waves or one.is_unowned):
            return view
        left = {wave: at + PAUSE_S - now for wave, times, at in one.waves.values() if times >= AT_ONCE}
        return replace(
            view,
            waits_s=now - one.since if one.since is not None and is_late else 0.0,
            paced={wave: pause_s for wave, pause_s in left.items() if pause_s > 0},
            loss_pause_s=max(0.0, one.lost_at + LOSS_PAUSE_S - now) if one.is_unowned else 0.0,
        )

    def decided(self, plan: Plan) -> None:
        """A plan was written, or had nothing to write. Its commands count from now; who has none, and gets none, has
        nothing to carry out: it runs its target, or waits for others."""
        now = self._runtime.monotonic()
        for name, back in plan.withdrawn:
            its = self._of.get(name)
            if its is None or back.name not in its.pending:
                continue
            its.pending[back.name] = None
            if its.sent is not None and its.sent == back.command:  # and no ask beside it
                its.sent, its.withdrawn = None, back.name if back.command != its.begun else ""
        busy = set(plan.deferred)
        for name, command in plan.commands:
            one = self._of.get(name)
            if one is None or one.incarnation != command.incarnation or command.option == DRAIN:
                continue
            busy.add(name)
            one.since = now if one.since is None else one.since
            if _is_move(command):
                one.sent, wave = command, wave_of(command)
                last, times, _ = one.waves.get(command.option, (wave, 0, now))
                one.waves[command.option] = wave, 1 + (times if last == wave else 0), now
        for name, one in self._of.items():
            one.sent = next(filter(_is_move, one.pending.values()), one.sent)
            if plan.is_new_generation and one.is_unowned:
                one.lost_at = now
                one.since = now if one.since is None else one.since
            elif name not in busy and not one.pending and not one.is_unowned:
                one.since = one.sent = None


def _is_move(command: Command | None) -> bool:
    """Whether it changes what a member runs."""
    return command is not None and command.option in (START_FETCHER, STOP_FETCHER)


# ---- the last fetches, for the history


LONGEST_TICK_MS = 3_000
"""Of a ZooKeeper server; its default is 2,000. A session ends up to one and a half ticks after its timeout."""


@dataclass(slots=True)
class _Life:
    """An incarnation of the target. Times are milliseconds of ZooKeeper's clock.

    :ivar fetched_ms: when it last fetched, at the earliest: the last write of its channel by its own process, or, of an
        expired session, its timeout ago. None before this coordinator has read its channel.
    :ivar session_ms: its session timeout; 0 before this coordinator has seen it live.
    :ivar has_run: whether it ran something when it was last seen live.
    :ivar is_over: whether `fetched_ms` is final.
    :ivar is_ended: whether this coordinator has decided to end it: the last write of its channel is not its own.
    """

    incarnation: str
    fetched_ms: int | None = None
    session_ms: int = 0
    has_run: bool = False
    is_over: bool = False
    is_ended: bool = False


class LastSigns:
    """When each incarnation in the target of one group last fetched, until the target is another."""

    def __init__(self) -> None:
        self._of: dict[str, _Life] = {}
        self._returned: dict[str, _Life] = {}

    def observed(
        self,
        state: GroupState,
        channels: Mapping[str, ChannelView],
        members: Mapping[str, Member],
        now_ms: int,
        changed_ms: int,
    ) -> tuple[dict[str, int], dict[str, int]]:
        """How many milliseconds ago each member of the target that has run something last fetched, at most.

        The same of the incarnations before of those that have come back since the group was Stable.

        :param now_ms: by ZooKeeper's clock; 0 when that is unknown.
        :param changed_ms: by that clock, when the first change was seen that this turn is for.
        """
        if not now_ms:
            return {}, {}
        if state.state == STABLE:
            self._returned = {}
        lives = {}
        for name, target in state.target.items():
            life = self._of.get(name)
            if life is None or life.incarnation != target.incarnation:
                if life is not None and life.is_over and state.state != STABLE:
                    self._returned[name] = life
                life = _Life(target.incarnation)
            if not life.is_over and (view := channels.get(name)) is not None:
                _observe(life, view, members.get(name), changed_ms)
            lives[name] = life
        self._of = lives
        self._returned = {name: life for name, life in self._returned.items() if name in lives}
        return _silences(lives, now_ms), _silences(self._returned, now_ms)

    def deciding(self, ends: tuple[End, ...]) -> None:
        """A plan with these ends is about to be written."""
        for end in ends:
            if (life := self._of.get(end.view.consumer)) is not None:
                life.is_ended = True


def _silences(lives: Mapping[str, _Life], now_ms: int) -> dict[str, int]:
    return {
        name: max(0, now_ms - life.fetched_ms)
        for name, life in lives.items()
        if life.has_run and life.fetched_ms is not None
    }


def _observe(life: _Life, view: ChannelView, member: Member | None, changed_ms: int) -> None:
    channel = view.channel
    if channel is None:
        return
    if channel.incarnation != life.incarnation:
        life.is_over = True
        registration = member.registration if member is not None else None
        if member is not None and registration is not None and registration.took_over_ms:
            known_ms = life.fetched_ms or 0
            life.has_run = life.has_run or not known_ms
            # A live channel is written once in that interval; the registration may lie.
            least_ms = max(known_ms, member.created_ms - registration.max_poll_interval_ms)
            life.fetched_ms = min(max(least_ms, registration.took_over_ms), member.created_ms)
    elif not channel.is_live and life.is_ended:
        life.is_over = True  # an eviction: nothing has been heard since
    elif not channel.is_live:
        life.has_run = life.has_run or life.fetched_ms is None
        life.fetched_ms, life.is_over = view.written_ms, True
    else:
        _seen_live(life, view, member, changed_ms)


def _seen_live(life: _Life, view: ChannelView, member: Member | None, changed_ms: int) -> None:
    """Its channel is live; `member` is None, or another incarnation's, when its session has ended."""
    life.is_ended = False
    life.has_run = bool(view.running or view.ask)
    life.fetched_ms = view.written_ms
    if member is not None and member.registration is not None and is_live(member, view):
        life.session_ms = round((member.lease_ms or member.registration.lease_ms) / LEASE_SHARE)
    elif member is None:
        life.is_over = True
        if life.session_ms:
            ticks_ms = round(1.5 * min(LONGEST_TICK_MS, life.session_ms / 2))
            life.fetched_ms = max(life.fetched_ms, changed_ms - life.session_ms - ticks_ms)
