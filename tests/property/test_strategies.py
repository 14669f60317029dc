"""Properties of every assignment strategy, for any members, threads and topics; and stickiness."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.property.effort import Draw, tried
from tests.unit.strategies import (
    STICKY,
    STRATEGIES,
    after,
    by_consumer,
    improvable,
    known_to,
    loads,
    parts,
    with_running,
)
from zk_group.coordinator.assignors import Assignment, Subscriber, assigned, checked
from zk_group.coordinator.zk.errors import RebalanceFailed
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

Topics = dict[str, Sequence[int]]
Group = tuple[list[Subscriber], Topics]


def group(draw: Draw, most_threads: int = 3, are_equal: bool = False) -> Group:
    """Some with topics that not all want, static members among them, and members that claim things at odds."""
    topics: Topics = {topic: range(draw.upto(12, 1)) for topic in draw.some("tuvw", least=1)}
    every = [TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers]
    members = []
    for name in draw.some("abcdefg", least=1):
        threads = dict.fromkeys(topics, draw.randint(1, most_threads))
        if not are_equal:
            threads = {topic: draw.randint(1, most_threads) for topic in draw.some(sorted(topics))}
        running = frozenset(draw.choices(every, k=draw.upto(6)))
        instance = draw.choice(["", "", f"i{name}", "j"])
        members.append(Subscriber(name, threads, running, draw.randrange(3), instance_id=instance))
    return members, known_to(members, topics)


def equal_group(draw: Draw) -> Group:
    return group(draw, are_equal=True)


def single_threaded(draw: Draw) -> Group:
    return group(draw, most_threads=1)


def change(draw: Draw) -> tuple[Group, Group]:
    """A group before and after a change: members join, leave, subscribe to other topics; topics grow and shrink."""
    members, topics = before = single_threaded(draw)
    stay = [one for one in members if draw.usually(True, False)]
    after = [draw.usually(one, replace(one, threads=dict.fromkeys(draw.some("tuvw"), 1))) for one in stay]
    after += [Subscriber(name, dict.fromkeys(draw.some("tuvw", least=1), 1)) for name in draw.some("xyz", 2)]
    counts = {topic: draw.choice([range(draw.upto(12, 1)), topics.get(topic, range(3))]) for topic in "tuvw"}
    return before, (after, known_to(after, counts))


def any_strategy(draw: Draw) -> str:
    return draw.choice(list(STRATEGIES))


def any_sticky(draw: Draw) -> str:
    return draw.choice(STICKY)


def answer(strategy: str, members: Sequence[Subscriber], topics: Topics) -> Assignment:
    """It gives every partition once, to a thread that takes part in its topic: `assigned` has it checked."""
    known = known_to(members, topics)
    return assigned(STRATEGIES[strategy], members, known)


def settled(members: Sequence[Subscriber], assignment: Assignment, knows: bool = True) -> list[Subscriber]:
    """The members once they run what they were given; `knows`: as a coordinator finds them that has the last target."""
    running = after(members, assignment)
    return with_running(running, assignment) if knows else running


def owners(assignment: Assignment) -> dict[TopicPartition, str]:
    return {part: consumer for consumer, has in by_consumer(assignment).items() for part in has}


def moved(before: Assignment, now: Assignment, members: Sequence[Subscriber]) -> dict[TopicPartition, tuple[str, str]]:
    """Partition -> old and new owner, where the old owner could have kept it: present, and subscribed."""
    there = {one.consumer: one for one in members}
    old, new = owners(before), owners(now)
    return {
        part: (old[part], holder)
        for part, holder in new.items()
        if old.get(part, holder) != holder and old[part] in there and there[old[part]].threads.get(part.topic)
    }


# ---- every strategy


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_time_of_an_assignment_is_near_linear_in_topics(strategy: str) -> None:
    """One thread of all topics is the worst for a strategy that joins sets."""

    def seconds(topics: int) -> float:
        there = {f"t{number:05d}": range(1) for number in range(topics)}
        members = [Subscriber("c1", dict.fromkeys(there, 1))]
        began = time.process_time()
        STRATEGIES[strategy].assign(members, there)
        return time.process_time() - began

    seconds(1000)
    least = min(seconds(1000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(2)) < 50 * least


@tried(200, any_strategy, group, Draw.another)
def test_order_and_repetition_make_no_difference(strategy: str, group: Group, random: Random) -> None:
    members, topics = group
    members = with_running(members, answer(strategy, members, topics))
    others = list(members)
    random.shuffle(others)
    shuffled: Topics = {topic: list(reversed(numbers)) for topic, numbers in reversed(topics.items())}
    others = [replace(one, on_thread=dict(reversed(list(one.on_thread.items())))) for one in others]

    found = answer(strategy, members, topics)

    assert answer(strategy, others, shuffled) == found
    assert answer(strategy, members, topics) == found


@tried(200, lambda draw: draw.choice(["round-robin", *STICKY]), equal_group)
def test_with_equal_subscriptions_threads_differ_by_one_partition_at_most(strategy: str, group: Group) -> None:
    members, topics = group
    members = [one for one in members if one.threads]

    sizes = loads(members, answer(strategy, members, topics)).values()

    assert max(sizes) - min(sizes) <= 1


# ---- sticky ones


@tried(200, any_sticky, group)
def test_no_partition_could_go_to_a_thread_that_has_two_less(strategy: str, group: Group) -> None:
    members, topics = group

    found = answer(strategy, members, topics)

    assert improvable(members, found) == []


@tried(200, any_sticky, group, Draw.another)
def test_turns_of_a_rebalance_reach_the_same_from_any_running(strategy: str, group: Group, random: Random) -> None:
    members, topics = group
    first = answer(strategy, members, topics)
    every = sorted(owners(first)) or [TopicPartition("t", 0)]

    midway = [
        replace(one, running=frozenset(random.choices(every, k=random.randrange(5))), generation=random.randint(1, 9))
        for one in with_running(members, first)
    ]

    assert answer(strategy, midway, topics) == first


@tried(200, any_sticky, single_threaded)
def test_coordinator_without_a_last_assignment_leaves_partitions_where_they_run(strategy: str, group: Group) -> None:
    members, topics = group
    first = answer(strategy, members, topics)

    assert answer(strategy, after(members, first), topics) == first


@tried(200, any_sticky, equal_group)
def test_with_equal_subscriptions_all_is_kept_that_quotas_let_keep(strategy: str, group: Group) -> None:
    members, topics = group
    held: dict[TopicPartition, list[Subscriber]] = {}
    for one in members:
        for part in one.running:
            if part.topic in topics:
                held.setdefault(part, []).append(one)
    newest = {part: max(one.generation for one in by) for part, by in held.items()}
    claims = {part: [one for one in by if one.generation == newest[part]] for part, by in held.items()}
    claimed = {part: by[0].consumer for part, by in claims.items() if len(by) == 1}
    threads = {one.consumer: max(one.threads.values()) for one in members}
    quota, extra = divmod(sum(map(len, topics.values())), sum(threads.values()))
    counts = {name: sum(claimant == name for claimant in claimed.values()) for name in threads}
    over = sum(max(0, min(threads[name], count - quota * threads[name])) for name, count in counts.items())
    most = sum(min(count, quota * threads[name]) for name, count in counts.items()) + min(extra, over)

    now = owners(answer(strategy, members, topics))

    assert sum(now[part] == claimant for part, claimant in claimed.items()) == most


@tried(200, any_sticky, equal_group, lambda draw: draw.randint(1, 3), Draw.truth)
def test_partitions_move_only_to_a_joining_member(strategy: str, group: Group, threads: int, knows: bool) -> None:
    members, topics = group
    before = answer(strategy, members, topics)
    members = settled(members, before, knows)
    members.append(Subscriber("c-joins", dict.fromkeys(topics, threads)))

    now = answer(strategy, members, topics)

    assert {to for _, to in moved(before, now, members).values()} <= {"c-joins"}


@tried(200, any_sticky, equal_group, Draw.truth, lambda draw: draw.randrange(6))
def test_only_partitions_of_a_leaving_member_move(strategy: str, group: Group, knows: bool, n: int) -> None:
    members, topics = group
    before = answer(strategy, members, topics)
    members = settled(members, before, knows)
    del members[n % len(members)]

    now = answer(strategy, members, topics)

    assert moved(before, now, members) == {}


@tried(400, any_sticky, change, Draw.truth)
def test_no_partition_moves_in_a_circle_or_needlessly(strategy: str, change: tuple[Group, Group], knows: bool) -> None:
    (members, topics), other = change
    before = answer(strategy, members, topics)
    was = {one.consumer: one for one in (settled(members, before, knows))}
    members, topics = other
    members = [
        replace(one, running=old.running, generation=1, on_thread=old.on_thread)
        if (old := was.get(one.consumer))
        else replace(one, running=frozenset())
        for one in members
    ]

    now = answer(strategy, members, topics)

    assert improvable(members, now) == []
    has = {consumer: len(parts) for consumer, parts in by_consumer(now).items()}
    ways = moved(before, now, members)
    assert all(has[new] <= has[old] for old, new in ways.values())
    edges = set(ways.values())
    while edges:  # take out what leads nowhere; what stays is a circle
        leads = {(old, new) for old, new in edges if any(new == further for further, _ in edges)}
        assert leads != edges, f"{edges} go around"
        edges = leads


# ---- range


@tried(300, group)
def test_range_gives_the_first_threads_of_a_topic_one_more_at_most(group: Group) -> None:
    members, topics = group
    members = [replace(one, instance_id="") for one in members]

    found = answer("range", members, topics)

    for topic in topics:
        sizes = [
            sum(part.topic == topic for part in found[member.consumer].get(member.thread(number), ()))
            for member in sorted(members, key=lambda member: member.consumer)
            for number in range(member.threads.get(topic, 0))
        ]
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1


def test_range_spreads_the_partitions_of_a_consumer_over_its_threads() -> None:
    found = answer("range", [Subscriber("a", {"t": 2}), Subscriber("b", {"t": 1})], {"t": range(7)})

    assert found == {"a": {"a-0": parts("t:0-2"), "a-1": parts("t:3-4")}, "b": {"b-0": parts("t:5-6")}}


# ---- what breaks its promise


Broken = dict[str, dict[str, set[tuple[str, Any]]]]
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
def test_an_assignor_that_breaks_its_promise_fails_the_rebalance(assignment: Broken, reason: str) -> None:
    broken = {
        consumer: {thread: frozenset(TopicPartition(*part) for part in parts) for thread, parts in threads.items()}
        for consumer, threads in assignment.items()
    }

    with pytest.raises(RebalanceFailed, match=reason):
        checked("broken", broken, [A, B], {"t": [0, 1]})
