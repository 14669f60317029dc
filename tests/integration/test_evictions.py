"""Ends of memberships by a session's end and by an eviction, whose mark may be lifted; and how a group starts."""

from __future__ import annotations

from functools import partial

from coordinator.term.config import CoordinatorConfig
from coordinator.zk.errors import Refused
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.group_state import STABLE
from tests.support.cli import run_ok
from tests.support.hand import ManualStage, Puppet
from tests.support.liar import Liar
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, parts

"""Neither this session timeout nor this poll interval is over before the test is."""


def test_a_hundred_consumers_within_a_second_cost_three_generations_at_most(world: World, stage: ManualStage) -> None:
    delay_ms = CoordinatorConfig(zk=world.zk).group_initial_rebalance_delay_ms
    world.coordinator(group_initial_rebalance_delay_ms=delay_ms)
    world.topic("t", 100)
    runtime = ThreadRuntime()
    started = runtime.monotonic()
    members: list[Puppet] = []

    def join(number: int) -> None:
        members.append(stage.puppet("g", f"c{number:03}", {"t": 1}))

    joining = [runtime.spawn(partial(join, number), "joins") for number in range(100)]
    for one in joining:
        one.join(10)
    assert runtime.monotonic() - started < 1
    assert len({member.store.session_id for member in members}) == 100

    def obeyed() -> bool:
        for member in members:
            member.obey()
        return world.state("g").state == STABLE

    eventually(obeyed, 60, "each member has its partition", ignoring=(Refused,))

    state = world.state("g")
    assert len(state.target) == 100
    assert state.generation <= 3
    assert frozenset().union(*(member.running for member in members)) == parts("t", *range(100))


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
