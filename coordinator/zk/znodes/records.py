"""The znodes of topics, brokers, the coordinator, consumers with their commands, and operators: a frozen record each.

`parse` takes the path (for messages) and the data, and raises `BadData`. Group states are in `group_state.py`, segments
and queries in `segments.py`; `zk_paths.md` describes each field.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from ..store import Store, existing_nodes
from . import forms, ranges, regions
from .forms import Form, Record
from .group_state import CLIENT, CONSUMER, MAX_OWNED, OWNERSHIP, ClientProtocols
from .json_fields import Fields, changed, compact, only, readable
from .partitions import CAUSE, LOST, NONE, Discontinuities, Discontinuity, PartitionSet, TopicPartition, united
from .paths import Brokers, is_name
from .regions import PATTERN_PREFIX, Progress, RegionMembership

log = logging.getLogger(__name__)

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
        partitions: dict[str, list[int]] = {str(number): [] for number in self.partitions}
        moving: dict[str, list[int]] = {}
        own = {"version": 3, "topic_id": self.id, "partitions": partitions}
        return compact({**own, "adding_replicas": moving, "removing_replicas": moving})

    def over(self, where: str, data: bytes) -> bytes:
        """`data` with this id and these partitions; its other fields stay.

        :raises BadData: when `data` is no topic.
        """
        partitions: dict[str, Any] = {str(number): [] for number in self.partitions}
        kept = Fields.parse(where, data, most=MAX_TOPIC_BYTES).mapping("partitions")
        values = {"topic_id": self.id, "partitions": {**partitions, **kept}}
        return changed(where, data, values, most=MAX_TOPIC_BYTES)


@dataclass(frozen=True, slots=True)
class NodeRecord(Record):
    """`/consumers/nodes/[session]`: a node that runs, elected or on standby."""

    node: Annotated[str, forms.text()]
    host: Annotated[str, forms.text(default="")]


@dataclass(frozen=True, slots=True)
class CoordinatorRecord(NodeRecord):
    """`/consumers/coordinator`: the elected coordinator."""

    epoch: Annotated[int, forms.count()]


@dataclass(frozen=True, slots=True)
class EpochRecord(Record):
    """`/consumers/coordinator_epoch`: its data version is the coordinator's fence, its number the epoch."""

    epoch: Annotated[int, forms.count()]


def _pattern(fields: Fields, key: str, default: str) -> str:
    """A registration's pattern, checked with its region and its client-side protocols."""
    prefixed = fields.text(key, default)
    pattern = prefixed.removeprefix(PATTERN_PREFIX)
    if (pattern != prefixed) != fields.has("region"):
        raise fields.bad("region", f"an object, where `pattern` begins with {PATTERN_PREFIX}")
    if pattern not in (*PATTERNS, CLIENT):
        raise fields.bad(key, "static, white_list, black_list or client")
    if pattern == CLIENT and not fields.has("client"):
        raise fields.bad("client", "an object with protocols, since `pattern` is client")
    return pattern


def _subscription(fields: Fields, key: str, _: object) -> dict[str, int]:
    values, is_named = fields.mapping(key), _pattern(fields, "pattern", STATIC) in (STATIC, CLIENT)
    names_ok = all(is_name(name) for name in values) if is_named else len(values) == 1
    if not names_ok or not all(type(threads) is int and 1 <= threads <= 10_000 for threads in values.values()):
        raise fields.bad(key, "an object topic (or one pattern) -> number of threads from 1 to 10000")
    return dict(values)


