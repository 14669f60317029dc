"""The znodes of topics, the coordinator and consumers: one frozen record per kind, with its JSON.

`parse` takes the path (for messages) and the data, and raises `BadData`. Commands are in `commands.py`, group states in
`group_state.py`, segments and queries in `segments.py`; `zk_paths.md` describes each field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from . import ranges
from .json_fields import Fields, changed, compact
from .names import is_name
from .partitions import (
    CAUSE,
    LOST,
    NONE,
    Discontinuities,
    Discontinuity,
    PartitionSet,
    TopicPartition,
    nested,
    partition_set,
    range_texts,
)
from .regions import PATTERN_PREFIX, Progress, RegionMembership
from .sync import CLIENT, CONSUMER, ClientProtocols

STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"
PATTERNS = (STATIC, WHITE_LIST, BLACK_LIST)
MAX_TOPIC_BYTES = 1_000_000
MOST_GROUPS = 100

# Kafka's error names: the `error` of an ended channel, and the consumer's errors.
UNKNOWN_MEMBER_ID = "UnknownMemberId"
"""No longer a member: evicted, removed, session expired, not polled. It may rejoin as a new incarnation."""

FENCED_INSTANCE_ID = "FencedInstanceId"
"""A newer process has the member's name; the fenced one must not rejoin under it."""

INCONSISTENT_GROUP_PROTOCOL = "InconsistentGroupProtocol"
"""None of the member's strategies is supported by every member of the group."""

GROUP_MAX_SIZE_REACHED = "GroupMaxSizeReached"
"""The group has its maximum number of members."""

INCONSISTENT_REGION = "InconsistentRegion"
"""The group is in another consistent region, or in none."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, from `/brokers/topics/[topic]`.

    :ivar id: Kafka's topic id; without one `czxid-…`, so that a recreated topic is another topic.
    :ivar partitions: its partition numbers, in order.
    :ivar czxid: of its znode, its creation; 0 when unknown.
    """

    name: str
    id: str
    partitions: tuple[int, ...]
    czxid: int = field(default=0, compare=False, repr=False)

    @classmethod
    def parse(cls, where: str, name: str, data: bytes, czxid: int) -> Topic:
        fields = Fields.parse(where, data, most=MAX_TOPIC_BYTES)
        numbers = fields.mapping("partitions")
        if not all(ranges.is_partition(key) for key in numbers):
            raise fields.bad("partitions", "an object with partition numbers as keys")
        topic_id = fields.optional_text("topic_id", most=64) or f"czxid-{czxid:x}"
        return cls(name, topic_id, tuple(sorted(int(key) for key in numbers)), czxid)

    def to_bytes(self) -> bytes:
        """As Kafka 2.8 and later write it (data version 3), without replicas."""
        return compact(
            {
                "version": 3,
                "topic_id": self.id,
                "partitions": {str(number): [] for number in self.partitions},
                "adding_replicas": {},
                "removing_replicas": {},
            }
        )

    def over(self, where: str, data: bytes) -> bytes:
        """`data` with this id and these partitions; its other fields stay.

        :raises BadData: when `data` is no topic.
        """
        partitions: dict[str, Any] = {str(number): [] for number in self.partitions}
        kept = Fields.parse(where, data, most=MAX_TOPIC_BYTES).mapping("partitions")
        values = {"topic_id": self.id, "partitions": {**partitions, **kept}}
        return changed(where, data, values, most=MAX_TOPIC_BYTES)


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """`/consumers/coordinator`: the elected coordinator."""

    node: str
    host: str
    epoch: int

    @classmethod
    def parse(cls, where: str, data: bytes) -> CoordinatorRecord:
        fields = Fields.parse(where, data)
        return cls(fields.text("node"), fields.text("host", ""), fields.count("epoch"))

    def to_bytes(self) -> bytes:
        return compact({"node": self.node, "host": self.host, "epoch": self.epoch})


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """`/consumers/nodes/[session]`: a node that runs, elected or on standby."""

    node: str
    host: str

    @classmethod
    def parse(cls, where: str, data: bytes) -> NodeRecord:
        fields = Fields.parse(where, data)
        return cls(fields.text("node"), fields.text("host", ""))

    def to_bytes(self) -> bytes:
        return compact({"node": self.node, "host": self.host})


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """`/consumers/coordinator_epoch`: its data version is the coordinator's fence, its number the epoch."""

    epoch: int

    @classmethod
    def parse(cls, where: str, data: bytes) -> EpochRecord:
        return cls(Fields.parse(where, data).count("epoch"))

    def to_bytes(self) -> bytes:
        return compact({"epoch": self.epoch})


