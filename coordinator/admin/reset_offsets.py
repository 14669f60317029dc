"""Decisions of `groups reset-offsets`: the partitions, and the new offset of each. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

from ..zk.errors import CoordinatorError, UsageError
from ..zk.values import epoch_ms, whole
from ..zk.znodes import ranges
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import is_name, shown
from ..zk.znodes.records import Topic

TO_OFFSET, TO_EARLIEST, TO_LATEST, TO_CURRENT = "to-offset", "to-earliest", "to-latest", "to-current"
TO_DATETIME, BY_DURATION, SHIFT_BY, FROM_FILE = "to-datetime", "by-duration", "shift-by", "from-file"
SCENARIOS = (TO_OFFSET, TO_EARLIEST, TO_LATEST, TO_CURRENT, TO_DATETIME, BY_DURATION, SHIFT_BY, FROM_FILE)

_DURATION = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,12})H)?(?:(\d{1,12})M)?(?:(\d{1,15}(?:[.,]\d{1,9})?)S)?)?", re.ASCII
)

Plan = Mapping[TopicPartition, int]
"""One group's offsets in a file."""


@dataclass(frozen=True, slots=True)
class Scope:
    """`--topic T[:0,1]`; `partitions` is None for all partitions of the topic."""

    topic: str
    partitions: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """The position to reset to.

    :ivar kind: one of `SCENARIOS`.
    :ivar number: the offset of `to-offset`, the shift of `shift-by`.
    :ivar timestamp_ms: of `to-datetime` and `by-duration`, since the epoch; None with every other.
    """

    kind: str
    number: int = 0
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A partition, with the offsets of the group and of its log.

    :ivar topic_id: of the current topic.
    :ivar current: the group's offset; None when it has none for this topic.
    :ivar version: the data version of the offset's znode, None when there is none.
    :ivar earliest: offset of the oldest record.  :ivar latest: offset of the next record to be written.
    :ivar at: offset of the first record at or after the scenario's time; `latest` when there is none.
    """

    partition: TopicPartition
    topic_id: str
    current: int | None
    version: int | None
    earliest: int
    latest: int
    at: int | None = None


@dataclass(frozen=True, slots=True)
class NewOffset:
    """A partition's new offset; `warning` reports a difference from the requested offset."""

    known: PartitionOffsets
    offset: int
    warning: str | None = None


# ---- parsing options


def parse_scope(text: str) -> Scope:
    """
    :raises UsageError: when it is not of the form `topic` or `topic:0,1,2` (or `topic:0-2`).
    """
    topic, colon, numbers = text.partition(":")
    if not is_name(topic):
        raise UsageError(f"{shown(text)} names no topic: write --topic TOPIC, or TOPIC:0,1,2 for single partitions")
    if not colon:
        return Scope(topic)
    try:
        partitions = frozenset(ranges.decode(numbers.replace(" ", "")))
    except ValueError as error:
        raise UsageError(f"{shown(text)} names no partitions: write --topic {topic}:0,1,2") from error
    if not partitions:
        raise UsageError(f"{shown(text)} names no partitions: write --topic {topic}, or {topic}:0,1,2")
    return Scope(topic, partitions)


