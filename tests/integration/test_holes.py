"""The twelve holes of the draft (sources H1 to H12): a test for each, named after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.hand import ManualStage
from tests.support.listening import listeners_of
from tests.support.stores import FrontStore
from tests.support.terms import a_term
from tests.support.wait import eventually
from tests.support.world import World, parts
from zk_group.coordinator.term.directory import Directory
from zk_group.coordinator.zk.errors import EpochOver, IncarnationOver
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, Listing, Node, Operation, SetData, Watch
from zk_group.coordinator.zk.znodes.group_state import PREPARING, STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from zk_group.coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID, WHITE_LIST, Channel, Command, Registration, Topic
from zk_group.coordinator.zk.znodes.segments import Query, Segment

PATHS = GroupPaths("g")


# ---- 1


def test_hole_1_a_change_during_a_rebalance_brings_another_turn(world: World, stage: ManualStage) -> None:
    world.coordinator()
    world.topic("t", 2)
    holds_up = stage.puppet("g", "c1", {"t": 1})
    eventually(lambda: holds_up.options() == ["start-fetcher"], 5, "the rebalance is under way")

    world.more_partitions("t", 4)
    joiner = stage.puppet("g", "c2", {"t": 1})

    eventually(lambda: set(world.state("g").target) == {"c1", "c2"}, 5, "the joiner is seen at once")
    holds_up.obey_until(parts("t", 0, 1))
    joiner.obey_until(parts("t", 2, 3))
    world.stable("g", 2)


# ---- 2


class ChangesBehindReads(FrontStore):
    """A session with a change right after each first read of a path, before the reader continues."""

    def __init__(self, world: World, changes: dict[str, Operation]) -> None:
        super().__init__(open_kazoo(world.zk, 10_000))
        self._world = world
        self._changes = changes

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        found = super().get_many(paths, watch)
        self._change(paths)
        return found

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        found = super().children_many(paths, watch)
        self._change(paths)
        return found

    def _change(self, paths: Sequence[str]) -> None:
        for path in paths:
            if operation := self._changes.pop(path, None):
                self._world.store.commit([operation])


def test_hole_2_change_right_after_a_read_is_seen_by_the_watch_of_that_read(world: World, stage: ManualStage) -> None:
    world.topic("old", 1)
    stage.puppet("g", "c1", {"old": 1})
    brokers = world.brokers
    changes: dict[str, Operation] = {
        brokers.topics: Create(brokers.topic("new"), Topic("new", "n", (0,)).to_bytes()),
        brokers.topic("old"): SetData(brokers.topic("old"), Topic("old", "o", (0, 1)).to_bytes()),
        PATHS.ids: Create(PATHS.id("c2"), Registration("x", {"new": 1}).to_bytes()),
        PATHS.id("c1"): SetData(PATHS.id("c1"), Registration("y", {"other": 1}).to_bytes()),
        "/consumers/groups": Create("/consumers/groups/added"),
    }
    directory = Directory(ThreadRuntime())
    term = a_term(ChangesBehindReads(world, changes), ThreadRuntime())
    listeners = listeners_of(term, directory, lambda key, why: None)
    listeners.start()
    assert changes == {}
    thread = ThreadRuntime().spawn(listeners.run, "listeners")

    eventually(lambda: set(directory.topics) == {"new", "old"}, 5, "the new topic is seen")
    eventually(lambda: directory.topics["old"].partitions == (0, 1), 5, "the new partition is seen")
    eventually(lambda: "added" in directory.groups(), 5, "the new group is seen")
    both = {"new": {"g"}, "other": {"g"}}
    eventually(lambda: directory.consumer_groups_per_topic == both, 5, "the joiner and the new subscription are seen")
    listeners.stop()
    thread.join(10)
    term.store.close()


# ---- 3


def test_hole_3_a_stuck_group_does_not_stall_the_others(world: World, stage: ManualStage) -> None:
    world.coordinator(rebalance_handlers=1)
    world.topic("t", 2)
    stuck = stage.puppet("stuck", "c1", {"t": 1})
    eventually(lambda: stuck.options() == ["start-fetcher"], 5, "one group waits")

    world.consumer("lively", "c1", {"t": 1})

    world.stable("lively", 1, timeout_s=5)
    assert stuck.options() == ["start-fetcher"]


# ---- 4


def test_hole_4_a_zombie_coordinator_is_refused_by_the_epoch(world: World, stage: ManualStage) -> None:
    zombie = stage.hand("zombie")
    stage.stable_pair(zombie)
    world.remove(COORDINATOR)  # as ZooKeeper does when it takes the session for dead
    stage.hand("successor")
    stage.puppet("g", "c3", {"t": 1})
    before = world.store.get_many([PATHS.state, PATHS.channel("c1"), PATHS.history])
    assert zombie.term.lease.is_held, "nothing but the fence keeps it from writing"

    with pytest.raises(EpochOver):
        zombie.turn("g")

    assert world.store.get_many([PATHS.state, PATHS.channel("c1"), PATHS.history]) == before
    assert world.commands("g", "c1") == []


def test_hole_4_recreated_epoch_znode_still_fences_an_old_coordinator(world: World, stage: ManualStage) -> None:
    zombie = stage.hand("zombie")
    stage.stable_pair(zombie)
    world.remove(COORDINATOR)
    world.remove(COORDINATOR_EPOCH)
    successor = stage.hand("successor")
    stage.puppet("g", "c3", {"t": 1})

    with pytest.raises(EpochOver):
        zombie.turn("g")
    assert successor.term.epoch > zombie.term.epoch


# ---- 5


def test_hole_5_commands_of_a_dead_coordinator_are_withdrawn_and_never_applied(stage: ManualStage) -> None:
    stage.topic("t", 4)
    first = stage.hand("first")
    puppet = stage.puppet("g", "c1", {"t": 1})
    first.turn("g")
    first.close()
    assert [command.epoch for command in puppet.commands()] == [1]

    second = stage.hand("second")
    second.turn("g")
    second.turn("g")
    assert [command.epoch for command in puppet.commands()] == [2]
    second.settle("g", puppet)
    assert (puppet.stale, puppet.applied, puppet.fenced.channel.epoch) == (0, 1, 2)


@pytest.mark.parametrize(
    "older",
    [
        pytest.param({"epoch": 1}, id="of an older epoch"),
        pytest.param({"generation": 0}, id="of an older generation"),
        pytest.param({"incarnation": "earlier"}, id="for an earlier life"),
    ],
)
def test_hole_5_older_command_is_removed_unapplied(world: World, stage: ManualStage, older: dict[str, object]) -> None:
    stage.hand("first").close()
    hand = stage.hand("second")
    one, _ = stage.stable_pair(hand)
    stop = replace(Command("stop-fetcher", 2, 1, one.fenced.incarnation), **older)
    world.store.commit([Create(PATHS.command_prefix("c1"), stop.to_bytes(), sequential=True)])

    one.obey()

    assert (one.commands(), one.stale, one.gave_up) == ([], 1, [])
    assert one.running == parts("t", 0, 1)


# ---- 6


def test_hole_6_start_waits_for_the_stop_of_the_partitions_owner(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    three = stage.puppet("g", "c3", {"t": 2})
    hand.turn("g")
    one.obey()

    hand.turn("g")

    assert two.options() == ["stop-fetcher"]
    assert three.options() == [], "what it shall run is not free yet"
    two.obey()
    hand.turn("g")
    (start,) = three.commands()
    assert start.started == parts("t", 2, 3)
    assert not start.started & (one.running | two.running)


# ---- 7


def test_hole_7_consumer_that_never_acknowledges_holds_up_its_partitions_only(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    stuck, two = stage.stable_pair(hand, max_poll_interval_ms=1000, lease_ms=40_000)
    stage.puppet("g", "c3", {"unknown": 1})
    stage.topic("u", 1)
    three = stage.puppet("g", "c4", {"u": 1})

    def others_run() -> bool:
        hand.turn("g")
        two.obey()
        three.obey()
        return (two.running, three.running) == (parts("t", 2, 3), parts("u", 0))

    eventually(others_run, 5, "the others run what is free")
    assert stuck.running == parts("t", 0, 1)


def test_hole_7_partitions_of_an_evicted_one_wait_for_its_lease_over_failover(stage: ManualStage, world: World) -> None:
    first = stage.hand("first")
    stuck, two = stage.stable_pair(first, max_poll_interval_ms=400, lease_ms=1500)
    stuck.move(TopicPartition("t", 0), 42)
    first.evict(stuck, two)
    assert [mark.partitions for mark in world.state("g").marks] == [parts("t", 0, 1)]
    first.close()

    second = stage.hand("second")
    since = second.runtime.monotonic()

    def taken_over() -> bool:
        second.turn("g")
        two.obey()
        return two.running == parts("t", 0, 1, 2, 3)

    eventually(taken_over, 10, "the rest is taken over")
    assert second.runtime.monotonic() - since >= 1.5, "one lease from when the second coordinator read the mark"
    assert world.offsets("g")[TopicPartition("t", 0)] == 42
    with pytest.raises(IncarnationOver, match="evicted"):
        stuck.move(TopicPartition("t", 0), 43)


# ---- 8


def test_hole_8_the_topics_and_wildcards_of_joiners_are_added(world: World) -> None:
    world.coordinator()
    for name in ("a", "b", "wild"):
        world.topic(name, 2)
    one = world.consumer("g", "c1", {"a": 1})
    first = world.stable("g", 1)

    two = world.consumer("g", "c2", {"b": 1})
    second = world.stable("g", 2, above=first.generation)
    three = world.consumer("g", "c3", {"wild.*": 1}, pattern=WHITE_LIST)
    world.stable("g", 3, above=second.generation)

    wanted = (parts("a", 0, 1), parts("b", 0, 1), parts("wild", 0, 1))
    eventually(lambda: (one.held, two.held, three.held) == wanted, 5, "each has its own topic")
    world.topic("wilder", 1)
    eventually(lambda: three.held == parts("wild", 0, 1) | parts("wilder", 0), 5, "and what appears later")


def test_hole_8_a_subscription_that_changes_in_place_is_seen(world: World, stage: ManualStage) -> None:
    world.coordinator()
    world.topic("a", 1)
    world.topic("b", 2)
    puppet = stage.puppet("g", "c1", {"a": 1})
    puppet.obey_until(parts("a", 0))

    world.put(PATHS.id("c1"), replace(puppet.registration, subscription={"b": 1}).to_bytes())

    puppet.obey_until(parts("b", 0, 1))


# ---- 9


def test_hole_9_new_partitions_are_seen_in_the_data_of_the_topic(world: World) -> None:
    world.coordinator()
    world.topic("t", 1)
    consumer = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    world.more_partitions("t", 3)

    eventually(lambda: consumer.held == parts("t", 0, 1, 2), 5, "the new partitions are held")


def test_hole_9_deleted_topic_is_released_and_a_recreated_one_is_another(world: World, stage: ManualStage) -> None:
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


def test_hole_11_command_that_the_consumer_discarded_is_not_taken_for_applied(stage: ManualStage, world: World) -> None:
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


def test_hole_12_owners_of_an_ended_incarnation_go_before_its_session_ends(stage: ManualStage, world: World) -> None:
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