@dataclass(frozen=True, slots=True)
class Registration(Record):
    """`ids/[consumer]`: a consumer's subscription and options.

    :ivar subscription: topic -> threads, or for a wildcard one regular expression -> threads. Of a member with
        client-side assignment only (`pattern` is `client`) its topics, for people and tools.
    :ivar lease_ms: how long it may fetch after its last heartbeat.
    :ivar instance_id: a static member's `group_instance_id`, empty for a dynamic one.
    :ivar client: its client-side assignment protocols, None for a member without them.
    :ivar seal_interval_ms: its seal interval; 0 for a member without one.
    :ivar region: its consistent region.
    :ivar took_over_ms: when the live incarnation that it replaced under its name last wrote its channel, by ZooKeeper's
        clock; 0 without one.
    """

    FIRST = ("subscription", "pattern")
    MOST_BYTES = 256_000

    incarnation: Annotated[str, forms.text(64)]
    subscription: Annotated[Mapping[str, int], Form(_subscription, dict)]
    pattern: Annotated[str, Form(_pattern)] = STATIC
    host: Annotated[str, forms.text()] = ""
    protocols: Annotated[tuple[str, ...], Form(lambda fields, key, own: fields.strings(key) or own, list)] = ("range",)
    lease_ms: Annotated[int, forms.number(most=86_400_000)] = 0
    max_poll_interval_ms: Annotated[int, forms.number(least=1, most=2**31 - 1)] = 300_000
    user_data: Annotated[str, forms.text(65536).optional] = ""
    seal_interval_ms: Annotated[int, forms.number(most=2**31 - 1).optional] = 0
    instance_id: Annotated[str, forms.text(250).optional] = ""
    client: Annotated[ClientProtocols | None, forms.inner(ClientProtocols).optional] = None
    region: Annotated[RegionMembership | None, forms.inner(RegionMembership).optional] = None
    took_over_ms: Annotated[int, forms.number().optional] = 0

    @property
    def protocol_type(self) -> str:
        """The protocol type of its group."""
        return self.client.protocol_type if self.client is not None else CONSUMER

    def to_json(self) -> dict[str, Any]:
        """The fields of the znode."""
        written = Record.to_json(self)
        return written if self.region is None else {**written, "pattern": f"{PATTERN_PREFIX}{self.pattern}"}


Running = Mapping[TopicPartition, int | None]
"""Partition -> next offset; None until the offset has been read."""


_next_offset = only(lambda value: value is None or (type(value) is int and 0 <= value < 2**63))
DISCONTINUITIES = forms.partition_map(Discontinuity.read, CAUSE)


@dataclass(frozen=True, slots=True)
class Channel(Record):
    """`channel/[consumer]`: the consumer's running partitions. Its data version is the consumer's fence.

    :ivar epoch: with `generation`, those of the last command applied.
    :ivar command: the name of the last command applied.
    :ivar topics: the ids of the running topics.
    :ivar ended: why the incarnation is over, None while it lives.
    :ivar error: the same as a Kafka error name (above), for programs; empty after a voluntary leave.
    :ivar discontinuities: of running partitions from whose position nothing has been sealed yet.
    :ivar refused: partitions of the last start whose owner znode existed already.
    :ivar sealed: the file of the last sealed segment.
    :ivar region: the member's progress in its consistent region.
    :ivar ask: the assignment request of the last start applied, under client-side assignment; for a protocol type other
        than `consumer` it is the member's running assignment, and empty once it has stopped.
    """

    FIRST = ("incarnation", "epoch", "generation", "command", "running", "topics", "ended", "ask", "region", "error")

    incarnation: Annotated[str, forms.text(64)]
    epoch: Annotated[int, forms.count()] = 0
    generation: Annotated[int, forms.count()] = 0
    command: Annotated[str, forms.text(64)] = ""
    running: Annotated[Running, forms.partition_map(_next_offset, "next offset")] = field(default_factory=dict)
    topics: Annotated[Mapping[str, str], forms.TEXTS._replace(write=dict)] = field(default_factory=dict)
    ended: Annotated[str | None, forms.optional_text()] = None
    refused: Annotated[PartitionSet, forms.partitions().optional] = NONE
    sealed: Annotated[str, forms.text().optional] = ""
    touched: Annotated[int, forms.count().optional] = 0
    error: Annotated[str, forms.text(64).optional] = ""
    ask: Annotated[str, forms.text(64).optional] = ""
    region: Annotated[Progress | None, forms.inner(Progress).optional] = None
    discontinuities: Annotated[Discontinuities, DISCONTINUITIES.optional] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether its incarnation has not ended."""
        return bool(self.incarnation) and self.ended is None

    def without(self, stopped: Iterable[TopicPartition]) -> Channel:
        """The same with `stopped` no longer running."""
        removed = set(stopped)
        running = {key: offset for key, offset in self.running.items() if key not in removed}
        kept = {key.topic for key in running}
        topics = {topic: id_ for topic, id_ in self.topics.items() if topic in kept}
        causes = {key: cause for key, cause in self.discontinuities.items() if key in running}
        return replace(self, running=running, topics=topics, discontinuities=causes)

    def advanced(
        self, offsets: Mapping[TopicPartition, int], lost: Mapping[TopicPartition, int], sealed: str = ""
    ) -> Channel:
        """The same with these offsets.

        :param lost: of those out of range, the first offset missing in the log.
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


