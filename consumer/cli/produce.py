"""`zk-consumer produce`: lines of a file or a pipe become records of the embedded log."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from consumer.logs.embedded.producer import Producer, TopicsInStore
from coordinator.zk.errors import BadData, UsageError
from coordinator.zk.process.cli import brokers_option, env_option, opened, report, zk_option
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.paths import Brokers

from .input import InputRecord, lines, record_of_json

LINES = "lines"
JSONL = "jsonl"
MOST_REPORTED = 20
IDLE_S = 0.1
"""Idle time after which buffered lines are written."""
FLUSH_INTERVAL_S = 1.0
"""Maximum time that a record waits for its batch to fill."""

Parse = Callable[[int, bytes], InputRecord | None]
"""Parses a line, with its number; None when it is blank."""


@click.command()
@click.argument("topic")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), default="-")
@click.option(
    "--format",
    "line_format",
    type=click.Choice([LINES, JSONL]),
    default=LINES,
    show_default=True,
    help="lines: each is a value. jsonl: each is an object with value (and key, partition, timestamp, headers).",
)
@click.option(
    "--ignore-place",
    is_flag=True,
    help="With jsonl: pass over topic, partition and offset of a line, as zk-consumer run prints them.",
)
@click.option("--bad-lines", type=click.Path(dir_okay=False, path_type=Path), help="A new file for bad lines.")
@env_option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder of the embedded log.",
)
@zk_option
@brokers_option
def produce(
    topic: str,
    file: Path,
    line_format: str,
    ignore_place: bool,
    bad_lines: Path | None,
    log_dir: Path,
    zk: str,
    brokers: Brokers,
) -> None:
    """Write the lines of FILE (- or none is stdin) into TOPIC.

    A bad line is reported, counted and skipped, and the exit code is 1.
    """
    if ignore_place and line_format != JSONL:
        raise UsageError("--ignore-place is about the fields of a line: add --format jsonl")
    with ExitStack() as stack:
        with opened(zk) as store:
            known = TopicsInStore(store, brokers)[topic]
        producer = Producer(log_dir, {topic: known})
        source = sys.stdin.buffer if str(file) == "-" else stack.enter_context(file.open("rb"))
        rejects = stack.enter_context(_created(bad_lines)) if bad_lines else None
        load = ProduceRun(producer, topic, _parser(line_format, ignore_place), rejects)
        try:
            load.run(source.fileno())
        finally:
            click.echo(load.summary(), err=True)
    if load.bad:
        raise click.exceptions.Exit(1)


class ProduceRun:
    """One run of the command: reads, sends, and counts bad lines."""

    def __init__(self, producer: Producer, topic: str, parse: Parse, rejects: BinaryIO | None) -> None:
        self.bad = 0
        self._producer = producer
        self._topic = producer.topic(topic)
        self._parse = parse
        self._rejects = rejects
        self._lines = 0
        self._runtime = ThreadRuntime()
        self._started = self._flushed = self._runtime.monotonic()

    def run(self, descriptor: int) -> None:
        """Send all lines of `descriptor`; after an interrupt, those that were read."""
        with _progress() as progress:
            shown = progress.add_task("")
            try:
                for line in lines(descriptor, IDLE_S):
                    if line is not None:
                        self._lines += 1
                        self._take(self._lines, line)
                    if line is None or self._runtime.monotonic() - self._flushed > FLUSH_INTERVAL_S:
                        self._flush()
                        progress.update(shown, description=f"{self._producer.written} records")
            except KeyboardInterrupt:
                self._flush()
                raise
        self._flush()

    def summary(self) -> str:
        """The result, in a sentence."""
        seconds = self._runtime.monotonic() - self._started
        bad = f"; {self.bad} bad lines were skipped" if self.bad else ""
        return f"{self._producer.written} records written to {self._topic.name} in {seconds:.1f} s{bad}"

    def _flush(self) -> None:
        self._producer.flush()
        self._flushed = self._runtime.monotonic()

    def _take(self, number: int, line: bytes) -> None:
        try:
            record = self._parse(number, line)
            if record is not None:
                self._producer.send(self._topic.name, *record)
        except BadData as error:
            self._reject(line, str(error))
        except UsageError as error:
            self._reject(line, f"line {number}: {error}")

    def _reject(self, line: bytes, why: str) -> None:
        self.bad += 1
        if self.bad <= MOST_REPORTED:
            report(why)
        elif self.bad == MOST_REPORTED + 1:
            report("further bad lines are only counted")
        if self._rejects:
            self._rejects.write(line + b"\n")


def _parser(line_format: str, ignores_place: bool) -> Parse:
    def parse(number: int, line: bytes) -> InputRecord | None:
        is_blank = not line.removeprefix(BOM_UTF8).strip()
        return None if is_blank else record_of_json(f"line {number}", line, ignores_place)

    return parse if line_format == JSONL else lambda number, line: InputRecord(line)


def _progress() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _created(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
