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
from tests.simulation.profile import PROFILES
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
    :ivar seed: None when it was not found.  :ivar profile: of that seed.
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
        tidy(number)
        with mutation.applied():
            outcome = simulate(seed, PROFILES[profile])
        if outcome.broken & mutation.breaks:
            with mutation.applied(only_also=True):
                if simulate(seed, PROFILES[profile]).passed:
                    return outcome, number
    return None, len(runs)


def last_found() -> dict[str, Run]:
    """What `FOUND` has."""
    return {name: (profile, seed) for name, (profile, seed) in json.loads(FOUND.read_text()).items()}


def keep(findings: Sequence[Finding]) -> None:
    """Write `FOUND`."""
    found = {each.name: (each.profile, each.seed) for each in findings if each.seed is not None}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(run)}" for name, run in sorted(found.items()))
    FOUND.write_text(f"{{\n{lines}\n}}\n")


def search(mutations: Mapping[str, Mutation], jobs: int) -> Iterator[Finding]:
    """Look for each, in `jobs` processes."""
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        yield from pool.imap_unordered(_find, mutations, chunksize=1)


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    without_garbage_collection()


def _find(name: str) -> Finding:
    mutation = MUTATIONS[name]
    outcome, runs = found_by(mutation, order(mutation, last_found().get(name)))
    if outcome is None:
        return Finding(name, mutation.rule, None, runs=runs, variant=mutation.covered_by)
    invariant = min(outcome.broken & mutation.breaks)
    return Finding(name, mutation.rule, outcome.seed, outcome.profile, invariant, runs, mutation.covered_by)


def summary(findings: Sequence[Finding]) -> str:
    """One line of JSON: `total`, `found`, `unfound`, and every finding."""
    unfound = sorted(each.name for each in findings if each.seed is None)
    each = [asdict(finding) for finding in sorted(findings, key=lambda one: one.name)]
    return json.dumps(
        {"total": len(findings), "found": len(findings) - len(unfound), "unfound": unfound, "mutations": each}
    )
