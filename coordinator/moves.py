"""What must stop and what may start in a turn, and which commands that are out still say so. Pure.

The rules are those that a model of the protocol was checked with: who must stop first, which commands are withdrawn,
and when a partition is free to be handed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .membership import Membership
from .snapshot import ChannelView, SentCommand, Snapshot
from .target import Wanted
from .zk.commands import START_FETCHER, STOP_FETCHER, Command
from .zk.partitions import NONE, PartitionSet, TopicPartition, by_topic

STRAGGLER_AFTER_S = 0.5
"""From this age on, a command that nobody has acknowledged no longer holds up the rest of somebody else's start."""


@dataclass(slots=True)
class Moves:
    """How a group gets from what runs to what is wanted, in one generation.

    :ivar to_stop: consumer -> what it must give up before anything else.
    :ivar kept: the one command of a member that still says what it must.
    :ivar waiting: consumer -> what it cannot start yet, because it is not free.
    :ivar members_stopping: of a group without owners, who must stop whole.
    :ivar drains: of a group in a consistent region, who is to contribute to the checkpoint that is open; `draining` is
        who has been told so.
    :ivar blocked_by: of a group without owners, what keeps every start back.
    """

    snapshot: Snapshot
    who: Membership
    want: Wanted
    generation: int
    is_eager: bool
    to_stop: dict[str, PartitionSet] = field(default_factory=dict)
    kept: dict[str, SentCommand] = field(default_factory=dict)
    withdrawn: list[tuple[str, SentCommand]] = field(default_factory=list)
    stops: list[tuple[str, Command]] = field(default_factory=list)
    starts: list[tuple[str, Command]] = field(default_factory=list)
    waiting: dict[str, PartitionSet] = field(default_factory=dict)
    timers: list[float] = field(default_factory=list)
    members_stopping: frozenset[str] = frozenset()
    blocked_by: str = ""
    drains: list[tuple[str, Command]] = field(default_factory=list)
    draining: dict[str, SentCommand] = field(default_factory=dict)

    @property
    def are_stopping(self) -> bool:
        """Whether somebody has to stop first."""
        return bool(self.stops or self.members_stopping) or any(self.to_stop.values())

    @property
    def are_starting(self) -> bool:
        """Whether something is started, or still to be."""
        return bool(self.starts or self.waiting or self.kept or self.blocked_by)


def moves(snapshot: Snapshot, who: Membership, want: Wanted, generation: int, is_eager: bool) -> Moves:
    """The stops and starts that are due now (seed 000, `rebalance` 4.1 and 4.2)."""
    found = Moves(snapshot, who, want, generation, is_eager)
    found.to_stop = {name: _to_stop(found, name) for name in sorted(who.live) if is_addressed(who, want, name)}
    _sort_commands(found)
    _stop(found)
    _start(found)
    return found


def is_addressed(who: Membership, want: Wanted, name: str) -> bool:
    """Whether the target is for the current incarnation of a live member; a newcomer waits for the next answer."""
    target = want.target.get(name)
    return target is not None and target.incarnation == who.live[name].incarnation


def has_settled(view: ChannelView, wanted: PartitionSet, generation: int, is_eager: bool) -> bool:
    """Whether a member has nothing more to hear of this generation.

    It has been told, or (unless the strategy stops everything) it keeps just what it was told in an earlier one.
    """
    channel = view.channel
    if channel is None:
        return False
    return channel.generation == generation or (not is_eager and channel.generation > 0 and view.running == wanted)


def _to_stop(found: Moves, name: str) -> PartitionSet:
    """What a member must give up before anything else: all for an eager strategy, else what it cannot keep."""
    snapshot, want = found.snapshot, found.want
    view = snapshot.channels[name]
    channel = view.channel
    if channel is None:
        return NONE
    if found.is_eager and channel.generation != found.generation:
        return view.running
    other_life = {part for part in view.running if channel.topics.get(part.topic) != want.topics.get(part.topic)}
    # A claim makes owners only of what is new to the consumer: what has lost its owner is given up, to get one again.
    unowned = view.running - snapshot.owners if channel.generation != found.generation else NONE
    return (view.running - want.target[name].partitions) | frozenset(other_life) | unowned


# ---- commands that are out


def _sort_commands(found: Moves) -> None:
    """Keep the one command of a member that still says what it must, withdraw the others."""
    for name, view in sorted(found.snapshot.channels.items()):
        for sent in view.commands:
            if (name, sent.name) in found.want.kept:
                continue
            if name in found.to_stop and name not in found.kept and _still_right(found, view, sent):
                found.kept[name] = sent
                if sent.age_s < STRAGGLER_AFTER_S:
                    found.timers.append(STRAGGLER_AFTER_S - sent.age_s)
            else:
                found.withdrawn.append((name, sent))


