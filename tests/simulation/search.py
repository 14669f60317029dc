"""How many seeds it takes until a stock profile finds a mutation, and how many are found."""

from __future__ import annotations

import json
import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import PROFILES, Profile
from tests.simulation.rare_worlds import SEEDS as SEEDS_OF_A_WORLD
from tests.simulation.rare_worlds import WORLDS
from tests.simulation.run import Outcome, simulate, tidy, without_garbage_collection

SEEDS = 300
"""A mutation that the first seeds of its profiles do not find is not found."""

FOUND = Path(__file__).parent / "found.json"
"""Mutation -> the profile and the seed that found it when this was last written: these are tried first."""

Run = tuple[str, int]
"""A stock profile, and a seed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    :ivar seed: None when it was not found.  :ivar profile: of that seed: a stock one, or the world made for it.
    :ivar invariant: the first of those broken.
    :ivar runs: how many it took.
    :ivar variant: the rule that was taken away besides.
    """

    name: str
    rule: str
    seed: int | None
    profile: str = ""
    invariant: str = ""
    runs: int = 0
    variant: str = ""


def order(mutation: Mutation, first: Run | None = None) -> list[Run]:
    """The runs in the order in which they are tried."""
    runs = [(profile, seed) for profile in mutation.where for seed in range(SEEDS)]
    return runs if first is None else [first, *(run for run in runs if run != first)]


def found_by(mutation: Mutation, runs: Sequence[Run]) -> tuple[Outcome | None, int]:
    """The first run whose verdicts show the mutation, None when none of these does; and how many were tried.

    A run that the product fails as it is shows nothing.
    """
    for number, (profile, seed) in enumerate(runs, 1):
        if (outcome := _shown(mutation, seed, PROFILES[profile])) is not None:
            return outcome, number
    return None, len(runs)


def found_in_its_world(mutation: Mutation) -> Outcome | None:
    """The same in the world made for it, None when it has none."""
    world, first = WORLDS.get(mutation.name, (None, 0))
    if world is None:
        return None
    outcomes = (_shown(mutation, seed, world) for seed in (first, *range(SEEDS_OF_A_WORLD)))
    return next((outcome for outcome in outcomes if outcome is not None), None)


def _shown(mutation: Mutation, seed: int, profile: Profile) -> Outcome | None:
    tidy(seed)
    with mutation.applied():
        outcome = simulate(seed, profile)
    if not outcome.broken & mutation.breaks:
        return None
    with mutation.applied(only_also=True):
        return outcome if simulate(seed, profile).passed else None


def last_found() -> dict[str, Run]:
    """What `FOUND` has."""
    return {name: (profile, seed) for name, (profile, seed) in json.loads(FOUND.read_text()).items()}


def keep(findings: Sequence[Finding]) -> None:
    """Write `FOUND`."""
    found = {each.name: (each.profile, each.seed) for each in findings if each.profile in PROFILES}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(run)}" for name, run in sorted(found.items()))
    FOUND.write_text(f"{{\n{lines}\n}}\n")


def search(mutations: Mapping[str, Mutation], jobs: int) -> Iterator[Finding]:
    """Look for each, in `jobs` processes."""
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        yield from pool.imap_unordered(_find, mutations, chunksize=1)


def _prepare() -> None:
    logging.disable(logging.WARNING)  # errors are seen by the run itself
    without_garbage_collection()


def _find(name: str) -> Finding:
    mutation = MUTATIONS[name]
    outcome, runs = None, 0
    if name not in WORLDS:
        outcome, runs = found_by(mutation, order(mutation, last_found().get(name)))
    outcome = outcome or found_in_its_world(mutation)
    if outcome is None:
        return Finding(name, mutation.rule, None, runs=runs, variant=mutation.covered_by)
    invariant = min(outcome.broken & mutation.breaks)
    return Finding(name, mutation.rule, outcome.seed, outcome.profile, invariant, runs, mutation.covered_by)


def summary(findings: Sequence[Finding]) -> str:
    """One line of JSON: `total`, `found`, how many of these `by_stock` profiles, `unfound`, and every finding."""
    ordered = sorted(findings, key=lambda one: one.name)
    unfound = [each.name for each in ordered if each.seed is None]
    found = {
        "total": len(ordered),
        "found": len(ordered) - len(unfound),
        "by_stock": sum(each.profile in PROFILES for each in ordered),
        "unfound": unfound,
    }
    return json.dumps({**found, "mutations": [asdict(each) for each in ordered]})