NO_CHANNEL = Channel(incarnation="")
"""A channel znode without data: no incarnation has registered yet."""


@dataclass(frozen=True, slots=True)
class OwnerRecord(Record):
    """`owners/[topic]/[partition]`: the owning thread."""

    thread: Annotated[str, forms.text(300)]
    consumer: Annotated[str, forms.text(250)]
    incarnation: Annotated[str, forms.text(64)]
    generation: Annotated[int, forms.count()]


_DISCONTINUITY = Form(lambda fields, key, _: fields.value(key, Discontinuity.read, CAUSE))


@dataclass(frozen=True, slots=True)
class OffsetRecord(Record):
    """`offsets/[topic]/[partition]`: the committed offset, where the next owner resumes.

    :ivar start: how the initial offset was resolved; empty once an offset was committed or set.
    :ivar discontinuity: while nothing has been sealed from it.
    """

    offset: Annotated[int, forms.number()]
    topic_id: Annotated[str, forms.text(64)]
    generation: Annotated[int, forms.count(0)]
    start: Annotated[str, forms.text(64).optional] = ""
    discontinuity: Annotated[Discontinuity | None, _DISCONTINUITY.optional] = None


def _ranges(fields: Fields, key: str, _: object) -> Set[int]:
    try:
        return ranges.decode(fields.text(key, "", MAX_TOPIC_BYTES))
    except ValueError as error:
        raise fields.bad(key, "partition ranges, as 0-3,7") from error


@dataclass(frozen=True, slots=True)
class BegunRecord(Record):
    """`offsets/[topic]`: the topic as it was when the group began with it.

    :ivar topic_id: of the topic at that time.
    :ivar partitions: the partitions at that time: a start position is for these, not for later ones.
    """

    topic_id: Annotated[str, forms.text(64)]
    partitions: Annotated[Set[int], Form(_ranges, ranges.encode)]

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
        registration = Registration.parse(where, data)
        return cls(registration, fields.number("session_timeout_ms", most=86_400_000), fields.optional_text("removed"))

    def to_bytes(self) -> bytes:
        own = {"session_timeout_ms": self.session_timeout_ms, "removed": self.removed}
        return compact({**self.registration.to_json(), **own})


@dataclass(frozen=True, slots=True)
class TurnTimes(Record):
    """`/consumers/turn_times`: milliseconds of turns per second of groups with 10 and more, `MOST_GROUPS` at most."""

    epoch: Annotated[int, forms.count()]
    groups: Annotated[Mapping[str, int], regions.by_group(Fields.number)] = field(default_factory=dict)


PLAINTEXT = "PLAINTEXT"


def registered_brokers(store: Store, brokers: Brokers, protocol: str = PLAINTEXT) -> list[str]:
    """The addresses, `host:port`, of the registered brokers for `protocol` (Kafka's `security.protocol`).

    An unreadable broker znode is logged and skipped: every broker knows all others.

    :raises StoreError: when ZooKeeper does not answer.
    """
    listing = store.children(brokers.ids)
    found: list[str] = []
    for _, path, node in existing_nodes(store, sorted(listing.names) if listing else (), brokers.id):
        found += readable(partial(addresses, protocol=protocol), path, node, log) or ()
    return found


def addresses(where: str, data: bytes, protocol: str = PLAINTEXT) -> list[str]:
    """Addresses of one broker for `protocol`; the znode maps endpoint names to protocols.

    :raises BadData: when `data` is no broker registration.
    """
    fields = Fields.parse(where, data)
    protocols = fields.texts("listener_security_protocol_map")
    found = []
    for endpoint in fields.items("endpoints"):
        if not isinstance(endpoint, str):
            raise fields.bad("endpoints", "a list of listener://host:port")
        listener, _, place = endpoint.partition("://")
        if protocols.get(listener, listener).upper() == protocol.upper():
            found.append(_address(fields, place))
    return found


