"""The view of group and logs that a client assignor gets; and groups in a line each, for its tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from consumer.assignment.base import Assignment, ClientAssignor, Cluster, Held
from consumer.assignment.consumers import LeaderLookup
from consumer.assignment.metadata import ConsumerMetadata
from consumer.membership.call_guard import MemberContext
from coordinator.zk.errors import ConnectionLost
from coordinator.zk.store import Node, Watch
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Topic
from tests.property.tree import MemoryTree
from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore
from tests.unit.strategies import parts

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
