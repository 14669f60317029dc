"""Client assignors: their view of group and logs, metadata, coordinator-side strategies as one, `lag` and `rack`."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import DEFAULT, Mock

import pytest

from tests.property.tree import MemoryTree
from tests.support.memlog import MemoryLog
from tests.unit.strategies import STRATEGIES, parts
from zk_group.consumer.assignment.adapter import CoordinatorStrategy
from zk_group.consumer.assignment.base import Assignment, ClientAssignor, Cluster, Held
from zk_group.consumer.assignment.consumers import LeaderLookup
from zk_group.consumer.assignment.lag import LagAssignor
from zk_group.consumer.assignment.metadata import ConsumerMetadata
from zk_group.consumer.assignment.rack import RackAssignor
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.coordinator.assignors import RangeAssignor, Subscriber
from zk_group.coordinator.zk.errors import BadData, ConnectionLost, RebalanceFailed, UsageError
from zk_group.coordinator.zk.znodes.group_state import MAX_METADATA_BYTES
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Topic

Racks = Mapping[TopicPartition, frozenset[str]]


@dataclass
class KnownOffsets(LeaderLookup):
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


def test_partition_end_is_looked_up_once_and_kept_for_the_whole_assignment() -> None:
    ends = {T0: 10, T1: 20}
    lookup = KnownOffsets(ends=ends)
    cluster = Cluster(there("t:3"), {}, lookup)
    assert lookup.asked == [], "nothing before an assignor asks"

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
    store = Mock(wraps=tree.open())
    store.get_many.side_effect = chain([ConnectionLost("a test")], repeat(DEFAULT))
    context = SimpleNamespace(paths=GroupPaths("g"), config=SimpleNamespace(brokers_path="/brokers"))
    topics, data = {"t": Topic("t", "t-1", (0,))}, {"t": b'{"partitions": {"0": [1]}}'}
    lookup = LeaderLookup(cast("MemberContext", context), store, MemoryLog(), topics, data, {})
    with pytest.raises(ConnectionLost):
        lookup.racks(T0)

    assert lookup.racks(T0) == {"a"}


# ---- member metadata of protocol type `consumer`


def read(values: Any) -> ConsumerMetadata:
    data = values if isinstance(values, bytes) else json.dumps(values).encode()
    return ConsumerMetadata.parse("metadata of a", data)


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (
            ConsumerMetadata({"b": 3, "a": 2}, rack="r1", user_data=b"\x00\xff"),
            b'{"version":1,"topics":["a","b"],"threads":{"a":2,"b":3},"pattern":"static","rack":"r1",'
            b'"user_data":"AP8="}',
        ),
        (ConsumerMetadata({"t": 1}), b'{"version":1,"topics":["t"],"pattern":"static"}'),
    ],
    ids=["with the version first, in the order of names", "without empty values and a single thread"],
)
def test_the_format_is_that_of_the_contract_so_a_restart_is_no_rejoin(metadata: ConsumerMetadata, data: bytes) -> None:
    assert metadata.to_bytes() == data


def test_unknown_fields_and_a_topic_that_is_named_twice_are_read() -> None:
    later = {"version": 7, "topics": ["t"], "threads": {"t": 2, "later": "x"}, "weights": {"t": 0.5}, "rack": None}

    assert read(later) == ConsumerMetadata({"t": 2}, version=7)
    assert read({"topics": ["t", "t"]}).subscription == {"t": 1}


MALFORMED: dict[str, Any] = {
    "no data": b"",
    "no text": b"\xff",
    "deep": b"[" * 60_000,
    "a long number": b'{"topics":[' + b"9" * 5000 + b"]}",
    "null": None,
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


def test_strategy_gets_the_same_input_as_on_a_coordinator() -> None:
    """Wildcards are resolved; empty and unsubscribed topics are dropped, and user data that is no text."""
    noting, part = Mock(wraps=RangeAssignor(), is_eager=True), TopicPartition("t1", 0)
    held = Held(frozenset({part}), 4, {part: "a-1"}, "i1")
    metadata = {
        "a": ConsumerMetadata({"t1": 2, "gone": 1}, user_data="é".encode()),
        "b": ConsumerMetadata({"t.*": 1}, "white_list", user_data=b"\xff"),
        "c": ConsumerMetadata({"empty": 1, "u": 1}),
    }
    data = {name: one.to_bytes() for name, one in metadata.items()}

    assigned_by(CoordinatorStrategy(noting), "t1:1 t2:1 t3:0 u:1 v:1 empty:0", data, members={"a": held})

    members, topics = noting.assign.call_args.args
    assert topics == {"t1": (0,), "t2": (0,), "u": (0,)}
    assert list(members) == [
        Subscriber("a", {"t1": 2}, frozenset({part}), 4, "é", "i1", {part: "a-1"}),
        Subscriber("b", {"t1": 1, "t2": 1}),
        Subscriber("c", {"u": 1}),
    ]


def test_a_member_with_unreadable_metadata_gets_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = assigned_by(
            CoordinatorStrategy(STRATEGIES["range"]), "t:2", {"a": subscribes("t"), "b": b"{", "c": b'{"topics":["("]}'}
        )

    assert texts(found) == {"a-0": "t-0 t-1"}
    assert found["b"] == found["c"] == Assignment({})
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("ignoring unreadable metadata: consumer='b' protocol=range reason=")


def test_strategy_that_violates_its_contract_fails_the_assignment() -> None:
    forgets = Mock(is_eager=True, **{"assign.return_value": {}})
    forgets.name = "forgets"

    with pytest.raises(RebalanceFailed, match="assignor forgets leaves out or invents 2 partitions"):
        assigned_by(CoordinatorStrategy(forgets), "t:2", {"a": subscribes("t")})


# ---- the assignors `lag` and `rack`, most of whose assignments are in `client_assignors.txt`

TWO = {"a": subscribes("t"), "b": subscribes("t")}
RACKS = {"a": subscribes("t", "r1"), "b": subscribes("t", "r2"), "c": subscribes("t", "r3")}
GIVEN = {"topics", "members", "lags", "racks", "held", "tolerance", "why"}


def loads(found: Mapping[str, Assignment], lags: Mapping[str, int]) -> dict[str, int]:
    """Thread -> records behind."""
    known = {part(name): lag for name, lag in lags.items()}
    return {thread: sum(known[one] for one in has) for each in found.values() for thread, has in each.threads.items()}


# ---- the cases of the file


def pairs(line: str) -> dict[str, str]:
    """`a-0=t:0,2 a-1=t:1`."""
    return {name: value for name, _, value in (word.rpartition("=") for word in line.split())}


def by_partition(line: str) -> dict[str, str]:
    """`t:0-1=r1,r2` as the words of t-0 and t-1."""
    return {str(one): value.replace(",", " ") for text, value in pairs(line).items() for one in parts(text)}


def of_threads(line: str) -> dict[str, PartitionSet]:
    return {thread: parts(text) for thread, text in pairs(line).items()}


def numbers(line: str) -> list[int]:
    return [*map(int, line.split())]


def found_in(words: Mapping[str, str], assignor: ClientAssignor) -> dict[str, object]:
    """What the words of the file name, where an assignor gets what is given."""
    wants = {name: text.partition("@") for name, text in pairs(words["members"]).items()}
    metadata = {name: subscribes(topics.replace(",", " "), rack) for name, (topics, _, rack) in wants.items()}
    threads: dict[str, dict[str, PartitionSet]] = defaultdict(dict)
    for thread, has in of_threads(words.get("held", "")).items():
        threads[thread.partition("-")[0]][thread] = has
    members = {name: holds(Assignment(has)) for name, has in threads.items()}
    lags = {name: int(lag) for name, lag in by_partition(words.get("lags", "")).items()}
    lookup = with_racks(by_partition(words["racks"])) if "racks" in words else with_lags(lags)

    found = assigned_by(assignor, words["topics"], metadata, lookup, members)

    weights = loads(found, lags) if lags else {}
    changes = [(name, held.running, found[name].partitions) for name, held in members.items()]
    return {
        "assigns": {thread: has for one in found.values() for thread, has in one.threads.items()},
        "counts": [len(one.partitions) for one in found.values()],
        "loads": sorted(weights.values()),
        "loads-of": {thread: str(load) for thread, load in weights.items()},
        "matches": sum(wants[name][2] in lookup.racks(one) for name, has in found.items() for one in has.partitions),
        "moves": {one for _, had, has in changes for one in had - has},
        "grows": [name for name, had, has in changes if has > had],
        "shrinks": [name for name, had, has in changes if has < had],
    }


READ: dict[str, Callable[[str], object]] = {
    "assigns": of_threads, "counts": numbers, "loads": numbers, "loads-of": pairs, "matches": int, "moves": parts,
    "grows": str.split, "shrinks": str.split,
}  # fmt: skip
"""How the values of what is found are read."""
CASES = Path(__file__).with_name("client_assignors.txt").read_text().split("\n== ")[1:]


@pytest.mark.parametrize("text", CASES, ids=lambda text: text.partition("\n")[0])
def test_assignment_is_that_of_the_case(text: str) -> None:
    title, *lines = text.strip().splitlines()
    words = {word: values for word, _, values in (line.partition(" ") for line in lines)}
    expected = words.keys() - GIVEN
    assert expected and expected <= READ.keys()
    tolerance = [float(value) for value in words.get("tolerance", "").split()]

    found = found_in(words, LagAssignor(*tolerance) if title.startswith("lag: ") else RackAssignor())

    assert {word: found[word] for word in expected} == {word: READ[word](words[word]) for word in expected}


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_invalid_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        LagAssignor(tolerance)


def test_without_a_committed_offset_all_records_are_behind() -> None:
    lookup = KnownOffsets(
        ends={part(f"t-{n}"): 1000 for n in range(4)},
        commits={part("t-1"): 900, part("t-2"): 900, part("t-3"): 900},
        beginnings={part("t-0"): 700},
    )

    assert texts(assigned_by(LagAssignor(), "t:4", TWO, lookup)) == {"a-0": "t-0", "b-0": "t-1 t-2 t-3"}
    assert lookup.asked[2] == ("beginnings", (TopicPartition("t", 0),))


@pytest.mark.parametrize("knows_the_end", [False, True])
def test_partition_with_an_unknown_end_counts_as_the_mean_of_the_others(knows_the_end: bool) -> None:
    lags = {"t-1": 350, "t-2": 100, "t-3": 100, "t-4": 100, "t-5": 100}  # in the mean 150
    lookup = with_lags(lags)
    if knows_the_end:
        lookup.ends = {**lookup.ends, part("t-0"): 10**9}  # of a log without a commit or a beginning

    found = assigned_by(LagAssignor(), "t:6", TWO, lookup)

    assert sorted(loads(found, {"t-0": 150, **lags}).values()) == [450, 450]


def test_commit_beyond_the_end_gives_no_negative_lag() -> None:
    lookup = KnownOffsets(ends={part("t-0"): 5, part("t-1"): 5}, commits={part("t-0"): 500, part("t-1"): 5})

    assert texts(assigned_by(LagAssignor(), "t:2", TWO, lookup)) == {"a-0": "t-0", "b-0": "t-1"}


@pytest.mark.parametrize(
    "assignor", [LagAssignor(), RackAssignor(), CoordinatorStrategy(STRATEGIES["sticky"])], ids=lambda one: one.name
)
def test_a_group_without_members_or_topics_has_an_empty_assignment(assignor: ClientAssignor) -> None:
    assert assigned_by(assignor, "t:1", {}) == {}
    assert assigned_by(assignor, "", {"a": RACKS["a"]}) == {"a": Assignment({})}
