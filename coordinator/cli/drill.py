"""`zk-coordinator drill`: failover drills, each with a verdict."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from coordinator.drills import interrupts
from coordinator.drills.broker import require_kafka
from coordinator.drills.catalog import DRILLS
from coordinator.drills.containers import Containers
from coordinator.drills.drill import Drill
from coordinator.drills.evidence import write_reports
from coordinator.drills.ground import BROKER, Embedded, Ground
from coordinator.drills.histories import merged_history
from coordinator.drills.named import Named
from coordinator.drills.namespaces import Namespaced, namespaced
from coordinator.drills.own import Own
from coordinator.drills.reader import Reader
from coordinator.drills.runner import BREAKS_OFF, Run, run_drill
from coordinator.drills.settings import Settings
from coordinator.drills.verdict import EXIT_CODES, INCONCLUSIVE, together
from coordinator.zk.errors import MissingProgram, UsageError, ZooKeeperUnreachable

from .common import TABLE, output_option, print_json, print_rows
from .common import report as say_error

DEFAULTS = Settings()
MOST_SERVERS = 3


@click.group()
def drill() -> None:
    """Failover drills: a fault is done to real processes, and what it cost is held against what was promised."""


@drill.command("list")
@output_option
def list_drills(output: str) -> None:
    """Every drill, with what it does."""
    rows = [(one.name, "yes" if one.is_short else "no", one.servers, one.title) for one in DRILLS.values()]
    print_rows(("NAME", "SHORT", "SERVERS", "WHAT"), rows, output)


@drill.command()
@click.argument("name")
@output_option
def describe(name: str, output: str) -> None:
    """What a drill assumes, does, promises and touches."""
    (one,) = _named([name])
    if output != TABLE:
        print_json(one.described())
        return
    _tell_of(one, one.described())


@drill.command()
@click.argument("names", nargs=-1)
@click.option("--short", is_flag=True, help="Every kind of fault once.")
@click.option("--all", "is_all", is_flag=True, help="Every drill.")
@click.option("--servers", type=click.Choice(["1", "3"]), default="3", show_default=True, help="Embedded servers.")
@click.option("--kafka", is_flag=True, help="With --short and --all: the drills on a Kafka broker, too.")
@click.option("--docker", "in_docker", is_flag=True, help="On three servers in containers (tests/docker) instead.")
@click.option("--namespaces", "in_namespaces", is_flag=True, help="Each embedded server in a network namespace (root).")
@click.option("--zk", metavar="HOSTS/CHROOT", help="On your own ensemble instead, as host:port,host:port/chroot.")
@click.option("--group", metavar="NAME", help="With --zk: on this group in the very path of --zk. A dry run, unless:")
@click.option("--execute", is_flag=True, help="With --group: do it.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="So often, each.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="What is drawn, is drawn from it.")
@click.option("--session-timeout-ms", type=int, default=DEFAULTS.session_timeout_ms, show_default=True)
@click.option(
    "--runs", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True,
    help="Where the evidence goes.",
)  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="The last line on stdout is one JSON object.")
@click.option("--keep", is_flag=True, help="Keep the records and segments of each run, too.")
def run(
    names: tuple[str, ...],
    short: bool,
    is_all: bool,
    servers: str,
    kafka: bool,
    in_docker: bool,
    in_namespaces: bool,
    zk: str | None,
    group: str | None,
    execute: bool,
    repeat: int,
    seed: int,
    session_timeout_ms: int,
    runs: Path,
    is_json: bool,
    keep: bool,
) -> int:
    """Run drills. Exit code 0 for PASS, 1 for FAIL, 3 for INCONCLUSIVE or where something else ended the run."""
    logging.getLogger("coordinator.zk.kazoo").setLevel(logging.CRITICAL)  # what is done to ZooKeeper is no news here
    if sum((in_docker, in_namespaces, zk is not None)) > 1:
        raise UsageError("give one of --docker, --namespaces and --zk")
    if (group is not None and zk is None) or (execute and group is None):
        raise UsageError("--group needs --zk, and --execute needs --group")
    if keep and group is not None:
        raise UsageError("--keep is not for --group: a group that stands is refused the next time")
    kind = Containers if in_docker else Namespaced if in_namespaces else Own if zk is not None else Embedded
    can = kind.can | {BROKER} if kind is not Own and (kafka or names) else kind.can
    chosen = _chosen(names, short, is_all, MOST_SERVERS if kind is Own else int(servers), can)
    if any(BROKER in one.needs for one in chosen):
        require_kafka()
    settings = Settings(session_timeout_ms=session_timeout_ms)
    own = _own(zk, group, session_timeout_ms)
    if isinstance(own, Named):
        if not execute:
            return _dry_run(chosen, own)
        with own.opened() as store:
            own.require_nobody(store)
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 200)
    done: list[Run] = []
    verdicts: list[str] = []
    try:
        with interrupts.taken(), _stand(int(servers), kind, own) as (ground, reader):
            settings = ground.adjust(settings)
            for one, nth in product(chosen, range(repeat)):
                done.append(_run_one(one, ground, reader, runs.resolve(), settings, seed + nth, keep, console))
    except (UsageError, ZooKeeperUnreachable, MissingProgram):
        raise
    except BREAKS_OFF as error:
        say_error(f"broken off after {len(done)} drills: {error}")
        verdicts = [INCONCLUSIVE]  # whatever ended it tells nothing of the product, so it is never a FAIL
    verdict = together([*verdicts, *(each.verdict for each in done)])
    if is_json:
        click.echo(json.dumps({"verdict": verdict, "drills": [_summary(each) for each in done]}))
    else:
        click.echo(f"{verdict}: {len(done)} drills")
    return EXIT_CODES[verdict]


@drill.command()
@click.argument("folder", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(folder: Path) -> None:
    """Make the reports of a run again from its evidence, and print the text."""
    try:
        document = json.loads((folder / "run.json").read_text())
        events, problems = merged_history([folder / "history.jsonl"])
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} is no run of a drill: {error}") from error
    for problem in problems:
        click.echo(f"set aside: {problem}", err=True)
    write_reports(folder, document, events)
    click.echo((folder / "report.md").read_text())
    click.echo(f"the page: {folder / 'report.html'}", err=True)


def _own(zk: str | None, group: str | None, session_timeout_ms: int) -> Own | None:
    """The operator's ensemble, where one was named."""
    if zk is None:
        return None
    return Own(zk, session_timeout_ms) if group is None else Named(zk, session_timeout_ms, group)


