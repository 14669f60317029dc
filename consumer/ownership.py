"""The operations of a consumer's commits, pure: what is claimed, given up, ended and taken over.

Each list is committed together with the consumer's fence, a compare-and-set of its channel's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from coordinator.zk.commands import START_FETCHER, Command
from coordinator.zk.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel, OffsetRecord, OwnerRecord
from coordinator.zk.regions import Progress
from coordinator.zk.store import MAX_OPERATIONS, Check, Create, Delete, Operation, SetData

PARTITIONS_A_STEP = (MAX_OPERATIONS - 10) // 2
"""Partitions that one multi may claim or give up: each takes an owner and an offset."""


def claim_operations(
    paths: GroupPaths, consumer: str, command: Command, incarnation: str, partitions: Iterable[TopicPartition]
) -> list[Operation]:
    """Owner znodes for `partitions`, each with the thread that the command gives it to."""
    some = frozenset(partitions)
    owners = {
        partition: data
        for thread, parts in command.threads.items()
        for data in (OwnerRecord(thread, consumer, incarnation, command.generation).to_bytes(),)
        for partition in parts & some
    }
    return [Create(paths.owner(*partition), owners[partition], ephemeral=True) for partition in sorted(some)]


def offset_operations(
    paths: GroupPaths, channel: Channel, partitions: Iterable[TopicPartition], known: frozenset[TopicPartition]
) -> list[Operation]:
    """Where the next holder of `partitions` goes on.

    An offset that was never read stays as it stands.

    :param known: partitions that have an offset znode already.
    """
    written: list[Operation] = []
    for partition in sorted(partitions):
        offset = channel.running.get(partition)
        if offset is None:
            continue
        path = paths.offset(*partition)
        data = OffsetRecord(offset, channel.topics.get(partition.topic, ""), channel.generation).to_bytes()
        written.append(SetData(path, data) if partition in known else Create(path, data))
    return written


def release_operations(
    paths: GroupPaths,
    channel: Channel,
    partitions: Iterable[TopicPartition],
    known: frozenset[TopicPartition],
    owned: PartitionSet,
) -> list[Operation]:
    """Offsets written, owner znodes (those of `owned`) removed."""
    some = sorted(partitions)
    owners: list[Operation] = [Delete(paths.owner(*partition)) for partition in some if partition in owned]
    return offset_operations(paths, channel, some, known) + owners


def after_command(channel: Channel, name: str, command: Command, refused: PartitionSet = NONE) -> Channel:
    """The channel once `command` has been applied, but for what runs; `refused` could not be claimed."""
    ask = channel.ask if command.partitions else command.ask
    return replace(
        channel,
        epoch=command.epoch,
        generation=command.generation,
        command=name,
        refused=refused,
        ask=ask,
        region=_progress(channel.region, command),
    )


def _progress(before: Progress | None, command: Command) -> Progress | None:
    """Of a member of a consistent region: a start is of a reset, and its state is not back yet; a stop ends both."""
    if command.region is None:
        return before
    drained = before.drained if before is not None else 0
    return Progress(command.region.reset if command.option == START_FETCHER else 0, 0, drained)


def with_claimed(channel: Channel, partitions: Iterable[TopicPartition], topics: Mapping[str, str]) -> Channel:
    """`channel` with `partitions` running, their offsets not read yet."""
    claimed = {partition: None for partition in partitions}
    ids = {partition.topic: topics.get(partition.topic, "") for partition in claimed}
    return replace(channel, running={**channel.running, **claimed}, topics={**channel.topics, **ids})


def acknowledgement(paths: GroupPaths, consumer: str, name: str, is_last: bool) -> Operation:
    """The command removed; in a multi before the last of several, a check that it is still there."""
    path = paths.command(consumer, name)
    return Delete(path) if is_last else Check(path, -1)


def chunks(partitions: Iterable[TopicPartition], size: int = PARTITIONS_A_STEP) -> list[Sequence[TopicPartition]]:
    """`partitions` in order, some at a time; one empty chunk when there is none."""
    some = sorted(partitions)
    return [some[first : first + size] for first in range(0, len(some), size)] or [[]]
