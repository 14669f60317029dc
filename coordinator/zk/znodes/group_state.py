"""The coordinator's decisions for a group: its state, with target and eviction holds, and its history.

Also client-side assignment (sources G1 to G3): protocols, assignment requests to a leader, its proposed assignments and
its own requests. JoinGroup is the `client` field of a registration, generation metadata the assignment request,
SyncGroup the proposed assignment below it. The coordinator interprets neither metadata nor member state: both are
base64 here, bytes for assignors only.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from ..errors import BadData
from . import forms, ranges
from .forms import Form, Record
from .json_fields import MAX_ZNODE_BYTES, Fields, compact
from .partitions import PartitionSet, TopicPartition, by_topic, partition_set, range_texts, united
from .paths import is_name
from .regions import GroupRegion

EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"
DEAD = "Dead"
FAILED = "RebalanceFailed"
MAX_OWNED = 10_000
"""Partitions of one member, more than its session can own (`OWNER_PATHS_A_SESSION`)."""
MAX_TARGET = 250_000
"""Partitions of a group's target."""
GROUP_STATES = (EMPTY, PREPARING, COMPLETING, STABLE, DEAD, FAILED)


@dataclass(frozen=True, slots=True)
class Target(Record):
    """One member's assignment: incarnation, and thread -> partitions.

    :ivar has_state: whether its entry of the proposed assignment has a member state: then it gets a start in any case.
    :ivar is_sent: whether a start has been sent to it, in a group without owners: then it may run its assignment.
    """

    incarnation: Annotated[str, forms.text(64)]
    threads: Annotated[Mapping[str, PartitionSet], OWNERSHIP]
    has_state: Annotated[bool, forms.FLAG.named("member_state").optional] = False
    is_sent: Annotated[bool, forms.FLAG.named("sent").optional] = False

    @property
    def partitions(self) -> PartitionSet:
        return united(self.threads.values())


_IDENTITIES = Form(lambda fields, key, _: tuple(map(str, fields.items(key))), list)
_FAILED = ("attempts", "failed_ask")


def ownership_json(threads: Mapping[str, PartitionSet]) -> dict[str, dict[str, str]]:
    """Thread -> topic -> ranges, without empty threads."""
    return {thread: range_texts(parts) for thread, parts in sorted(threads.items()) if parts}


def read_ownership(fields: Fields, most: int = MAX_OWNED) -> dict[str, PartitionSet]:
    """The inverse of `ownership_json`; an empty thread is the same as none.

    :param most: maximum number of partitions.
    """
    found: dict[str, PartitionSet] = {}
    room = most
    for thread in fields.mapping("ownershipMap"):
        threads = Fields(f"{fields.where}: ownershipMap", fields.mapping("ownershipMap"))
        if owned := partition_set(threads.partitions(thread, room)):
            found[thread] = owned
        room -= len(owned)
        if room < 0:
            raise fields.bad("ownershipMap", f"a map of {most} partitions at most")
    return found


OWNERSHIP = Form(lambda fields, key, _: read_ownership(fields), ownership_json, "ownershipMap")


@dataclass(frozen=True, slots=True)
class Mark(Record):
    """An eviction whose lease may still run: `partitions` wait one `lease_ms` after it was made or first read.

    :ivar since_ms: wall-clock time of the last activity, or of the first command not carried out; None if neither.
    """

    consumer: Annotated[str, forms.text(250)]
    incarnation: Annotated[str, forms.text(64)]
    partitions: Annotated[PartitionSet, forms.partitions()]
    lease_ms: Annotated[int, forms.number()]
    reason: Annotated[str, forms.text(default="")]
    since_ms: Annotated[int | None, forms.OPTIONAL_NUMBER.optional] = None


@dataclass(frozen=True, slots=True)
class Evicted(Record):
    """An evicted member in the history.

    :ivar member: consumer and the first 8 digits of its incarnation, as in `left`.
    :ivar since_ms: as that of its eviction hold.
    """

    member: Annotated[str, forms.text()]
    reason: Annotated[str, forms.text(default="")]
    since_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None


