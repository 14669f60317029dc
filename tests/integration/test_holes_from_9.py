"""The twelve holes of seed 000, from 9 on; the others are in `test_holes.py`."""

from __future__ import annotations

from dataclasses import replace

from coordinator.zk.store import Create, Delete
from coordinator.zk.znodes.group_state import PREPARING, STABLE
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID, Channel
from coordinator.zk.znodes.segments import Query, Segment
from tests.support.hand import ManualStage
from tests.support.wait import eventually
from tests.support.world import World, parts

PATHS = GroupPaths("g")


# ---- 9


def test_hole_9_new_partitions_are_seen_in_the_data_of_the_topic(world: World) -> None:
    world.coordinator()
    world.topic("t", 1)
    consumer = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    world.more_partitions("t", 3)

    eventually(lambda: consumer.held == parts("t", 0, 1, 2), 5, "the new partitions are held")


def test_hole_9_deleted_topic_is_released_and_a_recreated_one_is_another_topic(
    world: World, stage: ManualStage
) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    one.move(TopicPartition("t", 0), 7)
    generation = world.state("g").generation

    stage.topic("t", 4, topic_id="another")
    hand.settle("g", one, two)

    assert world.state("g").generation == generation + 1
    assert len(one.gave_up) == 1, "it stopped the old topic's partitions before it started the new one's"
    assert dict(one.fenced.channel.topics) == {"t": "another"}
    del stage.topics["t"]
    hand.settle("g", one, two)
    assert (one.running, two.running, world.owners("g")) == (frozenset(), frozenset(), {})


def test_hole_9_deleted_group_is_forgotten_and_can_be_created_again(world: World) -> None:
    service = world.coordinator()
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1}).close()
    eventually(lambda: world.state("g").state == "Empty", 5, "the group has no members")

    world.remove(PATHS.root)

    back = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    eventually(lambda: back.held == parts("t", 0, 1), 5, "the group lives again")
    assert service.problems.current() == {}


# ---- 10


def test_hole_10_name_that_dies_and_returns_between_reads_is_another_member(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    generation = world.state("g").generation
    one.close()
    again = stage.puppet("g", "c1", {"t": 1})

    state = hand.turn("g").state

    assert state is not None and state.generation == generation + 1
    assert state.target["c1"].incarnation == again.fenced.incarnation
    hand.settle("g", again, two)
    assert (again.running, again.stale) == (parts("t", 0, 1), 0)


# ---- 11


def test_hole_11_command_removed_by_another_client_is_not_taken_for_applied(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    stage.puppet("g", "c3", {"t": 1})
    hand.turn("g")
    (name,) = world.names(PATHS.channel("c1"))
    world.remove(PATHS.command("c1", name))
    two.obey()

    state = hand.turn("g").state

    assert state is not None and state.state == PREPARING
    assert one.options() == ["stop-fetcher"], "the command is sent again"


def test_hole_11_a_command_that_the_consumer_discarded_is_not_taken_for_applied(
    stage: ManualStage, world: World
) -> None:
    hand = stage.hand()
    stage.topic("t", 2)
    puppet = stage.puppet("g", "c1", {"t": 1})
    hand.turn("g")
    (name,) = world.names(PATHS.channel("c1"))
    world.put(PATHS.command("c1", name), b"garbage")
    puppet.obey()
    assert (puppet.stale, puppet.applied, puppet.running) == (1, 0, frozenset())

    hand.settle("g", puppet)

    assert puppet.running == parts("t", 0, 1)


def test_hole_11_channel_names_the_last_applied_command(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    stage.topic("t", 2)
    puppet = stage.puppet("g", "c1", {"t": 1})
    hand.turn("g")
    (name,) = world.names(PATHS.channel("c1"))

    puppet.obey()

    channel = world.channel("g", "c1")
    assert (channel.command, channel.epoch, channel.generation) == (name, 1, 1)


# ---- 12


def test_hole_12_channels_of_the_dead_are_collected(world: World) -> None:
    world.coordinator(session_timeout_ms=400, channel_retention_ms=800, sweep_interval_ms=100)
    world.topic("t", 2)
    world.consumer("g", "gone", {"t": 1}).vanish()
    stays = world.consumer("g", "stays", {"t": 1})

    eventually(lambda: world.names(PATHS.channels) == ["stays"], 10, "only the channel of the living is left")
    world.stable("g", 1)
    eventually(lambda: stays.held == parts("t", 0, 1), 5, "the other consumer continues")


def test_hole_12_owners_of_an_ended_incarnation_are_removed_before_its_session_ends(
    stage: ManualStage, world: World
) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    world.remove(PATHS.id("c1"))
    assert not one.store.lost

    hand.settle("g", two)

    assert two.running == parts("t", 0, 1, 2, 3)
    assert world.channel("g", "c1") == replace(
        Channel(one.fenced.incarnation), epoch=1, generation=1, command="command-0000000000",
        ended="its session ended", error=UNKNOWN_MEMBER_ID,
    )  # fmt: skip


def test_hole_12_segments_that_every_query_has_finished_are_collected(world: World, stage: ManualStage) -> None:
    stage.puppet("g", "c1", {"t": 1})
    segments = [Segment(f"file-{n}.arrow", "/nowhere", 1, 1, (), "c1", "x", 1).to_bytes() for n in range(3)]
    for data in segments:
        world.store.commit([Create(PATHS.segment_prefix, data, sequential=True)])
    names = world.names(PATHS.segments)
    second = world.store.get(PATHS.segment(names[1]))
    assert second is not None
    world.put(PATHS.query("q"), Query("run", second.stat.czxid, 0).to_bytes())

    world.coordinator(sweep_interval_ms=100, segment_retention_ms=0)

    eventually(lambda: world.names(PATHS.segments) == names[2:], 5, "what the query has finished is gone")


def test_hole_12_history_is_kept_to_the_last_twenty_rebalances(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    stage.topic("t", 1)
    puppet = stage.puppet("g", "c1", {"t": 1})
    for partitions in range(1, 26):
        stage.topic("t", partitions)
        hand.settle("g", puppet)

    assert [record.generation for record in world.history("g")] == list(range(6, 26))
    state = world.state("g")
    assert (state.state, state.generation) == (STABLE, 25)
    assert all(record.finished_ms is not None for record in world.history("g"))
    world.store.commit([Delete(PATHS.history + "/rebalance-0000000025")])
    stage.topic("t", 1)
    hand.settle("g", puppet)
    assert world.state("g").generation == 26
