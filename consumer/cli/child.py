"""`zk-consumer run --exec`: a command keeps the state of a consistent region, over lines of JSON (docs/regions.md)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress

from consumer.config import ConsumerConfig, Subscription
from consumer.errors import DrainFailed, ProcessFailed
from consumer.fetching.record_buffer import Record
from consumer.operator.consumer_operator import ConsumerOperator, Processor
from consumer.operator.states import State
from coordinator.zk.errors import BadData, CoordinatorError, MissingProgram
from coordinator.zk.process.cli import command_words
from coordinator.zk.runtime import Event, Runtime
from coordinator.zk.security.access import AUTH_VARIABLE
from coordinator.zk.znodes.group_state import decoded
from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import shown
from coordinator.zk.znodes.ranges import MAX_PARTITION

from .output import shown_record, text_or_base64

MAX_LINE_BYTES = 8 << 20
MAX_STATES_BYTES = 64 << 20
"""Of the lines of one answer."""
LOOK_S = 0.2
CLOSE_S = 30.0
"""Added to the deadline of an answer."""

RECORD, DRAIN, RESET, STATE, END, DRAINED, READY = "record", "drain", "reset", "state", "end", "drained", "ready"
WHERE = "an answer of the command"


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
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != AUTH_VARIABLE},
            )
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
    try:
        return (fields.optional_text("state", most=MAX_LINE_BYTES) or "").encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{WHERE}: field 'state' has half a character: {error.reason}") from error


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
