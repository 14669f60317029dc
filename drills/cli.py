"""`zk-coordinator drill`: failover drills, each with a verdict."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from zk_group.coordinator.zk.embedded.kafka import fetch_kafka
from zk_group.coordinator.zk.errors import MissingProgram, NotAuthorized, UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.process.cli import (
    TABLE,
    command_access,
    output_option,
    print_json,
    print_rows,
    zk_config_option,
)
from zk_group.coordinator.zk.process.cli import report as say_error
from zk_group.drills.base.processes import INTERRUPTS
from zk_group.drills.base.settings import Settings
from zk_group.drills.environments.base import BROKER, Embedded, Environment
from zk_group.drills.environments.containers import Containers
from zk_group.drills.environments.external import External, NamedGroup
from zk_group.drills.evidence.files import merged_history, write_reports
from zk_group.drills.evidence.measurements import EXIT_CODES, INCONCLUSIVE, together
from zk_group.drills.runner import BREAKS_OFF, DEFAULTS, DRILLS, DrillOptions, DrillRun, named, run_drill
from zk_group.drills.scenarios.definition import Drill
from zk_group.drills.testbed.testbed import DataFrameReader


@click.group()
def drill() -> None:
    """Failover drills: faults on real processes, whose effects are compared with promises."""


@drill.command("list")
@output_option
def list_drills(output: str) -> None:
    """List the drills and their faults."""
    rows = [(one.name, "yes" if one.is_short else "no", one.servers, one.title) for one in DRILLS.values()]
    print_rows(("NAME", "SHORT", "SERVERS", "WHAT"), rows, output)


@drill.command()
@click.argument("name")
@output_option
def describe(name: str, output: str) -> None:
    """Describe a drill: hypothesis, fault, promises and touched paths."""
    (one,) = named([name])
    if output != TABLE:
        print_json(one.described())
        return
    _announce(one, one.described())


@drill.command()
@click.argument("names", nargs=-1)
@click.option("--short", is_flag=True, help="One drill per kind of fault.")
@click.option("--all", "is_all", is_flag=True, help="Every drill.")
@click.option("--servers", type=click.Choice(["1", "3"]), default="3", show_default=True, help="Embedded servers.")
@click.option("--kafka", is_flag=True, help="With --short and --all: the drills on a Kafka broker, too.")
@click.option("--docker", "in_docker", is_flag=True, help="On three servers in containers (tests/docker) instead.")
@click.option("--zk", metavar="HOSTS/CHROOT", help="On your own ensemble instead, as host:port,host:port/chroot.")
@zk_config_option
@click.option(
    "--secure", "is_secured", is_flag=True, help="With ACLs on all znodes, and embedded servers with TLS and SASL."
)
@click.option("--group", metavar="NAME", help="With --zk: on this group; a dry run without --execute.")
@click.option("--execute", is_flag=True, help="With --group: run the drill.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each drill.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed.")
@click.option("--session-timeout-ms", type=int, default=DEFAULTS.session_timeout_ms, show_default=True)
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True,
    help="Folder for the evidence.",
)  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="The last line on stdout is one JSON object.")
@click.option("--keep", is_flag=True, help="Keep the records and segments of each run, too.")
def run(servers: str, session_timeout_ms: int, **options: Any) -> int:
    """Run drills. Exit code 0 for PASS, 1 for FAIL, 3 for INCONCLUSIVE or a run that was aborted."""
    settings = Settings(session_timeout_ms=session_timeout_ms)
    return _run(DrillOptions(servers=int(servers), settings=settings, access=command_access(), **options))


def _run(options: DrillOptions) -> int:
    chosen, left_out = options.chosen()
    for sentence in left_out:
        click.echo(f"skipped: {sentence}", err=True)
    if any(BROKER in one.needs for one in chosen):
        _require_kafka()
    external = options.external()
    if isinstance(external, NamedGroup):
        if not options.execute:
            return _dry_run(chosen, external)
        with external.opened() as store:
            external.require_no_members(store)
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 200)
    done: list[DrillRun] = []
    verdicts: list[str] = []
    try:
        with INTERRUPTS.taken(), _opened(options, external) as (environment, reader):
            for one, nth in product(chosen, range(options.repeat)):
                done.append(_run_one(one, environment, reader, options, options.seed + nth, console))
    except (UsageError, ZooKeeperUnreachable, MissingProgram, NotAuthorized):
        raise
    except BREAKS_OFF as error:
        say_error(f"aborted after {len(done)} drills: {error}")
        verdicts = [INCONCLUSIVE]  # the abort proves nothing about the product, so it is not a FAIL
    verdict = together([*verdicts, *(each.verdict for each in done)])
    if options.is_json:
        click.echo(json.dumps({"verdict": verdict, "drills": [_summary(each) for each in done]}))
    else:
        click.echo(f"{verdict}: {len(done)} drills")
    return EXIT_CODES[verdict]


def _require_kafka() -> None:
    """Check the dependencies of a broker and its clients; missing jars are fetched.

    :raises MissingProgram: when a dependency is missing.
    """
    if find_spec("confluent_kafka") is None:
        raise MissingProgram(
            "confluent-kafka, with which drills write to Kafka, is not installed: "
            "pip install 'zk-group-coordinator[kafka]'"
        )
    fetch_kafka()


@drill.command()
@click.argument("folder", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(folder: Path) -> None:
    """Create the reports of a run again from its evidence, and print the Markdown report."""
    try:
        document = json.loads((folder / "run.json").read_text())
        events, problems = merged_history([folder / "history.jsonl"])
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} is not the folder of a drill's run: {error}") from error
    for problem in problems:
        click.echo(f"ignored: {problem}", err=True)
    write_reports(folder, document, events)
    click.echo((folder / "report.md").read_text())
    click.echo(f"report: {folder / 'report.html'}", err=True)


def _dry_run(chosen: Sequence[Drill], environment: NamedGroup) -> int:
    for one in chosen:
        _announce(one, one.described(environment.touches))
        click.echo()
    with environment.opened() as store:
        try:
            environment.require_no_members(store)
            click.echo("dry run: nothing was written; --execute runs the drill")
        except UsageError as refusal:
            click.echo(f"dry run: nothing was written; --execute would be refused: {refusal}")
    return 0


def _announce(one: Drill, described: dict[str, Any]) -> None:
    for key, value in described.items():
        click.echo(f"{key.replace('_', ' '):<13} {'; '.join(value) if isinstance(value, list) else value}")
    for promise in one.promises:
        click.echo(f"{'promise':<13} {promise.name}: {promise.rule}")


@contextmanager
def _opened(options: DrillOptions, external: External | None) -> Iterator[tuple[Environment, DataFrameReader]]:
    """The ensemble, and the Spark process that reads the DataFrame."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zk-group-drill-")))
        environment: AbstractContextManager[Environment]
        if external is not None:
            environment = nullcontext(external)
        elif options.kind is Containers:
            environment = containers = Containers(folder / "containers")
            click.echo(f"Compose project {containers.project}", err=True)  # for the cleanup after a killed run
        else:
            environment = Embedded(folder / "ensemble", options.servers, is_secured=options.is_secured)
        reader = DataFrameReader(folder)
        stack.callback(reader.close)
        opened = stack.enter_context(environment)
        stack.enter_context(opened.access.in_force(folder / "access"))
        stack.callback(INTERRUPTS.ignore)  # the cleanup is not interruptible, as after an interrupt
        yield opened, reader


def _run_one(
    one: Drill, environment: Environment, reader: DataFrameReader, options: DrillOptions, seed: int, console: Console
) -> DrillRun:
    console.print(f"[bold]{one.name}[/bold]  {one.title}")

    def announce(what: str) -> None:
        console.print(f"    {what}", markup=False)

    done = run_drill(one, environment, reader, options, seed, announce)
    console.print(f"  {done.verdict}  {done.document['seconds']} s  {done.folder}", markup=False)
    for why in done.document["why"]:
        console.print(f"    {why}", markup=False)
    return done


SUMMED_UP = ("drill", "verdict", "why", "seed", "seconds", "numbers", "promises", "records")


def _summary(run: DrillRun) -> dict[str, object]:
    document = run.document
    broken = [name for name, each in document["invariants"].items() if each["outcome"] == "broken"]
    return {**{field: document[field] for field in SUMMED_UP}, "broken": broken, "folder": str(run.folder)}