@dataclass(frozen=True, slots=True)
class Registration:
    """`ids/[consumer]`: a consumer's subscription and options.

    :ivar subscription: topic -> threads, or for a wildcard one regular expression -> threads. Of a member with
        client-side assignment only (`pattern` is `client`) the topics that it names, for people and tools.
    :ivar lease_ms: how long it may fetch after its last heartbeat.
    :ivar instance_id: a static member's `group_instance_id`, empty for a dynamic one.
    :ivar client: its client-side assignment protocols, None for a member without them.
    :ivar seal_interval_ms: its seal interval; 0 for a member without one.
    :ivar region: its consistent region.
    :ivar took_over_ms: when the live incarnation that it replaced under its name last wrote its channel, by ZooKeeper's
        clock; 0 without one.
    """

    incarnation: str
    subscription: Mapping[str, int]
    pattern: str = STATIC
    host: str = ""
    protocols: tuple[str, ...] = ("range",)
    lease_ms: int = 0
    max_poll_interval_ms: int = 300_000
    user_data: str = ""
    seal_interval_ms: int = 0
    instance_id: str = ""
    client: ClientProtocols | None = None
    region: RegionMembership | None = None
    took_over_ms: int = 0

    @property
    def protocol_type(self) -> str:
        """The protocol type of its group."""
        return self.client.protocol_type if self.client is not None else CONSUMER

    @classmethod
    def parse(cls, where: str, data: bytes) -> Registration:
        fields = Fields.parse(where, data, most=256_000)
        prefixed = fields.text("pattern", STATIC)
        pattern = prefixed.removeprefix(PATTERN_PREFIX)
        region = fields.inner("region", RegionMembership.read)
        if (pattern != prefixed) != (region is not None):
            raise fields.bad("region", f"an object, where `pattern` begins with {PATTERN_PREFIX}")
        if pattern not in (*PATTERNS, CLIENT):
            raise fields.bad("pattern", "static, white_list, black_list or client")
        client = fields.inner("client", ClientProtocols.read)
        if pattern == CLIENT and client is None:
            raise fields.bad("client", "an object with protocols, since `pattern` is client")
        return cls(
            incarnation=fields.text("incarnation", most=64),
            subscription=_subscription(fields, pattern),
            pattern=pattern,
            host=fields.text("host", ""),
            protocols=fields.strings("protocols") or ("range",),
            lease_ms=fields.number("lease_ms", 0, most=86_400_000),
            max_poll_interval_ms=fields.number("max_poll_interval_ms", 300_000, least=1, most=2**31 - 1),
            user_data=fields.text("user_data", "", most=65536),
            seal_interval_ms=fields.number("seal_interval_ms", 0, most=2**31 - 1),
            instance_id=fields.text("instance_id", "", most=250),
            client=client,
            region=region,
            took_over_ms=fields.number("took_over_ms", 0),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields of the znode."""
        return {
            "subscription": dict(self.subscription),
            "pattern": self.pattern if self.region is None else f"{PATTERN_PREFIX}{self.pattern}",
            "incarnation": self.incarnation,
            "host": self.host,
            "protocols": list(self.protocols),
            "lease_ms": self.lease_ms,
            "max_poll_interval_ms": self.max_poll_interval_ms,
            **({"user_data": self.user_data} if self.user_data else {}),
            **({"seal_interval_ms": self.seal_interval_ms} if self.seal_interval_ms else {}),
            **({"instance_id": self.instance_id} if self.instance_id else {}),
            **({"client": self.client.to_json()} if self.client is not None else {}),
            **({"region": self.region.to_json()} if self.region is not None else {}),
            **({"took_over_ms": self.took_over_ms} if self.took_over_ms else {}),
        }

    def to_bytes(self) -> bytes:
        return compact(self.to_json())


def _subscription(fields: Fields, pattern: str) -> dict[str, int]:
    values = fields.mapping("subscription")
    names_ok = all(is_name(key) for key in values) if pattern in (STATIC, CLIENT) else len(values) == 1
    if not names_ok or not all(type(threads) is int and 1 <= threads <= 10_000 for threads in values.values()):
        raise fields.bad("subscription", "an object topic (or one pattern) -> number of threads from 1 to 10000")
    return dict(values)


Running = Mapping[TopicPartition, int | None]
"""Partition -> next offset; None until the offset has been read."""


@dataclass(frozen=True, slots=True)
class Channel:
    """`channel/[consumer]`: what the consumer runs. Its data version is the consumer's fence.

    :ivar epoch: with `generation`, those of the last command applied.
    :ivar command: the name of the last command applied.
    :ivar topics: the ids of the running topics.
    :ivar ended: why the incarnation is over, None while it lives.
    :ivar error: the same as a Kafka error name (above), for programs; empty after a voluntary leave.
    :ivar discontinuities: of running partitions from whose position nothing has been sealed yet.
    :ivar refused: partitions of the last start whose owner znode existed already.
    :ivar sealed: the file of the last sealed segment.
    :ivar region: the member's progress in its consistent region.
    :ivar ask: the ask of the last start applied, under client-side assignment; for a protocol type other than
        `consumer` it is what the member runs, and empty once it has stopped.
    """

    incarnation: str
    epoch: int = 0
    generation: int = 0
    command: str = ""
    running: Running = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    ended: str | None = None
    refused: PartitionSet = NONE
    sealed: str = ""
    touched: int = 0
    error: str = ""
    ask: str = ""
    region: Progress | None = None
    discontinuities: Discontinuities = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, data: bytes) -> Channel:
        fields = Fields.parse(where, data)
        return cls(
            incarnation=fields.text("incarnation", most=64),
            epoch=fields.count("epoch", 0),
            generation=fields.count("generation", 0),
            command=fields.text("command", "", most=64),
            running=fields.by_partition("running", _next_offset, "next offset"),
            topics=fields.texts("topics"),
            ended=fields.optional_text("ended"),
            refused=partition_set(fields.partitions("refused")),
            sealed=fields.text("sealed", ""),
            touched=fields.count("touched", 0),
            error=fields.text("error", "", most=64),
            ask=fields.text("ask", "", most=64),
            region=fields.inner("region", Progress.read),
            discontinuities=fields.by_partition("discontinuities", Discontinuity.read, CAUSE),
        )

    def to_bytes(self) -> bytes:
        return compact(
            {
                "incarnation": self.incarnation,
                "epoch": self.epoch,
                "generation": self.generation,
                "command": self.command,
                "running": nested(self.running),
                "topics": dict(self.topics),
                "ended": self.ended,
                **({"ask": self.ask} if self.ask else {}),
                **({"region": self.region.to_json()} if self.region is not None else {}),
                **({"error": self.error} if self.error else {}),
                **({"refused": range_texts(self.refused)} if self.refused else {}),
                **({"sealed": self.sealed} if self.sealed else {}),
                **({"touched": self.touched} if self.touched else {}),
                **({"discontinuities": nested(self.discontinuities)} if self.discontinuities else {}),
            }
        )

    @property
    def is_live(self) -> bool:
        """Whether its incarnation has not ended."""
        return bool(self.incarnation) and self.ended is None

    def without(self, partitions: Iterable[TopicPartition]) -> Channel:
        """The same with `partitions` no longer running."""
        removed = set(partitions)
        running = {key: offset for key, offset in self.running.items() if key not in removed}
        kept = {key.topic for key in running}
        topics = {topic: id_ for topic, id_ in self.topics.items() if topic in kept}
        causes = {key: cause for key, cause in self.discontinuities.items() if key in running}
        return replace(self, running=running, topics=topics, discontinuities=causes)

    def advanced(
        self, offsets: Mapping[TopicPartition, int], lost: Mapping[TopicPartition, int], sealed: str = ""
    ) -> Channel:
        """The same with these offsets.

        :param lost: of those that were out of range, the first offset that the log did not have.
        :param sealed: the file with the records before them, if there is one.
        """
        repeated = {part for part, offset in lost.items() if offset == offsets[part]}  # its reply was lost before
        causes = {part: why for part, why in self.discontinuities.items() if part in repeated or part not in offsets}
        causes |= {part: Discontinuity(LOST, offset) for part, offset in lost.items() if part not in repeated}
        running = {**self.running, **offsets}
        return replace(self, running=running, discontinuities=causes, sealed=sealed or self.sealed)

    def over(self, reason: str, error: str) -> Channel:
        """The same once its incarnation has ended; nothing runs."""
        return replace(self.without(self.running), ended=reason, error=error, refused=NONE, ask="")

    def offset_record(self, partition: TopicPartition) -> OffsetRecord | None:
        """The offset of a running partition for its next owner; None while it has not been read."""
        offset, topic_id = self.running.get(partition), self.topics.get(partition.topic, "")
        cause = self.discontinuities.get(partition)
        return None if offset is None else OffsetRecord(offset, topic_id, self.generation, discontinuity=cause)


def _next_offset(value: object) -> int | None:
    if value is None or (type(value) is int and 0 <= value < 2**63):
        return value
    raise ValueError


NO_CHANNEL = Channel(incarnation="")
"""A channel znode without data: it has had no incarnation yet."""


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """`owners/[topic]/[partition]`: the owning thread."""

    thread: str
    consumer: str
    incarnation: str
    generation: int

    @classmethod
    def parse(cls, where: str, data: bytes) -> OwnerRecord:
        fields = Fields.parse(where, data)
        return cls(
            fields.text("thread", most=300),
            fields.text("consumer", most=250),
            fields.text("incarnation", most=64),
            fields.count("generation"),
        )

    def to_bytes(self) -> bytes:
        return compact({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """`offsets/[topic]/[partition]`: the committed offset, where the next owner resumes.

    :ivar start: how the initial offset was resolved; empty once an offset was committed or set.
    :ivar discontinuity: while nothing has been sealed from it.
    """

    offset: int
    topic_id: str
    generation: int
    start: str = ""
    discontinuity: Discontinuity | None = None

    @classmethod
    def parse(cls, where: str, data: bytes) -> OffsetRecord:
        fields = Fields.parse(where, data)
        return cls(
            fields.number("offset"),
            fields.text("topic_id", most=64),
            fields.count("generation", 0),
            fields.text("start", "", most=64),
            fields.value("discontinuity", Discontinuity.read, CAUSE),
        )

    def to_bytes(self) -> bytes:
        values = {"offset": self.offset, "topic_id": self.topic_id, "generation": self.generation}
        optional = {"start": self.start, "discontinuity": self.discontinuity}
        return compact(values | {name: value for name, value in optional.items() if value})


@dataclass(frozen=True, slots=True)
class BegunRecord:
    """`offsets/[topic]`: the topic as it was when the group began with it.

    :ivar topic_id: of the topic at that time.
    :ivar partitions: the partitions at that time: a start position is for these, not for later ones.
    """

    topic_id: str
    partitions: Set[int]

    @classmethod
    def parse(cls, where: str, data: bytes) -> BegunRecord:
        fields = Fields.parse(where, data)
        try:
            partitions = ranges.decode(fields.text("partitions", "", most=MAX_TOPIC_BYTES))
        except ValueError as error:
            raise fields.bad("partitions", "partition ranges, as 0-3,7") from error
        return cls(fields.text("topic_id", most=64), partitions)

    def to_bytes(self) -> bytes:
        return compact({"topic_id": self.topic_id, "partitions": ranges.encode(self.partitions)})

    @classmethod
    def of(cls, topic: Topic, group_czxid: int) -> BegunRecord:
        """The record of a group that begins with `topic` now.

        A topic that is newer than the group has no initial partitions.

        :param group_czxid: of the group's znode, its creation; 0 when unknown.
        """
        is_older = topic.czxid < group_czxid or not group_czxid
        return cls(topic.id, frozenset(topic.partitions if is_older else ()))

    def came_later(self, topic_id: str, partition: int) -> bool:
        """Whether a partition of the topic with this id was added after the group began."""
        return topic_id != self.topic_id or partition not in self.partitions


def parsed_channel(where: str, data: bytes) -> Channel:
    """A channel's data, `NO_CHANNEL` when it is empty.

    :raises BadData: when it is neither.
    """
    return Channel.parse(where, data) if data else NO_CHANNEL


@dataclass(frozen=True, slots=True)
class Seat:
    """`seats/[instance]`: a static member's registration, kept while it is away, and over a failover (KIP-345).

    :ivar registration: of its last incarnation; the seat's name is its `instance_id`.
    :ivar session_timeout_ms: how long the seat is kept after the member has left.
    :ivar removed: why an operator removed the seat, else None.
    """

    registration: Registration
    session_timeout_ms: int
    removed: str | None = None

    @classmethod
    def parse(cls, where: str, data: bytes) -> Seat:
        fields = Fields.parse(where, data, most=256_000)
        return cls(
            Registration.parse(where, data),
            fields.number("session_timeout_ms", most=86_400_000),
            fields.optional_text("removed"),
        )

    def to_bytes(self) -> bytes:
        own = {"session_timeout_ms": self.session_timeout_ms, "removed": self.removed}
        return compact({**self.registration.to_json(), **own})


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """`/consumers/turn_times`: milliseconds of turns per second of groups with 10 and more, `MOST_GROUPS` at most."""

    epoch: int
    groups: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, data: bytes) -> TurnTimes:
        fields = Fields.parse(where, data)
        numbers = Fields(f"{where}: groups", fields.mapping("groups"))
        return cls(fields.count("epoch"), {group: numbers.number(group) for group in numbers.values})

    def to_bytes(self) -> bytes:
        return compact({"epoch": self.epoch, "groups": dict(sorted(self.groups.items()))})
