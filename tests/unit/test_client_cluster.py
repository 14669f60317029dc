"""The view of group and logs that a client assignor gets, member metadata, and coordinator-side strategies as one."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer.assignment.adapter import CoordinatorStrategy
from consumer.assignment.base import Assignment, ClientAssignor, Cluster, Held
from consumer.assignment.consumers import LeaderLookup
from consumer.assignment.metadata import ConsumerMetadata
from consumer.membership.call_guard import MemberContext
from coordinator import assignors
from coordinator.assignors import RangeAssignor, Subscriber
from coordinator.zk.errors import BadData, ConnectionLost, RebalanceFailed, UsageError
from coordinator.zk.store import Node, Watch
from coordinator.zk.znodes.group_state import MAX_METADATA_BYTES
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Topic
from tests.property.tree import MemoryTree
from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore
from tests.unit.strategies import STRATEGIES, parts

Racks = Mapping[TopicPartition, frozenset[str]]


@dataclass
class KnownOffsets:
    """A lookup in tables; `asked` has its requests."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    commits: Mapping[TopicPartition, int] = field(default_factory=dict)
    beginnings: Mapping[TopicPartition, int] = field(default_factory=dict)
    on_racks: Racks = field(default_factory=dict)
    asked: list[tuple[str, tuple[TopicPartition, ...]]] = field(default_factory=list)

    def _found(
        self, what: str, known: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        self.asked.append((what, tuple(partitions)))
        return {part: known[part] for part in partitions if part in known}

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._found("committed", self.commits, partitions)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._found("ends", self.ends, partitions)

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return self._found("beginnings", self.beginnings, partitions)

    def racks(self, partition: TopicPartition) -> frozenset[str]:
        return self.on_racks.get(partition, frozenset())


def with_lags(lags: Mapping[str, int]) -> KnownOffsets:
    """`{"t-0": 5}` as a partition with five records behind."""
    found = {part(name): lag for name, lag in lags.items()}
    return KnownOffsets(ends={part: 100 + lag for part, lag in found.items()}, commits=dict.fromkeys(found, 100))


def with_racks(racks: Mapping[str, str]) -> KnownOffsets:
    """`{"t-0": "a b"}` as a partition with replicas in these racks."""
    return KnownOffsets(on_racks={part(name): frozenset(text.split()) for name, text in racks.items()})


def part(name: str) -> TopicPartition:
    """`t-0` as a partition."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def there(topics: str) -> dict[str, Topic]:
    """`t:3 u:2` as topics with so many partitions."""
    sizes = {name: int(count) for name, _, count in (one.partition(":") for one in topics.split())}
    return {name: Topic(name, f"{name}-id", tuple(range(count))) for name, count in sizes.items()}


def subscribes(topics: str, rack: str = "") -> bytes:
    """`t u:2` as metadata: one thread for t and two for u."""
    found = {name: int(threads or 1) for name, _, threads in (one.partition(":") for one in topics.split())}
    return ConsumerMetadata(found, rack=rack).to_bytes()


def holding(threads: str) -> Held:
    """`a-0=t:0-2 a-1=t:3` as shares of the last target."""
    found = {
        thread: parts(text.replace(";", " ")) for thread, _, text in (one.partition("=") for one in threads.split())
    }
    return holds(Assignment(found))


def holds(assignment: Assignment, instance_id: str = "") -> Held:
    """A member that runs its assignment."""
    on_thread = {part: thread for thread, has in assignment.threads.items() for part in has}
    return Held(assignment.partitions, 1, on_thread, instance_id)


def settled(found: Mapping[str, Assignment], members: Mapping[str, Held]) -> dict[str, Held]:
    """The members once they run their assignment."""
    return {name: holds(found[name], held.instance_id) for name, held in members.items()}


def assigned_by(
    assignor: ClientAssignor,
    topics: Mapping[str, Topic] | str,
    metadata: Mapping[str, bytes],
    lookup: KnownOffsets | None = None,
    members: Mapping[str, Held] | None = None,
) -> dict[str, Assignment]:
    """One call of `assign`."""
    exist = there(topics) if isinstance(topics, str) else topics
    return dict(assignor.assign(Cluster(exist, members or {}, lookup or KnownOffsets()), metadata))


def texts(found: Mapping[str, Assignment]) -> dict[str, str]:
    """Thread -> its partitions in a line."""
    return {
        thread: " ".join(map(str, sorted(has))) for one in found.values() for thread, has in sorted(one.threads.items())
    }


def every(topics: Iterable[Topic]) -> PartitionSet:
    return frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def test_nothing_is_looked_up_before_an_assignor_asks() -> None:
    lookup = with_lags({"t-0": 5})

    Cluster(there("t:1"), {}, lookup)

    assert lookup.asked == []


def test_partition_end_is_looked_up_once_and_kept_for_the_whole_assignment() -> None:
    ends = {T0: 10, T1: 20}
    lookup = KnownOffsets(ends=ends)
    cluster = Cluster(there("t:3"), {}, lookup)

    first = cluster.end_offsets([T0, T2])
    ends[T0] = 99

    assert first == {T0: 10}
    assert cluster.end_offsets([T0, T1, T2]) == {T0: 10, T1: 20}
    assert lookup.asked == [("ends", (T0, T2)), ("ends", (T1,))]


def test_offsets_unknown_to_the_log_are_missing() -> None:
    cluster = Cluster(there("t:2"), {}, KnownOffsets(commits={T0: 1}, beginnings={T1: 0}))

    assert cluster.committed([T0, T1]) == {T0: 1}
    assert cluster.beginning_offsets([T0, T1]) == {T1: 0}
    assert cluster.racks(T0) == frozenset()


def test_an_assignment_has_the_partitions_of_all_its_threads() -> None:
    assert Assignment({"a-0": frozenset({T0}), "a-1": frozenset({T1, T2})}).partitions == {T0, T1, T2}
    assert Assignment({}).partitions == frozenset()


def test_a_third_partys_assignor_needs_no_more_than_assign() -> None:
    class First(ClientAssignor):
        name = "first"
        is_cooperative = True

        def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> dict[str, Assignment]:
            consumer = min(metadata)
            return {consumer: Assignment({f"{consumer}-0": every(cluster.topics.values())}, b"state")}

    assignor: ClientAssignor = First()
    subscription = ConsumerMetadata({"t": 1})

    found = assigned_by(assignor, "t:2", {"b": b"", "a": assignor.metadata(subscription)})

    assert found == {"a": Assignment({"a-0": frozenset({T0, T1})}, b"state")}
    assert assignor.metadata(subscription) == subscription.to_bytes()
    assignor.on_assignment(found["a"], b"state", 7)


def test_racks_are_read_again_after_a_read_that_failed() -> None:
    tree = MemoryTree()
    tree.ensure("/brokers/ids")
    tree.put("/brokers/ids/1", b'{"rack": "a"}')
    store, many = tree.open(), 0

    class Fails(FrontStore):
        def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
            nonlocal many
            many += 1
            if many == 1:
                raise ConnectionLost("a test")
            return self.behind.get_many(paths, watch)

    context = SimpleNamespace(paths=GroupPaths("g"), config=SimpleNamespace(brokers_path="/brokers"))
    topics = {"t": Topic("t", "t-1", (0,))}
    data = {"t": b'{"partitions": {"0": [1]}}'}
    lookup = LeaderLookup(cast("MemberContext", context), Fails(store), MemoryLog(), topics, data, {})
    with pytest.raises(ConnectionLost):
        lookup.racks(T0)

    assert lookup.racks(T0) == {"a"}


# ---- member metadata of protocol type `consumer`


def read(values: Any) -> ConsumerMetadata:
    return ConsumerMetadata.parse("metadata of a", json.dumps(values).encode())


def test_the_format_is_that_of_the_contract_with_the_version_first() -> None:
    metadata = ConsumerMetadata({"b": 1, "a": 2}, rack="r1", user_data=b"\x00\xff")

    assert metadata.to_bytes() == (
        b'{"version":1,"topics":["a","b"],"threads":{"a":2},"pattern":"static","rack":"r1","user_data":"AP8="}'
    )


def test_empty_values_and_a_single_thread_are_omitted() -> None:
    assert ConsumerMetadata({"t": 1}).to_bytes() == b'{"version":1,"topics":["t"],"pattern":"static"}'


def test_topic_order_does_not_change_the_bytes_so_a_restart_is_no_rejoin() -> None:
    assert ConsumerMetadata({"a": 3, "b": 2}).to_bytes() == ConsumerMetadata({"b": 2, "a": 3}).to_bytes()


@pytest.mark.parametrize(
    "metadata",
    [
        ConsumerMetadata({}),
        ConsumerMetadata({"t": 1, "u": 10_000}, rack="rack/1 é", user_data=bytes(range(256))),
        ConsumerMetadata({"t.*|u": 3}, "white_list"),
        ConsumerMetadata({"t.*": 1}, "black_list", version=2),
    ],
)
def test_metadata_round_trips_unchanged(metadata: ConsumerMetadata) -> None:
    assert ConsumerMetadata.parse("here", metadata.to_bytes()) == metadata


def test_fields_known_to_the_reader_are_read_from_a_higher_version() -> None:
    found = read(
        {"version": 7, "topics": ["t"], "threads": {"t": 2, "later": "x"}, "weights": {"t": 0.5}, "rack": None}
    )

    assert found == ConsumerMetadata({"t": 2}, version=7)


def test_a_topic_that_is_named_twice_is_one_topic() -> None:
    assert read({"topics": ["t", "t"]}).subscription == {"t": 1}


MALFORMED: dict[str, Any] = {
    "no object": [],
    "topics are no list": {"topics": "t"},
    "a topic is no text": {"topics": [1]},
    "a topic is an object": {"topics": [{}]},
    "a topic is no name": {"topics": ["a/b"]},
    "threads are no object": {"topics": ["t"], "threads": [2]},
    "no thread": {"topics": ["t"], "threads": {"t": 0}},
    "too many threads": {"topics": ["t"], "threads": {"t": 10_001}},
    "half a thread": {"topics": ["t"], "threads": {"t": 1.5}},
    "true is no number": {"topics": ["t"], "threads": {"t": True}},
    "another pattern": {"topics": ["t"], "pattern": "client"},
    "two expressions": {"topics": ["t", "u"], "pattern": "white_list"},
    "no expression": {"topics": [], "pattern": "black_list"},
    "it does not compile": {"topics": ["("], "pattern": "white_list"},
    "it is unknown to RE2": {"topics": ["(?=a)a"], "pattern": "white_list"},
    "rack is no text": {"topics": ["t"], "rack": 1},
    "a long rack": {"topics": ["t"], "rack": "r" * 250},
    "no base64": {"topics": ["t"], "user_data": "AP8"},
    "base64 with a line": {"topics": ["t"], "user_data": "AP8=\n"},
    "no base64 letters": {"topics": ["t"], "user_data": "é é="},
    "version is no number": {"topics": ["t"], "version": "1"},
    "version zero": {"topics": ["t"], "version": 0},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_metadata_is_bad_data_named_by_its_member(case: str) -> None:
    with pytest.raises(BadData, match=r"^metadata of a"):
        read(MALFORMED[case])


@pytest.mark.parametrize("data", [b"", b"\xff", b"null", b"[" * 60_000, b'{"topics":[' + b"9" * 5000 + b"]}"])
def test_malformed_bytes_are_bad_data(data: bytes) -> None:
    with pytest.raises(BadData):
        ConsumerMetadata.parse("metadata of a", data)


def test_the_limit_of_64_kb_holds_for_reading_and_writing() -> None:
    fits = ConsumerMetadata({"t": 1}, user_data=bytes(49_000))
    data = json.dumps({"topics": ["t"], "user_data": b64encode(bytes(49_200)).decode()}).encode()

    assert len(fits.to_bytes()) <= MAX_METADATA_BYTES
    with pytest.raises(UsageError, match="limit is 65536"):
        ConsumerMetadata({"t": 1}, user_data=bytes(49_200)).to_bytes()
    with pytest.raises(BadData, match="limit is 65536"):
        ConsumerMetadata.parse("here", data)


def test_threads_are_listed_for_existing_topics() -> None:
    topics = ["t1", "t2", "u", "__consumer_offsets"]

    assert ConsumerMetadata({"t2": 2, "gone": 1}).threads_in(topics) == {"t2": 2}
    assert ConsumerMetadata({"t.*": 3}, "white_list").threads_in(topics) == {"t1": 3, "t2": 3}
    assert ConsumerMetadata({"t.*": 3}, "black_list").threads_in(topics) == {"u": 3}


# ---- coordinator-side strategies as client assignors


class Noting(RangeAssignor):
    """Records its input."""

    def __init__(self) -> None:
        self.members: list[Subscriber] = []
        self.topics: dict[str, Sequence[int]] = {}

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> assignors.Assignment:
        self.members, self.topics = list(subscribers), dict(topics)
        return super().assign(subscribers, topics)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_keeps_its_name_and_is_cooperative_when_it_is_not_eager(strategy: str) -> None:
    adapted = CoordinatorStrategy(STRATEGIES[strategy])

    assert adapted.name == strategy
    assert adapted.is_cooperative == (strategy == "cooperative-sticky")
    assert adapted.metadata(ConsumerMetadata({"t": 2})) == ConsumerMetadata({"t": 2}).to_bytes()


def test_strategy_gets_the_same_input_as_on_a_coordinator() -> None:
    noting, part = Noting(), TopicPartition("t", 1)
    held = Held(frozenset({part}), 4, {part: "a-1"}, "i1")
    metadata = ConsumerMetadata({"t": 2, "gone": 1}, user_data="é".encode())

    assigned_by(CoordinatorStrategy(noting), "t:2", {"a": metadata.to_bytes()}, members={"a": held})

    assert noting.members == [Subscriber("a", {"t": 2}, frozenset({part}), 4, "é", "i1", {part: "a-1"})]


def test_wildcards_are_resolved_and_empty_or_unsubscribed_topics_are_dropped() -> None:
    noting = Noting()
    metadata = {"a": ConsumerMetadata({"t.*": 1}, "white_list").to_bytes(), "b": subscribes("empty u")}

    assigned_by(CoordinatorStrategy(noting), "t1:1 t2:1 t3:0 u:1 v:1 empty:0", metadata)

    assert noting.topics == {"t1": (0,), "t2": (0,), "u": (0,)}
    assert [one.threads for one in noting.members] == [{"t1": 1, "t2": 1}, {"u": 1}]


def test_non_text_user_data_is_empty_for_a_strategy_that_reads_text() -> None:
    noting = Noting()

    assigned_by(CoordinatorStrategy(noting), "t:1", {"a": ConsumerMetadata({"t": 1}, user_data=b"\xff").to_bytes()})

    assert noting.members[0].user_data == ""


def test_a_member_with_unreadable_metadata_gets_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = assigned_by(
            CoordinatorStrategy(STRATEGIES["range"]), "t:2", {"a": subscribes("t"), "b": b"{", "c": b'{"topics":["("]}'}
        )

    assert texts(found) == {"a-0": "t-0 t-1"}
    assert found["b"] == found["c"] == Assignment({})
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("ignoring unreadable metadata: consumer='b' protocol=range reason=")


def test_every_member_has_an_assignment_including_idle_ones() -> None:
    found = assigned_by(CoordinatorStrategy(STRATEGIES["range"]), "t:1", {"a": subscribes("t"), "b": subscribes("t")})

    assert found == {"a": Assignment({"a-0": frozenset({TopicPartition("t", 0)})}), "b": Assignment({})}


def test_a_group_without_members_or_topics_has_an_empty_assignment() -> None:
    adapted = CoordinatorStrategy(STRATEGIES["sticky"])

    assert assigned_by(adapted, "t:1", {}) == {}
    assert assigned_by(adapted, "", {"a": subscribes("t")}) == {"a": Assignment({})}


def test_strategy_that_violates_its_contract_fails_the_assignment() -> None:
    class Forgets(RangeAssignor):
        name = "forgets"

        def assign(
            self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]
        ) -> assignors.Assignment:
            return {}

    with pytest.raises(RebalanceFailed, match="assignor forgets leaves out or invents 2 partitions"):
        assigned_by(CoordinatorStrategy(Forgets()), "t:2", {"a": subscribes("t")})
