"""`groups reset-offsets` by scenarios and scopes, and the fences of it, of `delete-offsets` and of `groups delete`.

All else is in `command_lines/groups_offsets.txt` and `groups_delete.txt`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import Result

from tests.support.cli import run, run_ok
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.sealed import SealedGroup
from tests.support.stores import Interrupted, LostReplies, Reads, lost_reply
from tests.support.world import World, parts
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.admin.delete_group import delete_group
from zk_group.coordinator.admin.offsets import (
    GROUP_SUBSCRIBED_TO_TOPIC,
    GroupNotEmpty,
    delete_offsets,
    look,
    write_offsets,
)
from zk_group.coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.errors import ConnectionLost, CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import Create, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import EMPTY, PREPARING, GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord, Registration, Seat, Topic
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

RECORDS = 100
Offsets = dict[tuple[str, int], int]


@pytest.fixture
def topics(store: Store) -> dict[str, Topic]:
    return {name: create_topic(store, Brokers(), name, 2) for name in ("t", "u")}


@pytest.fixture
def log_dir(topics: dict[str, Topic], tmp_path: Path) -> Path:
    """Records 0 to 99 in partitions 0 of both topics, record n at n seconds after 2020; partitions 1 are empty."""
    folder = tmp_path / "log"
    with Producer(folder, topics) as producer:
        for topic in topics:
            for number in range(RECORDS):
                producer.send(topic, b"x", partition=0, timestamp_ms=1_577_836_800_000 + 1000 * number)
    return folder


@pytest.fixture
def group(store: Store, topics: dict[str, Topic]) -> MadeGroup:
    """Its offsets are 50 of t-0 and u-0; the other partitions have none."""
    made = MadeGroup(store)
    for topic in topics.values():
        made.offsets_at(topic, {0: 50})
    return made


def in_offsets(text: str) -> Offsets:
    """Those of `t-0=1 t-1=0`."""
    some = [re.split("[-=]", one) for one in text.split()]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in some}


def printed(result: Result) -> Offsets:
    """The table's topics and partitions with their new offsets."""
    header, *lines = [line.split() for line in result.stdout.splitlines()]
    assert header == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    return {(topic, int(partition)): int(offset) for _, topic, partition, offset in lines}


BEFORE = {("t", 0): 50, ("u", 0): 50}

# ---- each scenario and scope


@pytest.mark.parametrize(
    ("options", "wanted", "words"),
    [
        ("--topic t --to-offset 1", "t-0=1 t-1=0", "New offset (1) is higher than latest offset for"),
        ("--topic t --to-earliest", "t-0=0 t-1=0", ""),
        ("--topic t --to-latest", "t-0=100 t-1=0", ""),
        ("--topic t --to-current", "t-0=50 t-1=0", ""),
        ("--topic t --to-datetime 2020-01-01T00:00:10.000", "t-0=10 t-1=0", ""),
        ("--topic t --to-datetime 2020-01-01T02:00:10.000+02:00", "t-0=10 t-1=0", ""),
        ("--topic t --to-datetime 2020-01-01T00:00:09.500Z", "t-0=10 t-1=0", ""),
        ("--topic t:0 --by-duration PT1M", "t-0=0", ""),
        ("--topic t:0 --by-duration PT20S", "t-0=40", ""),
        ("--topic t:0 --by-duration P10000D", "t-0=0", ""),
        ("--topic t:0 --shift-by 30", "t-0=80", ""),
        ("--topic t:0 --shift-by -30", "t-0=20", ""),
        ("--topic t:0 --shift-by -150", "t-0=0", "New offset (-100) is lower than earliest offset for"),
        ("--topic t:0 --shift-by 150", "t-0=100", "New offset (200) is higher than latest offset for"),
        ("--topic t:0 --to-offset 1000", "t-0=100", "New offset (1000) is higher than latest"),
        ("--topic t:1 --to-earliest", "t-1=0", ""),
        ("--topic t --topic u --to-earliest", "t-0=0 t-1=0 u-0=0 u-1=0", ""),
        ("--topic t:0 --topic u:0,1 --to-earliest", "t-0=0 u-0=0 u-1=0", ""),
        ("--all-topics --to-earliest", "t-0=0 u-0=0", ""),
    ],
)
def test_dry_run_shows_the_offsets_that_an_execution_sets(
    zk: str, log_dir: Path, group: MadeGroup, monkeypatch: pytest.MonkeyPatch, options: str, wanted: str, words: str
) -> None:
    monkeypatch.setattr(ThreadRuntime, "wall_ms", lambda self: 1_577_836_860_000)  # a minute of 2020 is over
    command = ["groups", "reset-offsets", "g", "--log-dir", str(log_dir), *options.split()]

    dry = run_ok(zk, *command)
    before = group.offsets
    done = run_ok(zk, *command, "--execute")

    assert printed(dry) == printed(done) == in_offsets(wanted)
    assert (before, group.offsets) == (BEFORE, BEFORE | in_offsets(wanted))
    assert words in done.stderr
    assert "WARN: No action will be performed" in dry.stderr and "No action" not in done.stderr


