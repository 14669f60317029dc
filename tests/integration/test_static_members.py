"""Static members and changes of strategy on real processes (KIP-345; ducktape's static bounces and rolling upgrade)."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from tests.support.cli import run_json
from tests.support.event_group import EventGroup
from tests.support.events import ConsumerEvents
from tests.support.wait import eventually

pytestmark = pytest.mark.full("members as processes")

NAMES = ("c1", "c2", "c3")
LONG = ("--session-timeout-ms", "20000")
"""So that a restart is well within it on a busy machine."""


def static(group: EventGroup, names: Iterable[str], *options: str) -> None:
    """Start these as static members."""
    for name in names:
        group.start([name], "--group-instance-id", name, *LONG, *options)


def callbacks(seen: ConsumerEvents) -> tuple[int, int]:
    return seen.assigned, seen.revoked


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


def test_second_live_holder_of_a_seat_fences_the_first_without_a_rebalance(group: EventGroup) -> None:
    group.node("a")
    static(group, NAMES)
    before, generation = group.joined(NAMES), group.world.state("g").generation

    group.start(["c1"], "--group-instance-id", "c1", *LONG, as_file="c1-again")

    older = group.process("c1")
    assert older.ends() == 1
    assert older.said().splitlines()[-1] == "error: FencedInstanceId: another process has registered as c1"
    assert [event["name"] for event in older.printed()[-2:]] == ["partitions_lost", "shutdown_complete"]
    group.fenced.add("c1")
    after = group.joined(["c1-again", "c2", "c3"])
    assert group.world.state("g").generation == generation
    assert callbacks(after.consumers["c2"]) == callbacks(before.consumers["c2"])


# ---- changing the strategy without downtime


def test_switch_to_cooperative_sticky_stops_only_partitions_that_move(group: EventGroup) -> None:
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
