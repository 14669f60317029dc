"""`zk-consumer produce`: lines of a file or a pipe become records of the embedded log."""

from __future__ import annotations

import json
import os
import select
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from zk_group.consumer.logs.base import MAX_TIMESTAMP_MS
from zk_group.consumer.logs.embedded.producer import MAX_RECORD_BYTES, Headers, Producer, TopicsInStore
from zk_group.coordinator.zk.errors import BadData, CoordinatorError, UsageError
from zk_group.coordinator.zk.process.cli import brokers_option, env_option, opened, report, zk_option
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.group_state import decoded
from zk_group.coordinator.zk.znodes.json_fields import Fields
from zk_group.coordinator.zk.znodes.paths import Brokers, shown
from zk_group.coordinator.zk.znodes.ranges import MAX_PARTITION

from .output import encoded_text

_CHUNK = 1 << 18
_MOST_DIGITS = 1000
_FIELDS = ("value", "key", "partition", "timestamp", "headers", "value_base64", "key_base64")
PLACE = ("topic", "partition", "offset")
LINES = "lines"
JSONL = "jsonl"
MOST_REPORTED = 20
IDLE_S = 0.1
"""Idle time after which buffered lines are written."""
FLUSH_INTERVAL_S = 1.0
"""Maximum time that a record waits for its batch to fill."""


class InputRecord(NamedTuple):
    """A record as it was read: the parameters of `Producer.send`."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


def lines(descriptor: int, idle_s: float) -> Iterator[bytes | None]:
    """The lines of a file descriptor, without their ends; None whenever none has arrived for `idle_s`.

    A line that is too long for a record is truncated, to a length that is still too long.

    :raises CoordinatorError: when it cannot be read, as a closed stdin.
    """
    pieces: list[bytes] = []
    while True:
        if not select.select([descriptor], [], [], idle_s)[0]:
            yield None
            select.select([descriptor], [], [])
        try:
            data = os.read(descriptor, _CHUNK)
        except OSError as error:
            raise CoordinatorError(f"the input cannot be read: {error.strerror}") from error
        if not data:
            break
        if b"\n" not in data:
            if sum(map(len, pieces)) <= MAX_RECORD_BYTES:
                pieces.append(data)
            continue
        whole = (b"".join(pieces) + data).split(b"\n")
        pieces = [whole.pop()]
        for line in whole:
            yield line.removesuffix(b"\r")
    if last := b"".join(pieces):
        yield last.removesuffix(b"\r")


def record_of_json(where: str, line: bytes, ignores_place: bool = False) -> InputRecord:
    """A line of JSON: an object with `value` and optionally `key`, `partition`, `timestamp` (ms) and `headers`.

    A value that is not a string becomes compact JSON, its numbers as they are written; null stays null. Bytes that are
    no text are base64, in `value_base64` and `key_base64`. Headers are an object, or a list of objects with `key` (or
    `name`) and `value` (or `value_base64`) for repeated names.

    :param where: the line's name, for messages.
    :param ignores_place: passes over `topic`, `partition` and `offset`, as `zk-consumer run` prints them.
    :raises BadData: when the line is invalid.
    """
    text, values = _object(where, line, ignores_place)
    fields = Fields(where, values)
    is_text = isinstance(values.get("value"), str | None) or fields.has("value_base64")
    return InputRecord(
        _bytes(fields, "value") if is_text else encoded_text(where, "value", _json_of_value(where, text)),
        _bytes(fields, "key"),
        fields.number("partition", most=MAX_PARTITION) if fields.has("partition") else None,
        fields.number("timestamp", most=MAX_TIMESTAMP_MS) if fields.has("timestamp") else None,
        _headers(where, fields, values.get("headers")),
    )


def _integer(digits: str) -> int | float:
    """Python makes no `int` of thousands of digits; a value has its own text, and no other field is so large."""
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def _object(where: str, line: bytes, ignores_place: bool) -> tuple[str, dict[str, Any]]:
    try:
        text = line.decode("utf-8-sig")
        values = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} is no JSON: {shown(line[:60].decode('utf-8', 'replace'))}") from error
    if not isinstance(values, dict) or not values.keys() & {"value", "value_base64"}:
        raise BadData(f"{where} is no JSON object with a value: {shown(line[:60].decode('utf-8', 'replace'))}")
    if ignores_place:
        values = {name: value for name, value in values.items() if name not in PLACE}
    unknown = sorted(set(values) - set(_FIELDS))
    if unknown:
        hint = "; --ignore-place passes over the place of a record" if unknown[0] in PLACE else ""
        raise BadData(f"{where} has an unknown field {shown(unknown[0])}; known are {', '.join(_FIELDS)}{hint}")
    return text, values


def _bytes(fields: Fields, name: str) -> bytes | None:
    """A field's text in UTF-8, or the bytes of its base64, whose field has `_base64` appended."""
    in_base64 = f"{name}_base64"
    if not fields.has(in_base64):
        return encoded_text(fields.where, name, fields.optional_text(name, most=MAX_RECORD_BYTES))
    if fields.has(name):
        raise BadData(f"{fields.where} has both {name} and {in_base64}")
    return decoded(f"{fields.where}: field '{in_base64}'", fields.text(in_base64, most=2 * MAX_RECORD_BYTES))


