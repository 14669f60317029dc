"""`zk-consumer run --exec`: the example of docs/regions.md on real processes, and commands that do not keep to it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from base64 import b64decode
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import ProjectProcess, consumer_process
from tests.support.region import CountingRegion, running
from tests.support.wait import PATIENCE, eventually
from zk_group.consumer.cli.output import Child, ChildFailed, ChildProcessor
from zk_group.consumer.fetching.record_buffer import Record
from zk_group.consumer.logs.embedded.producer import Producer, TopicsInStore
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.embedded.ensemble import command_line
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers

PAGE = (Path(__file__).parents[2] / "docs" / "regions.md").read_text()
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def example() -> str:
    """The command that the page shows."""
    (program,) = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text.startswith("#!"))
    return str(program)


# ---- on real processes


class Commands:
    """Consumers of group `g` in region `r`, each with the example as its command, and what was written for them."""

    def __init__(self, r: CountingRegion, folder: Path, processes: ExitStack) -> None:
        self.r = r
        self._folder = folder
        self._processes = processes
        self._written: Counter[int] = Counter()
        (folder / "counter.py").write_text(example())

    def start(self, name: str) -> ProjectProcess:
        shell = f"echo $$ > {self._folder / name}.pid; exec {sys.executable} {self._folder / 'counter.py'}"
        options = ["--region", "r", "--exec", f"sh -c {shlex.quote(shell)}"]
        process = consumer_process(self._folder, self.r.zk, "g", name, self._folder / "log", *options)
        return self._processes.enter_context(process)

    def pid(self, name: str) -> int:
        """Of the command."""
        return int((self._folder / f"{name}.pid").read_text())

    def write(self, records: int) -> None:
        with Producer(self._folder / "log", TopicsInStore(self.r.world.store, Brokers())) as producer:
            for number in range(records):
                producer.send("t", b"\xff" if number % 10 == 0 else b"text", partition=number % 4)
                self._written[number % 4] += 1

    def exact(self) -> None:
        """The states of a further checkpoint count every record below its offsets once, and these are all."""

        def look() -> bool:
            given = self.r.given(self.r.checkpoint()).values()
            counts = {part.partition: int(b64decode(text)) for each in given for part, text in each.states.items()}
            records = sum(sum(each.offsets.values()) for each in given)
            assert records == sum(self._written.values()) and counts == dict(self._written), (counts, self._written)
            return True

        eventually(look, 30, "every record is counted once")


@pytest.mark.full("examples")
@pytest.mark.real_zookeeper("processes")
def test_counts_are_exact_after_kills_and_stops(r: CountingRegion, tmp_path: Path, processes: ExitStack) -> None:
    commands = Commands(r, tmp_path, processes)
    r.world.coordinator()
    r.topic(4)
    commands.write(2000)
    one, two = commands.start("c1"), commands.start("c2")
    r.world.stable("g", 2)
    running(r.world)
    r.checkpoint()
    commands.write(2000)
    first, second = commands.pid("c1"), commands.pid("c2")

    before = r.now.reset
    one.kill()
    eventually(lambda: not command_line(first), 20, "the command of a killed consumer ends")
    running(r.world, above=before)
    os.kill(second, signal.SIGKILL)
    assert two.ends(20 * PATIENCE) == 1
    assert two.said().splitlines()[-1] == "error: the command has ended by SIGKILL"

    before = r.now.reset
    one, two = commands.start("c1"), commands.start("c2")
    running(r.world, above=before)
    r.world.stable("g", 2)
    commands.write(1000)
    commands.exact()
    sequence = r.now.sequence
    one.signal(signal.SIGTERM)
    assert one.ends(20 * PATIENCE) == 0, one.said()
    assert r.now.sequence > sequence, "a clean end takes a checkpoint first"
    commands.write(400)
    commands.exact()


# ---- a command alone


def a_processor(program: str, timeout_s: float = 20.0) -> tuple[Child, ChildProcessor]:
    child = Child(f"{sys.executable} -c {shlex.quote(program)}", ThreadRuntime(), timeout_s)
    processor = ChildProcessor(child)
    processor._held = [TopicPartition("t", number) for number in range(999)]
    return child, processor


def record(partition: TopicPartition, offset: int, value: bytes = b"v") -> Record:
    return Record(partition.topic, partition.partition, offset, 7, 0, None, value, ())


def test_command_restores_states_of_any_bytes_and_answers_all_records_before_drain() -> None:
    program = """