@dataclass(frozen=True, slots=True)
class ClientSide(Record):
    """`client` in a group's state: progress of client-side assignment. Missing under the coordinator's strategies.

    :ivar ask: the assignment request of the adopted target; empty when the target is none.
    :ivar is_cooperative: whether the target's protocol is cooperative.
    :ivar failed: identities of leaders that have failed since the last adoption.
    :ivar attempts: number of failures since then.
    :ivar failed_ask: the last failed request since then.
    :ivar floor: the newest request when client-side assignment began: proposals up to it are not adopted.
    """

    protocol_type: Annotated[str, forms.text(250, "consumer")]
    ask: Annotated[str, forms.text(64)] = ""
    is_cooperative: Annotated[bool, forms.FLAG.named("cooperative")] = False
    failed: Annotated[tuple[str, ...], _IDENTITIES.optional] = ()
    attempts: Annotated[int, forms.count()] = 0
    failed_ask: Annotated[str, forms.text(64)] = ""
    floor: Annotated[str, forms.text(64).optional] = ""

    def to_json(self) -> dict[str, Any]:
        written = Record.to_json(self)
        return written if self.attempts else {key: value for key, value in written.items() if key not in _FAILED}


@dataclass(frozen=True, slots=True)
class GroupState(Record):
    """`groups/[group]/state`: the coordinator's decisions for a group.

    :ivar state: one of `GROUP_STATES` in this release. Any other name is accepted too: no decision uses it, and a later
        release's state must stay readable.
    :ivar target: consumer -> its assignment in this generation.
    :ivar topics: the ids of the topics in the target.
    :ivar reason: why the state is not normal, else None.
    :ivar left_out: consumer, topic or partition -> the reason for its exclusion from the target.
    :ivar client: of client-side assignment, None under the coordinator's strategies.
    :ivar region: the consistent region of the group.
    """

    FIRST = ("state", "generation", "epoch", "strategy", "reason")

    state: Annotated[str, forms.text(64)] = EMPTY
    generation: Annotated[int, forms.count()] = 0
    epoch: Annotated[int, forms.count()] = 0
    strategy: Annotated[str, forms.text()] = ""
    target: Annotated[Mapping[str, Target], forms.named(Target)._replace(read=_target)] = field(default_factory=dict)
    topics: Annotated[Mapping[str, str], forms.TEXTS] = field(default_factory=dict)
    marks: Annotated[tuple[Mark, ...], forms.objects(Mark)] = ()
    reason: Annotated[str | None, forms.optional_text()] = None
    left_out: Annotated[Mapping[str, str], forms.TEXTS._replace(read=_left_out)] = field(default_factory=dict)
    client: Annotated[ClientSide | None, forms.inner(ClientSide).optional] = None
    region: Annotated[GroupRegion | None, forms.inner(GroupRegion).optional] = None

    @property
    def is_forming(self) -> bool:
        """Whether the group waits for more members before its first generation."""
        return self.state == PREPARING and not self.target


def _left_out(fields: Fields, key: str, _: object) -> dict[str, str]:
    return {str(name): str(why) for name, why in fields.mapping(key).items()}


def _target(fields: Fields, key: str, _: object) -> dict[str, Target]:
    target = fields.named(key, Target.read)
    if sum(len(parts) for each in target.values() for parts in each.threads.values()) > MAX_TARGET:
        raise fields.bad(key, f"an object with {MAX_TARGET} partitions at most")
    return target


