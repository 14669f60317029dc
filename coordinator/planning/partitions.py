"""The protocol of partitions: a member revokes those that it cannot keep, then starts the free ones. Pure.

The rules are those of the checked model: which partitions are revoked first, which commands are withdrawn, and when a
partition is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..zk.znodes.partitions import NONE, PartitionSet, topics_of
from ..zk.znodes.records import START_FETCHER, STOP_FETCHER, Command
from .reconciliation import Desired, MemberProtocol, Obstacles, Retained, Round, Step, Withdrawn, taken_partitions
from .snapshot import ChannelView, SentCommand

STRAGGLER_AFTER_S = 0.5
"""From this age on, an unacknowledged command no longer delays another member's start of free partitions."""


@dataclass(frozen=True, slots=True)
class PartitionProtocol(MemberProtocol):
    """A member's partitions change owner one by one.

    :ivar is_eager: whether a new generation revokes all.
    """

    is_eager: bool

    def desired(self, now: Round, name: str) -> Command | None:
        if revoked := _to_revoke(now, name, self.is_eager):
            return now.stop(name, revoked)
        view, target = now.members.channels[name], now.assignment.target[name].partitions
        has_heard = has_settled(view, target, now.generation, self.is_eager) and not _has_unheard_state(now, view)
        # The ids of its topics are added when it is due: a target edited by hand may lack some.
        start = now.command(name, START_FETCHER, threads=now.assignment.target[name].threads)
        return None if has_heard and not target - view.running else start

    def accepts(self, now: Round, view: ChannelView, sent: SentCommand, desired: Command | None) -> bool:
        """A start of more partitions than are running may stand."""
        command, channel = sent.command, view.channel
        if command is None or channel is None:
            return False
        order = now.epoch, now.generation, channel.incarnation
        if (command.epoch, command.generation, command.incarnation) != order:
            return False
        is_stop = desired is not None and desired.option == STOP_FETCHER
        if command.option == STOP_FETCHER:
            # For a stop applied in several multis, ignore partitions already released.
            return is_stop and desired is not None and _stopped(command, view) == _stopped(desired, view)
        if command.option != START_FETCHER or command.ask != now.assignment.ask:
            return False
        target = now.assignment.target[view.consumer].partitions
        is_news = bool(command.started - view.running) or channel.generation != now.generation
        is_news = is_news or _has_unheard_state(now, view)
        same_topics = all(now.assignment.topics.get(topic) == topic_id for topic, topic_id in command.topics.items())
        return not is_stop and same_topics and is_news and view.running <= command.started <= target

    def obstacles(self, now: Round, desired: Desired, retained: Retained, withdrawn: Withdrawn) -> Obstacles:
        taken = taken_partitions(now)
        is_patient = not _straggles(now, desired, retained, withdrawn)
        ages_s = [sent.age_s for sent in retained.values()]
        timers = tuple(STRAGGLER_AFTER_S - age_s for age_s in ages_s if age_s < STRAGGLER_AFTER_S)
        return Obstacles(taken, is_patient, timers=timers)

    def start(self, now: Round, name: str, command: Command, obstacles: Obstacles) -> Step:
        """All partitions at once, or the free ones when another member is late."""
        running = now.members.channels[name].running
        missing = command.started - running
        blocked = missing & obstacles.taken
        if blocked and (obstacles.is_patient or blocked == missing):
            return Step(blocked=blocked)
        return Step(_start(now, name, running | (missing - blocked)), blocked=blocked or None)


def has_settled(view: ChannelView, assigned: PartitionSet, generation: int, is_eager: bool) -> bool:
    """Whether a member needs no further command of this generation.

    It has applied its command, or (unless the strategy is eager) it keeps exactly its assignment of an earlier one.
    """
    channel = view.channel
    if channel is None:
        return False
    return channel.generation == generation or (not is_eager and channel.generation > 0 and view.running == assigned)


def _to_revoke(now: Round, name: str, is_eager: bool) -> PartitionSet:
    """The partitions to revoke first: all for an eager strategy, else those that the member cannot keep."""
    assignment, view = now.assignment, now.members.channels[name]
    channel = view.channel
    if channel is None:
        return NONE
    if is_eager and channel.generation != now.generation:
        return view.running
    other_life = {part for part in view.running if channel.topics.get(part.topic) != assignment.topics.get(part.topic)}
    # A claim creates owners of new partitions only: a partition without its owner znode is revoked and reassigned.
    is_new = channel.generation != now.generation
    unowned = view.running - now.partitions.owners if is_new else NONE
    moved = _to_other_threads(now, name) if is_new else NONE
    given_up = view.running - assignment.target[name].partitions
    return given_up | frozenset(other_life) | unowned | moved


def _to_other_threads(now: Round, name: str) -> PartitionSet:
    """Running partitions that move to another thread: owner znodes name the thread, so these are revoked and started
    as if they moved to another member."""
    running, on_thread = now.members.channels[name].running, now.partitions.on_thread
    return frozenset(
        part
        for thread, parts in now.assignment.target[name].threads.items()
        for part in parts & running
        if on_thread.get(part, thread) != thread
    )


def _stopped(command: Command, view: ChannelView) -> PartitionSet:
    """The running partitions that a stop revokes."""
    return command.partitions & view.running if command.partitions else view.running


def _start(now: Round, name: str, partitions: PartitionSet) -> Command:
    """`start-fetcher` (sources D26)."""
    target = now.assignment.target[name]
    threads = {thread: parts & partitions for thread, parts in target.threads.items() if parts & partitions}
    topics = {topic: now.assignment.topics[topic] for topic in topics_of(partitions)}
    return now.command(name, START_FETCHER, threads=threads, topics=topics, ask=now.assignment.ask)


def _has_unheard_state(now: Round, view: ChannelView) -> bool:
    """Whether the assignment has a state for the member that it has not received: any start sends it."""
    has_state = now.assignment.target[view.consumer].has_state
    return has_state and view.channel is not None and view.channel.ask != now.assignment.ask


def _straggles(now: Round, desired: Desired, retained: Retained, withdrawn: Withdrawn) -> bool:
    """Whether a straggler delays the group; if so, the others start their free partitions.

    Also where no pending change frees the partition: its holder cannot be read, or an owner znode is left.
    """
    late = any(sent.age_s >= STRAGGLER_AFTER_S for sent in retained.values())
    is_stopping = any(command is not None and command.option == STOP_FETCHER for command in desired.values())
    is_being_freed = is_stopping or bool(withdrawn) or bool(now.membership.terminations)
    is_unknown = any(view.channel is None for view in now.members.channels.values())
    is_deferred = any(now.members.channels[name].compliance.paced for name in desired)
    return late or bool(now.membership.holds) or is_unknown or is_deferred or not is_being_freed