class _Number(str):
    """A number as it is written."""


def _json_of_value(where: str, text: str) -> str:
    """The last value of `value` in a line's object."""

    def unknown(name: str) -> None:
        raise ValueError(f"{name} is no JSON value")

    try:
        pairs = json.loads(
            text, parse_int=_Number, parse_float=_Number, parse_constant=unknown, object_pairs_hook=tuple
        )
        return _compact(dict(pairs)["value"])
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} has a value that JSON does not know: {error}") from error


def _compact(value: Any) -> str:
    match value:
        case _Number():
            return value
        case tuple():  # the members of an object
            return f"{{{','.join(f'{_compact(name)}:{_compact(each)}' for name, each in value)}}}"
        case list():
            return f"[{','.join(map(_compact, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _headers(where: str, fields: Fields, given: Any) -> Headers:
    if isinstance(given, list):
        return fields.objects("headers", _listed_header)
    return tuple(_header(where, name, value) for name, value in fields.mapping("headers").items())


def _listed_header(fields: Fields) -> tuple[str, bytes | None]:
    return fields.text("name" if fields.has("name") else "key"), _bytes(fields, "value")


def _header(where: str, name: str, value: Any) -> tuple[str, bytes | None]:
    if value is not None and not isinstance(value, str):
        raise BadData(f"{where} has a header {shown(name)} that is neither a string nor null")
    return name, encoded_text(where, "headers", value)


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
    "--log-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="The folder of the embedded log."
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
        load = ProduceRun(producer, topic, line_format, ignore_place, rejects)
        try:
            load.run(source.fileno())
        finally:
            click.echo(load.summary(), err=True)
    if load.bad:
        raise click.exceptions.Exit(1)


class ProduceRun:
    """One run of the command: reads, sends, and counts bad lines."""

    def __init__(
        self, producer: Producer, topic: str, line_format: str, ignores_place: bool, rejects: BinaryIO | None
    ) -> None:
        self.bad = 0
        self._producer = producer
        self._topic = producer.topic(topic)
        self._is_json = line_format == JSONL
        self._ignores_place = ignores_place
        self._rejects = rejects
        self._lines = 0
        self._runtime = ThreadRuntime()
        self._started = self._flushed = self._runtime.monotonic()

    def run(self, descriptor: int) -> None:
        """Send all lines of `descriptor`; after an interrupt, those that were read."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        is_quiet = not sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=is_quiet) as progress:
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
        if self._is_json and not line.removeprefix(BOM_UTF8).strip():
            return
        try:
            record = InputRecord(line)
            if self._is_json:
                record = record_of_json(f"line {number}", line, self._ignores_place)
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


def _created(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
