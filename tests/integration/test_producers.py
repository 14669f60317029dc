"""Producers of the embedded log as processes: what survives a crash or a race."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.wait import eventually
from zk_group.consumer.logs import open_log
from zk_group.consumer.logs.embedded.producer import Appender, stored_batches

ID = "0kqJ7XyNT_aWnRk5bWq8Zg"
LARGE = 1 << 30


def values(log_dir: Path, partition: int) -> list[object]:
    """The values of a partition, whose offsets must be contiguous from 0."""
    log, offset, found = open_log(str(log_dir)), 0, []
    while (fetched := log.fetch("flights", ID, partition, offset, LARGE)).batches:
        offset = fetched.next_offset
        found += [row for batch in fetched.batches for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == list(range(len(found)))
    return [row["value"] for row in found]


ENDLESS = """
import time
from zk_group.consumer.logs.embedded.producer import Appender
from zk_group.consumer.logs.embedded.log import Chain
from zk_group.consumer.logs.embedded.producer import stored_batches

end = Chain.end

def end_and_dawdle(chain):
    # Between looking for the end and taking it is where producers get in each other's way: make that long.
    found = end(chain)
    time.sleep({dawdle_s})
    return found

Chain.end = end_and_dawdle

appender = Appender({log_dir!r}, "flights", {topic_id!r}, 0)
number = 0
while number < {most}:
    appender.append(stored_batches([b"%s %d %d" % ({name!r}.encode(), number, row) for row in range({rows})]))
    number += 1
"""


def start(log_dir: Path, name: str, rows: int, most: int, dawdle_s: float = 0.0) -> subprocess.Popen[bytes]:
    code = ENDLESS.replace("{log_dir!r}", "__import__('pathlib').Path({log_dir!r})")
    code = code.format(log_dir=str(log_dir), topic_id=ID, name=name, rows=rows, most=most, dawdle_s=dawdle_s)
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])


def test_a_producer_that_is_killed_leaves_only_whole_batches(tmp_path: Path) -> None:
    rows, folder = 2000, tmp_path / "flights" / ID / "0"
    for life in range(6):
        wanted = len(list(folder.glob("*.arrow"))) + 2 + life
        process = start(tmp_path, f"life{life}", rows, LARGE)
        try:
            eventually(lambda wanted=wanted: len(list(folder.glob("*.arrow"))) >= wanted, 30, "a few batches")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    batches = Counter(tuple(str(value).split(" ")[:2]) for value in values(tmp_path, 0))

    assert len(batches) >= 12
    assert set(batches.values()) == {rows}
    appender = Appender(tmp_path, "flights", ID, 0)
    assert appender.append(stored_batches([b"next"])) == len(batches) * rows


@pytest.mark.parametrize(("moment", "whole"), [("before", []), ("after", [b"x", b"y"])])
def test_producer_that_dies_over_the_link_wrote_all_or_nothing(tmp_path: Path, moment: str, whole: list[bytes]) -> None:
    code = f"""
import os, signal
from pathlib import Path
from zk_group.consumer.logs.embedded.producer import Appender
from zk_group.consumer.logs.embedded.producer import stored_batches
link = os.link
def die(source, target, **folders):
    if {moment!r} == "after":
        link(source, target, **folders)
    os.kill(os.getpid(), signal.SIGKILL)
os.link = die
Appender(Path({str(tmp_path)!r}), "flights", {ID!r}, 0).append(stored_batches([b"x", b"y"]))
"""
    died = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=60)

    assert died.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob(".tmp-*"))) == 1
    assert values(tmp_path, 0) == whole
    assert Appender(tmp_path, "flights", ID, 0).append(stored_batches([b"z"])) == len(whole)
    assert values(tmp_path, 0) == [*whole, b"z"]


def test_producers_that_race_neither_lose_nor_overwrite_anything(tmp_path: Path) -> None:
    # One writes many small batches and the other few large ones: the slow one must not starve.
    racers = [("quick", 3, 120), ("slow", 5000, 12)]

    processes = [start(tmp_path, *racer, dawdle_s=0.002) for racer in racers]
    codes = [process.wait(60) for process in processes]

    assert codes == [0, 0]
    seen: dict[str, list[tuple[int, int]]] = {"quick": [], "slow": []}
    for value in values(tmp_path, 0):
        name, number, row = bytes(value).decode().split(" ")  # type: ignore[call-overload]
        seen[name].append((int(number), int(row)))
    for name, rows, most in racers:
        assert seen[name] == [(number, row) for number in range(most) for row in range(rows)]
    assert list(tmp_path.rglob(".tmp-*")) == []