def _still_right(found: Moves, view: ChannelView, sent: SentCommand) -> bool:
    command, channel = sent.command, view.channel
    if command is None or channel is None:
        return False
    order = found.snapshot.epoch, found.generation, channel.incarnation
    if (command.epoch, command.generation, command.incarnation) != order:
        return False
    must_stop = found.to_stop[view.consumer]
    if command.option == STOP_FETCHER:
        # Of a large one that is obeyed in several commits, what it has stopped by now counts no more.
        named = command.partitions & view.running if command.partitions else view.running
        return bool(must_stop) and named == must_stop
    if command.option != START_FETCHER or command.ask != found.want.ask:
        return False
    target = found.want.target[view.consumer].partitions
    is_news = bool(command.started - view.running) or channel.generation != found.generation
    is_news = is_news or _has_unheard_state(found, view)
    same_topics = all(found.want.topics.get(topic) == topic_id for topic, topic_id in command.topics.items())
    return not must_stop and same_topics and is_news and view.running <= command.started <= target


# ---- commands to send


def _stop(found: Moves) -> None:
    """Seed 000, `rebalance` 4.1."""
    for name, partitions in found.to_stop.items():
        if partitions and name not in found.kept:
            view = found.snapshot.channels[name]
            named = NONE if partitions == view.running else partitions
            topics = dict(view.channel.topics) if view.channel else {}
            incarnation = found.want.target[name].incarnation
            epoch = found.snapshot.epoch
            found.stops.append((name, Command(STOP_FETCHER, epoch, found.generation, incarnation, {}, named, topics)))


def _start(found: Moves) -> None:
    """Seed 000, `rebalance` 4.2, for those whose partitions are free."""
    taken = taken_partitions(found)
    patient = not _straggles(found)
    for name in sorted(found.to_stop):
        view = found.snapshot.channels[name]
        missing = found.want.target[name].partitions - view.running
        settled = _has_settled(found, view)
        if found.to_stop[name] or name in found.kept or (settled and not missing):
            continue
        blocked = missing & taken
        if blocked:
            found.waiting[name] = blocked
            if patient or blocked == missing:
                continue
        found.starts.append((name, _start_command(found, name, view.running | (missing - blocked))))


def _has_settled(found: Moves, view: ChannelView) -> bool:
    wanted = found.want.target[view.consumer].partitions
    settled = has_settled(view, wanted, found.generation, found.is_eager)
    return settled and not _has_unheard_state(found, view)


def _has_unheard_state(found: Moves, view: ChannelView) -> bool:
    """Whether an answer has a member state for it that it was not told of: it hears of that, whatever it runs."""
    has_state = found.want.target[view.consumer].has_state
    return has_state and view.channel is not None and view.channel.ask != found.want.ask


def _start_command(found: Moves, name: str, partitions: PartitionSet) -> Command:
    target = found.want.target[name]
    threads = {thread: parts & partitions for thread, parts in target.threads.items() if parts & partitions}
    topics = {topic: found.want.topics[topic] for topic in by_topic(partitions)}
    epoch, ask = found.snapshot.epoch, found.want.ask
    return Command(START_FETCHER, epoch, found.generation, target.incarnation, threads, NONE, topics, ask)


def taken_partitions(found: Moves) -> PartitionSet:
    """Partitions that are not free to be handed on.

    Somebody's channel runs it (unless this turn ends that incarnation, which is written before any start), a start
    that names it is out (one that this turn withdraws counts), an eviction's lease covers it, or its owner is there.
    """
    ends = {end.view.consumer: end for end in found.who.ends}
    taken: set[TopicPartition] = set()
    for name, view in found.snapshot.channels.items():
        if name not in ends:
            taken |= view.running
        for sent in view.commands:
            if sent.command is not None and sent.command.option == START_FETCHER:
                taken |= sent.command.started - (view.running if name in found.who.live else NONE)
    for mark in found.who.marks:
        taken |= mark.partitions
    removed: PartitionSet = frozenset().union(*(end.owners for end in ends.values()))
    return frozenset(taken) | (found.snapshot.owners - removed)


def _straggles(found: Moves) -> bool:
    """Whether somebody keeps the group waiting for long: then the others start with what is free.

    Also where nothing that this turn knows of will free it: its holder cannot be read, or an owner znode is in the way.
    """
    late = any(sent.age_s >= STRAGGLER_AFTER_S for sent in found.kept.values())
    is_being_freed = any(found.to_stop.values()) or bool(found.withdrawn) or bool(found.who.ends)
    is_unknown = any(view.channel is None for view in found.snapshot.channels.values())
    return late or bool(found.who.marks) or is_unknown or not is_being_freed
