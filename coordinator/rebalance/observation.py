"""A coordinator's memory of a group: a pure fold of each read.

It has each member's time without compliance, its earliest possible last fetch and its longest lease, and this
coordinator's own writes. The clock of an eviction (KIP-848's rebalance timeout) counts from the first command that a
member's channel does not show; an acknowledgement alone does not stop it, and a replaced command does not restart it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..planning.plan import Plan
from ..planning.snapshot import ChannelView, Compliance, Member, SentCommand, Snapshot, Wave, wave_of
from ..planning.target import is_live
from ..zk.lease import LEASE_SHARE
from ..zk.znodes.group_state import CONSUMER, STABLE, GroupState
from ..zk.znodes.partitions import PartitionSet
from ..zk.znodes.records import DRAIN, START_FETCHER, STOP_FETCHER, Command, Registration

AT_ONCE = 2
"""Stops, and starts, of one generation that a member is sent without a pause."""
PAUSE_S = 1.0
"""Between further ones: a member may remove its commands without complying."""
LOSS_PAUSE_S = 2.0
"""Between generations due to a member's lost owner znodes."""


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """When a group was read.

    :ivar now_s: the coordinator's monotonic clock.
    :ivar now_ms: ZooKeeper's clock; 0 when that is unknown.
    :ivar changed_ms: by that clock, when the turn's first change was seen.
    """

    now_s: float
    now_ms: int = 0
    changed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Clock:
    """The eviction clock of one incarnation.

    :ivar since: when the first command that it has not complied with was sent, or first read; None without one.
    :ivar sent: the last stop or start without compliance that this coordinator has sent or retained.
    :ivar begun: the last pending command in its channel: it takes several multis, or restores a state.
    :ivar withdrawn: the name of the last `sent` that was withdrawn before it was seen to be begun.
    :ivar waves: option -> the wave of its last command, the number of its commands, and the time of the last one.
    :ivar pending: name -> command, as last read; None for one that was withdrawn since.
    :ivar is_unowned: whether it runs partitions without owner znodes, and has no commands.
    :ivar lost_at: when a loss of owner znodes last began a generation.
    """

    incarnation: str
    since: float | None = None
    sent: Command | None = None
    begun: Command | None = None
    withdrawn: str = ""
    waves: Mapping[str, tuple[Wave, int, float]] = field(default_factory=dict)
    pending: Mapping[str, Command | None] = field(default_factory=dict)
    is_unowned: bool = False
    lost_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Life:
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


@dataclass(frozen=True, slots=True)
class Memory:
    """One coordinator's memory of one group.

    :ivar clocks: consumer -> its eviction clock.
    :ivar lives: member of the target -> its incarnation there.
    :ivar returned: restarted member -> its previous incarnation, until the group is Stable.
    :ivar leases: consumer -> its incarnation, and that one's longest lease so far, in milliseconds.
    :ivar written: the group's creation, and the generation that was written last.
    :ivar held_for: the checkpoint that a generation waits for; 0 without one.
    """

    clocks: Mapping[str, Clock] = field(default_factory=dict)
    lives: Mapping[str, Life] = field(default_factory=dict)
    returned: Mapping[str, Life] = field(default_factory=dict)
    leases: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    written: tuple[int, int] = 0, 0
    held_for: int = 0


def observe(memory: Memory, read: Snapshot, at: ReadTimes) -> tuple[Snapshot, Memory]:
    """The snapshot of a turn, and the memory after it.

    :param read: the snapshot without values of the memory.
    """
    members, state = read.members, read.state
    has_owners = state.client is None or state.client.protocol_type == CONSUMER
    owners = read.partitions.owners
    clocks, channels = dict[str, Clock](), dict[str, ChannelView]()
    for name, view in members.channels.items():
        clock, channels[name] = _observed(memory.clocks.get(name), view, owners, has_owners, at.now_s)
        if clock is not None:
            clocks[name] = clock
    longest_ms = read.coordinator.longest_lease_ms
    leases = {
        name: _lease(memory.leases.get(name, ("", 0)), member.registration, longest_ms)
        for name, member in members.registered.items()
    }
    registered = {name: replace(member, lease_ms=leases[name][1]) for name, member in members.registered.items()}
    lives, returned = _lives(memory, state, channels, registered, at)
    snapshot = replace(
        read,
        members=replace(members, channels=channels, registered=registered),
        history=replace(read.history, silences=_silences(lives, at.now_ms), returned=_silences(returned, at.now_ms)),
    )
    memory = replace(memory, clocks=clocks, leases=leases)
    return snapshot, replace(memory, lives=lives, returned=returned) if at.now_ms else memory


