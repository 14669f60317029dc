"""The coordinator's decisions for a group: its state, with target and eviction marks, and its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from . import ranges
from .json_fields import Fields, compact
from .names import is_name
from .partitions import PartitionSet, TopicPartition, partition_set, range_texts, united
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
class Target:
    """One member's assignment: incarnation, and thread -> partitions.

    :ivar has_state: whether its entry of the answer has a member state: then it gets a start in any case.
    :ivar is_sent: whether a start has been sent to it, in a group without owners: then it may run its part.
    """

    incarnation: str
    threads: Mapping[str, PartitionSet]
    has_state: bool = False
    is_sent: bool = False

    @property
    def partitions(self) -> PartitionSet:
        return united(self.threads.values())

    @classmethod
    def read(cls, fields: Fields) -> Target:
        has_state, is_sent = (fields.values.get(name) is True for name in ("member_state", "sent"))
        return cls(fields.text("incarnation", most=64), read_ownership(fields), has_state, is_sent)

    def to_json(self) -> dict[str, Any]:
        flags = {"member_state": self.has_state, "sent": self.is_sent}
        set_ones = {name: True for name, is_set in flags.items() if is_set}
        return {"incarnation": self.incarnation, "ownershipMap": ownership_json(self.threads), **set_ones}


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
        inner = Fields(f"{fields.where}: ownershipMap", fields.mapping("ownershipMap"))
        if partitions := partition_set(inner.partitions(thread, room)):
            found[thread] = partitions
        room -= len(partitions)
        if room < 0:
            raise fields.bad("ownershipMap", f"a map of {most} partitions at most")
    return found


@dataclass(frozen=True, slots=True)
class Mark:
    """An eviction whose lease may still run: `partitions` wait one `lease_ms` after it was made or first read.

    :ivar since_ms: wall-clock time of the last sign of life, or of the first command not carried out; None if neither.
    """

    consumer: str
    incarnation: str
    partitions: PartitionSet
    lease_ms: int
    reason: str
    since_ms: int | None = None

    @classmethod
    def read(cls, fields: Fields) -> Mark:
        return cls(
            fields.text("consumer", most=250),
            fields.text("incarnation", most=64),
            partition_set(fields.partitions("partitions")),
            fields.number("lease_ms"),
            fields.text("reason", ""),
            fields.optional_number("since_ms"),
        )

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        return {**values, "partitions": range_texts(self.partitions)}


@dataclass(frozen=True, slots=True)
class Evicted:
    """An evicted member in the history.

    :ivar member: consumer and the first 8 digits of its incarnation, as in `left`.
    :ivar since_ms: as that of its mark.
    """

    member: str
    reason: str
    since_ms: int | None = None

    @classmethod
    def read(cls, fields: Fields) -> Evicted:
        return cls(fields.text("member"), fields.text("reason", ""), fields.optional_number("since_ms"))

    def to_json(self) -> dict[str, Any]:
        return {"member": self.member, "reason": self.reason, "since_ms": self.since_ms}


@dataclass(frozen=True, slots=True)
class ClientSide:
    """`client` in a group's state: progress of client-side assignment. Missing under the coordinator's strategies.

    :ivar ask: the ask whose answer is the target; empty when the target is no answer.
    :ivar is_cooperative: whether the target's protocol is cooperative.
    :ivar failed: identities of leaders that have failed since the last adoption.
    :ivar attempts: number of failures since then.
    :ivar failed_ask: the last ask that failed since then.
    :ivar floor: the newest ask when client-side assignment began: answers up to it are not adopted.
    """

    protocol_type: str
    ask: str = ""
    is_cooperative: bool = False
    failed: tuple[str, ...] = ()
    attempts: int = 0
    failed_ask: str = ""
    floor: str = ""

    @classmethod
    def read(cls, fields: Fields) -> ClientSide:
        return cls(
            fields.text("protocol_type", "consumer", most=250),
            fields.text("ask", "", most=64),
            fields.values.get("cooperative") is True,
            tuple(str(identity) for identity in fields.items("failed")),
            fields.count("attempts", 0),
            fields.text("failed_ask", "", most=64),
            fields.text("floor", "", most=64),
        )

    def to_json(self) -> dict[str, Any]:
        failure: dict[str, Any] = {"failed": list(self.failed)} if self.failed else {}
        failure |= {"attempts": self.attempts, "failed_ask": self.failed_ask} if self.attempts else {}
        return {
            "protocol_type": self.protocol_type,
            "ask": self.ask,
            "cooperative": self.is_cooperative,
            **failure,
            **({"floor": self.floor} if self.floor else {}),
        }


@dataclass(frozen=True, slots=True)
class GroupState:
    """`groups/[group]/state`: the coordinator's decisions for a group.

    :ivar state: one of `GROUP_STATES` in this release. Any other name is accepted too: no decision uses it, and a later
        release's state must stay readable.
    :ivar target: consumer -> its assignment in this generation.
    :ivar topics: the ids of the topics in the target.
    :ivar reason: why the state is not normal, else None.
    :ivar left_out: consumer, topic or partition -> why the target lacks it.
    :ivar client: of client-side assignment, None under the coordinator's strategies.
    :ivar region: the consistent region of the group.
    """

    state: str = EMPTY
    generation: int = 0
    epoch: int = 0
    strategy: str = ""
    target: Mapping[str, Target] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    reason: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    client: ClientSide | None = None
    region: GroupRegion | None = None

    @property
    def is_forming(self) -> bool:
        """Whether the group waits for more members before its first generation."""
        return self.state == PREPARING and not self.target

    @classmethod
    def parse(cls, where: str, data: bytes) -> GroupState:
        fields = Fields.parse(where, data)
        left_out = fields.mapping("left_out")
        target = fields.named("target", Target.read)
        if sum(len(parts) for each in target.values() for parts in each.threads.values()) > MAX_TARGET:
            raise fields.bad("target", f"an object with {MAX_TARGET} partitions at most")
        return cls(
            state=fields.text("state", EMPTY, most=64),
            generation=fields.count("generation", 0),
            epoch=fields.count("epoch", 0),
            strategy=fields.text("strategy", ""),
            target=target,
            topics=fields.texts("topics"),
            marks=fields.objects("marks", Mark.read),
            reason=fields.optional_text("reason"),
            left_out={str(key): str(why) for key, why in left_out.items()},
            client=fields.inner("client", ClientSide.read),
            region=fields.inner("region", GroupRegion.read),
        )

    def to_bytes(self) -> bytes:
        return compact(
            {
                "state": self.state,
                "generation": self.generation,
                "epoch": self.epoch,
                "strategy": self.strategy,
                "reason": self.reason,
                "target": {consumer: target.to_json() for consumer, target in sorted(self.target.items())},
                "topics": dict(sorted(self.topics.items())),
                "marks": [mark.to_json() for mark in self.marks],
                "left_out": dict(sorted(self.left_out.items())),
                **({"client": self.client.to_json()} if self.client is not None else {}),
                **({"region": self.region.to_json()} if self.region is not None else {}),
            }
        )


_REBALANCE = (
    *("generation", "epoch", "trigger", "started_ms", "joined", "left", "moved", "stopped_ms", "finished_ms"),
    *("to_last_stop_ms", "to_last_start_ms", "standing_since_ms", "silent_since_ms", "standstill_ms"),
    *("replaced_by", "assignment_ms", "attempts", "evicted"),
)
"""The fields of a rebalance's znode, in order."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """`history/rebalance-[generation]`: one rebalance, for people. Times are wall-clock milliseconds.

    :ivar trigger: its cause.
    :ivar stopped_ms: when the last stop was seen acknowledged.
    :ivar finished_ms: when the group became Stable, or Empty.
    :ivar standing_since_ms: when the first stop was sent, by this rebalance or by an unfinished one that it replaced;
        None without a revocation.
    :ivar silent_since_ms: when a member whose incarnation is over last fetched, at the earliest; None without one.
    :ivar standstill_ms: from the earlier of the two to the last start acknowledged, at most; None until then, and
        without them.
    :ivar replaced_by: the generation that replaced it before it finished.
    :ivar assignment_ms: from the ask to its adoption; None under the coordinator's strategies.
    :ivar attempts: 1 plus the assignments that failed before it; None likewise.
    :ivar evicted: those of `left` that were evicted, refused or removed.
    """

    generation: int
    epoch: int
    trigger: str
    started_ms: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    moved: int = 0
    stopped_ms: int | None = None
    finished_ms: int | None = None
    standing_since_ms: int | None = None
    standstill_ms: int | None = None
    replaced_by: int | None = None
    assignment_ms: int | None = None
    attempts: int | None = None
    silent_since_ms: int | None = None
    evicted: tuple[Evicted, ...] = ()

    @property
    def to_last_stop_ms(self) -> int | None:
        """Milliseconds from the start to the last stop acknowledged; 0 without a revocation."""
        return None if self.stopped_ms is None else max(0, self.stopped_ms - self.started_ms)

    @property
    def to_last_start_ms(self) -> int | None:
        """Milliseconds from the start to the last start acknowledged."""
        return None if self.finished_ms is None else max(0, self.finished_ms - self.started_ms)

    @classmethod
    def parse(cls, where: str, data: bytes) -> Rebalance:
        fields = Fields.parse(where, data)
        return cls(
            fields.count("generation"),
            fields.count("epoch"),
            fields.text("trigger", ""),
            fields.number("started_ms"),
            fields.strings("joined"),
            fields.strings("left"),
            fields.number("moved", 0),
            fields.optional_number("stopped_ms"),
            fields.optional_number("finished_ms"),
            fields.optional_number("standing_since_ms"),
            fields.optional_number("standstill_ms"),
            fields.optional_number("replaced_by"),
            fields.optional_number("assignment_ms"),
            fields.optional_number("attempts"),
            fields.optional_number("silent_since_ms"),
            fields.objects("evicted", Evicted.read),
        )

    def to_bytes(self) -> bytes:
        values = {name: getattr(self, name) for name in _REBALANCE}
        return compact({**values, "evicted": [each.to_json() for each in self.evicted]})


# `left_out` of a group's state: keys and their bounds.
MANY = 10
"""Partitions of a topic up to this number have a key each; more share one with their ranges, `topic(5-14)`."""
MAX_BYTES = 32_000
REST = "*"
"""The key of all that has no key of its own: it is no name."""


def keys_of(partitions: Iterable[TopicPartition], why: str) -> dict[str, str]:
    """The entries of partitions that are left out for one reason."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    found: dict[str, str] = {}
    for topic, each in sorted(by_topic.items()):
        if len(each) <= MANY:
            found |= {str(partition): why for partition in sorted(each)}
        else:
            found[f"{topic}({range_texts(each)[topic]})"] = why
    return found


