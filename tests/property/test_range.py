"""The range strategy: Kafka's cases, and what holds for any members and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from coordinator.assignors import RangeAssignor, Subscriber, checked
from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.znodes.partitions import TopicPartition
from tests.property.effort import Draw, tried

Found = dict[str, dict[str, set[int]]]


def assigned(subscriptions: Mapping[str, Sequence[str]], topics: Mapping[str, int]) -> Found:
    """Consumer -> topic -> partitions, for one thread a topic as in Kafka; topics that do not exist are no topics."""
    members = [Subscriber(name, {t: 1 for t in wanted if t in topics}) for name, wanted in subscriptions.items()]
    shares = {t: range(count) for t, count in topics.items() if any(t in member.threads for member in members)}
    assignment = RangeAssignor().assign(members, shares)
    checked("range", assignment, members, shares)
    found: Found = {name: {} for name in subscriptions}
    for name, threads in assignment.items():
        for parts in threads.values():
            for topic, number in parts:
                found[name].setdefault(topic, set()).add(number)
    return found


KAFKAS_CASES: dict[str, tuple[dict[str, list[str]], dict[str, int], Found]] = {
    "one consumer, no topic": ({"c1": []}, {}, {"c1": {}}),
    "one consumer, a topic that does not exist": ({"c1": ["t1"]}, {}, {"c1": {}}),
    "one consumer, one topic": ({"c1": ["t1"]}, {"t1": 3}, {"c1": {"t1": {0, 1, 2}}}),
    "only partitions of subscribed topics": ({"c1": ["t1"]}, {"t1": 3, "other": 3}, {"c1": {"t1": {0, 1, 2}}}),
    "one consumer, several topics": ({"c1": ["t1", "t2"]}, {"t1": 1, "t2": 2}, {"c1": {"t1": {0}, "t2": {0, 1}}}),
    "two consumers, one topic, one partition": (
        {"c1": ["t1"], "c2": ["t1"]},
        {"t1": 1},
        {"c1": {"t1": {0}}, "c2": {}},
    ),
    "two consumers, one topic, two partitions": (
        {"c1": ["t1"], "c2": ["t1"]},
        {"t1": 2},
        {"c1": {"t1": {0}}, "c2": {"t1": {1}}},
    ),
    "several consumers, mixed topics": (
        {"c1": ["t1"], "c2": ["t1", "t2"], "c3": ["t1"]},
        {"t1": 3, "t2": 2},
        {"c1": {"t1": {0}}, "c2": {"t1": {1}, "t2": {0, 1}}, "c3": {"t1": {2}}},
    ),
    "two consumers, two topics, six partitions": (
        {"c1": ["t1", "t2"], "c2": ["t1", "t2"]},
        {"t1": 3, "t2": 3},
        {"c1": {"t1": {0, 1}, "t2": {0, 1}}, "c2": {"t1": {2}, "t2": {2}}},
    ),
    "four consumers, as in the static case before one is replaced": (
        {name: ["t1", "t2"] for name in ("c1", "c2", "c3", "c4")},
        {"t1": 5, "t2": 4},
        {
            "c1": {"t1": {0, 1}, "t2": {0}},
            "c2": {"t1": {2}, "t2": {1}},
            "c3": {"t1": {3}, "t2": {2}},
            "c4": {"t1": {4}, "t2": {3}},
        },
    ),
    "three topics without racks": (
        {name: ["t1", "t2", "t3"] for name in ("c1", "c2", "c3")},
        {"t1": 6, "t2": 7, "t3": 2},
        {
            "c1": {"t1": {0, 1}, "t2": {0, 1, 2}, "t3": {0}},
            "c2": {"t1": {2, 3}, "t2": {3, 4}, "t3": {1}},
            "c3": {"t1": {4, 5}, "t2": {5, 6}},
        },
    ),
    "three topics, one consumer without the second": (
        {"c1": ["t1", "t2", "t3"], "c2": ["t1", "t2", "t3"], "c3": ["t1", "t3"]},
        {"t1": 6, "t2": 7, "t3": 2},
        {
            "c1": {"t1": {0, 1}, "t2": {0, 1, 2, 3}, "t3": {0}},
            "c2": {"t1": {2, 3}, "t2": {4, 5, 6}, "t3": {1}},
            "c3": {"t1": {4, 5}},
        },
    ),
    "topics with as many partitions are cut alike": (
        {name: ["t1", "t2", "t3"] for name in ("c1", "c2", "c3")},
        {"t1": 5, "t2": 5, "t3": 5},
        {
            name: {topic: share for topic in ("t1", "t2", "t3")}
            for name, share in (("c1", {0, 1}), ("c2", {2, 3}), ("c3", {4}))
        },
    ),
}


@pytest.mark.parametrize("case", KAFKAS_CASES)
def test_range_agrees_with_kafkas_range_assignor(case: str) -> None:
    subscriptions, topics, expected = KAFKAS_CASES[case]

    assert assigned(subscriptions, topics) == expected


def test_the_partitions_of_a_consumer_are_spread_over_its_threads() -> None:
    members = [Subscriber("a", {"t": 2}), Subscriber("b", {"t": 1})]

    found = RangeAssignor().assign(members, {"t": range(7)})

    numbers = {
        thread: sorted(n for _, n in parts) for by_thread in found.values() for thread, parts in by_thread.items()
    }
    assert numbers == {"a-0": [0, 1, 2], "a-1": [3, 4], "b-0": [5, 6]}


def group(draw: Draw) -> tuple[list[Subscriber], dict[str, list[int]]]:
    counts = {topic: draw.upto(20, 1) for topic in draw.some("tuvw", least=1)}
    names = {draw.text(3, "abc-1", least=1) for _ in range(draw.upto(8, 1))}
    members = [
        Subscriber(name, {topic: draw.randint(1, 4) for topic in draw.some([*counts])}) for name in sorted(names)
    ]
    wanted = {topic for member in members for topic in member.threads}
    return members, {topic: list(range(count)) for topic, count in counts.items() if topic in wanted}


@tried(300, group)
def test_every_partition_is_assigned_once_to_a_subscriber(
    group: tuple[list[Subscriber], dict[str, list[int]]],
) -> None:
    members, topics = group

    found = RangeAssignor().assign(members, topics)

    checked("range", found, members, topics)
    threads = {member.consumer: max(member.threads.values(), default=0) for member in members}
    for consumer, by_thread in found.items():
        assert set(by_thread) <= {f"{consumer}-{number}" for number in range(threads[consumer])}


@tried(300, group)
def test_threads_of_a_topic_differ_by_one_partition_and_the_first_have_more(
    group: tuple[list[Subscriber], dict[str, list[int]]],
) -> None:
    members, topics = group

    found = RangeAssignor().assign(members, topics)

    for topic in topics:
        sizes = [
            sum(part.topic == topic for part in found[member.consumer].get(member.thread(number), ()))
            for member in sorted(members, key=lambda member: member.consumer)
            for number in range(member.threads.get(topic, 0))
        ]
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1


@tried(300, group, Draw.another)
def test_the_order_of_members_topics_and_partitions_makes_no_difference(
    group: tuple[list[Subscriber], dict[str, list[int]]], random: Random
) -> None:
    members, topics = group
    others = list(members)
    random.shuffle(others)
    shuffled = {topic: list(reversed(numbers)) for topic, numbers in reversed(topics.items())}

    assert RangeAssignor().assign(others, shuffled) == RangeAssignor().assign(members, topics)


A, B = Subscriber("a", {"t": 2, "v": 3}), Subscriber("b", {"u": 1})


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ({"x": {"x-0": {("t", 0)}}}, "no member"),
        ({"a": {"a-0": {("t", 0)}, "a-1": {("t", 0)}}}, "twice"),
        ({"a": {"a-0": {("t", 0), ("t", 1)}}, "b": {"b-0": {("t", 1)}}}, "twice or without a subscription"),
        ({"a": {"a-0": {("t", 0)}}}, "leaves out or invents 1"),
        ({"a": {"a-0": {("t", 0), ("t", 1), ("t", 2)}}}, "leaves out or invents 1"),
        ({"a": {"a-0": {("t", 0)}, "a-3": {("t", 1)}}}, "'a-3', which is no thread of a"),
        ({"a": {"a-0": {("t", 0)}, "b-0": {("t", 1)}}}, "'b-0', which is no thread of a"),
        ({"a": {"a-0": {("t", 0)}, "a-00": set()}}, "'a-00', which is no thread of a"),
        ({"a": {"a-0": {("t", 0)}, "a-2": {("t", 1)}}}, "gives t-1 to a-2, but a has 2 threads for t"),
        ({"a": {"a-0": {("t", 0), ("t", 1.0)}}}, "no TopicPartition"),
    ],
)
def test_an_assignor_that_breaks_its_promise_fails_the_rebalance(
    assignment: dict[str, dict[str, set[tuple[str, Any]]]], reason: str
) -> None:
    broken = {
        consumer: {thread: frozenset(TopicPartition(*part) for part in parts) for thread, parts in threads.items()}
        for consumer, threads in assignment.items()
    }

    with pytest.raises(RebalanceFailed, match=reason):
        checked("broken", broken, [A, B], {"t": [0, 1]})
