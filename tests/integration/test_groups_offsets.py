"""`groups reset-offsets` by scenarios and scopes, and the fences. All else is in `command_lines/groups_offsets.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from consumer.logs.embedded.producer import Producer
from coordinator.admin.offsets import GROUP_SUBSCRIBED_TO_TOPIC, delete_offsets, write_offsets
from coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from coordinator.admin.topics import create_topic
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import SetData, Store
from coordinator.zk.znodes.group_state import PREPARING
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.records import OffsetRecord, Topic
from tests.support.cli import run, run_ok
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.stores import Interrupted, LostReplies, lost_reply
from tests.support.world import World

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


@pytest.fixture
def reset(zk: str, log_dir: Path) -> Any:
    def reset(*options: str) -> Result:
        return run(zk, "groups", "reset-offsets", *options, "--log-dir", str(log_dir))

    return reset


def printed(result: Result) -> Offsets:
    """The table's topics and partitions with their new offsets."""
    header, *lines = [line.split() for line in result.stdout.splitlines()]
    assert header == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    return {(topic, int(partition)): int(offset) for _, topic, partition, offset in lines}


BEFORE = {("t", 0): 50, ("u", 0): 50}


# ---- each scenario


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--to-offset", "1"], {("t", 0): 1, ("t", 1): 0}),
        (["--to-earliest"], {("t", 0): 0, ("t", 1): 0}),
        (["--to-latest"], {("t", 0): 100, ("t", 1): 0}),
        (["--to-current"], {("t", 0): 50, ("t", 1): 0}),
        (["--to-datetime", "2020-01-01T00:00:10.000"], {("t", 0): 10, ("t", 1): 0}),
        (["--to-datetime", "2020-01-01T02:00:10.000+02:00"], {("t", 0): 10, ("t", 1): 0}),
        (["--to-datetime", "2020-01-01T00:00:09.500Z"], {("t", 0): 10, ("t", 1): 0}),
        (["--by-duration", "PT0.1S"], {("t", 0): 100, ("t", 1): 0}),
        (["--by-duration", "P10000D"], {("t", 0): 0, ("t", 1): 0}),
    ],
)
def test_dry_run_shows_the_offsets_that_an_execution_sets(
    reset: Any, group: MadeGroup, options: list[str], wanted: Offsets
) -> None:
    dry = reset("g", "--topic", "t", *options)
    before = group.offsets
    done = reset("g", "--topic", "t", *options, "--execute")

    assert (dry.exit_code, done.exit_code) == (0, 0), (dry.output, done.output)
    assert printed(dry) == printed(done) == wanted
    assert before == BEFORE
    assert group.offsets == {**BEFORE, **wanted}
    assert "WARN: No action will be performed" in dry.stderr and "No action" not in done.stderr


@pytest.mark.parametrize(
    ("options", "offset", "words"),
    [
        (["--shift-by", "30"], 80, ""),
        (["--shift-by", "-30"], 20, ""),
        (["--shift-by", "-150"], 0, "New offset (-100) is lower than earliest offset for topic partition t-0"),
        (["--shift-by", "150"], 100, "New offset (200) is higher than latest offset for topic partition t-0"),
        (["--to-offset", "1000"], 100, "New offset (1000) is higher than latest"),
    ],
)
def test_shift_is_from_the_current_offset_and_stays_within_the_log(
    reset: Any, group: MadeGroup, options: list[str], offset: int, words: str
) -> None:
    result = reset("g", "--topic", "t:0", *options, "--execute")

    assert printed(result) == {("t", 0): offset}
    assert group.offsets == {**BEFORE, ("t", 0): offset}
    assert words in result.stderr


def test_by_duration_counts_back_from_now(reset: Any, group: MadeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadRuntime, "wall_ms", lambda self: 1_577_836_860_000)

    assert printed(reset("g", "--topic", "t:0", "--by-duration", "PT1M", "--execute")) == {("t", 0): 0}
    assert printed(reset("g", "--topic", "t:0", "--by-duration", "PT20S", "--execute")) == {("t", 0): 40}


# ---- scopes


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        (["--topic", "t"], [("t", 0), ("t", 1)]),
        (["--topic", "t:1"], [("t", 1)]),
        (["--topic", "t", "--topic", "u"], [("t", 0), ("t", 1), ("u", 0), ("u", 1)]),
        (["--topic", "t:0", "--topic", "u:0,1"], [("t", 0), ("u", 0), ("u", 1)]),
        (["--all-topics"], [("t", 0), ("u", 0)]),
    ],
)
def test_only_partitions_in_the_scope_are_reset(
    reset: Any, group: MadeGroup, options: list[str], moved: list[tuple[str, int]]
) -> None:
    assert reset("g", *options, "--to-earliest", "--execute").exit_code == 0

    assert group.offsets == {**BEFORE, **dict.fromkeys(moved, 0)}


def is_there(store: Store, name: str) -> bool:
    return store.get(GroupPaths(name).root) is not None


