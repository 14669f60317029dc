"""The draft, step by step (sources D21 to D28): the handler's `rebalance` of a group, taken apart into turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest

from tests.support.hand import Hand, ManualStage
from tests.support.wait import eventually
from tests.support.world import World, parts
from zk_group.coordinator.assignors import Assignment, RangeAssignor, Subscriber
from zk_group.coordinator.zk.errors import IncarnationOver, RebalanceFailed
from zk_group.coordinator.zk.znodes.group_state import COMPLETING, EMPTY, FAILED, PREPARING, STABLE
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID, WHITE_LIST


@pytest.fixture
def hand(stage: ManualStage) -> Hand:
    return stage.hand()


# ---- the handler


def test_d_the_handler_blocks_on_the_queue_and_takes_each_group_that_is_asked_for(world: World) -> None:
    world.coordinator(rebalance_handlers=1)
    world.topic("t", 1)
    for group in ("g1", "g2", "g3"):
        world.consumer(group, "c1", {"t": 1})
    for group in ("g1", "g2", "g3"):
        world.stable(group, 1)


class BrokenOnce(RangeAssignor):
    """A strategy that breaks its promise for one topic, until it is mended.

    :ivar states: the group's state at each try.
    """

    is_mended = False

    def __init__(self, world: World) -> None:
        self._world = world
        self.states: list[str] = []

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        if "cursed" in topics and not self.is_mended:
            self.states.append(self._world.state("g").state)
            return {}
        return super().assign(subscribers, topics)


def test_d_group_fails_with_the_reason_after_max_retries_and_is_tried_again(world: World) -> None:
    assignor = BrokenOnce(world)
    world.coordinator(assignor=assignor, max_rebalance_retries=3)
    world.topic("cursed", 2)
    world.topic("t", 2)
    world.consumer("g", "c1", {"cursed": 1})

    failed = eventually(lambda: s if (s := world.state("g")).state == FAILED else None, 10, "the group has failed")
    assert failed.reason is not None and "assignor range leaves out" in failed.reason
    assert assignor.states[:4] == [EMPTY] * 4, "the first try and three retries"
    world.consumer("other", "c1", {"t": 1})
    world.stable("other", 1)

    assignor.is_mended = True
    assert world.stable("g", 1).reason is None


# ---- rebalance (group) 1 to 3


def test_d_1_gets_the_topics_that_any_member_is_interested_in(stage: ManualStage, hand: Hand) -> None:
    for name in ("a", "b", "wild-1", "wild-2", "unconsumed"):
        stage.topic(name, 1)
    stage.puppet("g", "c1", {"a": 1, "not-yet-there": 1})
    stage.puppet("g", "c2", {"b": 1})
    stage.puppet("g", "c3", {"wild-.*": 1}, WHITE_LIST)

    state = hand.turn("g").state

    assert state is not None
    assert set(state.topics) == {"a", "b", "wild-1", "wild-2"}
    assert dict(state.left_out) == {"not-yet-there": "no such topic (yet)"}


def test_d_2_computes_the_ownership_from_partitions_and_threads(stage: ManualStage, hand: Hand) -> None:
    stage.topic("t", 7)
    stage.topic("u", 2)
    stage.puppet("g", "c1", {"t": 2})
    stage.puppet("g", "c2", {"t": 1, "u": 1})

    state = hand.turn("g").state

    assert state is not None
    threads = {thread: owned for target in state.target.values() for thread, owned in target.threads.items()}
    assert threads == {
        "c1-0": parts("t", 0, 1, 2),
        "c1-1": parts("t", 3, 4),
        "c2-0": parts("t", 5, 6) | parts("u", 0, 1),
    }


def test_d_3_1_no_ownership_registered_a_rebalance_is_necessary(stage: ManualStage, hand: Hand, world: World) -> None:
    stage.topic("t", 2)
    puppet = stage.puppet("g", "c1", {"t": 1})
    assert world.owners("g") == {}

    turn = hand.turn("g")

    assert turn.state is not None and turn.state.generation == 1
    assert puppet.options() == ["start-fetcher"]


def test_d_3_2_partition_without_owner_a_rebalance_is_necessary(stage: ManualStage, hand: Hand, world: World) -> None:
    one, two = stage.stable_pair(hand)
    before = world.state("g").generation
    world.remove(GroupPaths("g").owner("t", 3))

    hand.settle("g", one, two)

    assert world.state("g").generation == before + 1
    assert set(world.owners("g")) == parts("t", 0, 1, 2, 3)


def test_d_3_3_owned_partition_is_gone_a_rebalance_is_necessary(stage: ManualStage, hand: Hand, world: World) -> None:
    one, two = stage.stable_pair(hand)
    before = world.state("g").generation
    stage.topics.clear()

    hand.settle("g", one, two)

    assert world.state("g").generation == before + 1
    assert (world.owners("g"), one.running, two.running) == ({}, frozenset(), frozenset())


def test_d_3_4_an_ownership_is_another_a_rebalance_is_necessary(stage: ManualStage, hand: Hand, world: World) -> None:
    one, two = stage.stable_pair(hand)
    before = world.state("g").generation
    three = stage.puppet("g", "c3", {"t": 2})

    hand.settle("g", one, two, three)

    assert world.state("g").generation == before + 1
    assert (one.running, two.running, three.running) == (parts("t", 0), parts("t", 1), parts("t", 2, 3))


def test_d_3_5_otherwise_no_rebalance_is_necessary_or_written(stage: ManualStage, hand: Hand, world: World) -> None:
    stage.stable_pair(hand)
    paths = GroupPaths("g")
    watched = [paths.state, paths.history, paths.channel("c1"), paths.channel("c2"), paths.owners]
    before = [node.stat for node in world.store.get_many(watched) if node]

    turn = hand.turn("g")

    assert turn.state is not None and turn.state.state == STABLE
    assert [node.stat for node in world.store.get_many(watched) if node] == before


# ---- rebalance (group) 4 and 5


def test_d_4_1_sends_stop_fetcher_to_each_consumer_that_fetches(stage: ManualStage, hand: Hand) -> None:
    one, two = stage.stable_pair(hand)
    three = stage.puppet("g", "c3", {"t": 1})

    turn = hand.turn("g")

    assert turn.state is not None and turn.state.state == PREPARING
    assert (one.options(), two.options(), three.options()) == (["stop-fetcher"], ["stop-fetcher"], [])
    (stop,) = one.commands()
    assert (stop.epoch, stop.generation, stop.incarnation) == (1, 2, one.fenced.incarnation)


def test_d_4_2_then_sends_start_fetcher_with_each_consumers_own_part(stage: ManualStage, hand: Hand) -> None:
    one, two = stage.stable_pair(hand)
    three = stage.puppet("g", "c3", {"t": 1})
    hand.turn("g")
    one.obey()
    two.obey()

    turn = hand.turn("g")

    assert turn.state is not None and turn.state.state == COMPLETING
    started = {puppet.name: puppet.commands() for puppet in (one, two, three)}
    assert {name: [dict(c.threads) for c in commands] for name, commands in started.items()} == {
        "c1": [{"c1-0": parts("t", 0, 1)}],
        "c2": [{"c2-0": parts("t", 2)}],
        "c3": [{"c3-0": parts("t", 3)}],
    }


def test_d_4_3_the_group_is_not_stable_until_every_consumer_has_started(stage: ManualStage, hand: Hand) -> None:
    stage.topic("t", 4)
    one, two = stage.puppet("g", "c1", {"t": 1}), stage.puppet("g", "c2", {"t": 1})
    hand.turn("g")
    one.obey()
    waiting = hand.turn("g").state
    assert waiting is not None and waiting.state == COMPLETING
    assert (one.options(), two.options()) == ([], ["start-fetcher"])

    two.obey()

    finished = hand.turn("g").state
    assert finished is not None and finished.state == STABLE
    assert hand.acknowledged != [], "the watch on the channels asks for the turn"


def test_d_5_timed_out_member_is_evicted_and_the_rest_continues(stage: ManualStage, hand: Hand, world: World) -> None:
    stage.topic("t", 4)
    one = stage.puppet("g", "c1", {"t": 1})
    silent = stage.puppet("g", "c2", {"t": 1}, max_poll_interval_ms=300)
    hand.turn("g")
    assert silent.options() == ["start-fetcher"]

    def evicted() -> bool:
        hand.turn("g")
        one.obey()
        with suppress(IncarnationOver):
            silent.touch()
        return world.data(GroupPaths("g").id("c2")) is None

    eventually(evicted, 5, "the one that does not answer is evicted")
    channel = world.channel("g", "c2")
    assert (channel.ended, channel.error) == (
        "evicted: it carried out no command for 300 ms "
        "(raise max_poll_interval_ms, or lower max_poll_records so that it polls more often)",
        UNKNOWN_MEMBER_ID,
    )
    assert not silent.store.lost
    hand.settle("g", one)
    assert one.running == parts("t", 0, 1, 2, 3)


def test_d_5_otherwise_the_rebalance_has_succeeded_and_is_written(stage: ManualStage, hand: Hand, world: World) -> None:
    stage.stable_pair(hand)

    (record,) = world.history("g")

    assert (record.generation, record.epoch, record.trigger) == (1, 1, "a test")
    assert record.finished_ms is not None and record.finished_ms >= record.started_ms
    assert [name.partition("/")[0] for name in record.joined] == ["c1", "c2"]


def test_d_invalid_assignment_is_rejected_before_anything_is_written(stage: ManualStage, world: World) -> None:
    stage.topic("cursed", 2)
    stage.puppet("g", "c1", {"cursed": 1})
    hand = stage.hand(assignor=BrokenOnce(world))

    with pytest.raises(RebalanceFailed, match="leaves out or invents 2 partitions"):
        hand.turn("g")

    assert world.commands("g", "c1") == []
