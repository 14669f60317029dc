"""`zk-coordinator conformance`: tries a consumer in any language, scenario by scenario.

Scenarios run side by side on one ensemble, each in a chroot of its own. The transaction log of each is replayed: the
checker's invariants, and the bounds of a consumer's multis.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from zk_group.coordinator.zk.errors import CoordinatorError, MissingProgram
from zk_group.coordinator.zk.process.cli import command_words, print_rows
from zk_group.coordinator.zk.process.cli import report as say_error
from zk_group.coordinator.zk.store import MAX_COMMIT_BYTES, MAX_OPERATIONS
from zk_group.coordinator.zk.values import require
from zk_group.coordinator.zk.znodes.paths import NODES, GroupPaths

from ..base.processes import INTERRUPTS, NotReached, module_command, wait_for
from ..checker import check
from ..environments.base import Embedded
from ..evidence.files import STRANGER, Event, merged_history, write_history
from ..evidence.measurements import EXIT_CODES, FAIL, INCONCLUSIVE, PASS, together
from ..testbed.commands import READY_S
from . import commands, members
from .bench import OPTIONAL, Bench, Ground, Scenario
from .event_lines import NotConforming

OWN_CONSUMER = module_command("zk_group.consumer.cli", ["run"])

_DEFINED = (*vars(members).values(), *vars(commands).values())
SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in _DEFINED if isinstance(each, Scenario)}


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
            INTERRUPTS.taken(),
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
        require(name in SCENARIOS, f"there is no scenario {name}: see zk-coordinator conformance --list")
    for feature in without:
        require(feature in OPTIONAL, f"--without takes {', '.join(OPTIONAL)}, not {feature}")
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


OF_THE_MACHINE = (OSError, subprocess.SubprocessError)
"""Errors unrelated to the consumer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario's result.

    :ivar optional: its required feature.
    :ivar why: the deviations, one sentence each; empty when it passed.
    :ivar aborted: why the kit itself could not continue: then `why` proves nothing about the consumer.
    :ivar folder: the history, and the processes' output.
    """

    name: str
    title: str
    optional: str | None
    why: list[str]
    aborted: list[str]
    seconds: float
    folder: str

    @property
    def verdict(self) -> str:
        """PASS, FAIL, or INCONCLUSIVE when it was aborted."""
        return INCONCLUSIVE if self.aborted else FAIL if self.why else PASS


def run_all(
    ground: Ground, scenarios: Sequence[Scenario], side_by_side: int, done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run scenarios; the results have their order. An interrupt ends all processes, and is raised again.

    :param done: called with each result as it comes.
    """
    wait_for(ground.environment.is_healthy, READY_S, "ZooKeeper serves")
    with ThreadPoolExecutor(side_by_side, thread_name_prefix="conformance") as pool:
        futures = [pool.submit(_run_one, each, ground) for each in scenarios]
        try:
            for future in as_completed(futures):
                done(future.result())
        except BaseException:
            INTERRUPTS.ignore()  # the scenarios stop waiting, too
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _run_one(scenario: Scenario, ground: Ground) -> Outcome:
    began = time.monotonic()
    folder = ground.folder / scenario.name
    why: list[str] = []
    aborted: list[str] = []
    try:
        with Bench(scenario, ground) as bench:
            why += acted(bench)
            ended = [name for name in bench.ended() if name.startswith("node-")]
            aborted += [f"the coordinator {name} has ended unexpectedly" for name in ended]
            bench.notes.note("end")
            bench.end()
            files = bench.witnessed()
        why += judged(files, folder)
    except OF_THE_MACHINE as error:
        aborted.append(str(error))
    except Exception as error:  # noqa: BLE001  an unforeseen consumer must not end the other scenarios
        why.append(_unexpected(error))
    if why and not ground.environment.is_healthy():
        aborted.append("ZooKeeper does not serve")
    shutil.rmtree(folder / "log", ignore_errors=True)
    seconds = round(time.monotonic() - began, 1)
    return Outcome(scenario.name, scenario.title, scenario.needs or None, why, aborted, seconds, str(folder))


def acted(bench: Bench) -> list[str]:
    """Run the scenario; returns the consumer's deviations."""
    why: list[str] = []
    try:
        bench.start_all()
        bench.scenario.act(bench)
        why += [f"no process has consumed the records of {span}" for span in bench.trials.unconsumed()]
        if not bench.scenario.repeats:
            bench.trials.require_once()
    except (NotConforming, NotReached) as error:
        why.append(str(error))
    except OF_THE_MACHINE:
        raise
    except Exception as error:  # noqa: BLE001  its transaction log is judged, too
        why.append(_unexpected(error))
    return why


def _unexpected(error: Exception) -> str:
    return f"aborted: {type(error).__name__}: {error}"


MOST_PATHS = 3
ANY = "[^/]+"
OF_ANY = GroupPaths(ANY)
CHANNEL = re.compile(OF_ANY.channel(ANY))
PARENTS = re.compile("|".join([*OF_ANY.skeleton, OF_ANY.owners_of(ANY), OF_ANY.offsets_of(ANY)]))


def judged(files: Sequence[Path], folder: Path) -> list[str]:
    """The violations in the histories; empty when every decidable invariant was held.

    :param files: of the coordinators, the kit and ZooKeeper, in one history left in `folder`.
    """
    events, problems = merged_history(files)
    write_history(folder / "history.jsonl", events)
    verdicts = check(events)
    found = [f"unreadable history: {problem}" for problem in problems]
    found += [f"{verdict.invariant} is broken: {verdict.why}" for verdict in verdicts.broken]
    return found + multis_of_consumers(events)


def multis_of_consumers(events: Sequence[Event]) -> list[str]:
    """Consumers' commits that are too large, or not under the fence of a channel."""
    found = []
    commits = [event for event in events if event["event"] == "commit"]
    nodes = {event["who"] for event in commits if any(each["path"].startswith(f"{NODES}/") for each in event["ops"])}
    for event in commits:
        if not event["who"].startswith(STRANGER) or event["who"] in nodes:  # a node that wrote no history yet
            continue
        operations = event["ops"]
        size = sum(len(each["path"]) + len(each.get("data") or "") for each in operations)
        what = f"the multi at zxid 0x{event['zxid']:x}"
        if len(operations) > MAX_OPERATIONS or size > MAX_COMMIT_BYTES:
            found.append(f"{what} has {len(operations)} operations and {size} bytes")
        elif not _is_fenced(operations):
            paths = ", ".join(sorted({each["path"] for each in operations})[:MOST_PATHS])
            found.append(f"{what} changes {paths}, and neither sets nor checks a channel")
    return found


def _is_fenced(operations: Sequence[dict[str, Any]]) -> bool:
    fences = [each for each in operations if each["op"] in ("set", "check") and CHANNEL.fullmatch(each["path"])]
    return bool(fences) or all(map(_is_parent, operations))


def _is_parent(operation: dict[str, Any]) -> bool:
    """Whether it creates a parent, or an empty channel."""
    if operation["op"] != "create" or operation.get("ephemeral"):
        return False
    path = operation["path"]
    return bool(PARENTS.fullmatch(path) or (CHANNEL.fullmatch(path) and not operation.get("data")))
