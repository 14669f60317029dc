"""`zk-coordinator conformance`: tries a consumer in any language, scenario by scenario."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from coordinator.zk.errors import CoordinatorError, MissingProgram, UsageError
from coordinator.zk.process.cli import command_words, print_rows
from coordinator.zk.process.cli import report as say_error

from ..base import signals
from ..base.processes import module_command
from ..environments.base import Embedded
from ..evidence.verdict import EXIT_CODES, INCONCLUSIVE, PASS, together
from .basics import BASICS
from .bench import OPTIONAL, Ground, Scenario
from .commands import COMMANDS
from .faults import FAULTS
from .members import MEMBERS
from .runner import OF_THE_MACHINE, Outcome, run_all
from .topics import TOPICS

OWN_CONSUMER = module_command("consumer.cli", ["run"])

SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in (*BASICS, *MEMBERS, *FAULTS, *COMMANDS, *TOPICS)}


@click.command()
@click.argument("names", metavar="[SCENARIO]...", nargs=-1)
@click.option("--consumer", metavar="CMD", help="The command that starts the consumer; zk-consumer run by default.")
@click.option(
    "--without", metavar="FEATURE,...", default="", help=f"Features that it leaves out: {', '.join(OPTIONAL)}."
)
@click.option("--side-by-side", type=click.IntRange(1, 16), default=3, show_default=True, help="Scenarios at a time.")
@click.option("--session-timeout-ms", type=click.IntRange(1000, 20_000), default=3000, show_default=True)
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True,
    help="Folder for the evidence.",
)  # fmt: skip
@click.option("--list", "is_list", is_flag=True, help="List the scenarios.")
@click.option("--json", "is_json", is_flag=True, help="The last line on stdout is one JSON object.")
def conformance(
    names: tuple[str, ...],
    consumer: str | None,
    without: str,
    side_by_side: int,
    session_timeout_ms: int,
    runs: Path,
    is_list: bool,
    is_json: bool,
) -> int:
    """Try a consumer in any language on real processes.

    Exit code 0 when it passes every scenario, 1 when it fails one, 3 when the kit itself was aborted.

    CMD is started with the options of zk-consumer run, and prints its events (docs/conformance.md).
    """
    chosen = _chosen(names, [each.strip() for each in without.split(",") if each.strip()])
    left_out = sorted(SCENARIOS.keys() - {each.name for each in chosen}) if not names else []
    if is_list:
        rows = [(each.name, each.needs or None, each.title) for each in chosen]
        print_rows(("SCENARIO", "OPTIONAL", "THE CONSUMER"), rows)
        return 0
    command = _command(consumer)
    folder = runs.resolve() / "conformance" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    folder.mkdir(parents=True)
    outcomes: list[Outcome] = []
    verdicts: list[str] = []
    try:
        with (
            signals.taken(),
            tempfile.TemporaryDirectory(prefix="zk-group-conformance-") as place,
            Embedded(Path(place), 1) as environment,
        ):
            ground = Ground(environment, folder, command, session_timeout_ms)
            outcomes = run_all(ground, chosen, side_by_side, _announce)
    except MissingProgram:
        raise
    except (CoordinatorError, *OF_THE_MACHINE) as error:
        say_error(f"aborted: {error}")
        verdicts = [INCONCLUSIVE]  # it proves nothing about the consumer, so it is not a FAIL
    verdict = together([*verdicts, *(each.verdict for each in outcomes)])
    if is_json:
        scenarios = [{**asdict(each), "passed": each.verdict == PASS} for each in outcomes]
        click.echo(json.dumps({"passed": verdict == PASS, "scenarios": scenarios, "left_out": left_out}))
    else:
        click.echo(f"{verdict}: {sum(each.verdict == PASS for each in outcomes)} of {len(outcomes)} scenarios")
    return EXIT_CODES[verdict]


def _chosen(names: Sequence[str], without: Sequence[str]) -> list[Scenario]:
    for name in names:
        if name not in SCENARIOS:
            raise UsageError(f"there is no scenario {name}: see zk-coordinator conformance --list")
    for feature in without:
        if feature not in OPTIONAL:
            raise UsageError(f"--without takes {', '.join(OPTIONAL)}, not {feature}")
    return [each for name, each in SCENARIOS.items() if (name in names if names else each.needs not in without)]


def _command(consumer: str | None) -> list[str]:
    """
    :raises UsageError: when it cannot be split.
    :raises MissingProgram: when its program does not exist.
    """
    if consumer is None:
        return OWN_CONSUMER
    words = command_words("--consumer", consumer)
    if shutil.which(words[0]) is None:
        raise MissingProgram(f"--consumer: there is no program {words[0]}")
    return words


def _announce(outcome: Outcome) -> None:
    shown = {PASS: "pass", INCONCLUSIVE: "ABORTED"}.get(outcome.verdict, outcome.verdict)
    click.echo(f"{shown}  {outcome.name}  {outcome.seconds:.1f} s", err=True)
    for why in (*(f"aborted: {each}" for each in outcome.aborted), *outcome.why):
        click.echo(f"      {why}", err=True)
    if outcome.verdict != PASS:
        click.echo(f"      {outcome.folder}", err=True)
