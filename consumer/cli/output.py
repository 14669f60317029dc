"""What `zk-consumer run` does with records: lines of JSON, or a command that keeps a state (`--exec`)."""

from __future__ import annotations

import base64
import json
import logging
import os
import select
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks
from zk_group.consumer.errors import AssignmentFailed, DrainFailed, ProcessFailed
from zk_group.consumer.fetching.record_buffer import Record
from zk_group.consumer.operator.consumer_operator import ConsumerOperator, Processor
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.errors import BadData, CoordinatorError, MissingProgram
from zk_group.coordinator.zk.process.cli import command_words
from zk_group.coordinator.zk.runtime import Event, Runtime
from zk_group.coordinator.zk.security.access import AUTH_VARIABLE
from zk_group.coordinator.zk.values import shown
from zk_group.coordinator.zk.znodes.group_state import decoded
from zk_group.coordinator.zk.znodes.json_fields import Fields
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.ranges import MAX_PARTITION

log = logging.getLogger(__name__)

Polled = Mapping[TopicPartition, Sequence[Record]]


class RecordLines(Callbacks):
    """One line per record. Other events are written to stderr and the log, or by other outputs.

    :param consumer: its name, for the log.
    """

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer

    def started(self) -> None:
        """The consumer is created; polling begins."""

    def polled(self, polled: Polled) -> None:
        """These records were returned, and are committed next."""
        for records in polled.values():
            for record in records:
                _print(shown_record(record))

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets were committed."""

    def not_committed(self, offsets: Mapping[TopicPartition, int], error: Exception) -> None:
        """These were not committed, or the outcome is unknown."""
        click.echo(f"error: {error}", err=True)

    def assignment_failed(self, failure: AssignmentFailed) -> None:
        """The leader gave no assignment; fetching of assigned partitions continues."""
        log.warning("assignment failed: consumer=%s reason=%s", self.consumer, failure)

    def ended(self) -> None:
        """The consumer is closed."""


class EventLines(RecordLines):
    """One line per event, with the names and fields of Kafka's VerifiableConsumer; and `partitions_lost`.

    :param wall_ms: the clock of their timestamps, in milliseconds since the epoch.
    :param is_verbose: whether to print each record, too.
    """

    def __init__(self, consumer: str, wall_ms: Callable[[], int], is_verbose: bool = False) -> None:
        super().__init__(consumer)
        self._wall_ms = wall_ms
        self._is_verbose = is_verbose

    def started(self) -> None:
        self._event("startup_complete")

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self._event("partitions_assigned", partitions=_named(partitions))

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._event("partitions_revoked", partitions=_named(partitions))

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self._event("partitions_lost", partitions=_named(partitions))

    def polled(self, polled: Polled) -> None:
        if self._is_verbose:
            for record in (record for records in polled.values() for record in records):
                self._event("record_data", **_place(record), **_contents(record))
        batches = [
            {**part._asdict(), "count": len(records), "minOffset": records[0].offset, "maxOffset": records[-1].offset}
            for part, records in sorted(polled.items())
            if records
        ]
        if batches:
            self._event("records_consumed", count=sum(map(len, polled.values())), partitions=batches)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        if offsets:
            self._event("offsets_committed", offsets=_with_offsets(offsets), success=True)

    def not_committed(self, offsets: Mapping[TopicPartition, int], error: Exception) -> None:
        self._event("offsets_committed", offsets=_with_offsets(offsets), success=False, error=str(error))

    def assignment_failed(self, failure: AssignmentFailed) -> None:
        self._event("assignment_failed", ask=failure.ask, error=str(failure))

    def ended(self) -> None:
        self._event("shutdown_complete")

    def _event(self, name: str, **fields: Any) -> None:
        _print({"timestamp": self._wall_ms(), "name": name, **fields})


def _print(values: Mapping[str, object]) -> None:
    click.echo(json.dumps(values, separators=(",", ":")))


def _named(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(partitions)]


def _with_offsets(offsets: Mapping[TopicPartition, int]) -> list[dict[str, object]]:
    items = sorted(offsets.items())
    return [{"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in items]


def shown_record(record: Record) -> dict[str, object]:
    """A record as one JSON object."""
    shown = {**_place(record), "timestamp": record.timestamp_ms, **_contents(record)}
    if record.headers:
        shown["headers"] = [{"name": name, **text_or_base64("value", data)} for name, data in record.headers]
    return shown


def _place(record: Record) -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _contents(record: Record) -> dict[str, object]:
    """Bytes as text when they are UTF-8, else as base64 under `key_base64`, `value_base64`."""
    return {**text_or_base64("key", record.key), **text_or_base64("value", record.value)}


def text_or_base64(name: str, data: bytes | None) -> dict[str, object]:
    """A field with bytes as text when they are UTF-8, else as base64, with `_base64` appended to its name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def encoded_text(where: str, name: str, text: str | None) -> bytes | None:
    """The text of a field in UTF-8.

    :raises BadData: when it has a surrogate alone.
    """
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{where}: field {name!r} has half a character: {error.reason}") from error


