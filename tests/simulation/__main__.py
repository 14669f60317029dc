"""`scripts/simulate`: many seeds with progress and a verdict, or one seed with a trace to read."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tests.simulation.corpus import FILE, Plan, interleavings, save, selected
from tests.simulation.decided import Decisions, reasons
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import AIMED, PROFILES, Profile, profile_of
from tests.simulation.run import history_text, simulate, tidy, without_garbage_collection
from tests.simulation.search import SEEDS, Finding, keep, search, summary

PROGRESS_S = 5.0
MOST_FAILURES = 10
LONGEST = 160
"""Of a line of the trace."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run sends back from its process."""

    seed: int
    profile: str
    seconds: float
    broken: frozenset[str]
    text: str
    fired: Counter[str]
    events: int
    decided: Mapping[str, str | None]
    reached: frozenset[str]


@dataclass
class Totals:
    """Everything so far."""

    runs: int = 0
    cpu_s: float = 0.0
    events: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    failures: list[RunResult] = field(default_factory=list)
    decisions: Decisions = field(default_factory=Decisions)
    reached: list[tuple[Plan, frozenset[str]]] = field(default_factory=list)

    def add(self, result: RunResult) -> None:
        """Count one run."""
        self.runs += 1
        self.cpu_s += result.seconds
        self.events += result.events
        self.fired += result.fired
        self.decisions.add(result.profile, result.decided)
        if result.profile == AIMED.name:
            self.reached.append((AIMED.plan(result.seed), result.reached))
        if result.broken:
            self.failures.append(result)


def run_one(job: tuple[int, str]) -> RunResult:
    """Run one seed, in whichever process."""
    seed, profile = job
    tidy(seed)
    began = time.process_time()
    outcome = simulate(seed, PROFILES[profile])
    text = "" if outcome.passed else "\n".join([outcome.verdicts.text(), *outcome.problems])
    return RunResult(
        seed,
        profile,
        time.process_time() - began,
        outcome.broken,
        text,
        outcome.fired,
        len(outcome.history),
        reasons(outcome.verdicts),
        interleavings(outcome.history) if profile == AIMED.name else frozenset(),
    )


def _prepare() -> None:
    logging.disable(logging.WARNING)
    without_garbage_collection()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many seeds.")
