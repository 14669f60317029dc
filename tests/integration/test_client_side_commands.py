"""Operator commands: on a group that a leader assigns, and those of any group that are not in `command_lines`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_channel_watch import watching
from tests.support.cli import run, run_json, run_ok
from tests.support.client_side import PATHS, Scripted, ThreadGate
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.processes import consumer_process
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.cli.groups import NO_LAG
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.group_state import COMPLETING, EMPTY, PREPARING, STABLE, Ask, SyncRequest
from zk_group.coordinator.zk.znodes.paths import GROUPS, Brokers
from zk_group.coordinator.zk.znodes.records import Topic


def client(world: World, name: str, topics: dict[str, int] | None = None, **options: Any) -> Any:
    return world.consumer("g", name, topics or {"t": 1}, **{"assignment": "client", **options})


def led_by_c1(world: World, **options: Any) -> Scripted:
    """Group `g` with c1, which leads, and c2, Stable over the four partitions of topic `t`."""
    world.coordinator(**options)
    world.topic("t", 4)
    leader = Scripted(name="range")
    client(world, "c1", assignors=[leader])
    world.stable("g", 1)
    client(world, "c2")
    world.stable("g", 2)
    return leader


def state_of(world: World) -> dict[str, Any]:
    (row,) = run_json(world.zk, "groups", "describe", "g", "--state")
    return dict(row)


# ---- describe


def test_state_names_the_leader_its_ask_and_the_pending_ask(world: World) -> None:
    leader = led_by_c1(world)
    settled = state_of(world)
    leader.before = gate = ThreadGate()
    world.more_partitions("t", 5)
    asked = eventually(
        lambda: (row := state_of(world))["pending_ask"] and row["state"] != "Stable" and row, 10, "it is asked"
    )
    gate.open()
    world.stable("g", 2, above=2)

    client_side = world.state("g").client
    assert client_side is not None
    assert (settled["assignment"], settled["protocol_type"], settled["leader"]) == ("client", "consumer", "c1")
    assert settled["assignment_strategy"] == "range" and settled["ask"] < client_side.ask
    assert (settled["pending_leader"], settled["pending_ask"], settled["attempt"]) == (None, None, None)
    assert (asked["leader"], asked["pending_leader"], asked["attempt"]) == ("c1", "c1", 1)
    assert asked["ask"] == settled["ask"] < asked["pending_ask"] and asked["state"] == "CompletingRebalance"


# ---- channel watch, history


@pytest.mark.real_zookeeper("tree watches")
def test_an_ask_and_its_failure_are_watched_and_the_history_counts_the_attempts(world: World) -> None:
    leader = led_by_c1(world)
    generation = world.state("g").generation
    gate, reader = ThreadGate(), world.consumers[1]

    def fails() -> None:
        gate()
        raise ValueError("no data today")

    def watched_for(option: str) -> dict[str, Any]:
        found = [each.to_json("g") for each in watch.of("command") if each.option == option]
        return found[0] if found else {}

    # One that is acknowledged at once may be gone before it is read, and its option is not known then: both are held.
    leader.before = fails
    reader.hang()
    with watching(world.zk) as watch:
        world.more_partitions("t", 5)
        asked = eventually(lambda: watched_for("assign"), 10, "the ask is watched")
        (row,) = run_json(world.zk, "channel", "show", "g", "c1")
        table = run_ok(world.zk, "channel", "watch", "g", "--for", "1").stdout
        gate.open()
        failed = eventually(lambda: watched_for("assignment-failed"), 10, "its failure is watched")
        reader.is_stuck.clear()
        world.stable("g", 2, above=generation)

    assert (row["option"], row["ask"], row["partitions"], row["reason"]) == ("assign", asked["ask"], None, None)
    assert f"{asked['ask']}; it was there already" in table
    assert asked["partitions"] is None and asked["ask"] == failed["ask"]
    assert failed["reason"] == "leader c1 (range) failed: its assignor 'range' failed: ValueError: no data today"
    last = run_json(world.zk, "history", "g")[-1]
    table = run_ok(world.zk, "history", "g").stdout.splitlines()
    assert last["attempts"] == 2 and 0 <= last["assignment_ms"] < 10_000
    assert "topic t" in last["trigger"] and table[0].split()[-3:] == ["ASSIGNMENT-MS", "ATTEMPTS", "RESULT"]


# ---- commands that change groups


def test_empty_group_is_reset_exported_and_deleted_with_its_asks(world: World, tmp_path: Path) -> None:
    led_by_c1(world)
    for consumer in world.consumers:
        consumer.close()
    eventually(lambda: world.state("g").state == EMPTY and not world.names(PATHS.sync), 10, "the group is Empty")
    ask = Ask("range", "c1", "i1", {}).to_bytes()
    for path, data in (  # left by a dead coordinator
        (PATHS.ask("ask-0000000077"), ask),
        (PATHS.answer("ask-0000000077"), b"{}"),
        (PATHS.member_answer("ask-0000000077", "c1"), b"{}"),
        (PATHS.sync_request, SyncRequest("c1", "i1", "topic t has changed").to_bytes()),
    ):
        world.put(path, data)
    world.stop_coordinator(world._services[0][0])
    log = tmp_path / "log"
    with Producer.for_store(world.store, log, world.brokers) as producer:
        producer.send_batch("t", 0, [b"x"] * 9)

    arguments = ["--topic", "t:0", "--to-offset", "7", "--log-dir", str(log), "--execute", "-o", "json"]
    (row,) = json.loads(run_ok(world.zk, "groups", "reset-offsets", "g", *arguments).stdout)
    described = {each["partition"]: each["current_offset"] for each in run_json(world.zk, "groups", "describe", "g")}
    run_ok(world.zk, "groups", "delete", "g")

    assert row["new_offset"] == described[0] == 7
    assert world.names(GROUPS) == []


@pytest.mark.parametrize(("levels", "is_removed"), [(400, True), (1100, False)])
def test_any_depth_below_an_ask_is_removed_or_its_group_fails(world: World, levels: int, is_removed: bool) -> None:
    led_by_c1(world)
    world.consumer("other", "o1", {"t": 1})
    world.stable("other", 1)
    before, other = world.state("g"), world.state("other")
    (ask,) = world.names(PATHS.sync)
    world.put(f"{PATHS.ask(ask)}{'/x' * levels}")

    world.put(PATHS.sync_request, SyncRequest("c1", world.channel("g", "c1").incarnation, "again").to_bytes())

    if is_removed:
        world.stable("g", 2, above=before.generation)
        assert world.names(PATHS.sync) != [ask]
    else:
        eventually(lambda: "more than 1000 levels" in (world.state("g").reason or ""), 60, "the group says so")
    assert world.state("other") == other


# ---- zk-consumer run


@pytest.mark.real_zookeeper("processes")
def test_process_with_lag_and_sticky_reports_its_leader(world: World, processes: ExitStack, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    with Producer.for_store(world.store, tmp_path / "log", world.brokers) as producer:
        for partition in range(4):
            producer.send_batch("t", partition, [b"x"] * 10)
    options = ["--assignment", "client", "--protocols", "lag,sticky"]
    for name in ("c1", "c2"):
        processes.enter_context(consumer_process(tmp_path, world.zk, "g", name, tmp_path / "log", *options))

    state = world.stable("g", 2, timeout_s=30)

    assert state.strategy == "lag" and state.client is not None
    owned = [partition for target in state.target.values() for partition in target.partitions]
    assert len(owned) == 4 and all(target.partitions for target in state.target.values())  # by lag, 1 and 3 are right


@pytest.mark.full("processes, beside the same in virtual time")
@pytest.mark.real_zookeeper("processes")
def test_process_reports_a_failed_assignment_and_continues(world: World, processes: ExitStack, tmp_path: Path) -> None:
    leader = led_by_c1(world, assignment_timeout_ms=1000)
    process = consumer_process(tmp_path, world.zk, "g", "c3", tmp_path / "log", "--assignment", "client")
    processes.enter_context(process)
    generation = world.stable("g", 3, timeout_s=30).generation
    leader.before = gate = ThreadGate()

    world.more_partitions("t", 5)

    why = "leader c1 (range) failed: it has not answered for 1000 ms"
    said = eventually(lambda: [line for line in process.said().splitlines() if why in line], 10, "the log line")
    assert len(said) == 1 and "WARNING" in said[0] and "assignment failed: consumer=c3 reason=" in said[0]
    gate.open()
    assert world.stable("g", 3, timeout_s=30, above=generation).generation == generation + 1


# ---- a rolling change


def test_a_rolling_change_of_a_leaders_protocol_switches_once(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    seen: list[tuple[int, str]] = []

    def restart_with(*protocols: str) -> None:
        for name in ("c1", "c2", "c3"):
            for old in [each for each in world.consumers if each.name == name]:
                old.close()
                world.consumers.remove(old)
            client(world, name, protocols=protocols)
            state = world.stable("g", len(world.consumers), above=seen[-1][0] if seen else 0)
            seen.append((state.generation, state.strategy))

    restart_with("range")
    restart_with("sticky", "range")
    restart_with("sticky")

    used = [strategy for _, strategy in seen]
    assert used == ["range"] * used.count("range") + ["sticky"] * used.count("sticky")
    assert used.index("sticky") in (4, 5) and world.state("g").client is not None


# ---- any group


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
def test_empty_or_rebalancing_group_is_reported(zk: str, store: Store, option: str, state: str, message: str) -> None:
    MadeGroup(store, state=state).offsets_at(create_topic(store, Brokers(), "t", 4), {0: 7})

    result = run_ok(zk, "groups", "describe", "g", option)

    assert result.stderr == message + (f"{NO_LAG}\n" if option == "--offsets" else "")
    assert run_ok(zk, "groups", "describe", "g", "-o", "json").stderr == message


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
    document = json.loads(run(world.zk, "groups", "verify", "g", "-o", "json").stdout)
    found = {each["what"]: each["why"] for each in document["problems"]}

    assert (document["healthy"], "evicted" in left_out["c2"]) == (False, True)
    assert {what: why for what, why in found.items() if what in left_out} == dict(left_out)
    assert set(left_out) == {"bare", "missing", "c2"}
