"""Spark applications in processes of their own (`tests.support.spark_driver`), and what their queries delivered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.wait import eventually
from tests.support.world import World
from zk_group.coordinator.zk.embedded.ensemble import descendants

REPOSITORY = Path(__file__).parents[2]


class SparkApplication:
    """One driver process and all that is below it."""

    def __init__(self, world: World, group: str, folder: Path, *options: str) -> None:
        words = [world.zk, group, str(folder), *options]
        command = [sys.executable, "-m", "tests.support.spark_driver", *words]
        self.log = folder / f"{'-'.join(options).strip('-')}.log"
        with self.log.open("ab") as log:
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            self.driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=REPOSITORY)

    @property
    def is_running(self) -> bool:
        return self.driver.poll() is None

    def end(self) -> int:
        """Ask it to end; its exit code."""
        self.driver.send_signal(signal.SIGTERM)
        return self.driver.wait(90)

    def kill(self) -> None:
        """Kill the driver; what is below it ends by itself."""
        if not self.is_running:
            return
        family = [self.driver.pid, *descendants(self.driver.pid)]
        os.kill(self.driver.pid, signal.SIGKILL)
        self.driver.wait(10)
        eventually(lambda: not [pid for pid in family if psutil.pid_exists(pid)], 30, "all of it is gone")


@contextmanager
def application(world: World, group: str, folder: Path, *options: str) -> Iterator[SparkApplication]:
    """Killed at the end, if it has not ended by then."""
    running = SparkApplication(world, group, folder, *options)
    try:
        yield running
    except BaseException:
        print(running.log.read_text(errors="replace")[-10_000:])  # pytest shows it with the failure
        raise
    finally:
        running.kill()


Batches = dict[int, list[list[list[object]]]]


def batches(folder: Path) -> Batches:
    """Batch -> what each life of the application delivered as this batch."""
    found: Batches = {}
    for path in sorted((folder / "batches").glob("*.json"), key=lambda path: int(path.name.partition("-")[0])):
        found.setdefault(int(path.name.partition("-")[0]), []).append(json.loads(path.read_text()))
    return found


def total(folder: Path) -> int:
    """Rows delivered."""
    return sum(len(runs[0]) for runs in batches(folder).values())


def delivered_exactly(folder: Path, partitions: int, records: int) -> None:
    """Each record of the topic's partitions was delivered once, in order; a repeated batch was the same.

    :raises AssertionError: otherwise.
    """
    delivered = batches(folder)
    assert sorted(delivered) == list(range(len(delivered)))
    assert all(run == runs[0] for runs in delivered.values() for run in runs)
    offsets: dict[object, list[object]] = {}
    for _, runs in sorted(delivered.items()):
        for _, partition, offset in runs[0]:
            offsets.setdefault(partition, []).append(offset)
    assert offsets == {number: list(range(records)) for number in range(partitions)}
