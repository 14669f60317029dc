"""Bounds of client-side assignment (its sizes in zk_paths.md) on a ZooKeeper server of its own: tens of megabytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from tests.support.client_side import PATHS, MadeLeader, Scripted, asks, offering, padded, states
from tests.support.clients import fresh_chroot
from tests.support.hand import Hand, ManualStage
from tests.support.made_group import MadeGroup
from tests.support.world import World
from zk_group.consumer.assignment.base import Assignment
from zk_group.consumer.assignment.metadata import ConsumerMetadata
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.store import Create
from zk_group.coordinator.zk.znodes.group_state import (
    FAILED,
    MAX_ANSWER_BYTES,
    MAX_GROUP_METADATA_BYTES,
    MAX_MEMBER_STATE_BYTES,
    MAX_METADATA_BYTES,
    Answer,
    MemberAnswer,
    encoded,
)
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

pytestmark = [
    pytest.mark.full("groups of the largest size"),
    pytest.mark.real_zookeeper("a server that has room for large groups"),
]
STEP_S = 5.0
"""CPU seconds of one step, at most: 0.32 were measured."""


@pytest.fixture
def zk(large_server: Ensemble) -> str:
    """See `tests/conftest.py`."""
    return fresh_chroot(large_server.hosts)


class Made(NamedTuple):
    """A group of registrations without processes; the first leads, and the coordinator has taken no turn."""

    members: MadeGroup
    hand: Hand
    assignor: Scripted
    leader: MadeLeader


def a_made_group(
    world: World,
    stage: ManualStage,
    members: int,
    partitions: int = 10,
    topics: Sequence[str] = ("t",),
    like: str = "range",
    size: int = 0,
) -> Made:
    """Of so many members of these topics, each with so many bytes of metadata."""
    for topic in topics:
        stage.topics[topic] = world.topic(topic, partitions)
    hand, made, assignor = stage.hand(), MadeGroup(world.store, "g"), Scripted(like)
    for number in range(members):
        made.member(f"m{number:04}", {"t": 1}, **offering(metadata(topics, size), assignor.name))
    return Made(made, hand, assignor, MadeLeader(world.store, "m0000", [assignor]))


def metadata(topics: Sequence[str], size: int = 0) -> bytes:
    data = ConsumerMetadata(dict.fromkeys(topics, 1)).to_bytes()
    assert len(data) <= MAX_METADATA_BYTES
    return padded(size)(data) if size else data


def test_bounds_member_exceeding_8_mb_of_group_metadata_is_refused_with_sizes(world: World, stage: ManualStage) -> None:
    each = 60_000
    most = MAX_GROUP_METADATA_BYTES // each
    made, hand, assignor, leader = a_made_group(world, stage, most, size=each)
    hand.turn("g")
    leader.obey()
    hand.turn("g")
    assert (len(world.state("g").target), world.state("g").generation) == (most, 4)

    refused = [f"n{number:03}" for number in range(20)]
    for name in refused:
        made.member(name, {"t": 1}, **offering(metadata(["t"], each), assignor.name))
    hand.turn("g")

    said = (
        f"refused: with its {each} bytes of metadata the group would have {(most + 1) * each}, over the "
        f"{MAX_GROUP_METADATA_BYTES} that it may have"
    )
    assert {world.channel("g", name).ended for name in refused} == {said}
    assert {world.channel("g", name).error for name in refused} == {"InconsistentGroupProtocol"}
    assert len(world.names(PATHS.ids)) == most and len(world.state("g").target) == most


def leader_answers(world: World, made: Made) -> None:
    """It reports the limit, and writes no answer."""
    made.assignor.answer = states(MAX_MEMBER_STATE_BYTES - 10)
    made.leader.obey()
    assert [world.names(PATHS.ask(name)) for name in asks(world)] == [["answer"]]


def writes_an_answer(world: World, made: Made) -> None:
    """As a leader that knows no limit."""
    (ask,) = asks(world)
    entry = MemberAnswer({}, encoded(b"x" * (MAX_MEMBER_STATE_BYTES - 10))).to_bytes()
    names = [f"m{number:04}" for number in range(300)]
    for first in range(0, 300, 5):
        world.store.commit([Create(PATHS.member_answer(ask, name), entry) for name in names[first : first + 5]])
    world.put(PATHS.answer(ask), Answer(tuple(names)).to_bytes())


@pytest.mark.parametrize("answers", [leader_answers, writes_an_answer])
def test_bounds_answer_over_16_mb_is_not_written_by_a_leader_or_fails_it(
    world: World, stage: ManualStage, answers: Callable[[World, Made], None]
) -> None:
    made = a_made_group(world, stage, 300)
    made.hand.turn("g")

    answers(world, made)
    made.hand.turn("g")

    state = world.state("g")
    assert (state.state, state.target) == (FAILED, {})
    assert "leader m0000 (scripted) failed: " in (state.reason or "")
    assert f"over the {MAX_ANSWER_BYTES} that it may have" in (state.reason or "")


def test_bounds_member_assigns_1000_members_and_10000_partitions_in_time(world: World, stage: ManualStage) -> None:
    _, hand, _, leader = a_made_group(world, stage, 1000, 10_000)
    took = {}

    def timed(what: str, step: Callable[[], Any]) -> None:
        began = time.process_time()
        step()
        took[what] = time.process_time() - began

    timed("ask", lambda: hand.turn("g"))
    timed("answer", leader.obey)
    timed("adopt", lambda: hand.turn("g"))

    print(", ".join(f"{what} {seconds:.2f} s" for what, seconds in took.items()))
    state = world.state("g")
    assert (state.generation, len(state.target)) == (4, 1000)
    assert {len(one.partitions) for one in state.target.values()} == {10}
    assert len(frozenset().union(*(one.partitions for one in state.target.values()))) == 10_000
    assert sum(len(world.commands("g", f"m{number:04}")) for number in range(1000)) == 1000, "each has its start"
    assert max(took.values()) < STEP_S, took


def test_bounds_member_assigns_10000_partitions_of_2000_topics(world: World, stage: ManualStage) -> None:
    """An answer's topics take a third of a znode's limit, and have a multi of their own."""
    names = [f"topic-{'x' * 12}-{number:05}" for number in range(2000)]
    _, hand, _, leader = a_made_group(world, stage, 100, 5, names, "round-robin")
    hand.turn("g")

    leader.obey()
    hand.turn("g")

    state = world.state("g")
    assert (state.reason, len(state.target)) == (None, 100)
    assert len(frozenset().union(*(one.partitions for one in state.target.values()))) == 10_000


def test_bounds_entry_too_large_for_a_multi_fails_at_the_leader_with_its_size(world: World, stage: ManualStage) -> None:
    _, hand, assignor, leader = a_made_group(world, stage, 2)
    topics = [f"made-up-{number:04}-{'x' * 40}" for number in range(6000)]
    much = {"m0001-0": frozenset(TopicPartition(topic, 0) for topic in topics)}
    assignor.answer = lambda found: {**found, "m0001": Assignment(much, b"")}
    hand.turn("g")

    leader.obey()
    hand.turn("g")

    assert world.state("g").state == FAILED
    assert "the entry of m0001 has " in (world.state("g").reason or "")


def test_bounds_answer_of_40_bytes_with_a_million_partitions_is_not_expanded(world: World, stage: ManualStage) -> None:
    """Few bytes of ranges name many partitions: ranges of topics that differ from the answer's are not read."""
    hand = a_made_group(world, stage, 2).hand
    hand.turn("g")
    (first,) = asks(world)
    for number in range(1, 20):
        ask = first if number == 1 else f"ask-{number:010d}"
        if number > 1:
            world.put(PATHS.ask(ask), world.store.get(PATHS.ask(first)).data)  # type: ignore[union-attr]
        for name in ("m0000", "m0001"):
            world.put(PATHS.member_answer(ask, name), b'{"ownershipMap":{"%s-0":{"t":"0-999999"}}}' % name.encode())
        world.put(PATHS.answer(ask), b'{"members":["m0000","m0001"],"topics":{"t":"x"},"partitions":{"t":"0-199999"}}')
    began = time.process_time()

    hand.turn("g")

    assert time.process_time() - began < 1.0, "a million partitions that are read take some seconds"
