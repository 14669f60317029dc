"""Static members and changes of strategy on real processes (KIP-345; ducktape's static bounces and rolling upgrade)."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from coordinator.zk.znodes.paths import GroupPaths
from tests.support.cli import run, run_json
from tests.support.event_group import EventGroup
from tests.support.events import ConsumerEvents
from tests.support.wait import eventually, within

NAMES = ("c1", "c2", "c3")
PATHS = GroupPaths("g")
LONG = ("--session-timeout-ms", "20000")
"""So that a restart is well within it on a busy machine."""


def static(group: EventGroup, names: Iterable[str], *options: str) -> None:
    """Start these as static members."""
    for name in names:
        group.start([name], "--group-instance-id", name, *LONG, *options)


def callbacks(seen: ConsumerEvents) -> tuple[int, int]:
    return seen.assigned, seen.revoked


@pytest.mark.full("members as processes")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("together", [True, False], ids=["all", "rolling"])
def test_static_member_restart_stops_no_other_and_makes_no_generation(
    group: EventGroup, strategy: str, together: bool
) -> None:
    group.node("a")
    static(group, NAMES, "--protocols", strategy)
    before, generation = group.joined(NAMES), group.world.state("g").generation
    alive = before.consumers["c3"]
    bounced = [("c1", "c2")] if together else [("c1",), ("c2",)]

    for some in bounced:
        group.stop(some)
        static(group, some, "--protocols", strategy)
        after = group.joined(NAMES)
        group.consumes(20)

    assert group.world.state("g").generation == generation
    assert callbacks(after.consumers["c3"]) == callbacks(alive)
    assert after.owners() == before.owners()
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed


@pytest.mark.full("members as processes")
def test_a_bounce_of_dynamic_members_stops_the_others(group: EventGroup) -> None:
    group.node("a")
    group.start(NAMES, *LONG)
    before = group.joined(NAMES)

    group.stop(["c1"])
    group.start(["c1"], *LONG)

    after = group.joined(NAMES)
    assert after.consumers["c3"].revoked > before.consumers["c3"].revoked


@pytest.mark.full("members as processes")
def test_static_members_return_after_a_failover(group: EventGroup) -> None:
    first = group.node("a")
    static(group, NAMES)
    before, generation = group.joined(NAMES), group.world.state("g").generation
    group.stop(["c1"])
    first.signal(signal.SIGTERM)
    assert first.ends() == 0
    group.node("b")
    eventually(
        lambda: run_json(group.world.zk, "status")["coordinator"]["epoch"] == 2, 10, "another node is elected",
        ignoring=(TypeError,),
    )  # fmt: skip

    static(group, ["c1"])

    after = group.joined(NAMES)
    assert group.world.state("g").generation == generation
    assert after.owners() == before.owners()
    assert callbacks(after.consumers["c2"]) == callbacks(before.consumers["c2"])


@pytest.mark.full("members as processes")
def test_second_live_holder_of_a_seat_fences_the_first_without_a_rebalance(group: EventGroup) -> None:
    group.node("a")
    static(group, NAMES)
    before, generation = group.joined(NAMES), group.world.state("g").generation

    group.start(["c1"], "--group-instance-id", "c1", *LONG, as_file="c1-again")

    older = group.process("c1")
    assert older.ends() == 1
    assert older.said().splitlines()[-1] == "error: FencedInstanceId: another process has registered as c1"
    group.fenced.add("c1")
    after = group.joined(["c1-again", "c2", "c3"])
    assert group.world.state("g").generation == generation
    assert callbacks(after.consumers["c2"]) == callbacks(before.consumers["c2"])


@pytest.mark.full("members as processes")
def test_unclaimed_seat_is_released_after_the_session_timeout(group: EventGroup) -> None:
    group.node("a")
    group.start(["c1"], "--group-instance-id", "c1")
    group.start(["c2"], "--group-instance-id", "c2")
    group.joined(["c1", "c2"])

    group.stop(["c1"])

    assert "c1" in group.world.names(PATHS.seats)
    group.joined(["c2"])
    assert group.world.names(PATHS.seats) == ["c2"]


@pytest.mark.full("members as processes")
def test_remove_members_removes_seats_and_moves_their_partitions_at_once(group: EventGroup) -> None:
    group.node("a")
    static(group, NAMES)
    group.joined(NAMES)
    group.stop(["c1"])
    members = run_json(group.world.zk, "groups", "describe", "g", "--members")
    assert {each["group_instance_id"]: each["partitions"] for each in members} == {"c1": 2, "c2": 2, "c3": 2}

    done = run_json(group.world.zk, "groups", "remove-members", "g", "c1")

    assert done == [{"group": "g", "group_instance_id": "c1", "status": "Removed"}]
    group.joined(["c2", "c3"], timeout_s=6, wait=within)  # and not only after the session timeout (20 s)
    assert sorted(group.world.names(PATHS.seats)) == ["c2", "c3"]
    again = run(group.world.zk, "groups", "remove-members", "g", "c1")
    assert (again.exit_code, again.stderr) == (
        2,
        "error: Consumer group 'g' has no seat of 'c1': it has those of c2, c3\n",
    )


@pytest.mark.full("members as processes")
def test_static_member_removed_while_running_is_notified_and_rejoins(group: EventGroup) -> None:
    group.node("a")
    group.start(["c1"], "--group-instance-id", "c1")
    group.joined(["c1"])

    run_json(group.world.zk, "groups", "remove-members", "g", "--all-members", "--reason", "moved")

    eventually(lambda: group.events().consumers["c1"].lost == 1, 10, "it has heard")
    group.joined(["c1"])
    group.consumes(20)
    assert "removed: moved" in group.process("c1").said()


# ---- changing the strategy without downtime


@pytest.mark.full("members as processes")
def test_a_rolling_change_to_round_robin_switches_when_the_last_member_has_it(group: EventGroup) -> None:
    group.node("a")
    group.start(["c1", "c2"], "--protocols", "range")
    assert group.joined(["c1", "c2"]).owners()
    assert group.world.state("g").strategy == "range"

    group.stop(["c1"])
    group.start(["c1"], "--protocols", "round-robin,range")
    group.joined(["c1", "c2"])
    assert group.world.state("g").strategy == "range"
    group.stop(["c2"])
    group.start(["c2"], "--protocols", "round-robin,range")
    group.joined(["c1", "c2"])
    assert group.world.state("g").strategy == "round-robin"
    for name in ("c1", "c2"):
        group.stop([name])
        group.start([name], "--protocols", "round-robin")
        events = group.joined(["c1", "c2"])
        assert group.world.state("g").strategy == "round-robin"

    assert {part.partition: names for part, names in events.owners().items()} == {
        0: ["c1"], 1: ["c2"], 2: ["c1"], 3: ["c2"], 4: ["c1"], 5: ["c2"],
    }  # fmt: skip
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed


@pytest.mark.full("members as processes")
def test_switch_to_cooperative_sticky_stops_only_partitions_that_move(
    group: EventGroup,
) -> None:
    group.node("a")
    static(group, NAMES, "--protocols", "range,cooperative-sticky")
    before = group.joined(NAMES)
    assert group.world.state("g").strategy == "range"

    for name in NAMES:
        group.stop([name])
        static(group, [name], "--protocols", "cooperative-sticky")
        after = group.joined(NAMES)

    assert group.world.state("g").strategy == "cooperative-sticky"
    assert after.owners() == before.owners()
    assert after.consumers["c3"].revoked == before.consumers["c3"].revoked + 1, "by its own stop"
    group.start(["c4"], "--protocols", "cooperative-sticky", *LONG)
    last = group.joined([*NAMES, "c4"])
    moved = last.consumers["c4"].assignment
    assert 1 <= len(moved) <= 2
    for name in NAMES:
        assert last.consumers[name].assignment == after.consumers[name].assignment - moved
    events = group.consumes_everything()
    assert sum(events.position.values()) == events.consumed