@dataclass(frozen=True, slots=True)
class Rebalance(Record):
    """`history/rebalance-[generation]`: one rebalance, for people. Times are wall-clock milliseconds.

    :ivar trigger: its cause.
    :ivar stopped_ms: when the last stop was seen acknowledged.
    :ivar finished_ms: when the group became Stable, or Empty.
    :ivar standing_since_ms: when the first stop was sent, by this rebalance or by an unfinished one that it replaced;
        None without a revocation.
    :ivar silent_since_ms: when a member whose incarnation is over last fetched, at the earliest; None without one.
    :ivar standstill_ms: the downtime: from the earlier of the two to the last acknowledged start, at most; None until
        then, and without them.
    :ivar replaced_by: the generation that replaced it before it finished.
    :ivar assignment_ms: from the assignment request to its adoption; None under the coordinator's strategies.
    :ivar attempts: 1 plus the assignments that failed before it; None likewise.
    :ivar evicted: those of `left` that were evicted, refused or removed.
    """

    generation: Annotated[int, forms.count()]
    epoch: Annotated[int, forms.count()]
    trigger: Annotated[str, forms.text(default="")]
    started_ms: Annotated[int, forms.number()]
    joined: Annotated[tuple[str, ...], forms.STRINGS] = ()
    left: Annotated[tuple[str, ...], forms.STRINGS] = ()
    moved: Annotated[int, forms.number()] = 0
    stopped_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    finished_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    standing_since_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    silent_since_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    standstill_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    replaced_by: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    assignment_ms: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    attempts: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    evicted: Annotated[tuple[Evicted, ...], forms.objects(Evicted)] = ()

    @property
    def to_last_stop_ms(self) -> int | None:
        """Milliseconds from the start to the last stop acknowledged; 0 without a revocation."""
        return None if self.stopped_ms is None else max(0, self.stopped_ms - self.started_ms)

    @property
    def to_last_start_ms(self) -> int | None:
        """Milliseconds from the start to the last start acknowledged."""
        return None if self.finished_ms is None else max(0, self.finished_ms - self.started_ms)

    def to_json(self) -> dict[str, Any]:
        """Its fields, and the durations behind `finished_ms`."""
        written = {}
        for key, value in Record.to_json(self).items():
            written[key] = value
            if key == "finished_ms":
                written |= {"to_last_stop_ms": self.to_last_stop_ms, "to_last_start_ms": self.to_last_start_ms}
        return written


# `left_out` of a group's state: keys and their bounds.
MANY = 10
"""Partitions of a topic up to this number have a key each; more share one with their ranges, `topic(5-14)`."""
MAX_BYTES = 32_000
REST = "*"
"""The key of all entries without their own: it is no name."""


def keys_of(partitions: Iterable[TopicPartition], why: str) -> dict[str, str]:
    """The entries of partitions left out for one reason."""
    entries: dict[str, str] = {}
    for topic, numbers in by_topic(partitions).items():
        if len(numbers) <= MANY:
            entries |= {f"{topic}-{number}": why for number in numbers}
        else:
            entries[f"{topic}({ranges.encode(numbers)})"] = why
    return entries


def bounded(left_out: Mapping[str, str], foremost: str = "") -> dict[str, str]:
    """The first entries, as far as `MAX_BYTES` of JSON go, and the number of the others, in order.

    :param left_out: possibly bounded before, with all or some of the same entries.
    :param foremost: the reason of the entries before all others, in their own order.
    """
    entries = [(key, why) for key, why in left_out.items() if key != REST]
    found: dict[str, str] = {}
    room = MAX_BYTES
    for key, why in sorted(entries, key=lambda entry: "" if entry[1] == foremost else entry[0]):
        size = len(compact({key: why}))
        if size <= room:
            found[key] = why
            room -= size
    before = left_out.get(REST, "").partition(" ")[0]
    more = max(len(entries) - len(found), int(before) if ranges.is_partition(before) else 0)
    return dict(sorted({**found, **({REST: f"{more} more are left out"} if more else {})}.items()))


def partitions_of(left_out: Mapping[str, str]) -> dict[TopicPartition, str]:
    """The partitions that are named with ranges, each with its reason."""
    reasons: dict[TopicPartition, str] = {}
    for key, why in left_out.items():
        topic, is_many, numbers = key.removesuffix(")").partition("(")
        if is_many and key.endswith(")") and is_name(topic):
            if len(reasons) > ranges.MAX_PARTITION:
                break  # a few bytes can name more partitions than fit into memory
            with suppress(ValueError):
                reasons |= {TopicPartition(topic, number): why for number in ranges.decode(numbers)}
    return reasons