@click.option("--start", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--minutes", type=float, help="End after so many minutes, however many seeds that were.")
@click.option("--profile", type=click.Choice([*PROFILES, "all"]), default="all", show_default=True)
@click.option("--aimed", is_flag=True, help="The same as --profile aimed.")
@click.option("--seed", type=click.IntRange(0), help="Run this seed alone.")
@click.option("--verbose", is_flag=True, help="With --seed: print every event, and what the processes log.")
@click.option("--history", type=click.Path(), help="With --seed: write the history here, as JSON lines.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--mutations", is_flag=True, help=f"Break the product in each known way; find it in {SEEDS} seeds.")
@click.option("--json", "is_json", is_flag=True, help="With --mutations: the last line is one JSON object.")
@click.option(
    "--keep", "is_kept", is_flag=True, help=f"Write {FILE.name}, with --aimed; or the seeds that --mutations found."
)
def main(
    seeds: int,
    start: int,
    minutes: float | None,
    profile: str,
    aimed: bool,
    seed: int | None,
    verbose: bool,
    history: str | None,
    jobs: int,
    mutations: bool,
    is_json: bool,
    is_kept: bool,
) -> None:
    """Run the coordinator, the consumers and queries on a modelled ZooKeeper in virtual time, with faults.

    Every seed is a history of its own, and the same one each time. Exits 1 when an invariant is broken in any; or
    decided in less than a quarter of 40 runs or more of a profile that is for it, or, over all profiles, in less than
    3 % of 100 or more; with --mutations, when one is not found.
    """
    if mutations:
        sys.exit(_mutations(jobs, is_json, is_kept))
    profile = AIMED.name if aimed else profile
    if seed is not None:
        sys.exit(_one(seed, profile_of(seed) if profile == "all" else PROFILES[profile], verbose, history))
    some = islice(count(start), seeds)
    jobs_to_do = ((number, profile_of(number).name if profile == "all" else profile) for number in some)
    sys.exit(_many(jobs_to_do, seeds, jobs, minutes, is_stock=profile == "all", is_kept=is_kept and aimed))


def _one(seed: int, profile: Profile, verbose: bool, history: str | None) -> int:
    show = None
    if verbose:

        def show(event: dict[str, Any]) -> None:
            click.echo(line_of(event))

        logging.basicConfig(level=logging.INFO, format=f"{'':41}log: %(message)s", stream=sys.stdout)
    outcome = simulate(seed, profile, show)
    if history is not None:
        with open(history, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(history_text(outcome))
    click.echo(outcome.verdicts.text())
    for problem in outcome.problems:
        click.echo(f"problem: {problem}")
    if not outcome.passed and outcome.positions:
        click.echo(f"every thread at the end:\n{outcome.positions}")
    click.echo(f"faults: {json.dumps(dict(sorted(outcome.fired.items())))}")
    click.echo(
        f"{'PASS' if outcome.passed else 'FAIL'} seed {seed} profile {profile.name} events {len(outcome.history)}"
    )
    return 0 if outcome.passed else 1


def _many(
    jobs_to_do: Iterator[tuple[int, str]],
    seeds: int,
    jobs: int,
    minutes: float | None,
    is_stock: bool,
    is_kept: bool,
) -> int:
    console = Console(stderr=True)
    began = time.monotonic()
    deadline = began + 60 * minutes if minutes else float("inf")
    totals, said_at = Totals(), began
    with multiprocessing.get_context("fork").Pool(jobs, _prepare) as pool:
        for result in pool.imap_unordered(run_one, jobs_to_do, chunksize=4):
            totals.add(result)
            if result.broken and len(totals.failures) <= MOST_FAILURES:
                _show_failure(result)
            now = time.monotonic()
            if now - said_at >= PROGRESS_S:
                said_at = now
                rate = totals.runs / (now - began)
                console.print(f"{totals.runs} of {seeds} runs, {rate:.1f} a second, {len(totals.failures)} failed")
            if now >= deadline:
                pool.terminate()
                break
    lacking = totals.decisions.lacking(is_stock)
    _summary(totals, time.monotonic() - began, lacking)
    if is_kept:
        plans = list(selected(totals.reached))
        save(plans)
        met = len(frozenset[str]().union(*(reached for _, reached in totals.reached)))
        click.echo(f"{FILE.name}: {len(plans)} worlds; {met} interleavings in {totals.runs} runs")
    return 1 if totals.failures or lacking else 0


def _mutations(jobs: int, is_json: bool, is_kept: bool) -> int:
    began, findings = time.monotonic(), list[Finding]()
    for finding in search(MUTATIONS, jobs):
        findings.append(finding)
        shown = (
            f"{finding.invariant} seed {finding.seed} ({finding.profile})" if finding.seed is not None else "NOT FOUND"
        )
        click.echo(
            f"{len(findings)} of {len(MUTATIONS)} after {time.monotonic() - began:.0f} s: {finding.name}: {shown}"
        )
    if is_kept:
        keep(findings)
    unfound = sum(each.seed is None for each in findings)
    click.echo(f"{'FAIL' if unfound else 'PASS'}: {len(findings) - unfound} of {len(findings)} mutations found")
    if is_json:
        click.echo(summary(findings))
    return 1 if unfound else 0


def _show_failure(result: RunResult) -> None:
    click.echo(f"\nFAIL seed {result.seed} profile {result.profile}: {', '.join(sorted(result.broken))}")
    click.echo(result.text)
    click.echo(f"replay: scripts/simulate --seed {result.seed} --profile {result.profile} --verbose\n")


def _summary(totals: Totals, seconds: float, lacking: Sequence[str]) -> None:
    console = Console(width=120)
    table = Table("fault", "times")
    for name, times in sorted(totals.fired.items()):
        table.add_row(name, str(times))
    console.print(table)
    table = Table("invariant", "decided", "not decided")
    for row in totals.decisions.rows():
        table.add_row(*row)
    console.print(table)
    runs = max(1, totals.runs)
    click.echo(
        f"{totals.runs} runs in {seconds:.0f} s: {totals.runs / max(seconds, 0.001):.1f} a second, "
        f"{runs / max(totals.cpu_s, 0.001):.1f} a second and core; {totals.events // runs} events a run"
    )
    if totals.failures:
        some = ", ".join(f"{failure.seed} ({failure.profile})" for failure in totals.failures[:MOST_FAILURES])
        click.echo(f"FAIL: {len(totals.failures)} of {totals.runs} seeds, as {some}")
    elif lacking:
        click.echo(f"FAIL: decided in too few of {totals.runs} seeds: {', '.join(lacking)}")
    else:
        click.echo(f"PASS: no invariant is broken in {totals.runs} seeds")


def line_of(event: Mapping[str, Any]) -> str:
    """One event in one line: when, who, what."""
    head = f"{event['at']:10.6f}  {event['who']:<14} {event['event']:<11}"
    if event["event"] == "commit":
        lines = [f"{head} zxid {event['zxid']}"]
        lines += [f"{'':41}{_operation(operation)}" for operation in event["ops"]]
        return "\n".join(lines)
    rest = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("at", "who", "event"))
    return _cut(f"{head} {rest}")


def _operation(operation: Mapping[str, Any]) -> str:
    text = f"{operation['op']:<6} {operation['path']}"
    if operation.get("ephemeral"):
        text += " (ephemeral)"
    if operation["op"] == "check":
        text += f" version {operation['version']}"
    if operation.get("data"):
        text += f" {operation['data']}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


if __name__ == "__main__":
    main(prog_name="simulate")
