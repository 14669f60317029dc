"""Parsing of znode data for the checker: fast for this release's format, else by the strict records.

Five thousand events are checked in some twenty milliseconds, and most of them are seals: their channel and segment are
parsed here without building the records of `coordinator.zk`. Any other format is parsed by those, and data that they
refuse counts as unreadable (None): a manual edit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.records import (
    START_FETCHER,
    STOP_FETCHER,
    BegunRecord,
    Command,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Registration,
    Seat,
    Topic,
)
from coordinator.zk.znodes.regions import GroupRegion, Order
from coordinator.zk.znodes.segments import Query, Segment

from .fast_json import NUMBERS, UNUSUAL, Partition, loads, partitions, strictly

Range = tuple[str, str, int, int, int]
"""Topic, topic id, partition, first offset, next offset; equal to a `SealedRange`."""

# Bound at import: a checker of a deliberately broken product must not use the broken parts.
_PARSE_STATE, _PARSE_COMMAND, _PARSE_SEGMENT = GroupState.parse, Command.parse, Segment.parse
_PARSE_OFFSET, _PARSE_OWNER, _PARSE_EPOCH = OffsetRecord.parse, OwnerRecord.parse, EpochRecord.parse
_PARSE_TOPIC, _PARSE_REGISTRATION, _PARSE_QUERY = Topic.parse, Registration.parse, Query.parse
_PARSE_BEGUN, _PARSE_SEAT = BegunRecord.parse, Seat.parse


@dataclass(slots=True, eq=False)
class TargetData:
    """One member's target."""

    incarnation: str
    partitions: frozenset[Partition]


@dataclass(slots=True, eq=False)
class ClientData:
    """`client` of a group's state.

    :ivar ask: the ask of the target; empty before the first.
    :ivar failed_ask: the last failed one since then.
    """

    protocol_type: str
    ask: str
    failed_ask: str