def first_of(left_out: Mapping[str, str], why: str) -> TopicPartition | None:
    """The first partition that is left out for this reason; None without one."""
    entries = {key: reason for key, reason in left_out.items() if reason == why}
    partitions = set(partitions_of(entries))
    for topic, _, digits in (key.rpartition("-") for key in entries):
        if is_name(topic) and ranges.is_partition(digits):
            partitions.add(TopicPartition(topic, int(digits)))
    return min(partitions, default=None)


CONSUMER = "consumer"
"""The protocol type of consumers of partitions; other types have no owners in ZooKeeper."""

CLIENT = "client"
"""`pattern` of a member with client-side assignment only: releases without it ignore the member."""

SEAT_PREFIX = "seat-"
"""With the czxid of its seat: the identity of a static member."""

MAX_METADATA_BYTES = 65_536
"""Bytes of metadata of one member, over all its protocols."""
MAX_GROUP_METADATA_BYTES = 8 << 20
MAX_MEMBER_STATE_BYTES = 65_536
MAX_ANSWER_BYTES = 16 << 20
MAX_ANSWER_PARTITIONS = 250_000
"""More partitions than fit into a group's `state`, however few bytes name them."""

_PROTOCOLS = Form(lambda fields, key, _: tuple(fields.items(key)), list).checked(
    lambda names: names and all(isinstance(name, str) and is_name(name) for name in names),
    "a list of protocol names, at least one",
)
_PREFERRED = Form(lambda fields, key, own: bool(fields.values[key]) if fields.has(key) else own, key="preferred")


