"""Properties of every client assignor, for any members, threads, topics, lags and racks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from tests.property.effort import Draw, tried
from tests.property.snapshots import turn
from tests.property.test_strategies import Group, group
from tests.unit.strategies import STRATEGIES
from tests.unit.test_client_assignors import KnownOffsets, assigned_by, settled, subscribes
from zk_group.consumer.assignment.adapter import CoordinatorStrategy
from zk_group.consumer.assignment.base import Assignment, Held
from zk_group.consumer.assignment.consumers import client_assignors
from zk_group.consumer.assignment.lag import LagAssignor
from zk_group.consumer.assignment.metadata import MAX_THREADS, ConsumerMetadata
from zk_group.coordinator import assignors
from zk_group.coordinator.assignors import Subscriber
from zk_group.coordinator.planning.snapshot import Snapshot
from zk_group.coordinator.planning.target import target_assignment
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import is_name
from zk_group.coordinator.zk.znodes.records import Registration, Topic

EVERY = client_assignors([])
OWN = ("lag", "rack")
STICKY = CoordinatorStrategy(STRATEGIES["cooperative-sticky"])
RACKS = ("", "r1", "r2", "r3")


@dataclass(frozen=True)
class AssignorWorld:
    """A group with its topics and logs."""

    members: Sequence[Subscriber]
    topics: Mapping[str, Topic]
    metadata: Mapping[str, bytes]
    racks: Mapping[str, str]
    lookup: KnownOffsets

    @property
    def held(self) -> dict[str, Held]:
        return {one.consumer: Held(one.running, one.generation, one.on_thread, one.instance_id) for one in self.members}

    def assigned(self, name: str, held: Mapping[str, Held] | None = None) -> dict[str, Assignment]:
        return assigned_by(EVERY[name], self.topics, self.metadata, self.lookup, self.held if held is None else held)

    def weight(self, part: TopicPartition) -> int:
        return self.lookup.ends[part] - self.lookup.commits[part] + 1

    def loads(self, found: Mapping[str, Assignment]) -> list[int]:
        """Records behind, of each thread."""
        return [
            sum(map(self.weight, found[one.consumer].threads.get(thread, ())))
            for one in self.members
            for thread in one.thread_ids()
        ]

    def sizes(self, found: Mapping[str, Assignment]) -> list[int]:
        """Numbers of partitions of threads, in order."""
        return sorted(
            len(found[one.consumer].threads.get(thread, ())) for one in self.members for thread in one.thread_ids()
        )

    def matches(self, found: Mapping[str, Assignment]) -> int:
        return sum(
            self.racks[name] in self.lookup.racks(part) for name, one in found.items() for part in one.partitions
        )

    def sharing_with(self, member: Subscriber) -> set[str]:
        """Consumers that share topics with a member, directly or through others."""
        topics, found = set(member.threads), {member.consumer}
        for _ in self.members:
            near = [one for one in self.members if topics & set(one.threads)]
            topics = topics.union(*[one.threads for one in near])
            found |= {one.consumer for one in near}
        return found


def topic_of(name: str, numbers: Sequence[int]) -> Topic:
    return Topic(name, f"{name}-id", tuple(numbers))


def world_of(group: Group, draw: Draw) -> AssignorWorld:
    """Members that have a last target for some partitions, and run others."""
    members, numbers = group
    every = [TopicPartition(topic, number) for topic in sorted(numbers) for number in numbers[topic]]
    before = {part: draw.choice(["", *[one.consumer for one in members]]) for part in every}
    members = [
        replace(
            one,
            on_thread={
                part: draw.choice([*one.thread_ids(), f"{one.consumer}-9"])
                for part, consumer in before.items()
                if consumer == one.consumer
            },
        )
        for one in members
    ]
    racks = {one.consumer: draw.choice(RACKS) for one in members}
    most = draw.choice([5, 1000, 10**6])
    lookup = KnownOffsets(
        ends={part: 7 + draw.usually(draw.randint(0, most), 0, 10**6) for part in every},
        commits=dict.fromkeys(every, 7),
        on_racks={part: frozenset(draw.some(["r1", "r2", "r3", "r4"], 2)) for part in every},
    )
    metadata = {one.consumer: ConsumerMetadata(one.threads, rack=racks[one.consumer]).to_bytes() for one in members}
    return AssignorWorld(
        members, {topic: topic_of(topic, has) for topic, has in numbers.items()}, metadata, racks, lookup
    )


def any_world(draw: Draw) -> AssignorWorld:
    return world_of(group(draw), draw)


def equal_world(draw: Draw) -> AssignorWorld:
    return world_of(group(draw, are_equal=True), draw)


def any_assignor(draw: Draw) -> str:
    return draw.choice(sorted(EVERY))


def shuffled(world: AssignorWorld, random: Random) -> AssignorWorld:
    """The same with everything in another order."""
    members = list(world.members)
    random.shuffle(members)
    members = [replace(one, on_thread=dict(reversed(list(one.on_thread.items())))) for one in members]
    metadata = {one.consumer: world.metadata[one.consumer] for one in members}
    topics = {
        name: topic_of(name, list(reversed(topic.partitions))) for name, topic in reversed(list(world.topics.items()))
    }
    return replace(world, members=members, metadata=metadata, topics=topics)


# ---- every client assignor


@tried(200, any_assignor, any_world)
def test_every_partition_is_given_once_to_a_thread_of_its_topic(name: str, world: AssignorWorld) -> None:
    found = world.assigned(name)

    assert set(found) == set(world.metadata)
    shares = {topic.name: topic.partitions for topic in world.topics.values()}
    assignors.checked(name, {each: one.threads for each, one in found.items()}, world.members, shares)
    assert all(has for one in found.values() for has in one.threads.values())


@tried(200, any_assignor, any_world, Draw.another)
def test_order_and_repetition_make_no_difference(name: str, world: AssignorWorld, random: Random) -> None:
    found = world.assigned(name)

    assert shuffled(world, random).assigned(name) == found
    assert world.assigned(name) == found


WORLDS_WITH_SEEDS = """
from tests.property.effort import Draw
from tests.property.test_client_assignors import OWN, any_world
from tests.unit.test_client_assignors import texts
for seed in range(20):
    world = any_world(Draw(seed))
    print([texts(world.assigned(name)) for name in OWN])