def parse_datetime(text: str) -> int:
    """Milliseconds since the epoch of `2026-11-21T10:00:00.000`, with or without a zone; without one it is UTC.

    :raises UsageError: when it cannot be parsed.
    """
    try:
        return epoch_ms(text)
    except ValueError as error:
        raise UsageError(f"{shown(text)} is no date and time: write it as 2026-11-21T10:00:00.000") from error


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO-8601 duration `PnDTnHnMnS`.

    :raises UsageError: when it cannot be parsed.
    """
    match = _DURATION.fullmatch(text.upper())
    if match is None or not any(match.groups()):
        raise UsageError(f"{shown(text)} is no duration: write it as PnDTnHnMnS, for example P1DT2H or PT30M")
    days, hours, minutes, seconds = (Decimal((part or "0").replace(",", ".")) for part in match.groups())
    total_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return int((total_s * 1000).to_integral_value(ROUND_FLOOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """The options of `groups reset-offsets`, without the groups.

    :ivar now_ms: the wall clock, from which `by_duration` counts back.
    :raises UsageError: when the options contradict each other, or one cannot be parsed.
    """

    topics: tuple[str, ...] = ()
    all_topics: bool = False
    to_offset: int | None = None
    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_datetime: str | None = None
    by_duration: str | None = None
    shift_by: int | None = None
    from_file: Path | None = None
    dry_run: bool = False
    execute: bool = False
    now_ms: int = 0

    def __post_init__(self) -> None:
        to = self.to
        if to.kind == FROM_FILE:
            if self.topics or self.all_topics:
                raise UsageError("--from-file contains the partitions: give neither --topic nor --all-topics with it")
        elif bool(self.topics) == self.all_topics:
            raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
        _ = self.scopes
        if self.dry_run and self.execute:
            raise UsageError("--dry-run and --execute contradict each other: give one of them")

    @property
    def to(self) -> Scenario:
        """The requested scenario."""
        values = {name: getattr(self, name.replace("-", "_")) for name in SCENARIOS}
        asked = [name for name, value in values.items() if value is not None and value is not False]
        if len(asked) != 1:
            every = ", ".join(f"--{name}" for name in SCENARIOS)
            given = f"not {' and '.join(f'--{name}' for name in asked)}" if asked else "there is none"
            raise UsageError(f"exactly one of {every} is required; {given}")
        if self.to_datetime is not None:
            return Scenario(TO_DATETIME, timestamp_ms=max(0, parse_datetime(self.to_datetime)))
        if self.by_duration is not None:
            return Scenario(BY_DURATION, timestamp_ms=max(0, self.now_ms - parse_duration(self.by_duration)))
        if self.to_offset is not None:
            return Scenario(TO_OFFSET, whole("offset", self.to_offset))
        return Scenario(asked[0], self.shift_by or 0)

    @property
    def scopes(self) -> list[Scope] | None:
        """The scopes of `--topic`; None for all topics, or those of the file."""
        return [parse_scope(text) for text in self.topics] or None


# ---- files


def parse_plans(text: str, groups: Sequence[str]) -> dict[str, Plan]:
    """Group -> offsets, of rows `group,topic,partition,offset`, or for one group `topic,partition,offset`.

    :param groups: the named groups; rows of others are ignored.
    :raises UsageError: when a row has another form, or a partition occurs twice.
    """
    plans: dict[str, dict[TopicPartition, int]] = {}
    reader = csv.reader(io.StringIO(text))
    columns = 0
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        cells = [cell.strip() for cell in row]
        columns = columns or len(cells)
        group, partition, offset = _row(cells, columns, groups, reader.line_num)
        plan = plans.setdefault(group, {})
        if partition in plan:
            raise UsageError(f"line {reader.line_num} repeats {partition} of group {group}")
        plan[partition] = offset
    return {group: plan for group, plan in plans.items() if group in groups}


def _row(cells: list[str], columns: int, groups: Sequence[str], line: int) -> tuple[str, TopicPartition, int]:
    if columns not in (3, 4) or len(cells) != columns:
        form = "topic,partition,offset" if columns == 3 else "group,topic,partition,offset"
        raise UsageError(f"line {line} is not of the form {form}: {shown(','.join(cells))}")
    if columns == 3 and len(groups) != 1:
        raise UsageError(
            "rows of topic,partition,offset are for one group: name it, or write group,topic,partition,offset"
        )
    group, topic, number, offset = cells if columns == 4 else (groups[0], *cells)
    if not is_name(topic) or not ranges.is_partition(number) or not re.fullmatch(r"-?[0-9]{1,19}", offset):
        raise UsageError(f"line {line} names no topic, partition and offset: {shown(','.join(cells))}")
    return group, TopicPartition(topic, int(number)), whole(f"offset (line {line})", int(offset))


def to_csv(rows: Iterable[tuple[str, TopicPartition, int]], with_group: bool) -> str:
    """The inverse of `parse_plans`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, (topic, number), offset in rows:
        writer.writerow([*([group] if with_group else []), topic, number, offset])
    return out.getvalue()


# ---- the partitions


def chosen(scopes: Iterable[Scope], topics: Mapping[str, Topic]) -> list[TopicPartition]:
    """The partitions selected by `--topic`.

    :raises UsageError: when there is no such topic or partition.
    """
    selected: set[TopicPartition] = set()
    for scope in scopes:
        if scope.topic not in topics:
            raise UsageError(f"there is no topic {scope.topic}")
        numbers = topics[scope.topic].partitions if scope.partitions is None else scope.partitions
        selected |= {TopicPartition(scope.topic, number) for number in numbers}
    return checked(selected, topics)


def checked(partitions: Collection[TopicPartition], topics: Mapping[str, Topic]) -> list[TopicPartition]:
    """`partitions`, sorted.

    :raises UsageError: when one of them does not exist.
    """
    for partition in sorted(partitions):
        if why := missing(partition, topics):
            raise UsageError(why)
    return sorted(partitions)


def missing(partition: TopicPartition, topics: Mapping[str, Topic]) -> str | None:
    """Why the partition does not exist, None when it does."""
    topic = topics.get(partition.topic)
    if topic is None:
        return f"there is no topic {partition.topic}"
    is_there = partition.partition in topic.partitions
    return None if is_there else f"topic {topic.name} has no partition {partition.partition}"


# ---- the offset


def planned(to: Scenario, known: PartitionOffsets, wanted: Plan | None = None) -> NewOffset:
    """The new offset of a partition, as kafka-consumer-groups decides it.

    :param wanted: the file's offsets, with `from-file`.
    :raises CoordinatorError: when the partition has no offset to shift.
    """
    current = known.latest if known.current is None else known.current
    standing = {TO_EARLIEST: known.earliest, TO_LATEST: known.latest, TO_CURRENT: current}
    if to.kind in standing:
        return NewOffset(known, standing[to.kind])
    if to.timestamp_ms is not None:
        if known.at is not None and known.at < known.latest:
            return NewOffset(known, known.at)
        topic, number = known.partition
        warning = f"Partition {number} from topic {topic} is empty. Falling back to latest known offset."
        return NewOffset(known, known.latest, warning)
    if to.kind == SHIFT_BY:
        if known.current is None:
            raise CoordinatorError(
                f"Cannot shift offset for partition {known.partition} since there is no current committed offset"
            )
        return _within(known, known.current + to.number)
    return _within(known, to.number if wanted is None else wanted[known.partition])


def _within(known: PartitionOffsets, offset: int) -> NewOffset:
    """`offset`, or the nearest end of the log."""
    bound = min(max(offset, known.earliest), known.latest)
    if offset == bound:
        return NewOffset(known, offset)
    what = "higher than latest" if offset > bound else "lower than earliest"
    warning = f"New offset ({offset}) is {what} offset for topic partition {known.partition}."
    return NewOffset(known, bound, f"{warning} Value will be set to {bound}")
