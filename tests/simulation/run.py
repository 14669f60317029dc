"""One run: a world drawn from a seed, faults, calm, and the checker's verdict."""

from __future__ import annotations

import gc
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.aimed import AIMED
from tests.simulation.beside import BESIDE, OF_WORLDS, favour_cooperation
from tests.simulation.faults import FAULTS
from tests.simulation.gaps import GAPS, supervise
from tests.simulation.leaders import LEADERS
from tests.simulation.liars import draw_liars
from tests.simulation.profile import BESIDE_AT, BESIDE_EVERY, Profile
from tests.simulation.regions import REGIONS
from tests.simulation.scenes import SCENES
from tests.simulation.scheduler import SimulationFailure
from tests.simulation.tuning import bounds, tuned
from tests.simulation.watching import World
from tests.simulation.world import PLAN_REFUSED, Alarm
from zk_group.drills.checker import Verdicts, check

FIRST_FAULT_S = 4.0
STEP_S = 0.01
ALL_FAULTS = {**FAULTS, **AIMED, **LEADERS, **REGIONS, **GAPS, **SCENES, **BESIDE}

LONGEST_STANDSTILL_S = 12.0
"""Only in a world that hangs nothing happens for so long: leases are renewed, and ZooKeeper is away for 8 s at most."""


@dataclass
class Outcome:
    """What became of a run.

    :ivar problems: what the checker cannot see: threads that died, errors with a traceback, a deadlock, refused plans.
    :ivar positions: where every thread stood at the end.
    """

    seed: int
    profile: str
    verdicts: Verdicts
    problems: list[str]
    fired: Counter[str]
    history: Sequence[Mapping[str, Any]]
    positions: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.verdicts.broken

    @property
    def broken(self) -> frozenset[str]:
        """The invariants that do not hold; for what the checker cannot see `plan`, when one was refused, or `crash`."""
        unseen = ("plan" if PLAN_REFUSED in each.partition("\n")[0] else "crash" for each in self.problems)
        return frozenset([*(each.invariant for each in self.verdicts.broken), *unseen])


def simulate(
    seed: int,
    profile: Profile,
    verbose: Callable[[dict[str, Any]], None] | None = None,
    script: Callable[[World], None] | None = None,
) -> Outcome:
    """Run one seed.

    :param verbose: gets each event as it happens.
    :param script: says what is done to the world, and when, instead of faults that are drawn.
    """
    profile = profile.drawn(seed)
    world = World(seed, profile, verbose)
    alarm = Alarm(world)
    root = logging.getLogger()
    root.addHandler(alarm)
    try:
        with tuned(profile, world.disk):
            _run(world, script or draw_faults)
    except SimulationFailure as failure:
        world.problems.append(str(failure))
    finally:
        root.removeHandler(alarm)
        positions = world.scheduler.where() if verbose is not None else ""
        world.scheduler.close()
    world.problems += world.scheduler.crashed
    history = world.history
    return Outcome(seed, profile.name, check(history), world.problems, world.fired, history, positions)


def _run(world: World, script: Callable[[World], None]) -> None:
    profile = world.profile
    world.record(
        "server", "run", {"version": 1, "seed": world.seed, "profile": profile.name, "bounds": bounds(profile)}
    )
    world.ensemble.latency = profile.latency
    world.populate()
    script(world)
    watch_progress(world, 0)
    world.scheduler.run(profile.calm_at)
    world.be_calm()
    while world.ensemble.leader is None:  # a fault is over once there is a ZooKeeper again
        world.scheduler.run(world.scheduler.now + STEP_S)
    world.record("server", "calm", {"stuck": world.stuck(), "broken": world.broken()})
    world.scheduler.run(profile.seconds)
    world.say_states()
    world.record("server", "end", {})


def draw(world: World) -> list[tuple[float, str]]:
    """When which faults are tried."""
    profile, random = world.profile, world.random
    kinds, weights = list(profile.weights), list(profile.weights.values())
    count = random.randint(*profile.faults)
    return sorted(
        (random.uniform(FIRST_FAULT_S, profile.calm_at - 0.5), random.choices(kinds, weights)[0]) for _ in range(count)
    )


def draw_besides(
    world: World, stream: str, weights: Mapping[str, float], least_and_most: tuple[int, int]
) -> list[tuple[float, str]]:
    """The same of faults that have a stream of their own: those of client-side assignment, and of regions."""
    random = Random(f"{stream} {world.seed}")
    if not weights:
        return []
    count = random.randint(*least_and_most)
    kinds, shares = list(weights), list(weights.values())
    last = world.profile.calm_at - 0.5
    return sorted((random.uniform(FIRST_FAULT_S, last), random.choices(kinds, shares)[0]) for _ in range(count))


def watch_progress(world: World, seen: int) -> None:
    """Fail the run when nothing has been added to its history for too long.

    :raises SimulationFailure: from the scheduler, with every thread's position.
    """
    if len(world.history) == seen:
        where = world.scheduler.where()
        raise SimulationFailure(f"livelock at {world.scheduler.now:.6f}: nothing has happened for a long time\n{where}")
    now = len(world.history)
    world.scheduler.after(LONGEST_STANDSTILL_S, lambda: watch_progress(world, now))


def draw_faults(world: World) -> None:
    """Let faults that are drawn from the seed happen."""
    profile = world.profile
    of_leaders = draw_besides(world, "leaders", profile.leader_weights, profile.leader_faults)
    of_regions = draw_besides(world, "region faults", profile.region_weights, profile.region_faults)
    of_gaps = draw_besides(world, "gap faults", profile.gap_weights, profile.gap_faults) if world.has_gaps else []
    if world.has_gaps:
        supervise(world)
    beside = profile.beside if world.seed % BESIDE_EVERY == BESIDE_AT else ()
    more = [each for one in beside for each in draw_besides(world, one.stream, one.weights, one.faults)]
    if any(kind == "cooperative-stop-reply" for _, kind in more):
        favour_cooperation(world)
    for at, kind in [*draw(world), *of_leaders, *of_regions, *of_gaps, *more]:
        world.scheduler.after(at, lambda kind=kind: _do(world, kind))  # type: ignore[misc]
    for at, join in draw_liars(world):
        world.scheduler.after(at, lambda join=join: join(world))  # type: ignore[misc]


def _do(world: World, kind: str) -> None:
    if {**ALL_FAULTS, **OF_WORLDS}[kind](world):
        world.fire(kind)


def history_text(outcome: Outcome) -> str:
    """The history as JSON lines."""
    return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in outcome.history)


def tidy(seed: int) -> None:
    """Collect what runs have left, now and then."""
    if seed % 16 == 0:
        gc.collect()


def without_garbage_collection() -> None:
    """For a process that runs many seeds, and calls `tidy` between them."""
    gc.freeze()
    gc.disable()
