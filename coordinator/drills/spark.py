"""Drills that hit Spark: an executor, a Python worker, the driver, and a query that stops and returns."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from ..zk.ensemble import command_line
from .drill import Drill
from .processes import below
from .promises import FETCHED_AGAIN
from .settings import Settings
from .sight import SPARK_READY_S
from .stage import Stage
from .waiting import NotReached, wait_for

APPLICATION = "spark"
EXECUTOR = "CoarseGrainedExecutorBackend"
AWAY_S = 3.0


def _executor_killed(stage: Stage) -> set[str]:
    slots = set(stage.slot_processes().values())
    executors = [pid for pid in below(stage.processes[APPLICATION].pid) if EXECUTOR in command_line(pid)]
    pid = next((pid for pid in executors if slots.intersection(below(pid))), None)
    if pid is None:
        raise NotReached("no executor runs a slot")
    _kill_below(stage, pid, "executor")
    return stage.slots()


def _worker_killed(stage: Stage) -> set[str]:
    family = below(stage.processes[APPLICATION].pid)
    pid = next((pid for _, pid in sorted(stage.slot_processes().items()) if pid in family), None)
    if pid is None:
        raise NotReached("no worker runs a slot")
    _kill_below(stage, pid, "worker")
    return stage.slots()


def _driver_killed(stage: Stage) -> set[str]:
    """Who starts it again does so at once, as a supervisor would."""
    driver, before = stage.processes[APPLICATION], stage.lives()
    family = below(driver.pid)
    stage.kill(APPLICATION)
    _note_ends(stage, family)
    stage.start_spark()
    stage.wait_back(before, SPARK_READY_S)
    return stage.slots()


def _query_returns(stage: Stage) -> set[str]:
    """The application ends in order, and comes back with its checkpoint; slots as processes fetch all the while."""
    stage.terminate(APPLICATION)
    time.sleep(AWAY_S)
    stage.start_spark()
    return stage.slots()


def _kill_below(stage: Stage, pid: int, what: str) -> None:
    """SIGKILL to a process of the application, whose own children end with it."""
    family, lives = [pid, *below(pid)], stage.lives()
    stage.fault("kill", process=what, pid=pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    killed = _note_ends(stage, family)
    stage.wait_back({name: life for name, life in lives.items() if name in killed}, SPARK_READY_S)


def _note_ends(stage: Stage, family: list[int]) -> set[str]:
    """Note the end of each slot of a family that is dying, when it is gone; their names."""
    slots = {pid: who for who, pid in stage.slot_processes().items() if pid in family}
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in slots), 20.0, "what was killed is gone")
    for who in slots.values():
        stage.notes.note("exit", who, why="killed")
    return {who.partition("#")[0] for who in slots.values()}


def _on_spark(settings: Settings) -> Settings:
    """Slots in executors, which take longer to come back than processes."""
    return replace(settings, spark="pool")


def _beside_spark(settings: Settings) -> Settings:
    """Slots as processes, and a query in Spark."""
    return replace(settings, spark="query")


SPARK = (
    Drill(
        name="executor-sigkill",
        title="Kill a Spark executor",
        proves="What the slots of a dead executor fetched goes on elsewhere, and its slots come back.",
        hypothesis="Its partitions are fetched in time; the query delivers every record once.",
        fault="SIGKILL to one of two executors",
        run=_executor_killed,
        promises=(FETCHED_AGAIN,),
        adjust=_on_spark,
    ),
    Drill(
        name="worker-sigkill",
        title="Kill a Spark Python worker",
        proves="A slot whose process dies comes back under its name, and takes its partitions up where it had sealed.",
        hypothesis="Its partitions are fetched in time; the query delivers every record once.",
        fault="SIGKILL to the Python worker that runs a slot",
        run=_worker_killed,
        promises=(FETCHED_AGAIN,),
        adjust=_on_spark,
        is_short=False,
    ),
    Drill(
        name="driver-sigkill",
        title="Kill the Spark driver",
        proves="An application that is started again takes over its pool and its query where they stood.",
        hypothesis="All is fetched again when the application is back; the query delivers every record once.",
        fault="SIGKILL to the driver; the application is started again",
        run=_driver_killed,
        adjust=_on_spark,
        is_short=False,
    ),
    Drill(
        name="query-returns",
        title="A query that stops and returns",
        proves="What is sealed while a query is away waits for it.",
        hypothesis="Fetching goes on while it is away; it goes on where it stood, and delivers every record once.",
        fault="SIGTERM to the query's application, which is started again 3 s later",
        run=_query_returns,
        adjust=_beside_spark,
    ),
)
