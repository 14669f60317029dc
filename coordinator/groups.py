"""What the admin commands show of groups: read from ZooKeeper as it stands, changed by nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from .topics import list_topics
from .zk.commands import Command
from .zk.errors import BadData, UsageError
from .zk.names import is_name
from .zk.partitions import TopicPartition
from .zk.paths import COMMAND_PREFIX, COORDINATOR, COORDINATOR_EPOCH, GROUPS, Brokers, GroupPaths, sequence
from .zk.patterns import TopicFilter
from .zk.ranges import is_partition
from .zk.records import (
    STATIC,
    Channel,
    CoordinatorRecord,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Registration,
    parsed_channel,
)
from .zk.state import DEAD, GroupState
from .zk.store import Node, Store

T = TypeVar("T")


@dataclass(slots=True)
class Reading:
    """Reads znodes, and gathers what cannot be read."""

    store: Store
    problems: dict[str, str] = field(default_factory=dict)

    def names(self, path: str) -> list[str]:
        """The usable names of a znode's children, in order."""
        listing = self.store.children(path)
        found = sorted(listing.names) if listing else []
        for name in found:
            if not is_name(name):
                self.problems[f"{path}/{name!a}"] = "its name has characters that no name may have"
        return [name for name in found if is_name(name)]

    def parsed(self, path: str, parse: Callable[[str, Node], T]) -> T | None:
        """A znode's record; None when it does not exist or cannot be read."""
        node = self.store.get(path)
        if node is None:
            return None
        try:
            return parse(path, node)
        except BadData as error:
            self.problems[path] = str(error)
            return None


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command as it stands in a channel; `command` is None when it cannot be read."""

    consumer: str
    name: str
    command: Command | None


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A consumer: registered, or with nothing but a channel."""

    consumer: str
    registration: Registration | None
    channel: Channel | None
    commands: tuple[ShownCommand, ...]


@dataclass(frozen=True, slots=True)
class ShownPartition:
    """A partition of a group: who owns it, and where the group stands. None for what nobody knows."""

    partition: TopicPartition
    topic_id: str | None
    thread: str | None
    consumer: str | None
    offset: int | None


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group, as `groups describe` shows it."""

    group: str
    state: GroupState
    members: tuple[ShownMember, ...]
    partitions: tuple[ShownPartition, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """All that `zk-coordinator status` shows."""

    coordinator: CoordinatorRecord | None
    epoch: int | None
    groups: tuple[ShownGroup, ...]
    topics: int
    problems: dict[str, str]


def status(store: Store, brokers: Brokers) -> Status:
    """Everything at once."""
    reading = Reading(store)
    epoch = reading.parsed(COORDINATOR_EPOCH, lambda p, n: EpochRecord.parse(p, n.data))
    elected = reading.parsed(COORDINATOR, lambda p, n: CoordinatorRecord.parse(p, n.data))
    groups = tuple(read_group(reading, name) for name in group_names(reading))
    topics = list_topics(store, brokers)
    reading.problems.update({brokers.topic(t.name): t.error for t in topics if t.error})
    for group in groups:
        reading.problems.update(_bad_patterns(group))
    return Status(elected, epoch.epoch if epoch else None, groups, len(topics), reading.problems)


def group_names(reading: Reading) -> list[str]:
    """Every group there is."""
    return reading.names(GROUPS)


def existing_group(reading: Reading, group: str) -> ShownGroup:
    """A group by its name.

    :raises UsageError: when there is none of that name.
    """
    if not is_name(group) or reading.store.get(GroupPaths(group).root) is None:
        raise UsageError(f"Consumer group '{group}' does not exist.")
    return read_group(reading, group)


def read_group(reading: Reading, group: str) -> ShownGroup:
    """One group: state, members with their commands, partitions with owners and offsets."""
    paths = GroupPaths(group)
    state = reading.parsed(paths.state, lambda p, n: GroupState.parse(p, n.data))
    consumers = sorted({*reading.names(paths.channels), *reading.names(paths.ids)})
    members = tuple(_member(reading, paths, consumer) for consumer in consumers)
    return ShownGroup(group, state or GroupState(state=DEAD), members, tuple(_partitions(reading, paths, members)))


def _member(reading: Reading, paths: GroupPaths, consumer: str) -> ShownMember:
    names = sorted(reading.names(paths.channel(consumer)), key=lambda name: (sequence(name) or 0, name))
    commands = tuple(
        ShownCommand(
            consumer, name, reading.parsed(paths.command(consumer, name), lambda p, n: Command.parse(p, n.data))
        )
        for name in names
        if name.startswith(COMMAND_PREFIX)
    )
    channel = reading.parsed(paths.channel(consumer), lambda p, n: parsed_channel(p, n.data))
    registration = reading.parsed(paths.id(consumer), lambda p, n: Registration.parse(p, n.data))
    return ShownMember(consumer, registration, channel, commands)


def _partitions(reading: Reading, paths: GroupPaths, members: tuple[ShownMember, ...]) -> Iterator[ShownPartition]:
    running = {
        partition: (member.channel.topics.get(partition.topic), offset)
        for member in members
        if member.channel is not None
        for partition, offset in member.channel.running.items()
    }
    owners = _below(reading, paths.owners)
    for partition in sorted({*running, *owners, *_below(reading, paths.offsets)}):
        owner = reading.parsed(paths.owner(*partition), lambda p, n: OwnerRecord.parse(p, n.data))
        written = reading.parsed(paths.offset(*partition), lambda p, n: OffsetRecord.parse(p, n.data))
        topic_id, offset = running.get(partition, (None, None))
        if offset is None and written is not None:
            topic_id, offset = written.topic_id, written.offset
        yield ShownPartition(
            partition, topic_id, owner.thread if owner else None, owner.consumer if owner else None, offset
        )


def _below(reading: Reading, root: str) -> set[TopicPartition]:
    return {
        TopicPartition(topic, int(number))
        for topic in reading.names(root)
        for number in reading.names(f"{root}/{topic}")
        if is_partition(number)
    }


def _bad_patterns(group: ShownGroup) -> dict[str, str]:
    found = {}
    for member in group.members:
        registration = member.registration
        if registration is None or registration.pattern == STATIC:
            continue
        for text in registration.subscription:
            try:
                TopicFilter(registration.pattern, text)
            except BadData as error:
                found[GroupPaths(group.group).id(member.consumer)] = str(error)
    return found