def test_a_group_is_made_by_a_reset(world: World, stage: ManualStage, topics: dict[str, Topic], log_dir: Path) -> None:
    options = ["new", "--topic", "t", "--to-offset", "50", "--log-dir", str(log_dir)]
    dry = run_ok(world.zk, "groups", "reset-offsets", *options, "--dry-run")
    is_made = world.data(GroupPaths("new").root) is not None

    run_ok(world.zk, "groups", "reset-offsets", *options, "--execute")
    stage.topic("t", 2, topics["t"].id)
    hand, one = stage.hand(), stage.puppet("new", "c1", {"t": 1})
    hand.settle("new", one)
    one.read_offsets()

    assert not is_made and "No action" not in dry.stderr
    assert dict(one.fenced.channel.running) == {("t", 0): 50, ("t", 1): 0}


# ---- members


def test_reset_waits_for_a_last_turn(world: World, stage: ManualStage, topics: dict[str, Topic], log_dir: Path) -> None:
    stage.topic("t", 2, topics["t"].id)
    hand, one = stage.hand(), stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", one)
    for number in (0, 1):
        one.move(TopicPartition("t", number), 80)
    options = ["g", "--topic", "t:0", "--to-offset", "5", "--execute", "--log-dir", str(log_dir)]

    while_it_lives = run(world.zk, "groups", "reset-offsets", *options)
    one.close()
    before_the_turn = run(world.zk, "groups", "reset-offsets", *options)
    while hand.turn("g").state.state != "Empty":  # type: ignore[union-attr]
        pass
    after_it = run(world.zk, "groups", "reset-offsets", *options)
    two = stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", two)
    two.read_offsets()

    assert [r.exit_code for r in (while_it_lives, before_the_turn, after_it)] == [1, 1, 0], after_it.output
    assert "the current state is Stable. It has no member any more: it is Empty after" in before_the_turn.stderr
    assert dict(two.fenced.channel.running) == {("t", 0): 5, ("t", 1): 80}


# ---- the fence


def new_offsets(topic: Topic, count: int, offset: int, before: int | None = None) -> list[NewOffset]:
    version = None if before is None else 0
    found = [PartitionOffsets(TopicPartition("t", n), topic.id, before, version, 0, 100) for n in range(count)]
    return [NewOffset(each, offset) for each in found]


def test_a_turn_that_changes_nothing_for_members_stops_no_reset(group: MadeGroup, topics: dict[str, Topic]) -> None:
    took = Interrupted(group.store, lambda: group.state("Empty", epoch=9))

    write_offsets(took, "g", new_offsets(topics["t"], 1, 7, before=50))

    assert group.offsets == {**BEFORE, ("t", 0): 7}


def test_large_reset_interrupted_by_a_member_reports_its_progress(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store)
    joined = Interrupted(store, lambda: group.state(PREPARING), at=3)

    with pytest.raises(CoordinatorError, match="PreparingRebalance") as raised:
        write_offsets(joined, "g", new_offsets(topics["t"], 1000, 7))

    written = len(group.offsets)
    assert 0 < written < 1000 and set(group.offsets.values()) == {7}
    assert f"({written} of 1000 offsets are set already)" in str(raised.value)