def _dry_run(chosen: Sequence[Drill], ground: Named) -> int:
    """Say what would be done, and do nothing."""
    for one in chosen:
        _tell_of(one, one.described(ground.touches))
        click.echo()
    with ground.opened() as store:
        try:
            ground.require_nobody(store)
            click.echo("a dry run: nothing was written; with --execute it is done")
        except UsageError as refusal:
            click.echo(f"a dry run: nothing was written, and with --execute it is refused: {refusal}")
    return 0


def _tell_of(one: Drill, described: dict[str, Any]) -> None:
    for key, value in described.items():
        click.echo(f"{key.replace('_', ' '):<13} {'; '.join(value) if isinstance(value, list) else value}")
    for promise in one.promises:
        click.echo(f"{'promise':<13} {promise.name}: {promise.rule}")


@contextmanager
def _stand(servers: int, kind: type[Embedded | Containers | Own], own: Own | None) -> Iterator[tuple[Ground, Reader]]:
    """The ensemble, and the Spark that reads."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zk-group-drill-")))
        ground = nullcontext(own) if own is not None else _ground(folder, kind, servers)
        reader = Reader(folder)
        stack.callback(reader.close)
        standing = stack.enter_context(ground)
        stack.callback(interrupts.ignore)  # from here on everything goes, as after an interrupt
        yield standing, reader


def _ground(folder: Path, kind: type[Embedded | Containers | Own], servers: int) -> AbstractContextManager[Ground]:
    """An ensemble of our own, which stands once it is entered."""
    if kind is Containers:
        containers = Containers(folder / "containers")
        click.echo(f"Compose project {containers.project}", err=True)  # for whoever must remove what a killed run left
        return containers
    if kind is Namespaced:
        return namespaced(folder / "ensemble", servers)
    return Embedded(folder / "ensemble", servers)


def _run_one(
    one: Drill, ground: Ground, reader: Reader, runs: Path, settings: Settings, seed: int, keep: bool, console: Console
) -> Run:
    console.print(f"[bold]{one.name}[/bold]  {one.title}")

    def tell(what: str) -> None:
        console.print(f"    {what}", markup=False)

    done = run_drill(one, ground, runs, settings, seed, reader, tell, keep)
    console.print(f"  {done.verdict}  {done.document['seconds']} s  {done.folder}", markup=False)
    for why in done.document["why"]:
        console.print(f"    {why}", markup=False)
    return done


def _summary(run: Run) -> dict[str, object]:
    document = run.document
    broken = [name for name, each in document["invariants"].items() if each["outcome"] == "broken"]
    return {
        "drill": run.drill.name,
        "verdict": run.verdict,
        "why": document["why"],
        "seed": run.seed,
        "seconds": document["seconds"],
        "numbers": document["numbers"],
        "promises": document["promises"],
        "records": document["records"],
        "broken": broken,
        "folder": str(run.folder),
    }


def _chosen(names: Sequence[str], short: bool, is_all: bool, servers: int, can: frozenset[str]) -> list[Drill]:
    """The drills to run; of those that nobody has named, only what a ground that `can` so much has room for.

    :raises UsageError: when one that was named has no room there.
    """
    if sum((bool(names), short, is_all)) != 1:
        raise UsageError("name the drills to run, or give one of --short and --all (see: drill list)")
    chosen = _named(names) if names else [one for one in DRILLS.values() if one.is_short or is_all]
    too_few = [one.name for one in chosen if one.servers > servers]
    if too_few:
        raise UsageError(f"{too_few[0]} needs an ensemble of three: give --servers 3")
    lacking = {one.name: lack for one in chosen if (lack := one.lacks(can))}
    for name, lack in lacking.items():
        sentence = f"{name} needs {lack}: {_instead(lack, can)}"
        if names:
            raise UsageError(sentence)
        click.echo(f"left out: {sentence}", err=True)
    return [one for one in chosen if one.name not in lacking]


def _instead(lack: str, can: frozenset[str]) -> str:
    """What to do where a ground that `can` so much lacks something."""
    if not can:
        return "no broker is started at --zk" if lack == BROKER else "the servers of --zk are not touched"
    return "give --kafka" if lack == BROKER else "give --docker or --namespaces"


def _named(names: Sequence[str]) -> list[Drill]:
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        raise UsageError(f"there is no drill {unknown[0]!r}; known are {', '.join(DRILLS)}")
    return [DRILLS[name] for name in names]