@dataclass(frozen=True, slots=True)
class ClientProtocols(Record):
    """`client` in `ids/[consumer]`: a member's protocols, and its metadata for each.

    :ivar protocols: in order of preference.
    :ivar metadata: protocol -> base64 of the member's metadata for it.
    :ivar is_preferred: whether the member prefers client-side assignment to the coordinator's strategies.
    :ivar rejoins: raised by a member to request a rebalance without another change (Kafka's `enforceRebalance`).
    :ivar digest: of the whole field as read, later releases' fields included: a new digest is a rejoin.
    """

    FIRST = ("protocol_type",)

    protocols: Annotated[tuple[str, ...], _PROTOCOLS]
    metadata: Annotated[Mapping[str, str], forms.TEXTS._replace(write=dict)] = field(default_factory=dict)
    protocol_type: Annotated[str, forms.text(250)] = CONSUMER
    is_preferred: Annotated[bool, _PREFERRED.optional] = True
    rejoins: Annotated[int, forms.count().optional] = 0
    digest: str = ""

    @classmethod
    def read(cls, fields: Fields) -> ClientProtocols:
        """
        :raises BadData: when the field exists and cannot be read.
        """
        canonical = json.dumps(fields.values, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
        return replace(super(ClientProtocols, cls).read(fields), digest=digest)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of metadata over all protocols."""
        return sum(map(decoded_bytes, self.metadata.values()))


@dataclass(frozen=True, slots=True)
class AskMember(Record):
    """A member in an assignment request.

    :ivar identity: its incarnation, or for a static member its seat: a bounce keeps the identity.
    :ivar digest: of its `client` field.
    :ivar lease_ms: how long it may continue after its last heartbeat.
    """

    identity: Annotated[str, forms.text(64)]
    digest: Annotated[str, forms.text(64).named("metadata")]
    lease_ms: Annotated[int, forms.number()] = 0

    @property
    def is_seat(self) -> bool:
        """Whether it is a static member."""
        return self.identity.startswith(SEAT_PREFIX)


@dataclass(frozen=True, slots=True)
class Ask(Record):
    """`sync/ask-[number]`: an assignment request to one leader.

    :ivar incarnation: of the leader; a new incarnation is not addressed.
    :ivar attempt: 1 for the first since the last adoption, one more after each failure.
    :ivar members: consumer -> the member at the request.
    :ivar reason: its trigger.
    :ivar since_ms: wall clock, for people.
    :ivar outdated: consecutive requests before it with proposals for outdated topics.
    """

    FIRST = (
        "protocol_type", "protocol", "leader", "incarnation", "attempt", "reason", "since_ms", "outdated",
    )  # fmt: skip

    protocol: Annotated[str, forms.text(250)]
    leader: Annotated[str, forms.text(250)]
    incarnation: Annotated[str, forms.text(64, "")]
    members: Annotated[Mapping[str, AskMember], forms.named(AskMember)]
    protocol_type: Annotated[str, forms.text(250)] = CONSUMER
    attempt: Annotated[int, forms.count()] = 1
    reason: Annotated[str, forms.text()] = ""
    since_ms: Annotated[int, forms.number()] = 0
    outdated: Annotated[int, forms.count().optional] = 0


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """`sync/ask-[number]/member-[consumer]`: the leader's assignment for one member.

    :ivar threads: thread -> partitions; empty for another protocol type.
    :ivar member_state: base64 of the assignor's opaque bytes.
    :ivar protocol: the assignor's; empty when the leader omits it: then the request's.
    """

    threads: Mapping[str, PartitionSet] = field(default_factory=dict)
    member_state: str = ""
    protocol: str = ""

    @classmethod
    def parse(cls, where: str, data: bytes, most: int = MAX_OWNED) -> MemberAnswer:
        """
        :param most: maximum number of partitions.
        """
        fields = Fields.parse(where, data)
        return cls(
            read_ownership(fields, most),
            fields.text("member_state", "", most=MAX_ZNODE_BYTES),
            fields.text("protocol", "", most=250),
        )

    def to_bytes(self) -> bytes:
        state = {"member_state": self.member_state} if self.member_state else {}
        protocol = {"protocol": self.protocol} if self.protocol else {}
        return compact({**protocol, "ownershipMap": ownership_json(self.threads), **state})


_MEMBERS = Form(lambda fields, key, _: tuple(sorted(set(fields.strings(key)))), sorted)
_RANGES = Form(
    lambda fields, key, _: fields.partitions(key, most=MAX_ANSWER_PARTITIONS),
    lambda topics: {topic: ranges.encode(numbers) for topic, numbers in sorted(topics.items())},
)


@dataclass(frozen=True, slots=True)
class Answer(Record):
    """`sync/ask-[number]/answer`: completes the leader's proposed assignment.

    :ivar members: the members with an entry.
    :ivar topics: topic -> id, of the assigned topics.
    :ivar partitions: topic -> its partitions at that time.
    :ivar is_cooperative: whether members keep running unrevoked partitions while others stop.
    :ivar error: why there is no assignment, else None.
    """

    members: Annotated[tuple[str, ...], _MEMBERS] = ()
    topics: Annotated[Mapping[str, str], forms.TEXTS] = field(default_factory=dict)
    partitions: Annotated[Mapping[str, Set[int]], _RANGES] = field(default_factory=dict)
    is_cooperative: Annotated[bool, forms.FLAG.named("cooperative")] = False
    error: Annotated[str | None, forms.optional_text()] = None


@dataclass(frozen=True, slots=True)
class SyncRequest(Record):
    """`sync_request`: a leader's request for a rebalance."""

    by: Annotated[str, forms.text(250)] = ""
    incarnation: Annotated[str, forms.text(64)] = ""
    reason: Annotated[str, forms.text(1000)] = ""


def encoded(data: bytes) -> str:
    """Opaque bytes as base64 of a znode."""
    return b64encode(data).decode()


def decoded_bytes(text: str) -> int:
    """Number of bytes of a base64 text."""
    return len(text) * 3 // 4 - text.endswith("=") - text.endswith("==")


def decoded(where: str, text: str) -> bytes:
    """
    :raises BadData: when `text` is not base64.
    """
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadData(f"{where} holds what is not base64") from error
