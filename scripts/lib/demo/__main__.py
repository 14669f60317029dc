"""`scripts/demo`: run the story, print its progress, and end with its verdict."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from common import run
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from zk_group.coordinator.zk.errors import UsageError
from zk_group.drills.base.processes import REPOSITORY

from .story import Story, Verdict, as_json

INTERRUPTED = 130


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--servers", type=click.Choice(["1", "3"]), default="1", show_default=True, help="ZooKeeper servers.")
@click.option("--kafka", is_flag=True, help="Use a real Kafka broker instead of the embedded log.")
@click.option("--secure", is_flag=True, help="TLS, SASL and ACLs, and an intruder that tries to read and write.")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=REPOSITORY / "runs", help="Folder for the run folders."
)
@click.option("--json", "as_json_line", is_flag=True, help="The last line on stdout is one JSON object.")
def main(servers: str, kafka: bool, secure: bool, runs: Path, as_json_line: bool) -> None:
    """Stream 336,776 real flights through a group and count every record, through two faults and two rebalances.

    The coordinator and an executor are killed; then the fetcher pool grows and shrinks, and each rebalance is
    shown with its standstill. The coordinator failover is the time from the kill to the creation of the next
    coordinator's znode (its ctime). Exit code 0 and PASS only if every record came exactly once, both faults
    happened, both resizes rebalanced the group, and it is Stable at the end; else 1 and FAIL. With --secure also only
    if ZooKeeper refused the intruder's every operation.
    """
    if kafka and secure:
        raise UsageError("--secure uses the embedded log: give it without --kafka")
    folder = runs / "demo" / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder.mkdir(parents=True)
    # Output to a file or a pipe is not wrapped.
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 200)
    console.print(f"run folder: {folder}")
    try:
        story = _run(folder, int(servers), kafka, secure, console)
    except KeyboardInterrupt:
        console.print("interrupted; all started processes are stopped")
        sys.exit(INTERRUPTED)
    _show(story, console)
    _last_words(story.verdict, folder, as_json_line)
    sys.exit(0 if story.verdict.verdict == "PASS" else 1)


def _run(folder: Path, servers: int, kafka: bool, secure: bool, console: Console) -> Story:
    """Rich progress on a terminal, plain lines elsewhere."""
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.completed:>9,.0f} / {task.total:,.0f}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as bars:
        tasks = [bars.add_task(name, total=336_776) for name in ("appended", "streamed")]

        def progress(appended: int, streamed: int, total: int) -> None:
            for task, done in zip(tasks, (appended, streamed), strict=True):
                bars.update(task, completed=done, total=total)

        def announce(what: str) -> None:
            bars.console.print(f"{datetime.now(UTC):%H:%M:%S} {what}")

        story = Story(folder, servers, announce, progress, kafka, secure)
        story.run()
        return story


def _show(story: Story, console: Console) -> None:
    if story.timeline:
        first = story.timeline[0][0]
        table = Table(title="Timeline", box=None, title_justify="left", pad_edge=False)
        table.add_column("SECONDS", justify="right")
        table.add_column("WHAT")
        for at, what in story.timeline:
            table.add_row(f"{at - first:.1f}", what)
        console.print(table)
    if story.carriers:
        table = Table(title="Flights and mean delay per carrier", box=None, title_justify="left", pad_edge=False)
        for column in ("CARRIER", "FLIGHTS", "MEAN-DELAY", "SAME"):
            table.add_column(column, justify="left" if column == "CARRIER" else "right")
        for carrier, (found, expected) in story.carriers.items():
            delay = f"{found.mean_delay:.2f}" if found and found.mean_delay is not None else "-"
            table.add_row(carrier, f"{found.flights:,}" if found else "-", delay, "yes" if found == expected else "NO")
        console.print(table)


def _last_words(verdict: Verdict, folder: Path, as_json_line: bool) -> None:
    (folder / "verdict.json").write_text(json.dumps(as_json(verdict), indent=2) + "\n")
    if as_json_line:
        print(json.dumps(as_json(verdict)))
        return
    for what in verdict.failures:
        print(f"failed: {what}")
    intruder = ""
    if verdict.intruder_attempts is not None:
        intruder = f"{verdict.intruder_refused} of an intruder's {verdict.intruder_attempts} operations refused, "
    print(
        f"{verdict.verdict}: {verdict.records:,} records, {verdict.lost} lost, {verdict.duplicated} duplicated; "
        f"coordinator failover {verdict.coordinator_failover_ms} ms, executors killed {verdict.executors_killed}, "
        f"rebalances {verdict.rebalances}, longest standstill {verdict.longest_standstill_ms} ms at most, "
        f"generation {verdict.generation}, {intruder}{verdict.seconds} s"
    )


if __name__ == "__main__":
    run(main, "scripts/demo")