def writing(memory: Memory, plan: Plan) -> Memory:
    """The memory before a plan is written."""
    ended = {end.view.consumer for end in plan.terminations}
    lives = {name: replace(life, is_ended=True) if name in ended else life for name, life in memory.lives.items()}
    return replace(memory, lives=lives)


def written(memory: Memory, plan: Plan, group_czxid: int, now_s: float) -> Memory:
    """The memory after a plan was written, or had nothing to write.

    Its commands count from now; a member without commands runs its target, or waits for others.

    :param group_czxid: of the group's own znode.
    """
    clocks = dict(memory.clocks)
    for name, withdrawn in plan.withdrawn:
        if name in clocks:
            clocks[name] = _without(clocks[name], withdrawn)
    busy = set(plan.deferred)
    for name, command in plan.commands:
        clock = clocks.get(name)
        if clock is None or clock.incarnation != command.incarnation or command.option == DRAIN:
            continue
        busy.add(name)
        clock = replace(clock, since=now_s if clock.since is None else clock.since)
        if _is_stop_or_start(command):
            wave = wave_of(command)
            last, times, _ = clock.waves.get(command.option, (wave, 0, now_s))
            waves = {**clock.waves, command.option: (wave, 1 + (times if last == wave else 0), now_s)}
            clock = replace(clock, sent=command, waves=waves)
        clocks[name] = clock
    for name, clock in clocks.items():
        sent = next(filter(_is_stop_or_start, clock.pending.values()), clock.sent)
        if plan.is_new_generation and clock.is_unowned:
            since = now_s if clock.since is None else clock.since
            clocks[name] = replace(clock, sent=sent, lost_at=now_s, since=since)
        elif name not in busy and not clock.pending and not clock.is_unowned:
            clocks[name] = replace(clock, sent=None, since=None)
        else:
            clocks[name] = replace(clock, sent=sent)
    held_for = plan.region.held_for if plan.region is not None else 0
    return replace(memory, clocks=clocks, written=(group_czxid, plan.state.generation), held_for=held_for)


# ---- the clock of an eviction


def has_complied(command: Command, view: ChannelView, has_owners: bool = True) -> bool:
    """Whether a member complies with a stop or start, by its channel. Owner znodes are ignored: others may remove them.

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


def _waits_for_owners(command: Command, view: ChannelView, owners: PartitionSet) -> bool:
    """Whether a member complies with a start except for partitions with owners: it has refused those, and waits."""
    missing, channel = command.started - view.running, view.channel
    is_answered = channel is not None and channel.generation == command.generation
    return is_answered and bool(missing) and missing <= owners


def _observed(
    clock: Clock | None, view: ChannelView, owners: PartitionSet, has_owners: bool, now: float
) -> tuple[Clock | None, ChannelView]:
    """A member's clock, and its channel with its compliance."""
    channel = view.channel
    if channel is None or not channel.is_live:
        return clock if channel is None else None, view
    # Without its contribution a checkpoint is aborted, and the member stays.
    pending = {sent.name: sent.command for sent in view.commands if sent.option != DRAIN}
    if clock is None or clock.incarnation != channel.incarnation:
        clock = Clock(channel.incarnation, sent=next(filter(_is_stop_or_start, pending.values()), None))
    elif clock.sent is not None and has_complied(clock.sent, view, has_owners):
        # Commands are read before the channel: this one may have been removed meanwhile.
        pending = {name: command for name, command in pending.items() if command != clock.sent}
        clock = replace(clock, since=None, sent=None)
    elif clock.sent is not None and clock.sent not in pending.values() and _waits_for_owners(clock.sent, view, owners):
        clock = replace(clock, since=None, sent=None)
    since = now if pending and clock.since is None else clock.since
    begun, withdrawn = clock.begun, clock.withdrawn
    named = pending.get(channel.command)
    if named is not None and named == clock.sent != begun:
        begun, since = named, now
    elif withdrawn and channel.command == withdrawn:  # begun before it was withdrawn, and after the read
        withdrawn, since = "", now if since is not None else None
    is_unowned = has_owners and not view.commands and not view.running <= owners
    clock = replace(clock, since=since, begun=begun, withdrawn=withdrawn, pending=pending, is_unowned=is_unowned)
    is_late = since is not None and bool(pending or clock.sent is not None or is_unowned)
    if not (is_late or clock.waves or is_unowned):
        return clock, view
    left = {wave: at + PAUSE_S - now for wave, times, at in clock.waves.values() if times >= AT_ONCE}
    compliance = Compliance(
        now - since if since is not None and is_late else 0.0,
        {wave: pause_s for wave, pause_s in left.items() if pause_s > 0},
        max(0.0, clock.lost_at + LOSS_PAUSE_S - now) if is_unowned else 0.0,
    )
    return clock, replace(view, compliance=compliance)