MAX_LINE_BYTES = 8 << 20
MAX_STATES_BYTES = 64 << 20
"""Of the lines of one answer."""
LOOK_S = 0.2
CLOSE_S = 30.0
"""Added to the deadline of an answer."""

RECORD, DRAIN, RESET, STATE, END, DRAINED, READY = "record", "drain", "reset", "state", "end", "drained", "ready"
WHERE = "an answer of the command"


# ---- `--exec`: a command keeps the state of a consistent region, over lines of JSON (docs/regions.md)


class ChildFailed(CoordinatorError):
    """The command of `--exec` has ended, does not answer, or sends an invalid answer."""


class Child:
    """The command, its stdin and its stdout. Its stderr is this process's.

    :param timeout_s: time limit for its reading of input, and for an answer.
    :raises UsageError: when the command cannot be split into words.
    :raises MissingProgram: when the program does not exist.
    """

    def __init__(self, command: str, runtime: Runtime, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._read = bytearray()
        words = command_words("--exec", command)
        try:
            # A separate session: an interrupt from the terminal must not end it before its last checkpoint.
            env = {name: value for name, value in os.environ.items() if name != AUTH_VARIABLE}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True, env=env)
        except OSError as error:
            raise MissingProgram(f"--exec {shown(words[0])} cannot be run: {error.strerror}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        for stream in (self._in, self._out):
            os.set_blocking(stream.fileno(), False)

    def write(self, values: Mapping[str, object]) -> None:
        """Send one line.

        :raises ChildFailed: when it has ended, or has read nothing within the time limit.
        """
        data = memoryview(json.dumps(values, separators=(",", ":")).encode() + b"\n")
        while data:
            try:
                data = data[os.write(self._in.fileno(), data) :]
            except BlockingIOError:
                if not select.select([], [self._in], [], self._timeout_s)[1]:
                    raise ChildFailed(f"the command has read nothing for {self._timeout_s:g} s") from None
            except OSError as error:
                raise self.ended() from error

    def answer(self, until: float, most: int) -> tuple[Fields, int]:
        """Its next line of output, and the line's bytes.

        :param until: by the runtime's clock.
        :param most: maximum bytes.
        :raises ChildFailed: when none arrives in time, or it is too long or not a JSON object.
        """
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > most:
                break
            left_s = until - self._runtime.monotonic()
            if left_s <= 0 or not select.select([self._out], [], [], left_s)[0]:
                raise ChildFailed(f"the command has not answered within {self._timeout_s:g} s (--exec-timeout-ms)")
            data = os.read(self._out.fileno(), 1 << 16)
            if not data:
                raise self.ended()
            self._read += data
        if end < 0 or end > most:
            raise ChildFailed(f"the command answers with a line of more than {most} bytes")
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return Fields.parse(WHERE, line, MAX_LINE_BYTES), len(line)

    @property
    def deadline(self) -> float:
        """The deadline of an answer that is requested now."""
        return self._runtime.monotonic() + self._timeout_s

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ended(self) -> ChildFailed:
        """The error of a command that has ended."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return ChildFailed("the command has closed its input or output")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return ChildFailed(f"the command has ended {how}")

    def close(self) -> None:
        """End the command: close its input, then SIGTERM, then SIGKILL for it and its child processes."""
        with suppress(OSError):
            self._in.close()
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
                break
        self._out.close()


class ChildProcessor(Processor):
    """Sends the records to a command, and requests its state."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._held: Collection[TopicPartition] = ()

    def process(self, partition: TopicPartition, record: Record) -> None:
        self._child.write({"type": RECORD, **shown_record(record)})

    def on_checkpoint(self, checkpoint: int) -> State:
        """See `Processor`. The command reads in order: its answer includes every record that was written before."""
        self._child.write({"type": DRAIN, "checkpoint": checkpoint})
        until, room = self._child.deadline, MAX_STATES_BYTES
        partitions: dict[TopicPartition, bytes] = {}
        member: bytes | None = None
        while True:
            fields, size = self._child.answer(until, min(room, MAX_LINE_BYTES))
            room -= size
            if fields.text("type") == DRAINED:
                _check(fields, checkpoint)
                return State(partitions, member or b"")
            if fields.text("type") != STATE:
                raise fields.bad("type", f"{STATE} or {DRAINED}")
            if not fields.has("topic"):
                if member is not None:
                    raise BadData(f"{WHERE} has the state of the member a second time")
                member = _state(fields)
                continue
            partition = TopicPartition(fields.text("topic"), fields.number("partition", most=MAX_PARTITION))
            if partition not in self._held:
                raise BadData(f"{WHERE} has the state of {shown(partition)}, which it does not have")
            if partition in partitions:
                raise BadData(f"{WHERE} has the state of {shown(partition)} a second time")
            partitions[partition] = _state(fields)

    def on_reset(self, checkpoint: int, state: State) -> None:
        self._held = frozenset(state.offsets)
        write = self._child.write
        write({"type": RESET, "checkpoint": checkpoint})
        for partition, offset in sorted(state.offsets.items()):
            place = {"topic": partition.topic, "partition": partition.partition, "offset": offset}
            write({"type": STATE, **place, **text_or_base64("state", state.partitions.get(partition))})
        if state.member:
            write({"type": STATE, **text_or_base64("state", state.member)})
        for name, data in sorted(state.inherited.items()):
            write({"type": STATE, "inherited": name, **text_or_base64("state", data)})
        write({"type": END, "checkpoint": checkpoint})
        fields, _ = self._child.answer(self._child.deadline, MAX_LINE_BYTES)
        if fields.text("type") != READY:
            raise fields.bad("type", READY)
        _check(fields, checkpoint)


def _check(fields: Fields, checkpoint: int) -> None:
    if fields.number("checkpoint") != checkpoint:
        raise fields.bad("checkpoint", str(checkpoint))


def _state(fields: Fields) -> bytes:
    if fields.has("state_base64"):
        return decoded(WHERE, fields.text("state_base64", most=MAX_LINE_BYTES))
    return encoded_text(WHERE, "state", fields.optional_text("state", most=MAX_LINE_BYTES)) or b""


def run_child(
    config: ConsumerConfig,
    subscription: Subscription,
    command: str,
    timeout_s: float,
    stopping: Event,
    runtime: Runtime,
) -> None:
    """Run until `stopping` is set. The region keeps the state: another process continues with it.

    :raises ChildFailed: when the command has ended, does not answer, or sends an invalid answer.
    """
    child = Child(command, runtime, timeout_s)
    try:
        # Queued records are deferred at a checkpoint: the command's processing time is unknown.
        operator = ConsumerOperator(config, subscription, ChildProcessor(child), operator_driven=True)
        operator.start()
        try:
            while not stopping.is_set() and not operator.wait(LOOK_S):
                if child.has_ended:
                    operator.stop(child.ended())
        finally:
            operator.close(timeout_s + CLOSE_S)
    except (DrainFailed, ProcessFailed) as error:
        if isinstance(error.__cause__, ChildFailed | BadData):
            raise error.__cause__ from None
        raise
    finally:
        child.close()