def _address(fields: Fields, place: str) -> str:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise fields.bad("endpoints", "a list of listener://host:port")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


LONGEST_BY = 250
LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class Pause(Record):
    """The author, time (wall clock, milliseconds) and reason of a pause."""

    by: Annotated[str, forms.text(LONGEST_BY, "")]
    since_ms: Annotated[int, forms.number(0)]
    reason: Annotated[str | None, forms.optional_text(LONGEST_REASON)] = None


@dataclass(frozen=True, slots=True)
class PausedRecord(Record):
    """`/consumers/paused`: groups without turns.

    :ivar everything: set when every group is paused, whether or not in `groups`.
    """

    MAY_BE_EMPTY = True

    everything: Annotated[Pause | None, forms.inner(Pause).named("all")] = None
    groups: Annotated[Mapping[str, Pause], forms.named(Pause)] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is paused."""
        return self.everything is not None or bool(self.groups)

    def of(self, group: str) -> Pause | None:
        """The pause of `group`, None when it is not paused."""
        return self.everything or self.groups.get(group)

    def with_pause(self, group: str | None, pause: Pause) -> PausedRecord:
        """The same with `group` paused (None: everything); an existing pause stays unchanged."""
        if group is None:
            return replace(self, everything=self.everything or pause)
        return replace(self, groups={group: pause, **self.groups})

    def without(self, group: str) -> PausedRecord:
        """The same without the pause of `group` itself."""
        return replace(self, groups={name: pause for name, pause in self.groups.items() if name != group})


NOTHING_PAUSED = PausedRecord()


@dataclass(frozen=True, slots=True)
class TurnRequest(Pause):
    """`groups/[group]/request`: an operator's request for a turn; removed after the turn."""


STOP_FETCHER = "stop-fetcher"
START_FETCHER = "start-fetcher"
ASSIGN = "assign"
ASSIGNMENT_FAILED = "assignment-failed"
DRAIN = "drain"
OPTIONS = (STOP_FETCHER, START_FETCHER, ASSIGN, ASSIGNMENT_FAILED, DRAIN)
_OPTION = forms.text(default="").checked(OPTIONS.__contains__, f"{', '.join(OPTIONS[:-1])} or {OPTIONS[-1]}")


class Order(NamedTuple):
    """Position of a command among those of its channel."""

    epoch: int
    generation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Command(Record):
    """One command (sources D31). Epoch, generation and incarnation are additions: they identify a stale one.

    :ivar threads: for `start-fetcher`, thread -> partitions: the consumer's complete assignment.
    :ivar partitions: for `stop-fetcher`, the partitions to revoke; empty means all.
    :ivar topics: the ids of its topics.
    :ivar ask: the assignment request, of `assign` and `assignment-failed`, and of a start of its adopted assignment.
    :ivar reason: of `assignment-failed`.
    :ivar region: of a start and of `drain` in a consistent region.
    """

    FIRST = ("option", "ownershipMap", "partitions", "topics", "ask", "reason", "region")

    option: Annotated[str, _OPTION]
    epoch: Annotated[int, forms.count()]
    generation: Annotated[int, forms.count()]
    incarnation: Annotated[str, forms.text(64)]
    threads: Annotated[Mapping[str, PartitionSet], OWNERSHIP] = field(default_factory=dict)
    partitions: Annotated[PartitionSet, forms.partitions(MAX_OWNED).optional] = NONE
    topics: Annotated[Mapping[str, str], forms.TEXTS] = field(default_factory=dict)
    ask: Annotated[str, forms.text(64).optional] = ""
    reason: Annotated[str, forms.text(LONGEST_REASON).optional] = ""
    region: Annotated[regions.Order | None, forms.inner(regions.Order).optional] = None

    @property
    def started(self) -> PartitionSet:
        """All partitions of a `start-fetcher`."""
        return united(self.threads.values())

    def to_json(self) -> dict[str, Any]:
        """Its fields, without those unused by its option."""
        unused = {"partitions"} if self.option == START_FETCHER else {"ownershipMap"}
        if self.option not in (START_FETCHER, STOP_FETCHER):
            unused.add("topics")
        return {key: value for key, value in Record.to_json(self).items() if key not in unused}
