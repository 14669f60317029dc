"""`zk-coordinator groups list`, `describe` and `verify` on groups in ZooKeeper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumer.logs.embedded.producer import Producer
from coordinator.admin.topics import create_topic, delete_topic
from coordinator.cli.groups import NO_LAG
from coordinator.zk.store import Create, Store
from coordinator.zk.znodes.group_state import COMPLETING, GROUP_STATES, PREPARING, STABLE
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, Brokers
from coordinator.zk.znodes.records import CoordinatorRecord, Topic
from tests.support.cli import run, run_json, run_ok
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.world import World

KAFKAS = [
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
]  # fmt: skip


@pytest.fixture
def topic(store: Store) -> Topic:
    return create_topic(store, Brokers(), "t", 4)


def part(number: int) -> TopicPartition:
    return TopicPartition("t", number)


@pytest.fixture
def shared(store: Store, topic: Topic) -> MadeGroup:
    """`big` has partitions 1 and 2, `small` has 0, `idle` none; 3 has no owner."""
    group = MadeGroup(store, state=None)
    ids = {"t": topic.id}
    target = {
        "small": group.member("small", {"t": 1}, {part(0): 5}, ids),
        "big": group.member("big", {"t": 1}, {part(1): 7, part(2): None}, ids),
        "idle": group.member("idle", {"t": 1}),
    }
    group.offsets_at(topic, {0: 4, 3: 9})
    group.state(STABLE, target=target, topics=ids)
    return group


# ---- list


def test_groups_are_listed_by_their_states(zk: str, store: Store) -> None:
    for number, state in enumerate(GROUP_STATES):
        MadeGroup(store, f"g{number}", state)
    MadeGroup(store, "without", None)

    def listed(*options: str) -> dict[str, str]:
        return {row["group"]: row["state"] for row in run_json(zk, "groups", "list", *options)}

    every = {f"g{number}": state for number, state in enumerate(GROUP_STATES)} | {"without": "Dead"}
    assert listed() == listed("--state") == every
    assert listed("--state", "stable,EMPTY") == {name: s for name, s in every.items() if s in ("Stable", "Empty")}
    assert listed("--state", "dead") == {name: s for name, s in every.items() if s == "Dead"}


def test_a_state_of_a_later_release_is_listed_unless_states_are_asked_for(zk: str, store: Store) -> None:
    MadeGroup(store, "g", "Resting")

    assert [row["state"] for row in run_json(zk, "groups", "list")] == ["Resting"]
    assert run_json(zk, "groups", "list", "--state", "Stable,Empty") == []


def test_a_bad_state_lists_nothing(zk: str, store: Store) -> None:
    result = run(zk, "groups", "list", "--state", "stable,wrong")

    assert result.exit_code == 2
    assert "Invalid state list 'stable,wrong'. Valid states are: Empty, Preparing" in result.stderr


# ---- describe --offsets


def test_offsets_are_described_in_kafkas_columns_and_order(zk: str, shared: MadeGroup, topic: Topic) -> None:
    done = run_ok(zk, "groups", "describe", "g")
    lines = done.stdout.splitlines()

    assert done.stderr == f"{NO_LAG}\n" and "--log-dir" in NO_LAG
    assert lines[0].split() == [*KAFKAS, "OWNER"]
    assert [line.split() for line in lines[1:]] == [
        ["g", "t", "1", "7", "-", "-", "big", "exec-1", "big", "big-0"],
        ["g", "t", "2", "-", "-", "-", "big", "exec-1", "big", "big-0"],
        ["g", "t", "0", "5", "-", "-", "small", "exec-1", "small", "small-0"],
        ["g", "-", "-", "-", "-", "-", "idle", "exec-1", "idle", "-"],
        ["g", "t", "3", "9", "-", "-", "-", "-", "-", "-"],
    ]


def test_lag_is_the_log_end_less_the_offset(zk: str, shared: MadeGroup, topic: Topic, tmp_path: Path) -> None:
    with Producer(tmp_path, {"t": topic}) as producer:
        for number in (0, 0, 0, 0, 0, 0, 0, 0, 1, 2):
            producer.send("t", b"x", partition=number)

    rows = run_json(zk, "groups", "describe", "g", "--log-dir", str(tmp_path))
    assert "LAG" not in run_ok(zk, "groups", "describe", "g", "--log-dir", str(tmp_path)).stderr

    found = {row["partition"]: (row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows}
    assert found == {0: (5, 8, 3), 1: (7, 1, None), 2: (None, 1, None), 3: (9, 0, None), None: (None, None, None)}


def offsets_shown(zk: str, *options: str) -> dict[int, tuple[Any, ...]]:
    rows = run_json(zk, "groups", "describe", "g", *options)
    return {row["partition"]: (row["current_offset"], row["log_end_offset"], row["lag"]) for row in rows}


def test_end_and_lag_of_a_deleted_topic_are_not_known(zk: str, store: Store, topic: Topic, tmp_path: Path) -> None:
    MadeGroup(store).offsets_at(topic, {0: 10, 1: 0})
    delete_topic(store, Brokers(), "t")

    assert offsets_shown(zk, "--log-dir", str(tmp_path)) == {0: (10, None, None), 1: (0, None, None)}


def test_a_topic_that_was_made_again_is_shown_with_its_own_end(
    zk: str, store: Store, topic: Topic, tmp_path: Path
) -> None:
    with Producer(tmp_path, {"t": topic}) as producer:
        for _ in range(10):
            producer.send("t", b"x", partition=0)
    group = MadeGroup(store)
    group.offsets_at(topic, {0: 10, 1: 8, 2: 12})
    group.member("a", {"t": 1}, {part(3): 5}, {"t": topic.id})
    delete_topic(store, Brokers(), "t")
    again = create_topic(store, Brokers(), "t", 2)
    with Producer(tmp_path, {"t": again}) as producer:
        producer.send("t", b"y", partition=0)

    shown = offsets_shown(zk, "--log-dir", str(tmp_path))
    lines = run_ok(
        zk, "groups", "describe", "g", "--log-dir", str(tmp_path), "-o", "json", "--watch", "1", "--times", "1"
    ).stdout.splitlines()

    assert shown == {0: (None, 1, None), 1: (None, 0, None), 3: (None, None, None)}
    assert [row["log_end_offset"] for row in json.loads(lines[0])["rows"] if row["partition"] == 0] == [1]
    assert offsets_shown(zk) == {0: (None, None, None), 1: (None, None, None), 3: (None, None, None)}


@pytest.mark.parametrize("option", [[], ["--offsets"], ["--members"], ["--members", "--verbose"], ["--state"]])
def test_description_of_a_missing_group_is_a_usage_error(zk: str, store: Store, option: list[str]) -> None:
    result = run(zk, "groups", "describe", "missing", *option)

    assert result.exit_code == 2
    assert result.stderr == "error: Consumer group 'missing' does not exist.\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "options",
    [[], ["g", "--all-groups"], ["g", "--members", "--state"], ["g", "--offsets", "--state"], ["g", "--verbose"]],
)
def test_undescribable_groups_are_a_usage_error(zk: str, shared: MadeGroup, options: list[str]) -> None:
    assert run(zk, "groups", "describe", *options).exit_code == 2


def test_several_groups_or_all_are_described_one_after_the_other(zk: str, store: Store, topic: Topic) -> None:
    for name in ("a", "b", "c"):
        MadeGroup(store, name).offsets_at(topic, {0: 1})

    def described(*options: str) -> list[str]:
        return [row["group"] for row in run_json(zk, "groups", "describe", *options)]

    assert described("--all-groups") == ["a", "b", "c"]
    assert described("c", "a", "c") == ["c", "a"]


@pytest.mark.parametrize("option", ["--offsets", "--members", "--state"])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("Empty", "Consumer group 'g' has no active members.\n"),
        (PREPARING, "Warning: Consumer group 'g' is rebalancing.\n"),
        (COMPLETING, "Warning: Consumer group 'g' is rebalancing.\n"),
        (STABLE, ""),
    ],
)
def test_group_without_members_or_in_a_rebalance_is_reported(
    zk: str, store: Store, topic: Topic, option: str, state: str, message: str
) -> None:
    MadeGroup(store, state=state).offsets_at(topic, {0: 7})

    result = run_ok(zk, "groups", "describe", "g", option)

    assert result.stderr == message + (f"{NO_LAG}\n" if option == "--offsets" else "")
    assert run_ok(zk, "groups", "describe", "g", "-o", "json").stderr == message


def test_offsets_of_a_group_without_members_have_no_owner(zk: str, store: Store, topic: Topic) -> None:
    MadeGroup(store).offsets_at(topic, {1: 7})

    (row,) = run_json(zk, "groups", "describe", "g")

    assert (row["partition"], row["current_offset"]) == (1, 7)
    assert {row[key] for key in ("consumer_id", "host", "client_id", "owner")} == {None}


# ---- describe --members


def test_members_are_described_with_their_number_of_partitions(zk: str, shared: MadeGroup) -> None:
    lines = run_ok(zk, "groups", "describe", "g", "--members").stdout.splitlines()

    assert [line.split() for line in lines] == [
        ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"],
        ["g", "big", "exec-1", "big", "2"],
        ["g", "small", "exec-1", "small", "1"],
        ["g", "idle", "exec-1", "idle", "0"],
    ]


def test_verbose_members_list_their_partitions(zk: str, shared: MadeGroup) -> None:
    rows = run_json(zk, "groups", "describe", "g", "--members", "--verbose")

    assert [(row["consumer_id"], row["partitions"], row["assignment"]) for row in rows] == [
        ("big", 2, "t(1,2)"),
        ("small", 1, "t(0)"),
        ("idle", 0, None),
    ]
    assert (rows[0]["subscription"], rows[0]["incarnation"], rows[0]["commands"]) == ("t:1", "life-of-", 0)


def test_the_instance_id_is_a_column_when_a_member_is_static(zk: str, shared: MadeGroup) -> None:
    shared.member("seated", {"t": 1}, instance_id="seated")

    lines = run_ok(zk, "groups", "describe", "g", "--members").stdout.splitlines()

    assert lines[0].split()[:4] == ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST"]
    assert [line.split()[1:3] for line in lines[1:]] == [
        ["big", "-"], ["small", "-"], ["idle", "-"], ["seated", "seated"],
    ]  # fmt: skip


def test_member_that_has_left_is_not_listed(zk: str, shared: MadeGroup) -> None:
    shared.leaves("idle")

    assert len(run_json(zk, "groups", "describe", "g", "--members")) == 2
    assert [row["members"] for row in run_json(zk, "groups", "list")] == [2]


# ---- describe --state


def test_the_state_is_described_with_the_coordinator(zk: str, store: Store, shared: MadeGroup) -> None:
    before = run_json(zk, "groups", "describe", "g", "--state")
    store.commit([Create(COORDINATOR, CoordinatorRecord("a", "broker-1", 7).to_bytes())])

    lines = run_ok(zk, "groups", "describe", "g", "--state").stdout.splitlines()

    kafkas = {"group": "g", "coordinator_id": None, "assignment_strategy": "range", "state": "Stable", "members": 3}
    ours = dict.fromkeys(("leader", "ask", "pending_leader", "pending_ask", "attempt"))
    assert before == [{**kafkas, "assignment": "coordinator", "protocol_type": "consumer", **ours}]
    assert lines[0].split()[:6] == ["GROUP", "COORDINATOR", "(ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    assert lines[1].split()[:6] == ["g", "broker-1", "(a)", "range", "Stable", "3"]


# ---- watch


def test_watching_shows_later_changes(zk: str, store: Store, shared: MadeGroup) -> None:
    result = run_ok(zk, "groups", "describe", "g", "--members", "--times", "2", "--watch", "0.1")
    lines = run_ok(zk, "groups", "list", "-o", "json", "--times", "2", "--watch=0.1").stdout.splitlines()

    first, second = result.stdout.split("\n\n")
    assert first.splitlines() == second.splitlines() and len(first.splitlines()) == 4
    assert [json.loads(line)["rows"][0]["state"] for line in lines] == ["Stable", "Stable"]


# ---- verify


def test_a_settled_group_verifies_and_one_that_lost_an_owner_does_not(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    made = world.topic("t", 4)
    stage.topic("t", 4, made.id)
    one, two = stage.puppet("g", "c1", {"t": 1}), stage.puppet("g", "c2", {"t.*": 1}, "white_list")
    hand.settle("g", one, two)

    whole = run(world.zk, "groups", "verify", "g")
    world.remove(one.paths.owner("t", 0))
    torn = run(world.zk, "groups", "verify", "g")

    assert (whole.exit_code, whole.stdout) == (0, "Rebalance operation successful !\n")
    assert (torn.exit_code, torn.stdout) == (
        5,
        "t-0: no owner: it is assigned to c1\nRebalance operation failed !\n",
    )
    assert run_problems(world.zk) == {"t-0": "no owner: it is assigned to c1"}


def test_verify_agrees_with_the_coordinators_left_out_members(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    made, bare = world.topic("t", 2), world.topic("bare", 1)
    world.put(world.brokers.topic("bare"), Topic("bare", bare.id, ()).to_bytes())
    stage.topic("t", 2, made.id)
    stage.topics["bare"] = Topic("bare", bare.id, ())
    one = stage.puppet("g", "c1", {"t": 1, "bare": 1, "missing": 1})
    stuck = stage.puppet("g", "c2", {"t": 1}, max_poll_interval_ms=1)
    hand.evict(stuck, one)

    left_out = world.state("g").left_out
    found = run_problems(world.zk)

    assert "evicted" in left_out["c2"]
    assert {what: why for what, why in found.items() if what in left_out} == dict(left_out)
    assert set(left_out) == {"bare", "missing", "c2"}


def run_problems(zk: str) -> dict[str, Any]:
    document = json.loads(run(zk, "groups", "verify", "g", "-o", "json").stdout)
    assert document["healthy"] is (not document["problems"])
    return {each["what"]: each["why"] for each in document["problems"]}


def test_verification_of_a_missing_group_is_a_usage_error(zk: str, store: Store) -> None:
    assert run(zk, "groups", "verify", "missing").exit_code == 2
