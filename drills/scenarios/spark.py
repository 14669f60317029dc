"""Drills on Spark: an executor, a Python worker, the driver, and a query that is restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from functools import partial

import psutil

from coordinator.zk.embedded.processes import command_line, descendants

from ..base.processes import NotReached, wait_for
from ..testbed.probes import SPARK_READY_S
from ..testbed.testbed import Stage
from .definition import FETCHED_AGAIN, Drill

APPLICATION = "spark"
EXECUTOR = "CoarseGrainedExecutorBackend"
AWAY_S = 3.0


def _executor_killed(stage: Stage) -> None:
    slots = set(stage.slot_processes().values())
    executors = [pid for pid in descendants(stage.processes[APPLICATION].pid) if EXECUTOR in command_line(pid)]
    pid = next((pid for pid in executors if slots.intersection(descendants(pid))), None)
    if pid is None:
        raise NotReached("no executor runs a slot")
    _kill_below(stage, pid, "executor")


def _worker_killed(stage: Stage) -> None:
    family = descendants(stage.processes[APPLICATION].pid)
    pid = next((pid for _, pid in sorted(stage.slot_processes().items()) if pid in family), None)
    if pid is None:
        raise NotReached("no worker runs a slot")
    _kill_below(stage, pid, "worker")


def _driver_killed(stage: Stage) -> None:
    """The application is restarted at once, as by a supervisor."""
    driver, before = stage.processes[APPLICATION], stage.lives()
    family = descendants(driver.pid)
    stage.kill(APPLICATION)
    _note_ends(stage, family)
    stage.start_spark()
    stage.wait_back(before, SPARK_READY_S)


def _query_returns(stage: Stage) -> None:
    """The application ends in order, and returns with its checkpoint; slots in processes fetch throughout."""
    stage.terminate(APPLICATION)
    time.sleep(AWAY_S)
    stage.start_spark()


def _kill_below(stage: Stage, pid: int, what: str) -> None:
    """SIGKILL to a process of the application; its children end with it."""
    family, lives = [pid, *descendants(pid)], stage.lives()
    stage.fault("kill", process=what, pid=pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    killed = _note_ends(stage, family)
    stage.wait_back({name: life for name, life in lives.items() if name in killed}, SPARK_READY_S)


def _note_ends(stage: Stage, family: list[int]) -> set[str]:
    """Record the exit of each slot among the dying processes; returns the slots' names."""
    slots = {pid: incarnation for incarnation, pid in stage.slot_processes().items() if pid in family}
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in slots), 20.0, "the killed processes are gone")
    for incarnation in slots.values():
        stage.notes.note("exit", incarnation, why="killed")
    return {incarnation.partition("#")[0] for incarnation in slots.values()}


_in_executors = partial(Drill, adjust=lambda settings: replace(settings, spark="pool"))
"""Slots in executors, which take longer to restart than processes."""

SPARK = (
    _in_executors(
        name="executor-sigkill",
        title="Kill a Spark executor",
        proves="The partitions of a failed executor's slots are reassigned, and its slots are restarted.",
        hypothesis="Its partitions are fetched in time; the query delivers every record once.",
        fault="SIGKILL to one of two executors",
        run=_executor_killed,
        promises=(FETCHED_AGAIN,),
    ),
    _in_executors(
        name="worker-sigkill",
        title="Kill a Spark Python worker",
        proves="A slot whose process dies is restarted under its name, and continues after its last segments.",
        hypothesis="Its partitions are fetched in time; the query delivers every record once.",
        fault="SIGKILL to the Python worker that runs a slot",
        run=_worker_killed,
        promises=(FETCHED_AGAIN,),
        is_short=False,
    ),
    _in_executors(
        name="driver-sigkill",
        title="Kill the Spark driver",
        proves="A restarted application resumes its pool and its query.",
        hypothesis="All partitions are fetched when the application is back; the query delivers every record once.",
        fault="SIGKILL to the driver; the application is restarted",
        run=_driver_killed,
        is_short=False,
    ),
    Drill(
        name="query-returns",
        title="Restart a query",
        proves="Segments that are sealed while a query is down are kept for it.",
        hypothesis="Fetching continues while it is down; it resumes at its checkpoint, and delivers every record once.",
        fault="SIGTERM to the query's application, which is restarted 3 s later",
        run=_query_returns,
        adjust=lambda settings: replace(settings, spark="query"),
    ),
)
