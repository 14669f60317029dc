"""`zk-coordinator groups lift-mark`: an operator ends the wait for an evicted member's lease."""

from __future__ import annotations

from tests.support.cli import run_ok
from tests.support.liar import Liar
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, parts


def test_partitions_of_a_lifted_mark_are_started_at_once(world: World, zk: str) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = Liar(zk, "g", "bad", {"t": 1}, lease_ms=30_000, max_poll_interval_ms=2000)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))
    eventually(lambda: (bad.acknowledges() and bad.is_evicted) or bad.is_evicted, 5, "it is evicted")
    assert len(world.state("g").marks) == 1

    run_ok(zk, "groups", "lift-mark", "g", "bad", "--execute")

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 5, "the good member has all")
    assert world.state("g").marks == ()
    bad.close()
