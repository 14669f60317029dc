"""The operations of a consumer's commits, pure: claims, releases, ends and takeovers.

Each list is committed together with the consumer's fence, a compare-and-set of its channel's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from zk_group.coordinator.zk.store import MAX_OPERATIONS, Check, Create, Delete, Operation, SetData
from zk_group.coordinator.zk.values import in_chunks
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import START_FETCHER, Channel, Command, OwnerRecord
from zk_group.coordinator.zk.znodes.regions import Progress

PARTITIONS_A_STEP = (MAX_OPERATIONS - 10) // 2
"""Partitions that one multi may claim or give up: each takes an owner and an offset."""


def claim_operations(
    paths: GroupPaths, consumer: str, command: Command, incarnation: str, partitions: Iterable[TopicPartition]
) -> list[Operation]:
    """Owner znodes for `partitions`, each with the thread that the command assigns it to."""
    claimed = frozenset(partitions)
    owners: dict[TopicPartition, bytes] = {}
    for thread, parts in command.threads.items():
        data = OwnerRecord(thread, consumer, incarnation, command.generation).to_bytes()
        owners |= dict.fromkeys(parts & claimed, data)
    return [Create(paths.owner(*partition), owners[partition], ephemeral=True) for partition in sorted(claimed)]


def offset_operations(
    paths: GroupPaths, channel: Channel, partitions: Iterable[TopicPartition], known: PartitionSet
) -> list[Operation]:
    """The offset znodes from which the next owners of `partitions` continue.

    The znode of an offset that was never read stays unchanged.

    :param known: partitions that have an offset znode already.
    """
    written: list[Operation] = []
    for partition in sorted(partitions):
        if record := channel.offset_record(partition):
            path, data = paths.offset(*partition), record.to_bytes()
            written.append(SetData(path, data) if partition in known else Create(path, data))
    return written


def release_operations(
    paths: GroupPaths, channel: Channel, partitions: Iterable[TopicPartition], known: PartitionSet, owned: PartitionSet
) -> list[Operation]:
    """Offsets written, owner znodes (those of `owned`) removed."""
    released = sorted(partitions)
    owners: list[Operation] = [Delete(paths.owner(*partition)) for partition in released if partition in owned]
    return offset_operations(paths, channel, released, known) + owners


def after_command(channel: Channel, name: str, command: Command, refused: PartitionSet = NONE) -> Channel:
    """The channel once `command` has been applied, except `running`; `refused` could not be claimed."""
    ask = channel.ask if command.partitions else command.ask
    after = replace(channel, epoch=command.epoch, generation=command.generation, command=name, refused=refused)
    return replace(after, ask=ask, region=_progress(channel.region, command))


def _progress(before: Progress | None, command: Command) -> Progress | None:
    """Of a member of a consistent region: a start belongs to a reset, its state not restored yet; a stop ends both."""
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
    """Removes the command; in a multi before the last of several, checks that it still exists."""
    path = paths.command(consumer, name)
    return Delete(path) if is_last else Check(path, -1)


def chunks(partitions: Iterable[TopicPartition], size: int = PARTITIONS_A_STEP) -> list[Sequence[TopicPartition]]:
    """`partitions` in order, in chunks of `size`; one empty chunk when there is none."""
    return list(in_chunks(sorted(partitions), size)) or [[]]
