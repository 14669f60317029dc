"""`zk-coordinator groups reset-offsets` and `delete-offsets`, as Kafka's own tests want them, and their fences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from consumer.logs.embedded.producer import Producer
from coordinator.admin.offsets import GROUP_SUBSCRIBED_TO_TOPIC, delete_offsets, write_offsets
from coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from coordinator.admin.topics import create_topic
from coordinator.zk.errors import CoordinatorError, OutcomeUnknown
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Create, Operation, SetData, Store
from coordinator.zk.znodes.group_state import PREPARING, STABLE
from coordinator.zk.znodes.partitions import Discontinuity, TopicPartition
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.records import OffsetRecord, Registration, Seat, Topic
from tests.support.cli import run, run_ok
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.stores import FrontStore, LostReplies
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


def test_a_time_without_a_later_record_falls_back_to_the_end(reset: Any, group: MadeGroup) -> None:
    result = reset("g", "--topic", "t:0", "--to-datetime", "2030-01-01T00:00:00.000", "--execute")

    assert printed(result) == {("t", 0): 100}
    assert "Warn: Partition 0 from topic t is empty. Falling back to latest known offset." in result.stderr


def test_a_partition_without_an_offset_cannot_be_shifted_and_nothing_is_set(reset: Any, group: MadeGroup) -> None:
    result = reset("g", "--topic", "t", "--shift-by", "1", "--execute")

    assert result.exit_code == 1
    assert "error: Cannot shift offset for partition t-1 since there is no current committed offset" in result.stderr
    assert group.offsets == BEFORE


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


@pytest.mark.parametrize("options", [["a", "b"], ["--all-groups"]])
def test_several_groups_and_all_are_reset(
    reset: Any, store: Store, topics: dict[str, Topic], options: list[str]
) -> None:
    made = [MadeGroup(store, name) for name in ("a", "b")]
    for number, each in enumerate(made):
        each.offsets_at(topics["t"], {0: 50 + number})

    result = reset(*options, "--all-topics", "--shift-by", "-10", "--execute")

    assert [line.split()[::3] for line in result.stdout.splitlines()[1:]] == [["a", "40"], ["b", "41"]]
    assert [each.offsets for each in made] == [{("t", 0): 40}, {("t", 0): 41}]


def test_a_group_that_does_not_exist_has_nothing_to_reset_for_all_topics(reset: Any, store: Store) -> None:
    result = reset("missing", "--all-topics", "--to-current", "--execute")

    assert (result.exit_code, printed(result)) == (0, {})
    assert not is_there(store, "missing")


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


def test_offsets_of_a_deleted_topic_are_left_out(reset: Any, group: MadeGroup) -> None:
    group.offsets_at(Topic("gone", "id", (0,)), {0: 7})
    group.offsets_at(Topic("less", "id", (0,)), {})

    result = reset("g", "--all-topics", "--to-earliest", "--execute")

    assert printed(result) == {("t", 0): 0, ("u", 0): 0}
    assert "Warn: gone-0 is left out: there is no topic gone" in result.stderr
    assert group.offsets["gone", 0] == 7


def test_offset_of_an_earlier_topic_of_the_name_is_ignored(reset: Any, store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store)
    group.offsets_at(topics["t"], {0: 7}, topic_id="earlier")

    assert printed(reset("g", "--topic", "t:0", "--to-current", "--execute")) == {("t", 0): 100}
    assert group.records == {("t", 0): OffsetRecord(100, topics["t"].id, 3, discontinuity=Discontinuity("reset", 0))}


# ---- files


def test_offsets_exported_for_one_group_can_be_imported(reset: Any, group: MadeGroup, tmp_path: Path) -> None:
    plan = tmp_path / "plan.csv"

    exported = reset("g", "--all-topics", "--to-offset", "2", "--export", "--dry-run")
    plan.write_text(exported.stdout)
    dry = reset("g", "--from-file", str(plan))
    before = group.offsets
    done = reset("g", "--from-file", str(plan), "--execute")

    assert (exported.stdout, exported.stderr) == ("t,0,2\nu,0,2\n", "")
    assert printed(dry) == printed(done) == group.offsets == {("t", 0): 2, ("u", 0): 2}
    assert before == BEFORE


def test_offsets_exported_for_several_groups_can_be_imported_for_some(
    reset: Any, store: Store, topics: dict[str, Topic], tmp_path: Path
) -> None:
    made = [MadeGroup(store, name) for name in ("a", "b", "c")]
    for each in made:
        each.offsets_at(topics["t"], {0: 50})
    plan = tmp_path / "plan.csv"

    plan.write_text(reset("a", "b", "--all-topics", "--to-offset", "2", "--export").stdout)
    some = reset("b", "--from-file", str(plan), "--execute")
    every = reset("--all-groups", "--from-file", str(plan))

    assert plan.read_text() == "a,t,0,2\nb,t,0,2\n"
    assert [each.offsets["t", 0] for each in made] == [50, 2, 50] and printed(some) == {("t", 0): 2}
    assert every.exit_code == 1
    assert "error: No reset plan for group 'c' found." in every.stderr


@pytest.mark.parametrize("text", ["t,0", "nowhere,0,1", "t,9,1"])
def test_a_file_that_is_wrong_changes_nothing(reset: Any, group: MadeGroup, tmp_path: Path, text: str) -> None:
    plan = tmp_path / "plan.csv"
    plan.write_text(f"g,t,0,7\n{'' if text == 't,0' else 'g,'}{text}\n")

    assert reset("g", "--from-file", str(plan), "--execute").exit_code == 2
    assert group.offsets == BEFORE


# ---- mistakes


@pytest.mark.parametrize(
    "options",
    [
        ["--topic", "t", "--to-earliest"],
        ["g", "--to-earliest"],
        ["g", "--topic", "t"],
        ["g", "--all-groups", "--topic", "t", "--to-earliest"],
        ["g", "--topic", "t", "--all-topics", "--to-earliest"],
        ["g", "--topic", "t", "--to-earliest", "--to-latest"],
        ["g", "--topic", "t", "--to-earliest", "--execute", "--dry-run"],
        ["g", "--topic", "t", "--by-duration", "1h"],
        ["g", "--topic", "t", "--to-datetime", "yesterday"],
        ["g", "--topic", "missing", "--to-earliest"],
        ["g", "--topic", "t:9", "--to-earliest"],
        ["g", "--topic", "t", "--to-earliest", "--new-option", "x"],
        ["..", "--topic", "t", "--to-earliest"],
        ["g", "--topic", "t", "--from-file", "/dev/null"],
        ["g", "--from-file", "/no/such/file"],
    ],
)
def test_impossible_reset_is_a_usage_error(reset: Any, group: MadeGroup, options: list[str]) -> None:
    result = reset(*options, *([] if "--dry-run" in options else ["--execute"]))

    assert (result.exit_code, "Traceback" in result.output) == (2, False), result.output
    assert group.offsets == BEFORE


# ---- members


@pytest.mark.parametrize("options", [["--execute"], ["--dry-run"]])
def test_a_group_with_members_is_refused_and_the_others_are_reset(
    reset: Any, store: Store, group: MadeGroup, topics: dict[str, Topic], options: list[str]
) -> None:
    busy = MadeGroup(store, "busy", STABLE)
    busy.offsets_at(topics["t"], {0: 50})
    busy.member("c1", {"t": 1})

    result = reset("busy", "g", "--topic", "t", "--to-earliest", *options)

    assert result.exit_code == 1
    assert result.stderr == (
        "error: Assignments can only be reset if the group 'busy' is inactive, but the current state is Stable.\n"
    )
    assert busy.offsets == {("t", 0): 50}
    assert printed(result) == {("t", 0): 0, ("t", 1): 0}
    assert group.offsets["t", 0] == (0 if "--execute" in options else 50)


def test_registered_consumer_is_a_member_before_any_turn(reset: Any, group: MadeGroup) -> None:
    group.member("c1", {"t": 1})

    result = reset("g", "--topic", "t", "--to-earliest", "--execute")

    assert (result.exit_code, group.offsets) == (1, BEFORE)
    assert "is inactive, but consumer c1 is registered." in result.stderr


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


def test_reset_of_a_group_with_sealed_segments_warns(reset: Any, group: MadeGroup) -> None:
    group.store.commit([Create(group.paths.segment("segment-0000000000"), b"{}")])

    moved = reset("g", "--topic", "t:0", "--to-earliest")
    stays = reset("g", "--topic", "t", "--to-current")

    assert "Warn: group g has sealed segments" in moved.stderr
    assert "sealed" not in stays.stderr


# ---- the fence


class Interrupted(FrontStore):
    """Something happens at one commit: before it, or in place of its answer."""

    def __init__(self, store: Store, at: int = 1) -> None:
        super().__init__(store)
        self.at = at
        self.commits = 0

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.commits += 1
        if self.commits != self.at:
            return self.behind.commit(operations)
        self.before()
        found = self.behind.commit(operations)
        self.after()
        return found

    def before(self) -> None:
        pass

    def after(self) -> None:
        pass


def new_offsets(topic: Topic, count: int, offset: int) -> list[NewOffset]:
    return [
        NewOffset(PartitionOffsets(TopicPartition("t", n), topic.id, None, None, 0, 100), offset) for n in range(count)
    ]


def test_a_turn_that_changes_nothing_for_members_does_not_stop_a_reset(
    group: MadeGroup, topics: dict[str, Topic]
) -> None:
    class Looked(Interrupted):
        def before(self) -> None:
            group.state("Empty", epoch=9)

    new = [NewOffset(PartitionOffsets(TopicPartition("t", 0), topics["t"].id, 50, 0, 0, 100), 7)]

    write_offsets(Looked(group.store), "g", new)

    assert group.offsets == {**BEFORE, ("t", 0): 7}


def test_large_reset_interrupted_by_a_member_reports_its_progress(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store)

    class Joined(Interrupted):
        def before(self) -> None:
            group.state(PREPARING)

    with pytest.raises(CoordinatorError, match="PreparingRebalance") as raised:
        write_offsets(Joined(store, at=3), "g", new_offsets(topics["t"], 1000, 7))

    written = len(group.offsets)
    assert 0 < written < 1000 and set(group.offsets.values()) == {7}
    assert f"({written} of 1000 offsets are set already)" in str(raised.value)


def test_an_offset_that_has_moved_meanwhile_is_not_overwritten(group: MadeGroup, topics: dict[str, Topic]) -> None:
    path = group.paths.offset("t", 0)

    class Moved(Interrupted):
        def before(self) -> None:
            group.store.commit([SetData(path, OffsetRecord(66, topics["t"].id, 3).to_bytes())])

    new = [NewOffset(PartitionOffsets(TopicPartition("t", 0), topics["t"].id, 50, 0, 0, 100), 40)]

    with pytest.raises(CoordinatorError, match="offset of t-0 in group g has been changed meanwhile"):
        write_offsets(Moved(group.store), "g", new)

    assert group.offsets["t", 0] == 66


@pytest.mark.parametrize("count", [1, 500])
def test_a_lost_reply_sets_each_offset_once(store: Store, topics: dict[str, Topic], count: int) -> None:
    group = MadeGroup(store)

    class Lost(Interrupted):
        def after(self) -> None:
            raise OutcomeUnknown("no reply")

    write_offsets(Lost(store), "g", new_offsets(topics["t"], count, 7))

    assert len(group.offsets) == count
    node = store.get(group.paths.offset("t", 0))
    assert node is not None and node.stat.version == 0


def test_a_group_that_has_no_state_yet_is_fenced_by_its_absence(store: Store, topics: dict[str, Topic]) -> None:
    group = MadeGroup(store, state=None)

    class Elected(Interrupted):
        def before(self) -> None:
            group.state(PREPARING)

    with pytest.raises(CoordinatorError, match="PreparingRebalance"):
        write_offsets(Elected(store), "g", new_offsets(topics["t"], 1, 7))
    other = MadeGroup(store, "other", state=None)
    write_offsets(store, "other", new_offsets(topics["t"], 1, 7))

    assert (group.offsets, other.offsets) == ({}, {("t", 0): 7})
    assert store.get(other.paths.state) is None


# ---- delete-offsets


def deleted(zk: str, *options: str) -> tuple[int, list[tuple[str, int | None, str]]]:
    result = run(zk, "groups", "delete-offsets", *options, "-o", "json")
    rows = json.loads(result.stdout)
    return result.exit_code, [(r["topic"], r["partition"], r["status"].split(": ")[:2][-1]) for r in rows]


def test_offsets_of_a_group_without_members_are_deleted(zk: str, group: MadeGroup) -> None:
    result = run_ok(zk, "groups", "delete-offsets", "g", "--topic", "t")

    assert result.stdout.splitlines()[0] == "Request succeed for deleting offsets with topic t group g"
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["TOPIC", "PARTITION", "STATUS"], ["t", "0", "Successful"], ["t", "1", "Successful"],
    ]  # fmt: skip
    assert group.offsets == {("u", 0): 50}


def test_offsets_of_some_partitions_are_deleted(zk: str, group: MadeGroup, topics: dict[str, Topic]) -> None:
    group.offsets_at(topics["t"], {1: 7})

    assert deleted(zk, "g", "--topic", "t:1", "--topic", "u:0") == (
        0,
        [("t", 1, "Successful"), ("u", 0, "Successful")],
    )
    assert group.offsets == {("t", 0): 50}


@pytest.mark.parametrize("pattern", ["static", "white_list"])
def test_offsets_of_a_topic_that_a_member_subscribes_to_stay(
    zk: str, group: MadeGroup, topics: dict[str, Topic], pattern: str
) -> None:
    group.state(STABLE, target={"c1": group.member("c1", {"t": 1}, pattern=pattern)})

    assert deleted(zk, "g", "--topic", "t", "--topic", "u") == (
        1,
        [
            ("t", 0, "GROUP_SUBSCRIBED_TO_TOPIC"),
            ("t", 1, "GROUP_SUBSCRIBED_TO_TOPIC"),
            ("u", 0, "Successful"),
            ("u", 1, "Successful"),
        ],
    )
    assert group.offsets == {("t", 0): 50}
    failed = run(zk, "groups", "delete-offsets", "g", "--topic", "t:0")
    assert "error: Encounter some partition level error, see the follow-up details:" in failed.stderr
    assert "Error: GROUP_SUBSCRIBED_TO_TOPIC: Deleting offsets of a topic is forbidden" in failed.stdout


def test_offsets_of_an_absent_static_members_topic_are_kept(zk: str, group: MadeGroup) -> None:
    seat = Seat(Registration("life", {"t": 1}, instance_id="c9"), 10_000)
    group.store.commit([Create(group.paths.seat("c9"), seat.to_bytes())])

    assert deleted(zk, "g", "--topic", "t:0") == (1, [("t", 0, "GROUP_SUBSCRIBED_TO_TOPIC")])


def test_offsets_of_a_partition_that_still_runs_stay(zk: str, group: MadeGroup, topics: dict[str, Topic]) -> None:
    group.member("c1", {"u": 1}, {TopicPartition("t", 0): 60}, {"t": topics["t"].id})

    assert deleted(zk, "g", "--topic", "t:0") == (1, [("t", 0, "GROUP_SUBSCRIBED_TO_TOPIC")])


def test_unknown_topic_or_partition_is_reported(zk: str, group: MadeGroup) -> None:
    assert deleted(zk, "g", "--topic", "nowhere", "--topic", "t:9", "--topic", "t:0") == (
        1,
        [
            ("nowhere", None, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("t", 9, "UNKNOWN_TOPIC_OR_PARTITION"),
            ("t", 0, "Successful"),
        ],
    )
    assert (
        "nowhere  Not Provided  Error: UNKNOWN" in run(zk, "groups", "delete-offsets", "g", "--topic", "nowhere").stdout
    )


def test_offsets_of_a_topic_that_is_subscribed_to_meanwhile_stay(group: MadeGroup, topics: dict[str, Topic]) -> None:
    class Joined(Interrupted):
        def before(self) -> None:
            group.state(PREPARING, target={"c1": group.member("c1", {"t": 1})})

    found = delete_offsets(Joined(group.store), topics, "g", [Scope("t", frozenset([0])), Scope("u", frozenset([0]))])

    assert [*found.values()] == [GROUP_SUBSCRIBED_TO_TOPIC, None]
    assert group.offsets == {("t", 0): 50}


def test_deleting_an_offset_is_a_success_when_only_the_reply_was_lost(
    group: MadeGroup, topics: dict[str, Topic]
) -> None:
    group.offsets_at(Topic("gone", "id", (0,)), {0: 7})

    found = delete_offsets(LostReplies(group.store), topics, "g", [Scope("gone", None)])

    assert found == {("gone", 0): None}
    assert group.offsets == BEFORE


def test_offsets_of_a_deleted_topic_can_be_deleted(zk: str, group: MadeGroup) -> None:
    group.offsets_at(Topic("gone", "id", (0,)), {0: 7})

    assert deleted(zk, "g", "--topic", "gone") == (0, [("gone", 0, "Successful")])
    assert group.offsets == BEFORE


def test_deleting_offsets_of_a_group_that_does_not_exist_fails(zk: str, store: Store) -> None:
    result = run(zk, "groups", "delete-offsets", "missing", "--topic", "t")

    assert (result.exit_code, result.stderr) == (1, "error: 'missing' does not exist.\n")
    assert run(zk, "groups", "delete-offsets", "g").exit_code == 2