import json, sys
states, records = [], []
for text in sys.stdin:
    line = json.loads(text)
    if line["type"] == "state": states.append(line)
    if line["type"] == "record": records.append(line)
    if line["type"] == "end": print(json.dumps({"type": "ready", "checkpoint": line["checkpoint"]}), flush=True)
    if line["type"] == "drain":
        print(json.dumps({"type": "state", "topic": "t", "partition": 0, "state": json.dumps(records)}))
        print(json.dumps({"type": "state", "state": json.dumps(states)}))
        print(json.dumps({"type": "state", "topic": "t", "partition": 1, "state_base64": "/wA="}))
        print(json.dumps({"type": "drained", "checkpoint": line["checkpoint"]}), flush=True)
"""
    child, processor = a_processor(program)
    given = State({P0: b"\xff"}, b"own", {"gone": b"its"}, {P0: 5, P1: 0})

    processor.on_reset(3, given)
    processor.process(P0, record(P0, 5, b"\xfe"))
    state = processor.on_checkpoint(4)
    child.close()

    assert state.partitions[P1] == b"\xff\x00"
    assert b'"offset": 5' in state.partitions[P0] and b"value_base64" in state.partitions[P0]
    said = state.member.decode()
    for wanted in (
        '"offset": 5, "state_base64": "/w=="',
        '"partition": 1, "offset": 0, "state": null',
        '"inherited": "gone"',
    ):
        assert wanted in said
    assert not child._process.returncode


def says(*lines: dict[str, object]) -> str:
    """A program that answers with these lines when it is asked for the first time."""
    texts = "\n".join(map(json.dumps, lines))
    return f"input(); print({texts!r}, flush=True); input()"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('hello'); input(); input()", "holds no JSON: 'hello'"),
        ("input(); print('[1]', flush=True); input()", "holds no JSON object"),
        (says({}), "field 'type' must be a string"),
        (says({"type": "ready"}), "must be state or drained"),
        (says({"type": "drained", "checkpoint": 8}), "field 'checkpoint' must be 9"),
        (says({"type": "state", "topic": "t"}), "field 'partition' must be"),
        (says({"type": "state", "state_base64": "?"}), "not base64"),
        (says({"type": "state"}, {"type": "state"}), "a second time"),
        (
            says({"type": "state", "topic": "t", "partition": 1}, {"type": "state", "topic": "t", "partition": 1}),
            "second",
        ),
        (says({"type": "state", "topic": "t", "partition": 1000}), "the state of 't-1000', which it does not have"),
        (says({"type": "state", "state": "x" * 3000}), "a line of more than 1000 bytes"),
        (says(*({"type": "state", "topic": "t", "partition": n} for n in range(999))), "a line of more than"),
        ("input(); raise SystemExit(3)", "the command has ended with exit code 3"),
        ("import os; input(); os.kill(os.getpid(), 9)", "the command has ended by SIGKILL"),
    ],
)
def test_invalid_answer_or_exit_is_one_clear_error(program: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.consumer.cli.output.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr("zk_group.consumer.cli.output.MAX_STATES_BYTES", 10_000)
    child, processor = a_processor(program)

    with pytest.raises((ChildFailed, BadData), match=reason) as raised:
        processor.on_checkpoint(9)

    assert raised.value.exit_code == 1 and "\n" not in str(raised.value)
    child.close()


def test_command_that_does_not_answer_or_read_fails_after_its_timeout() -> None:
    child, processor = a_processor("import time; time.sleep(60)", timeout_s=0.2)

    with pytest.raises(ChildFailed, match=r"has not answered within 0\.2 s"):
        processor.on_checkpoint(9)
    with pytest.raises(ChildFailed, match=r"has read nothing for 0\.2 s"):
        for offset in range(10_000):
            processor.process(P0, record(P0, offset, b"v" * 1000))
    assert not child.has_ended
    child._process.kill()
    child.close()


def test_command_does_not_inherit_the_consumers_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK_AUTH", "digest:team-a:secret")
    monkeypatch.setenv("OTHER", "1")
    program = (
        "import json, os; print(json.dumps({'found': [n for n in ('ZK_GROUP_ZK_AUTH', 'OTHER') if n in os.environ]}))"
    )
    child, _ = a_processor(program)

    fields, _ = child.answer(child.deadline, 1000)

    assert fields.strings("found") == ("OTHER",)
    child.close()