def bounded(left_out: Mapping[str, str], foremost: str = "") -> dict[str, str]:
    """The first entries, as far as `MAX_BYTES` of JSON go, and the number of the others, in order.

    :param left_out: may be bounded already, with all or some of the same entries.
    :param foremost: the reason whose entries come before all others, in their own order.
    """
    entries = [(key, why) for key, why in left_out.items() if key != REST]
    found: dict[str, str] = {}
    room = MAX_BYTES
    for key, why in sorted(entries, key=lambda entry: "" if entry[1] == foremost else entry[0]):
        room -= len(compact({key: why}))
        if room < 0:
            break
        found[key] = why
    before = left_out.get(REST, "").partition(" ")[0]
    more = max(len(entries) - len(found), int(before) if ranges.is_partition(before) else 0)
    return dict(sorted({**found, **({REST: f"{more} more are left out"} if more else {})}.items()))


def partitions_of(left_out: Mapping[str, str]) -> dict[TopicPartition, str]:
    """The partitions that are named with ranges, each with its reason."""
    found: dict[TopicPartition, str] = {}
    for key, why in left_out.items():
        topic, is_many, numbers = key.removesuffix(")").partition("(")
        if is_many and key.endswith(")") and is_name(topic):
            if len(found) > ranges.MAX_PARTITION:
                break  # a few bytes can name more partitions than fit into memory
            with suppress(ValueError):
                found |= {TopicPartition(topic, number): why for number in ranges.decode(numbers)}
    return found


def first_of(left_out: Mapping[str, str], why: str) -> TopicPartition | None:
    """The first partition that is left out for this reason; None without one."""
    entries = {key: reason for key, reason in left_out.items() if reason == why}
    found = set(partitions_of(entries))
    for topic, _, number in (key.rpartition("-") for key in entries):
        if is_name(topic) and ranges.is_partition(number):
            found.add(TopicPartition(topic, int(number)))
    return min(found, default=None)