@dataclass(slots=True, eq=False)
class StateData:
    """A group's state.

    :ivar client: None under the coordinator's strategies.  :ivar region: the group's consistent region.
    :ivar marks: (consumer, incarnation) -> partitions.  :ivar leases: likewise -> the lease to wait for, in seconds.
    :ivar raw: the target as written.
    :ivar twice: a partition with two members in the target, None without one.
    """

    state: str
    generation: int
    epoch: int
    strategy: str
    target: Mapping[str, TargetData] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[tuple[str, str], frozenset[Partition]] = field(default_factory=dict)
    leases: Mapping[tuple[str, str], float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    raw: object = None
    twice: Partition | None = None
    client: ClientData | None = None
    region: GroupRegion | None = None


@dataclass(slots=True, eq=False)
class CommandData:
    """A command; `partitions` are all of a start, or those to revoke of a stop (none: all).

    :ivar option: as written. Only starts and stops change what runs.
    :ivar ask: the ask of `assign` and `assignment-failed`, and of a start whose target is from one.
    :ivar region: of a command in a consistent region.
    """

    option: str
    epoch: int
    generation: int
    incarnation: str
    partitions: frozenset[Partition]
    ask: str
    region: Order | None

    @property
    def is_start(self) -> bool:
        return self.option == START_FETCHER

    @property
    def is_stop(self) -> bool:
        return self.option == STOP_FETCHER


@dataclass(slots=True, eq=False)
class OffsetData:
    """An offset; `start` is how it was resolved, empty once committed."""

    offset: int
    topic_id: str
    start: str


def read_state(path: str, text: str, before: StateData | None) -> StateData | None:
    """A group's state; None when it cannot be read.

    :param before: the last one: most writes leave the target unchanged.
    """
    try:
        values = loads(text)
        found = StateData(values["state"], values["generation"], values["epoch"], values["strategy"])
        if not (type(found.state) is str and type(found.generation) is type(found.epoch) is int):
            raise TypeError(path)
        found.topics, found.left_out = dict(values["topics"]), dict(values["left_out"])
        found.marks = {
            (mark["consumer"], mark["incarnation"]): partitions(mark["partitions"]) for mark in values["marks"]
        }
        found.leases = {(mark["consumer"], mark["incarnation"]): mark["lease_ms"] / 1000 for mark in values["marks"]}
        found.client = _client(values.get("client"))
        found.region = _region(values.get("region"))
        found.raw = values["target"]
        if before is not None and before.raw == found.raw:
            found.target, found.twice = before.target, before.twice
        else:
            _take_target(found, values["target"])
        return found
    except UNUSUAL:
        return strictly(_state, path, text)


def _region(values: Any) -> GroupRegion | None:
    if values is None:
        return None
    found = GroupRegion(values["name"], values["ready"], tuple(values.get("away", ())))
    if type(found.name) is not str or type(found.ready) is not int or not all(type(each) is str for each in found.away):
        raise TypeError(values)
    return found


def _client(values: Any) -> ClientData | None:
    if values is None:
        return None
    found = ClientData(values["protocol_type"], values["ask"], values.get("failed_ask", ""))
    if not type(found.protocol_type) is type(found.ask) is type(found.failed_ask) is str:
        raise TypeError(values)
    return found


def _take_target(found: StateData, target: Mapping[str, Any]) -> None:
    read = {}
    seen: set[Partition] = set()
    for consumer, share in target.items():
        own: set[Partition] = set()
        for by_topic in share["ownershipMap"].values():
            parts = partitions(by_topic)
            if found.twice is None and not (seen.isdisjoint(parts) and own.isdisjoint(parts)):
                found.twice = min(parts & (seen | own))
            own |= parts
        seen |= own
        read[consumer] = TargetData(share["incarnation"], frozenset(own))
    found.target = read


def _state(path: str, data: bytes) -> StateData:
    parsed = _PARSE_STATE(path, data)
    found = StateData(parsed.state, parsed.generation, parsed.epoch, parsed.strategy)
    found.topics, found.left_out = parsed.topics, parsed.left_out
    found.marks = {(mark.consumer, mark.incarnation): frozenset(mark.partitions) for mark in parsed.marks}
    found.leases = {(mark.consumer, mark.incarnation): mark.lease_ms / 1000 for mark in parsed.marks}
    found.region = parsed.region
    if (client := parsed.client) is not None:
        found.client = ClientData(client.protocol_type, client.ask, client.failed_ask)
    _take_target(found, {name: target.to_json() for name, target in parsed.target.items()})
    return found


def read_command(path: str, text: str) -> CommandData | None:
    """A command; None when it cannot be read."""

    def parse(path: str, data: bytes) -> CommandData:
        command = _PARSE_COMMAND(path, data)
        partitions = frozenset(command.started if command.option == START_FETCHER else command.partitions)
        return CommandData(
            command.option,
            command.epoch,
            command.generation,
            command.incarnation,
            partitions,
            command.ask,
            command.region,
        )

    return strictly(parse, path, text)


def read_offset(path: str, text: str) -> OffsetData | None:
    """An offset; None when it cannot be read."""
    try:
        values = loads(text)
        found = OffsetData(values["offset"], values["topic_id"], values.get("start") or "")
        if type(found.offset) is int and type(found.topic_id) is type(found.start) is str:
            return found
    except UNUSUAL:
        pass
    return strictly(_offset, path, text)


def _offset(path: str, data: bytes) -> OffsetData:
    record = _PARSE_OFFSET(path, data)
    return OffsetData(record.offset, record.topic_id, record.start)


def read_begun(path: str, text: str) -> BegunRecord | None:
    """The topic as of a group's begin; None when it cannot be read."""
    return strictly(_PARSE_BEGUN, path, text)


def read_segment(path: str, text: str) -> tuple[str, tuple[Range, ...]] | None:
    """A segment's consumer and ranges; None when it cannot be read."""
    try:
        values = loads(text)
        consumer, ids = values["consumer"], values["topics"]
        found = []
        for topic, partitions in values["ranges"].items():
            topic_id = ids[topic]
            for key, (first, following) in partitions.items():
                if not type(first) is type(following) is int:
                    raise TypeError(key)
                found.append((topic, topic_id, NUMBERS[key], first, following))
        if type(consumer) is str:
            return consumer, tuple(found)
    except UNUSUAL:
        pass
    return strictly(_segment, path, text)


def _segment(path: str, data: bytes) -> tuple[str, tuple[Range, ...]]:
    segment = _PARSE_SEGMENT(path, data)
    return segment.consumer, tuple((r.topic, r.topic_id, r.partition, r.first, r.next) for r in segment.ranges)


def read_missing(text: str) -> dict[Partition, int]:
    """Number of offsets without a record per partition of a readable segment; empty in another release's format."""
    if '"missing"' not in text:
        return {}
    try:
        counts = loads(text)["missing"]
        return {(topic, NUMBERS[key]): int(count) for topic, parts in counts.items() for key, count in parts.items()}
    except UNUSUAL:
        return {}


def read_topic(path: str, name: str, text: str, czxid: int) -> Topic | None:
    """A topic; None when it cannot be read."""
    return strictly(lambda path, data: _PARSE_TOPIC(path, name, data, czxid), path, text)


def read_registration(path: str, text: str) -> Registration | None:
    """A registration; None when it cannot be read."""
    return strictly(_PARSE_REGISTRATION, path, text)


def read_query(path: str, text: str) -> Query | None:
    """A query; None when it cannot be read."""
    return strictly(_PARSE_QUERY, path, text)


def read_owner(path: str, text: str) -> OwnerRecord | None:
    """An owner; None when it cannot be read."""
    return strictly(_PARSE_OWNER, path, text)


def read_seat(path: str, text: str) -> Seat | None:
    """A seat; None when it cannot be read."""
    return strictly(_PARSE_SEAT, path, text)


def read_epoch(path: str, text: str) -> int | None:
    """An epoch; None when it cannot be read."""
    record = strictly(_PARSE_EPOCH, path, text)
    return record.epoch if record is not None else None
