"""Histories that somebody wrote down: what a seed once found, step by step, so that it stays when seeds mean others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.actors import ApplicationActor
from tests.simulation.faults import query_from_old_checkpoint
from tests.simulation.profile import CALM
from tests.simulation.run import Outcome, simulate
from tests.simulation.watching import World
from tests.simulation.world import SimulatedLife, SimulatedWorld
from zk_group.coordinator.zk.store import SetData
from zk_group.coordinator.zk.znodes.paths import GroupPaths

APPLICATIONS = replace(CALM, name="applications", slots=0, tick_s=0.5, poll_intervals_ms=(5000, 8000), regions=0.0)
STEP_S = 0.001


def life_of(world: SimulatedWorld, name: str) -> SimulatedLife:
    life = world.of_name(name)
    assert life is not None
    return life


def when(world: SimulatedWorld, is_so: Callable[[], bool], then: Callable[[], None]) -> None:
    """Do `then` in the moment when `is_so`."""
    if is_so():
        then()
    else:
        world.scheduler.after(STEP_S, lambda: when(world, is_so, then))


def passed(outcome: Outcome) -> bool:
    """Whether nothing is wrong; what is, is printed."""
    if not outcome.passed:
        print(outcome.verdicts.text(), *outcome.problems, sep="\n")
    return outcome.passed


# ---- a hanging application whose channel was destroyed


def hangs_while_its_channel_is_scribbled_over(world: SimulatedWorld) -> None:
    def hang() -> None:
        app = life_of(world, "g0-c0").actor
        assert isinstance(app, ApplicationActor)
        app.is_stuck = True
        world.by_hand(SetData(GroupPaths("g0").channel("g0-c0"), b"nonsense"))

    world.scheduler.after(20.0, hang)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_partitions_of_a_hanging_consumer_move_though_its_channel_was_overwritten(seed: int) -> None:
    outcome = simulate(seed, APPLICATIONS, script=hangs_while_its_channel_is_scribbled_over)

    assert passed(outcome)
    assert outcome.verdicts["L1"].outcome == "held"


# ---- a clock that nobody asks for long


def leaves_late(world: SimulatedWorld) -> None:
    world.scheduler.after(25.0, lambda: life_of(world, "g0-c0").actor.stop())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_dies_late_in_a_term_is_collected_as_soon_as_what_died_early(seed: int) -> None:
    outcome = simulate(seed, APPLICATIONS, script=leaves_late)

    assert passed(outcome)
    collected = [
        event
        for event in outcome.history
        if event["event"] == "commit" and {"op": "delete", "path": GroupPaths("g0").channel("g0-c0")} in event["ops"]
    ]
    assert len(collected) == 1


# ---- two runs of a query


def goes_back_beside_a_stopped_run(world: World) -> None:
    """A run is paused while it reads a batch, another one is started, and somebody goes back to an older checkpoint.
    A second query has finished little: what that checkpoint needs is not collected."""
    world.scheduler.after(8.0, lambda: world.start_query("q1"))
    world.scheduler.after(12.0, lambda: world.crash(life_of(world, "query-q1")))

    def begin() -> None:
        first, checkpoint = life_of(world, "query-q"), world.checkpoints["q"]

        def is_reading() -> bool:
            is_planned = len(checkpoint.planned) > checkpoint.finished
            return is_planned and first.main is not None and first.main.waits_for == "the disk"

        def go_back() -> None:
            first.process.pause()
            world.start_query("q")
            query_from_old_checkpoint(world)
            world.scheduler.after(3.0, first.process.resume)

        when(world, is_reading, go_back)

    world.scheduler.after(20.0, begin)


@pytest.mark.parametrize("seed", [1, 2])
def test_going_back_to_an_older_checkpoint_ends_every_run_of_its_query(seed: int) -> None:
    assert passed(simulate(seed, replace(CALM, regions=0.0), script=goes_back_beside_a_stopped_run))