def test_an_offset_that_has_moved_meanwhile_is_not_overwritten(group: MadeGroup, topics: dict[str, Topic]) -> None:
    path = group.paths.offset("t", 0)

    def moved() -> None:
        group.store.commit([SetData(path, OffsetRecord(66, topics["t"].id, 3).to_bytes())])

    with pytest.raises(CoordinatorError, match="offset of t-0 in group g has been changed meanwhile"):
        write_offsets(Interrupted(group.store, moved), "g", new_offsets(topics["t"], 1, 40, before=50))

    assert group.offsets["t", 0] == 66


def test_a_lost_reply_sets_each_offset_once(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store)

    write_offsets(Interrupted(store, after=lost_reply), "g", new_offsets(topics["t"], 500, 7))

    assert len(group.offsets) == 500
    node = store.get(group.paths.offset("t", 0))
    assert node is not None and node.stat.version == 0


def test_a_group_that_has_no_state_yet_is_fenced_by_its_absence(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store, state=None)
    elected = Interrupted(store, lambda: group.state(PREPARING))

    with pytest.raises(CoordinatorError, match="PreparingRebalance"):
        write_offsets(elected, "g", new_offsets(topics["t"], 1, 7))
    other = MadeGroup(store, "other", state=None)
    write_offsets(store, "other", new_offsets(topics["t"], 1, 7))

    assert (group.offsets, other.offsets) == ({}, {("t", 0): 7})
    assert store.get(other.paths.state) is None


# ---- delete-offsets


def test_offsets_of_a_topic_that_is_subscribed_to_meanwhile_stay(group: MadeGroup, topics: dict[str, Topic]) -> None:
    joined = Interrupted(group.store, lambda: group.state(PREPARING, target={"c1": group.member("c1", {"t": 1})}))

    found = delete_offsets(joined, topics, "g", [Scope("t", frozenset([0])), Scope("u", frozenset([0]))])

    assert [*found.values()] == [GROUP_SUBSCRIBED_TO_TOPIC, None]
    assert group.offsets == {("t", 0): 50}


def test_deleting_an_offset_whose_reply_was_lost_succeeds(group: MadeGroup, topics: dict[str, Topic]) -> None:
    group.offsets_at(Topic("gone", "id", (0,)), {0: 7})

    found = delete_offsets(LostReplies(group.store), topics, "g", [Scope("gone", None)])

    assert (found, group.offsets) == ({("gone", 0): None}, BEFORE)


# ---- groups delete


T = Topic("t", "id-of-t", (0, 1))


@pytest.fixture
def empty(store: Store) -> MadeGroup:
    """Empty, with offsets, history and the channel of a departed member."""
    made = MadeGroup(store)
    made.offsets_at(T, {0: 5, 1: 7})
    ensure(store, [made.paths.owners_of("t"), made.paths.rebalance(3), made.paths.channel("c1")])
    store.commit([SetData(made.paths.channel("c1"), Channel("life", ended="left").to_bytes())])
    return made


def test_small_group_is_deleted_in_one_multi(empty: MadeGroup) -> None:
    counting = Interrupted(empty.store)

    delete_group(counting, "g")

    assert (counting.commits, empty.exists) == (1, False)


# ---- members that join meanwhile


def test_a_turn_that_moves_the_state_refuses_the_multi(empty: MadeGroup) -> None:
    racing = Interrupted(empty.store, lambda: empty.state(PREPARING))

    with pytest.raises(GroupNotEmpty, match="PreparingRebalance"):
        delete_group(racing, "g")

    assert empty.offsets == {("t", 0): 5, ("t", 1): 7}


def test_a_lost_reply_is_no_failure_and_leaves_no_file_of_a_segment(empty: MadeGroup, tmp_path: Path) -> None:
    sealed = SealedGroup(empty.store, tmp_path / "segments")
    file = sealed.path(sealed.seal())

    removed = delete_group(LostReplies(empty.store), "g")

    assert not empty.exists and not file.exists()
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


def test_seat_that_is_taken_between_two_reads_keeps_the_group(store: Store, empty: MadeGroup) -> None:
    seat = Seat(Registration("life", {"t": 1}, instance_id="c9"), 10_000).to_bytes()
    racing = Reads(store).after(empty.paths.seats, lambda: store.commit([Create(empty.paths.seat("c9"), seat)]))

    with pytest.raises(GroupNotEmpty, match="static member c9"):
        delete_group(racing, "g")

    assert empty.exists


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