"""


@pytest.mark.long
def test_assignments_of_two_processes_are_equal_for_any_hash_seed() -> None:
    command = [sys.executable, "-c", WORLDS_WITH_SEEDS]
    root = Path(__file__).parents[2]
    said = [
        subprocess.check_output(command, cwd=root, env={**os.environ, "PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    ]

    assert said[0] == said[1] != ""


def threaded(draw: Draw, knows_threads: bool) -> AssignorWorld:
    return world_of(group(draw, 3 if knows_threads else 1), draw)


@pytest.mark.parametrize("knows_threads", [True, False])
@tried(200, lambda draw: draw.choice(OWN), threaded)
def test_an_assignor_keeps_its_own_result(knows_threads: bool, name: str, world: AssignorWorld) -> None:
    first = world.assigned(name)
    held = settled(first, world.held)
    if not knows_threads:
        held = {consumer: replace(one, on_thread={}) for consumer, one in held.items()}

    assert world.assigned(name, held) == first


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_time_of_an_assignment_is_near_linear_in_partitions(name: str) -> None:
    metadata = {f"c{n}": subscribes("t", f"r{n % 4}") for n in range(20)}

    def seconds(count: int) -> float:
        parts = [TopicPartition("t", number) for number in range(count)]
        lookup = KnownOffsets(
            ends={part: part.partition % 997 for part in parts},
            commits=dict.fromkeys(parts, 0),
            on_racks={part: frozenset({f"r{part.partition % 5}"}) for part in parts},
        )
        held = {"c0": Held(on_thread=dict.fromkeys(parts, "c0-0"))}
        began = time.process_time()
        assigned_by(EVERY[name], {"t": topic_of("t", range(count))}, metadata, lookup, held)
        return time.process_time() - began

    seconds(1000)
    least = min(seconds(1000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(2)) < 50 * least


# ---- the adapter


def registered(draw: Draw) -> tuple[Snapshot, dict[str, Registration]]:
    """A group as a coordinator reads it, with static and wildcard members."""
    snapshot, _ = turn(draw)
    found = {
        name: one.registration for name, one in snapshot.members.registered.items() if one.registration is not None
    }
    return snapshot, {
        name: replace(one, user_data=draw.text(3), instance_id=draw.choice(["", "", f"i{name}", "j"]))
        for name, one in found.items()
    }


def held_by(snapshot: Snapshot, consumer: str, registration: Registration) -> Held:
    view, target = snapshot.members.channels.get(consumer), snapshot.state.target.get(consumer)
    threads = target.threads if target else {}
    return Held(
        view.running if view else frozenset(),
        view.channel.generation if view and view.channel else 0,
        {part: thread for thread, has in threads.items() for part in has},
        registration.instance_id,
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@tried(200, registered)
def test_adapter_assigns_like_a_coordinator(strategy: str, group: tuple[Snapshot, dict[str, Registration]]) -> None:
    snapshot, registrations = group
    held = {consumer: held_by(snapshot, consumer, one) for consumer, one in registrations.items()}
    metadata = {
        consumer: ConsumerMetadata(one.subscription, one.pattern, user_data=one.user_data.encode()).to_bytes()
        for consumer, one in registrations.items()
    }

    found = assigned_by(CoordinatorStrategy(STRATEGIES[strategy]), snapshot.partitions.topics, metadata, members=held)

    on_a_coordinator = target_assignment(snapshot, registrations, STRATEGIES[strategy]).target
    assert {consumer: one.threads for consumer, one in found.items()} == {
        consumer: target.threads for consumer, target in on_a_coordinator.items()
    }


# ---- metadata


def any_metadata(draw: Draw) -> ConsumerMetadata:
    names = [draw.text(20, "abcXYZ019._-", least=1) for _ in range(draw.upto(6))]
    subscription = {name: draw.choice([1, draw.number(MAX_THREADS, 1)]) for name in names if is_name(name)}
    pattern = draw.usually("static", "white_list", "black_list")
    wanted = subscription if pattern == "static" else {"t.*|u": draw.number(MAX_THREADS, 1)}
    return ConsumerMetadata(wanted, pattern, draw.text(20), draw.randbytes(draw.upto(50)), draw.randint(1, 9))


@tried(500, any_metadata)
def test_metadata_is_read_as_it_was_written(metadata: ConsumerMetadata) -> None:
    assert ConsumerMetadata.parse("here", metadata.to_bytes()) == metadata


# ---- lag


@tried(200, any_world)
def test_no_single_move_brings_two_threads_closer_by_more_than_the_tolerance(world: AssignorWorld) -> None:
    found = world.assigned("lag")
    loads = {
        (one.consumer, number): sum(map(world.weight, found[one.consumer].threads.get(thread, ())))
        for one in world.members
        for number, thread in enumerate(one.thread_ids())
    }
    takers = [(one, number) for one in world.members for number in range(len(one.thread_ids()))]

    for one in world.members:
        sharing = world.sharing_with(one)
        near = [load for (consumer, _), load in loads.items() if consumer in sharing]
        tolerance = LagAssignor().tolerance * sum(near) / max(1, len(near))
        for number, thread in enumerate(one.thread_ids()):
            for part in found[one.consumer].threads.get(thread, ()):
                for taker, other in takers:
                    if taker.threads.get(part.topic, 0) > other:
                        gap = loads[one.consumer, number] - loads[taker.consumer, other]
                        assert gap - abs(gap - 2 * world.weight(part)) <= max(0, tolerance) + 1e-9


@tried(200, equal_world)
def test_with_no_lag_the_numbers_of_a_new_group_differ_by_one_at_most(world: AssignorWorld) -> None:
    idle = replace(world, lookup=KnownOffsets(ends=world.lookup.commits, commits=world.lookup.commits))

    sizes = idle.sizes(idle.assigned("lag", {}))

    assert sizes[-1] - sizes[0] <= 1


# ---- rack


@tried(200, any_world)
def test_rack_is_balanced_as_sticky_is_with_as_many_matches_or_more(world: AssignorWorld) -> None:
    found, sticky = world.assigned("rack"), world.assigned("cooperative-sticky")

    assert world.sizes(found) == world.sizes(sticky)
    assert world.matches(found) >= world.matches(sticky)


@tried(200, any_world)
def test_without_racks_of_replicas_rack_is_cooperative_sticky(world: AssignorWorld) -> None:
    bare = replace(world, lookup=KnownOffsets())

    assert bare.assigned("rack") == bare.assigned("cooperative-sticky")
