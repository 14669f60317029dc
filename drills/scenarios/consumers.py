"""Drills on a consumer, on a group with a lying member, and on Spark: an executor, a worker, the driver, a query."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from zk_group.coordinator.zk.embedded.ensemble import command_line, descendants

from ..base.processes import NotReached, wait_for
from ..base.settings import LIES
from ..testbed.commands import SPARK_READY_S, slot
from ..testbed.testbed import Stage
from .coordinators import past_session
from .definition import EVICTED, FETCHED_AGAIN, GIVEN_UP, HANDED_OVER, OWNERS_UNCHANGED, Drill, given_up_s, long_drill

APPLICATION = "application"
FULL_S = 3.0
FENCED_S = 20.0
CHURN = 100
CHURN_S = 90.0
LIAR = "liar"
KEEPS = "keeps-what-was-stopped"
"""It is sent a stop-fetcher when another member joins."""

SHORT = ("acknowledges-only", KEEPS)
DRILLED = (*SHORT, "longest-lease", "scribbles")
"""The others are drawn in the simulation."""


def _first(stage: Stage) -> str:
    return slot(stage.random.randrange(stage.settings.slots))


def _hit(fault: Callable[[Stage, str], None], comes_back: bool = False) -> Callable[[Stage], None]:
    """The fault hits one fetcher, which (with `comes_back`) returns as a new incarnation."""

    def run(stage: Stage) -> None:
        name = _first(stage)
        before = {name: stage.lives()[name]} if comes_back else {}
        fault(stage, name)
        if comes_back:
            stage.wait_back(before)

    return run


def _hanging_s(stage: Stage) -> float:
    """Longer than `max_poll_interval` and the recovery of the group without the consumer."""
    return stage.bounds["poll_interval"] + stage.bounds["lease"] + 3.0


def _disk_hangs(stage: Stage, name: str) -> None:
    process = stage.hang(name, _hanging_s(stage))
    time.sleep(_hanging_s(stage))
    process.go_on()


def _rolled(stage: Stage) -> None:
    """A rolling restart of the fetchers."""
    for number in range(stage.settings.slots):
        stage.terminate(slot(number))
        stage.wait_settled(stage.slots())
        stage.start_slot(number)
        stage.wait_settled(stage.slots())


def _disk_full(stage: Stage) -> None:
    filler = stage.segments_dir / "filler"
    stage.fault("full-disk", FULL_S)
    try:
        if not _filled(filler, stage.settings.segments_mb << 20) and not stage.quota_bytes:
            raise NotReached("the disk of the segments was not filled")
        time.sleep(FULL_S)
    finally:
        filler.unlink(missing_ok=True)


def _filled(filler: Path, most: int) -> bool:
    """Whether the disk was full before the file had this size; the free space is used up."""
    try:
        with filler.open("wb", buffering=0) as file:
            for _ in range((most >> 16) + 1):  # more than the disk's size, even if it has no segment now
                file.write(bytes(1 << 16))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise NotReached(f"the disk of the segments cannot be filled: {error}") from error
        return True
    return False


def _application_hangs(stage: Stage, where: str, joins: bool) -> None:
    """It is removed in time, then continues. With `joins` another slot joins, so that it must revoke a partition."""
    stage.start_application(APPLICATION, where)
    stage.wait_settled({*stage.slots(), APPLICATION})
    longest_s = 2 * _hanging_s(stage)  # until its eviction, plus the time of the join
    process = stage.hang(APPLICATION, longest_s)
    if joins:
        stage.start_slot(stage.settings.slots)
    wait_for(lambda: APPLICATION not in stage.group().state.target, longest_s, "the application is removed")
    stage.wait_settled(stage.slots())
    process.go_on()
    stage.wait_settled({*stage.slots(), APPLICATION})
    stage.terminate(APPLICATION)


def _second_process(stage: Stage) -> None:
    name = _first(stage)
    before, old = stage.lives()[name], stage.processes.pop(name)
    stage.fault("second-process", process=old.who)
    stage.start_slot(int(name.rpartition("-")[2]))
    stage.wait_back({name: before})
    if old.wait(FENCED_S) is None:
        stage.processes[f"{name} (old)"] = old
        stage.wrong.append(f"the older process under the name still runs {FENCED_S:.0f} s after it was fenced")
    else:
        stage.gone(old, "fenced")


def _churned(stage: Stage) -> None:
    process = stage.start_churn(CHURN // 2, stage.random.randrange(1 << 30))
    stage.fault("churn", consumers=CHURN // 2)
    if not stage.has_ended("churn", CHURN_S, "left"):
        raise NotReached(f"not within {CHURN_S:.0f} s: {CHURN} joins and leaves")
    done = sum(line.get("joined", 0) + line.get("left", 0) for line in process.printed())
    if done < CHURN:
        raise NotReached(f"only {done} of {CHURN} joins and leaves happened")


def _told(lie: str) -> Callable[[Stage], None]:
    """A member joins, and lies until it is evicted, or for as long as an eviction may take."""

    def run(stage: Stage) -> None:
        process = stage.start_lying_member(LIAR, lie)
        if lie == KEEPS:
            stage.wait_settled({*stage.slots(), LIAR})
        stage.fault("member-lies", process=process.who, lie=lie)
        if lie == KEEPS:
            stage.start_slot(stage.settings.slots)
        if not stage.has_ended(LIAR, given_up_s(stage.bounds), "evicted"):
            stage.terminate(LIAR)
        stage.wait_settled(stage.slots())

    return run


CONSUMERS = (
    Drill(
        "consumer-sigkill", "Kill a consumer (SIGKILL)", _hit(Stage.kill),
        proves="A failed consumer's partitions are reassigned in time, and continue after their last segments.",
        hypothesis="Its partitions are fetched within the session timeout + 2 ticks + 1.5 s; every record comes once.",
        fault="SIGKILL to a fetcher",
        promises=(FETCHED_AGAIN,),
    ),
    Drill(
        "consumer-sigterm", "Stop a consumer (SIGTERM)", _hit(Stage.terminate),
        proves="A consumer that leaves hands over its partitions.",
        hypothesis="No partition stands still for more than 150 ms; every record comes once.",
        fault="SIGTERM to a fetcher",
        promises=(HANDED_OVER,),
    ),
    Drill(
        "consumer-pause", "Pause a consumer past its session, and resume it",
        _hit(past_session(Stage.pause), comes_back=True),
        proves="A fenced consumer that resumes fetches no reassigned partition, and rejoins.",
        hypothesis="Its partitions are fetched again in time; no record is lost or delivered twice.",
        fault="SIGSTOP to a fetcher, and SIGCONT after 1.6 session timeouts",
        promises=(FETCHED_AGAIN,),
    ),
    Drill(
        "consumer-cut", "Cut a consumer off from ZooKeeper", _hit(past_session(Stage.cut), comes_back=True),
        proves="A consumer that is cut off from ZooKeeper stops fetching before others start.",
        hypothesis="Its partitions are fetched again in time, by one fetcher at a time; every record comes once.",
        fault="no packet between a fetcher and ZooKeeper for 1.6 session timeouts",
        promises=(FETCHED_AGAIN,),
    ),
    long_drill(
        "consumer-disk-hangs", "A fetcher whose disk hangs", _hit(_disk_hangs, comes_back=True),
        proves="A fetcher without progress leaves the group, and its partitions are reassigned.",
        hypothesis="Its partitions are fetched within max_poll_interval + lease + 1.5 s; every record comes once.",
        fault="writes of a fetcher's segments hang for longer than max_poll_interval",
        promises=(GIVEN_UP,),
    ),
    Drill(
        "consumer-never-acknowledges", "A consumer that never acknowledges",
        partial(_application_hangs, where="in on_partitions_revoked", joins=True),
        proves="A consumer that does not revoke a partition is evicted, and delays no other partition.",
        hypothesis="It is evicted in time, and the others continue to fetch; every record comes once.",
        fault="an application hangs in on_partitions_revoked while another consumer joins",
        promises=(EVICTED,),
    ),
    Drill(
        "application-stops-polling", "An application that stops polling",
        partial(_application_hangs, where="between polls", joins=False),
        proves="A consumer whose application hangs leaves the group, although its session is alive.",
        hypothesis="Its partitions are fetched within max_poll_interval + lease + 1.5 s; every record comes once.",
        fault="an application does not poll for longer than max_poll_interval",
        promises=(GIVEN_UP,),
    ),
    long_drill(
        "consumers-rolling-restart", "Rolling restart of the consumers", _rolled,
        proves="A rolling upgrade of the fetchers hands over every partition, twice, and loses no record.",
        hypothesis="No partition stands still for more than 150 ms at a time; every record comes once.",
        fault="SIGTERM to each fetcher in turn; each is restarted before the next is stopped",
        promises=(HANDED_OVER,),
    ),
    Drill(
        "disk-full", "Fill the disk of the segments", _disk_full,
        proves="Records that cannot be sealed are fetched again when the disk has room.",
        hypothesis="No partition is revoked; sealing continues when the disk has room; every record comes once.",
        fault="the segments' disk (a small tmpfs; without root, a quota) is full for 3 s",
        promises=(OWNERS_UNCHANGED,), adjust=lambda settings: replace(settings, segments_mb=16),
        touches=("as root, a tmpfs of 16 MiB mounted in that folder",),
    ),
    Drill(
        "two-processes-one-name", "Two processes under one consumer name", _second_process,
        proves="The newest process under a name owns it, and the older one ends.",
        hypothesis="The older one can commit nothing; every record comes once.",
        fault="a second process is started under a fetcher's name",
    ),
    Drill(
        "churn", "100 joins and leaves", _churned,
        proves="Continuous joins and leaves neither block the group for good nor lose a record.",
        hypothesis="The group is Stable after the last leave; every record comes once.",
        fault="applications join and leave, 100 times in all, faster than a rebalance ends",
    ),
)  # fmt: skip

LYING_MEMBERS = tuple(
    Drill(
        f"member-lies-{lie}", f"A member that lies: {lie.replace('-', ' ')}", _told(lie),
        proves="A member that breaks the protocol holds up only its own partitions, until the eviction clock ends.",
        hypothesis="All partitions are fetched within max_poll_interval + lease + 1.5 s; every record comes once.",
        fault=f"a member joins: {does}",
        promises=(GIVEN_UP,), is_short=lie in SHORT,
    )
    for lie, does in LIES.items()
    if lie in DRILLED
)  # fmt: skip


SPARK_APPLICATION = "spark"
EXECUTOR = "CoarseGrainedExecutorBackend"
AWAY_S = 3.0


def _executor_killed(stage: Stage) -> None:
    slots = set(stage.slot_processes().values())
    executors = [pid for pid in descendants(stage.processes[SPARK_APPLICATION].pid) if EXECUTOR in command_line(pid)]
    _kill_below(stage, "executor", [pid for pid in executors if slots.intersection(descendants(pid))])


def _worker_killed(stage: Stage) -> None:
    family = descendants(stage.processes[SPARK_APPLICATION].pid)
    _kill_below(stage, "worker", [pid for _, pid in sorted(stage.slot_processes().items()) if pid in family])


def _driver_killed(stage: Stage) -> None:
    """The application is restarted at once, as by a supervisor."""
    driver, before = stage.processes[SPARK_APPLICATION], stage.lives()
    family = descendants(driver.pid)
    stage.kill(SPARK_APPLICATION)
    _note_ends(stage, family)
    stage.start_spark()
    stage.wait_back(before, SPARK_READY_S)


def _query_returns(stage: Stage) -> None:
    """The application ends in order, and returns with its checkpoint; slots in processes fetch throughout."""
    stage.terminate(SPARK_APPLICATION)
    time.sleep(AWAY_S)
    stage.start_spark()


def _kill_below(stage: Stage, what: str, running: Sequence[int]) -> None:
    """SIGKILL to the first of the application's processes that run slots; its children end with it."""
    if not running:
        raise NotReached(f"no {what} runs a slot")
    pid = running[0]
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
        "executor-sigkill", "Kill a Spark executor", _executor_killed,
        proves="The partitions of a failed executor's slots are reassigned, and its slots are restarted.",
        hypothesis="Its partitions are fetched in time; the query delivers every record once.",
        fault="SIGKILL to one of two executors",
        promises=(FETCHED_AGAIN,),
    ),
    _in_executors(
        "worker-sigkill", "Kill a Spark Python worker", _worker_killed,
        proves="A slot whose process dies is restarted under its name, and continues after its last segments.",
        hypothesis="Its partitions are fetched in time; the query delivers every record once.",
        fault="SIGKILL to the Python worker that runs a slot",
        promises=(FETCHED_AGAIN,), is_short=False,
    ),
    _in_executors(
        "driver-sigkill", "Kill the Spark driver", _driver_killed,
        proves="A restarted application resumes its pool and its query.",
        hypothesis="All partitions are fetched when the application is back; the query delivers every record once.",
        fault="SIGKILL to the driver; the application is restarted",
        is_short=False,
    ),
    Drill(
        "query-returns", "Restart a query", _query_returns,
        proves="Segments that are sealed while a query is down are kept for it.",
        hypothesis="Fetching continues while it is down; it resumes at its checkpoint, and delivers every record once.",
        fault="SIGTERM to the query's application, which is restarted 3 s later",
        adjust=lambda settings: replace(settings, spark="query"),
    ),
)  # fmt: skip
