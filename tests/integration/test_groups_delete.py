"""`groups delete` beside members and queries, and half-way. All else is in `command_lines/groups_delete.txt`."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.admin.delete_group import delete_group
from coordinator.admin.offsets import GroupNotEmpty, look
from coordinator.zk.errors import ConnectionLost
from coordinator.zk.store import Create, SetData, Store
from coordinator.zk.update import ensure
from coordinator.zk.znodes.group_state import EMPTY, PREPARING, GroupState
from coordinator.zk.znodes.records import Channel, Topic
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.sealed import SealedGroup
from tests.support.stores import Interrupted, LostReplies
from tests.support.world import World, parts

T = Topic("t", "id-of-t", (0, 1))


@pytest.fixture
def group(store: Store) -> MadeGroup:
    """Empty, with offsets, history and the channel of a departed member."""
    made = MadeGroup(store)
    made.offsets_at(T, {0: 5, 1: 7})
    ensure(store, [made.paths.owners_of("t"), made.paths.rebalance(3), made.paths.channel("c1")])
    store.commit([SetData(made.paths.channel("c1"), Channel("life", ended="left").to_bytes())])
    return made


# ---- what is deleted


def test_small_group_is_deleted_in_one_multi(group: MadeGroup) -> None:
    counting = Interrupted(group.store)

    delete_group(counting, "g")

    assert (counting.commits, group.exists) == (1, False)


# ---- members that join meanwhile


def test_a_turn_that_moves_the_state_refuses_the_multi(group: MadeGroup) -> None:
    racing = Interrupted(group.store, lambda: group.state(PREPARING))

    with pytest.raises(GroupNotEmpty, match="PreparingRebalance"):
        delete_group(racing, "g")

    assert group.offsets == {("t", 0): 5, ("t", 1): 7}


def test_a_lost_reply_is_no_failure_and_leaves_no_file_of_a_segment(group: MadeGroup, tmp_path: Path) -> None:
    sealed = SealedGroup(group.store, tmp_path / "segments")
    file = sealed.path(sealed.seal())

    removed = delete_group(LostReplies(group.store), "g")

    assert not group.exists and not file.exists()
    assert removed.offsets == 2


# ---- half-way: a group of several multis


@pytest.fixture
def large(store: Store, tmp_path: Path) -> SealedGroup:
    """A group of 1,000 offsets, 500 records of channels, and two segments."""
    sealed = SealedGroup(store, tmp_path / "segments")
    made = MadeGroup(store)
    made.offsets_at(T, dict.fromkeys(range(1000), 5))
    store.commit([Create(f"{sealed.paths.history}/rebalance-{n:010d}") for n in range(380)])
    sealed.channel(Channel("abc", ended="left"))
    sealed.seal()
    sealed.seal()
    return sealed


def whole(store: Store, sealed: SealedGroup) -> GroupState:
    """The state of a group that is still whole after a half-finished command: its parents and its state exist."""
    assert None not in store.get_many(sealed.paths.skeleton)
    node = store.get(sealed.paths.state)
    assert node is not None
    return GroupState.parse("", node.data)


@pytest.mark.parametrize("at", [2, 3, 4])
def test_interrupted_delete_leaves_an_empty_group_to_delete_again(store: Store, large: SealedGroup, at: int) -> None:
    def die() -> None:
        raise ConnectionLost("killed")

    store.commit([Create(large.paths.seat("c9"), b"garbage")])
    last = large.czxid("segment-0000000001")
    dying = Interrupted(store, die, at)
    with pytest.raises(ConnectionLost):
        delete_group(dying, "g")
    left = whole(store, large)
    segments = store.get(large.paths.segments)
    delete_group(store, "g")

    assert (left.state, left.generation) == (EMPTY, 3), "no later generation begins at 0 again"
    assert segments is not None
    assert SegmentsRecord.parse("", segments.data).collected == last, "a query learns which segments are collected"
    assert store.get(large.paths.root) is None


@pytest.mark.parametrize("at", [2, 4])
def test_member_joining_half_way_has_a_group(world: World, stage: ManualStage, large: SealedGroup, at: int) -> None:
    made = MadeGroup(world.store)
    stage.topic("t", 2, T.id)
    hand = stage.hand()
    puppets = []
    racing = Interrupted(world.store, lambda: puppets.append(stage.puppet("g", "c1", {"t": 1})), at)

    with pytest.raises(GroupNotEmpty, match="consumer c1 is registered") as raised:
        delete_group(racing, "g")
    state = whole(world.store, large)
    offsets = len(made.offsets)
    hand.settle("g", *puppets)

    assert "of its znodes had been removed before" in str(raised.value)
    assert (state.state, state.generation) == (EMPTY, 3)
    assert (offsets == 1000) is (at == 2), "offsets go after all that a group can do without"
    assert world.state("g").generation == 4 and puppets[0].running == parts("t", 0, 1)


def test_a_query_that_registers_half_way_keeps_the_segments(store: Store, large: SealedGroup) -> None:
    racing = Interrupted(store, lambda: large.query("new"))

    with pytest.raises(GroupNotEmpty, match="query new reads its segments"):
        delete_group(racing, "g")

    assert large.path("segment-0000000000").exists() and large.path("segment-0000000001").exists()


def test_a_member_that_registers_beside_the_last_multi_has_another_group(world: World, stage: ManualStage) -> None:
    stage.topic("t", 2)
    hand, one = stage.hand(), stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", one)
    one.close()
    while hand.turn("g").state.state != EMPTY:  # type: ignore[union-attr]
        pass

    delete_group(world.store, "g")
    gone = hand.turn("g").state
    two = stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", two)

    assert gone is None
    assert world.state("g").generation == 1 and two.running == parts("t", 0, 1)


def test_a_removal_that_stops_half_way_hides_no_member_from_the_coordinator(world: World) -> None:
    world.topic("t", 2)
    made = MadeGroup(world.store)
    world.elected(world.coordinator())
    world.consumer("other", "c1", {"t": 1})
    world.stable("other", 1)

    for _ in range(3):
        world.store.commit(look(world.store, "g").vacancy_fence())
    world.consumer("g", "c1", {"t": 1})

    assert made.exists and world.stable("g", 1, timeout_s=5).generation == 4