def _without(clock: Clock, withdrawn: SentCommand) -> Clock:
    """The clock after a command was withdrawn."""
    if withdrawn.name not in clock.pending:
        return clock
    clock = replace(clock, pending={**clock.pending, withdrawn.name: None})
    if clock.sent is None or clock.sent != withdrawn.command:  # an ask beside it
        return clock
    return replace(clock, sent=None, withdrawn=withdrawn.name if withdrawn.command != clock.begun else "")


def _is_stop_or_start(command: Command | None) -> bool:
    return command is not None and command.option in (START_FETCHER, STOP_FETCHER)


def _lease(known: tuple[str, int], registration: Registration | None, longest_ms: int) -> tuple[str, int]:
    """The incarnation, and its longest lease so far that a session can have; 0 without one."""
    life, said = (registration.incarnation, registration.lease_ms) if registration is not None else ("", 0)
    return life, max(known[1] if known[0] == life else 0, said if said <= longest_ms else 0)


# ---- the last fetches, for the history


LONGEST_TICK_MS = 3_000
"""Of a ZooKeeper server; its default is 2,000. A session ends up to one and a half ticks after its timeout."""


def _lives(
    memory: Memory, state: GroupState, channels: Mapping[str, ChannelView], members: Mapping[str, Member], at: ReadTimes
) -> tuple[dict[str, Life], dict[str, Life]]:
    """The incarnations of the target, and the previous ones of members that have restarted since it was Stable."""
    if not at.now_ms:
        return {}, {}
    returned = {} if state.state == STABLE else dict(memory.returned)
    lives = {}
    for name, target in state.target.items():
        life = memory.lives.get(name)
        if life is None or life.incarnation != target.incarnation:
            if life is not None and life.is_over and state.state != STABLE:
                returned[name] = life
            life = Life(target.incarnation)
        if not life.is_over and (view := channels.get(name)) is not None:
            life = _after(life, view, members.get(name), at.changed_ms)
        lives[name] = life
    return lives, {name: life for name, life in returned.items() if name in lives}


def _silences(lives: Mapping[str, Life], now_ms: int) -> dict[str, int]:
    """Milliseconds since each member that has run something last fetched, at most."""
    return {
        name: max(0, now_ms - life.fetched_ms)
        for name, life in lives.items()
        if life.has_run and life.fetched_ms is not None
    }


def _after(life: Life, view: ChannelView, member: Member | None, changed_ms: int) -> Life:
    """The life after its channel was read."""
    channel = view.channel
    if channel is None:
        return life
    if channel.incarnation != life.incarnation:
        life = replace(life, is_over=True)
        registration = member.registration if member is not None else None
        if member is None or registration is None or not registration.took_over_ms:
            return life
        known_ms = life.fetched_ms or 0
        # A live channel is written once in that interval; the registration may lie.
        least_ms = max(known_ms, member.created_ms - registration.max_poll_interval_ms)
        fetched_ms = min(max(least_ms, registration.took_over_ms), member.created_ms)
        return replace(life, has_run=life.has_run or not known_ms, fetched_ms=fetched_ms)
    if channel.is_live:
        return _seen_live(life, view, member, changed_ms)
    if life.is_ended:
        return replace(life, is_over=True)  # an eviction: nothing has been heard since
    has_run = life.has_run or life.fetched_ms is None
    return replace(life, has_run=has_run, fetched_ms=view.written_ms, is_over=True)


def _seen_live(life: Life, view: ChannelView, member: Member | None, changed_ms: int) -> Life:
    """Its channel is live; `member` is None, or another incarnation's, when its session has ended."""
    life = replace(life, is_ended=False, has_run=bool(view.running or view.ask), fetched_ms=view.written_ms)
    if member is not None and member.registration is not None and is_live(member, view):
        session_ms = round((member.lease_ms or member.registration.lease_ms) / LEASE_SHARE)
        return replace(life, session_ms=session_ms)
    if member is not None:
        return life
    if not life.session_ms:
        return replace(life, is_over=True)
    ticks_ms = round(1.5 * min(LONGEST_TICK_MS, life.session_ms / 2))
    fetched_ms = max(view.written_ms, changed_ms - life.session_ms - ticks_ms)
    return replace(life, is_over=True, fetched_ms=fetched_ms)
