"""One turn's decision, pure: from what was read of a group to what shall be written.

Same snapshot, same plan, whatever the order of the input. The rules are those that a model of the protocol was checked
with: who is ended, which commands are withdrawn, who must stop first, and when a partition is free to be handed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .assignors import Assignor
from .history import history_of, replaced_of
from .snapshot import ChannelView, SentCommand, Snapshot
from .target import Wanted, is_live, wanted
from .zk.commands import START_FETCHER, STOP_FETCHER, Command
from .zk.partitions import NONE, PartitionSet, TopicPartition, by_topic
from .zk.records import Channel, Registration
from .zk.state import COMPLETING, EMPTY, PREPARING, STABLE, GroupState, Mark, Rebalance

STRAGGLER_AFTER_S = 0.5
"""From this age on, a command that nobody has acknowledged no longer holds up the rest of somebody else's start."""

WAITING_LOOK_S = 1.0
"""How often to look again for what nothing tells of: an owner znode in the way that goes."""

HISTORY_KEPT = 20


@dataclass(frozen=True, slots=True)
class End:
    """An incarnation that is ended in ZooKeeper.

    :ivar reason: what its channel will say.
    :ivar evicted: whether its `ids` znode is removed too.
    :ivar owners: owner znodes to remove.
    """

    view: ChannelView
    reason: str
    evicted: bool
    owners: PartitionSet


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn writes, in this order: ends, withdrawals and state, stops, starts.

    :ivar state: the group's state afterwards.
    :ivar rebalance: the history record to write, None to leave it.
    :ivar replaced: the record of the rebalance that this one replaces before it was through.
    :ivar again_s: seconds until the next turn is due, None when only a change asks for one.
    :ivar forgotten: generations whose history is removed.
    :ivar outstanding: consumers that have a command to acknowledge afterwards.
    """

    state: GroupState
    is_new_generation: bool = False
    ends: tuple[End, ...] = ()
    withdrawn: tuple[tuple[str, SentCommand], ...] = ()
    stops: tuple[tuple[str, Command], ...] = ()
    starts: tuple[tuple[str, Command], ...] = ()
    rebalance: Rebalance | None = None
    replaced: Rebalance | None = None
    forgotten: tuple[int, ...] = ()
    again_s: float | None = None
    outstanding: frozenset[str] = frozenset()

    def changes(self, before: GroupState) -> bool:
        """Whether there is anything to write."""
        written = self.ends or self.withdrawn or self.stops or self.starts or self.rebalance
        return bool(written) or replace(self.state, epoch=before.epoch) != before


@dataclass(slots=True)
class _Work:
    """What `plan` gathers on its way."""

    live: dict[str, Registration]
    ends: list[End] = field(default_factory=list)
    kept: dict[str, SentCommand] = field(default_factory=dict)
    withdrawn: list[tuple[str, SentCommand]] = field(default_factory=list)
    timers: list[float] = field(default_factory=list)


def plan(snapshot: Snapshot, assignor: Assignor, trigger: str = "") -> Plan:
    """Decide one turn of a group (seed 000, `rebalance` 1 to 4).

    :param trigger: what asked for the turn, for the history.
    :raises RebalanceFailed: when the assignor does not keep its promise.
    """
    work = _Work(live=_live_members(snapshot))
    marks = _marks(snapshot, work) + _evict(snapshot, work)
    _end_the_gone(snapshot, work)
    want = wanted(snapshot, work.live, assignor)
    is_new = _needs_new_generation(snapshot, want, work.live)
    generation = snapshot.state.generation + is_new
    to_stop = {name: _to_stop(snapshot, name, want, generation, assignor.is_eager) for name in sorted(work.live)}
    _sort_commands(snapshot, work, want, to_stop, generation)
    stops = _stops(snapshot, work, want, to_stop, generation)
    starts, waiting = _starts(snapshot, work, want, to_stop, generation, marks)
    stopping = bool(stops) or any(to_stop.values())
    starting = bool(starts or waiting or work.kept)
    state = GroupState(
        state=_state_name(work, stopping, starting),
        generation=generation,
        epoch=snapshot.epoch,
        strategy=assignor.name,
        target=want.target,
        topics=want.topics,
        marks=marks,
        reason=_reason(work, waiting),
        left_out=dict(sorted({**_unusable(snapshot, work), **want.left_out}.items())),
    )
    if work.withdrawn or work.ends:
        work.timers.append(0.0)
    if waiting:
        work.timers.append(WAITING_LOOK_S)
    return Plan(
        state=state,
        is_new_generation=is_new,
        ends=tuple(work.ends),
        withdrawn=tuple(work.withdrawn),
        stops=tuple(stops),
        starts=tuple(starts),
        rebalance=history_of(snapshot, state, is_new, stopping, trigger),
        replaced=replaced_of(snapshot, generation) if is_new else None,
        forgotten=tuple(n for n in snapshot.history if n != generation)[: -(HISTORY_KEPT - 1)] if is_new else (),
        again_s=min(work.timers, default=None),
        outstanding=frozenset(work.kept).union(consumer for consumer, _ in (*stops, *starts)),
    )


# ---- who is there


def _live_members(snapshot: Snapshot) -> dict[str, Registration]:
    return {
        name: member.registration
        for name, member in snapshot.members.items()
        if member.registration is not None and is_live(member, snapshot.channels.get(name))
    }


def _unusable(snapshot: Snapshot, work: _Work) -> dict[str, str]:
    """Members that have no part, each with the reason."""
    found = {}
    for name, member in snapshot.members.items():
        view = snapshot.channels.get(name)
        if member.registration is None:
            found[name] = "its registration cannot be read"
        elif view is None or view.channel is None:
            found[name] = "its channel is missing or cannot be read"
    evicted = {end.view.consumer: end.reason for end in work.ends if end.evicted}
    return {**found, **evicted}


def _marks(snapshot: Snapshot, work: _Work) -> tuple[Mark, ...]:
    """The eviction marks whose lease still runs."""
    kept = []
    for mark in snapshot.state.marks:
        registration = work.live.get(mark.consumer)
        if registration is not None and registration.incarnation == mark.incarnation:
            continue  # its eviction was planned, but never happened: it lives
        left_s = mark.lease_ms / 1000 - snapshot.mark_age_s.get((mark.consumer, mark.incarnation), 0.0)
        if left_s > 0:
            kept.append(mark)
            work.timers.append(left_s)
    return tuple(kept)


def _evict(snapshot: Snapshot, work: _Work) -> tuple[Mark, ...]:
    """End those that do not acknowledge or give no sign of life; their partitions wait for their lease."""
    marks = []
    for name, registration in sorted(work.live.items()):
        view = snapshot.channels[name]
        limit_s = registration.max_poll_interval_ms / 1000
        waits_s = max((command.age_s for command in view.commands), default=0.0)
        waits_s = max(waits_s, view.waits_s)  # churn that replaces its commands does not postpone it
        if waits_s < limit_s and view.idle_s < limit_s:
            work.timers.append(limit_s - max(waits_s, view.idle_s))
            continue
        what, remedy = "gave no sign of life", "its process hangs, or max_poll_interval_ms is too short for it"
        if waits_s >= limit_s:
            what = "acknowledged no command"
            remedy = "raise max_poll_interval_ms, or lower max_poll_records so that it polls more often"
        reason = f"evicted: it {what} for {registration.max_poll_interval_ms} ms ({remedy})"
        del work.live[name]
        work.ends.append(End(view, reason, True, view.running & snapshot.owners))
        if view.running:
            marks.append(Mark(name, registration.incarnation, view.running, registration.lease_ms, reason))
            work.timers.append(registration.lease_ms / 1000)
    return tuple(marks)


def _end_the_gone(snapshot: Snapshot, work: _Work) -> None:
    """End in ZooKeeper what has ended there: no `ids` znode of that incarnation, or ended half-way."""
    evicted = {end.view.consumer for end in work.ends}
    for name, view in sorted(snapshot.channels.items()):
        if name in work.live or name in evicted or view.channel is None or not view.channel.incarnation:
            continue
        member = snapshot.members.get(name)
        if member is not None and member.registration is None:
            continue  # a registration that cannot be read is no proof that nobody lives there
        if view.channel.is_live or view.running:
            work.ends.append(
                End(view, view.channel.ended or "its session ended", False, view.running & snapshot.owners)
            )


# ---- which generation


def _needs_new_generation(snapshot: Snapshot, want: Wanted, live: Mapping[str, Registration]) -> bool:
    """Seed 000, `rebalance` 3.1 to 3.5."""
    state = snapshot.state
    if want.target != state.target or (want.target and want.topics != state.topics):
        return True
    return any(_lost_owners(snapshot, name) for name in live)


def _lost_owners(snapshot: Snapshot, name: str) -> PartitionSet:
    """Partitions that a member runs in the current generation though their owner znode is gone (removed by hand)."""
    view = snapshot.channels[name]
    settled = view.channel is not None and view.channel.generation == snapshot.state.generation
    return view.running - snapshot.owners if settled and not view.commands else NONE


def _to_stop(snapshot: Snapshot, name: str, want: Wanted, generation: int, is_eager: bool) -> PartitionSet:
    """What a member must give up before anything else: all for an eager strategy, else what it cannot keep."""
    view = snapshot.channels[name]
    channel = view.channel
    if channel is None:
        return NONE
    if is_eager and channel.generation != generation:
        return view.running
    other_life = {part for part in view.running if channel.topics.get(part.topic) != want.topics.get(part.topic)}
    # A claim makes owners only of what is new to the consumer: what has lost its owner is given up, to get one again.
    unowned = view.running - snapshot.owners if channel.generation != generation else NONE
    return (view.running - want.target[name].partitions) | frozenset(other_life) | unowned


# ---- commands


def _sort_commands(
    snapshot: Snapshot, work: _Work, want: Wanted, to_stop: Mapping[str, PartitionSet], generation: int
) -> None:
    """Keep the one command of a member that still says what it must, withdraw the others."""
    for name, view in sorted(snapshot.channels.items()):
        for sent in view.commands:
            if (
                name in work.live
                and name not in work.kept
                and _still_right(snapshot, view, sent, want, to_stop, generation)
            ):
                work.kept[name] = sent
                if sent.age_s < STRAGGLER_AFTER_S:
                    work.timers.append(STRAGGLER_AFTER_S - sent.age_s)
            else:
                work.withdrawn.append((name, sent))


def _still_right(
    snapshot: Snapshot,
    view: ChannelView,
    sent: SentCommand,
    want: Wanted,
    to_stop: Mapping[str, PartitionSet],
    generation: int,
) -> bool:
    command, channel = sent.command, view.channel
    if command is None or channel is None:
        return False
    if (command.epoch, command.generation, command.incarnation) != (snapshot.epoch, generation, channel.incarnation):
        return False
    must_stop = to_stop[view.consumer]
    if command.option == STOP_FETCHER:
        return bool(must_stop) and (command.partitions or view.running) == must_stop
    target = want.target[view.consumer].partitions
    is_news = bool(command.started - view.running) or channel.generation != generation
    same_topics = all(want.topics.get(topic) == topic_id for topic, topic_id in command.topics.items())
    return not must_stop and same_topics and is_news and view.running <= command.started <= target


def _stops(
    snapshot: Snapshot, work: _Work, want: Wanted, to_stop: Mapping[str, PartitionSet], generation: int
) -> list[tuple[str, Command]]:
    """Seed 000, `rebalance` 4.1."""
    stops = []
    for name, partitions in to_stop.items():
        if partitions and name not in work.kept:
            view = snapshot.channels[name]
            named = NONE if partitions == view.running else partitions
            topics = dict(view.channel.topics) if view.channel else {}
            incarnation = want.target[name].incarnation
            stops.append((name, Command(STOP_FETCHER, snapshot.epoch, generation, incarnation, {}, named, topics)))
    return stops


def _starts(
    snapshot: Snapshot,
    work: _Work,
    want: Wanted,
    to_stop: Mapping[str, PartitionSet],
    generation: int,
    marks: tuple[Mark, ...],
) -> tuple[list[tuple[str, Command]], dict[str, PartitionSet]]:
    """Seed 000, `rebalance` 4.2, for those whose partitions are free; and consumer -> what it still waits for."""
    starts: list[tuple[str, Command]] = []
    waiting: dict[str, PartitionSet] = {}
    taken = _taken(snapshot, work, marks)
    patient = not _straggles(snapshot, work, to_stop, marks)
    for name in sorted(work.live):
        view = snapshot.channels[name]
        missing = want.target[name].partitions - view.running
        settled = view.channel is not None and view.channel.generation == generation
        if to_stop[name] or name in work.kept or (settled and not missing):
            continue
        blocked = missing & taken
        if blocked:
            waiting[name] = blocked
            if patient or blocked == missing:
                continue
        starts.append((name, _start(snapshot, want, name, view.running | (missing - blocked), generation)))
    return starts, waiting


def _start(snapshot: Snapshot, want: Wanted, name: str, partitions: PartitionSet, generation: int) -> Command:
    target = want.target[name]
    threads = {thread: parts & partitions for thread, parts in target.threads.items() if parts & partitions}
    topics = {topic: want.topics[topic] for topic in by_topic(partitions)}
    return Command(START_FETCHER, snapshot.epoch, generation, target.incarnation, threads, NONE, topics)


def _taken(snapshot: Snapshot, work: _Work, marks: tuple[Mark, ...]) -> PartitionSet:
    """Partitions that are not free to be handed on.

    Somebody's channel runs it (unless this turn ends that incarnation, which is written before any start), a start
    that names it is out (one that this turn withdraws counts), an eviction's lease covers it, or its owner is there.
    """
    ends = {end.view.consumer: end for end in work.ends}
    taken: set[TopicPartition] = set()
    for name, view in snapshot.channels.items():
        if name not in ends:
            taken |= view.running
        for sent in view.commands:
            if sent.command is not None and sent.command.option == START_FETCHER:
                taken |= sent.command.started - (view.running if name in work.live else NONE)
    for mark in marks:
        taken |= mark.partitions
    removed: PartitionSet = frozenset().union(*(end.owners for end in ends.values()))
    return frozenset(taken) | (snapshot.owners - removed)


def _straggles(snapshot: Snapshot, work: _Work, to_stop: Mapping[str, PartitionSet], marks: tuple[Mark, ...]) -> bool:
    """Whether somebody keeps the group waiting for long: then the others start with what is free.

    Also where nothing that this turn knows of will free it: its holder cannot be read, or an owner znode is in the way.
    """
    late = any(sent.age_s >= STRAGGLER_AFTER_S for sent in work.kept.values())
    is_being_freed = any(to_stop.values()) or bool(work.withdrawn) or bool(work.ends)
    is_unknown = any(view.channel is None for view in snapshot.channels.values())
    return late or bool(marks) or is_unknown or not is_being_freed


# ---- the state


def _state_name(work: _Work, stopping: bool, starting: bool) -> str:
    if not work.live:
        return EMPTY
    if stopping:
        return PREPARING
    return COMPLETING if starting else STABLE


def _reason(work: _Work, waiting: Mapping[str, PartitionSet]) -> str | None:
    """Whom or what the group waits for, once it has waited for a while."""
    late = sorted(name for name, sent in work.kept.items() if sent.age_s >= STRAGGLER_AFTER_S)
    if late:
        command = work.kept[late[0]].command
        others = f" (nor have {len(late) - 1} others theirs)" if len(late) > 1 else ""
        return f"{late[0]} has not acknowledged its {command.option if command else 'command'}{others}"
    if not waiting:
        return None
    name, partitions = min(waiting.items())
    shown = ", ".join(str(part) for part in sorted(partitions)[:3])
    more = f" and {len(partitions) - 3} more" if len(partitions) > 3 else ""
    return f"{name} waits for {shown}{more} to become free"


def ended(channel: Channel, reason: str) -> Channel:
    """The channel of an incarnation whose hold is over."""
    return replace(channel, running={}, topics={}, ended=reason, refused=NONE)