def test_start_offsets_can_be_set_before_the_group_exists(world: World, stage: ManualStage, log_dir: Path) -> None:
    options = ["new", "--topic", "t", "--to-offset", "50", "--log-dir", str(log_dir)]
    dry = run_ok(world.zk, "groups", "reset-offsets", *options, "--dry-run")
    is_made = is_there(world.store, "new")

    run_ok(world.zk, "groups", "reset-offsets", *options, "--execute")
    made = run_topic(world, "t")
    stage.topic("t", 2, made.id)
    hand, one = stage.hand(), stage.puppet("new", "c1", {"t": 1})
    hand.settle("new", one)
    one.read_offsets()

    assert not is_made and "No action" not in dry.stderr
    assert dict(one.fenced.channel.running) == {("t", 0): 50, ("t", 1): 0}


def run_topic(world: World, name: str) -> Topic:
    node = world.store.get(world.brokers.topic(name))
    assert node is not None
    return Topic.parse("", name, node.data, node.stat.czxid)


# ---- members


def test_reset_waits_for_the_turn_ending_the_last_member_and_applies_to_the_next(
    world: World, stage: ManualStage, log_dir: Path
) -> None:
    made = run_topic(world, "t")
    stage.topic("t", 2, made.id)
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


def new_offsets(topic: Topic, count: int, offset: int) -> list[NewOffset]:
    return [
        NewOffset(PartitionOffsets(TopicPartition("t", n), topic.id, None, None, 0, 100), offset) for n in range(count)
    ]


def test_a_turn_that_changes_nothing_for_members_does_not_stop_a_reset(
    group: MadeGroup, topics: dict[str, Topic]
) -> None:
    def looked() -> None:
        group.state("Empty", epoch=9)

    new = [NewOffset(PartitionOffsets(TopicPartition("t", 0), topics["t"].id, 50, 0, 0, 100), 7)]

    write_offsets(Interrupted(group.store, looked), "g", new)

    assert group.offsets == {**BEFORE, ("t", 0): 7}


def test_large_reset_interrupted_by_a_member_reports_its_progress(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store)

    def joined() -> None:
        group.state(PREPARING)

    with pytest.raises(CoordinatorError, match="PreparingRebalance") as raised:
        write_offsets(Interrupted(store, joined, at=3), "g", new_offsets(topics["t"], 1000, 7))

    written = len(group.offsets)
    assert 0 < written < 1000 and set(group.offsets.values()) == {7}
    assert f"({written} of 1000 offsets are set already)" in str(raised.value)


def test_an_offset_that_has_moved_meanwhile_is_not_overwritten(group: MadeGroup, topics: dict[str, Topic]) -> None:
    path = group.paths.offset("t", 0)

    def moved() -> None:
        group.store.commit([SetData(path, OffsetRecord(66, topics["t"].id, 3).to_bytes())])

    new = [NewOffset(PartitionOffsets(TopicPartition("t", 0), topics["t"].id, 50, 0, 0, 100), 40)]

    with pytest.raises(CoordinatorError, match="offset of t-0 in group g has been changed meanwhile"):
        write_offsets(Interrupted(group.store, moved), "g", new)

    assert group.offsets["t", 0] == 66


@pytest.mark.parametrize("count", [1, 500])
def test_a_lost_reply_sets_each_offset_once(store: Store, topics: dict[str, Topic], count: int) -> None:
    group = MadeGroup(store)

    write_offsets(Interrupted(store, after=lost_reply), "g", new_offsets(topics["t"], count, 7))

    assert len(group.offsets) == count
    node = store.get(group.paths.offset("t", 0))
    assert node is not None and node.stat.version == 0


def test_a_group_that_has_no_state_yet_is_fenced_by_its_absence(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store, state=None)

    def elected() -> None:
        group.state(PREPARING)

    with pytest.raises(CoordinatorError, match="PreparingRebalance"):
        write_offsets(Interrupted(store, elected), "g", new_offsets(topics["t"], 1, 7))
    other = MadeGroup(store, "other", state=None)
    write_offsets(store, "other", new_offsets(topics["t"], 1, 7))

    assert (group.offsets, other.offsets) == ({}, {("t", 0): 7})
    assert store.get(other.paths.state) is None


# ---- delete-offsets


def test_offsets_of_a_topic_that_is_subscribed_to_meanwhile_stay(group: MadeGroup, topics: dict[str, Topic]) -> None:
    def joined() -> None:
        group.state(PREPARING, target={"c1": group.member("c1", {"t": 1})})

    scopes = [Scope("t", frozenset([0])), Scope("u", frozenset([0]))]
    found = delete_offsets(Interrupted(group.store, joined), topics, "g", scopes)

    assert [*found.values()] == [GROUP_SUBSCRIBED_TO_TOPIC, None]
    assert group.offsets == {("t", 0): 50}


def test_deleting_an_offset_is_a_success_when_only_the_reply_was_lost(
    group: MadeGroup, topics: dict[str, Topic]
) -> None:
    group.offsets_at(Topic("gone", "id", (0,)), {0: 7})

    found = delete_offsets(LostReplies(group.store), topics, "g", [Scope("gone", None)])

    assert found == {("gone", 0): None}
    assert group.offsets == BEFORE
