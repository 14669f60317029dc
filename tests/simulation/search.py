"""How many seeds it takes until the stock simulation finds a mutation, and how many it does find."""

from __future__ import annotations

import json
import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import profile_of
from tests.simulation.run import Outcome, simulate, tidy, without_garbage_collection

SEEDS = 300
"""A mutation that the first seeds of the stock mixture do not find is not found."""

FOUND = Path(__file__).parent / "found.json"
"""Mutation -> the seed that found it when this was last written: it is tried first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    :ivar seed: of the stock mixture, None when it was not found.
    :ivar profile: of that seed.  :ivar invariant: the first of those broken.
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


def order(mutation: Mutation, first: int | None = None) -> list[int]:
    """The seeds of the stock mixture in the order in which they are tried."""
    rank = {name: number for number, name in enumerate(mutation.where)}
    seeds = sorted(range(SEEDS), key=lambda seed: (rank.get(profile_of(seed).name, len(rank)), seed))
    return seeds if first is None else [first, *(seed for seed in seeds if seed != first)]


def found_by(mutation: Mutation, seeds: Sequence[int]) -> tuple[Outcome | None, int]:
    """The first run whose verdicts show the mutation, None when none of these seeds does; and how many were tried.

    A seed that the product fails as it is shows nothing.
    """
    for number, seed in enumerate(seeds, 1):
        tidy(number)
        with mutation.applied():
            outcome = simulate(seed, profile_of(seed))
        if outcome.broken & mutation.breaks:
            with mutation.applied(only_also=True):
                if simulate(seed, profile_of(seed)).passed:
                    return outcome, number
    return None, len(seeds)


def last_found() -> dict[str, int]:
    """What `FOUND` has."""
    found: dict[str, int] = json.loads(FOUND.read_text())
    return found


def keep(findings: Sequence[Finding]) -> None:
    """Write `FOUND`."""
    found = {each.name: each.seed for each in findings if each.seed is not None}
    FOUND.write_text(json.dumps(dict(sorted(found.items())), indent=0) + "\n")


def search(mutations: Mapping[str, Mutation], jobs: int) -> Iterator[Finding]:
    """Look for each, in `jobs` processes."""
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        yield from pool.imap_unordered(_find, mutations, chunksize=1)


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    without_garbage_collection()


def _find(name: str) -> Finding:
    mutation = MUTATIONS[name]
    outcome, runs = found_by(mutation, order(mutation))
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
