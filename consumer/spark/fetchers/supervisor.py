"""The Spark jobs of a pool's slots, each one task in a separate stage, and repeated in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from typing import Any

from pyspark import InheritableThread, SparkContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests

from coordinator.zk.runtime import Runtime

from ..resources import SparkCluster, wait_for_executors
from ..ship_modules import ship
from .config import SlotSpec
from .slot import run_slot

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
GOOD_WHILE_S = 60.0
NEW, RUNNING, WAITING, ENDED = "new", "running", "waiting", "ended"
INHERITED = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.job.tags", "spark.sql.execution.id")
"""Local properties that a slot's job must not inherit from the thread that starts it: otherwise the end of a query
that resizes the pool in `foreachBatch` would cancel the slots, too."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot as seen by the driver.

    :ivar state: `new`; `registering`, until it is a member; `unassigned`, while it waits for partitions; `fetching`;
        `paused`, by the group's backlog; `failing`, until its next attempt; `ended`; or `unknown`, while ZooKeeper does
        not answer. (A supervisor itself only knows its job: `running`, and `waiting` for its next attempt.)
    :ivar attempts: jobs started so far.
    :ivar last_error: the reason of the last unexpected end, None when there was none.
    :ivar reason: why it is in this state, and what of its subscription it does not fetch; None without a reason.
    """

    slot: int
    consumer: str
    state: str = NEW
    attempts: int = 0
    last_error: str | None = None
    reason: str | None = None


class SlotSupervisor:
    """One slot. Its job is restarted after every unexpected end, with backoff.

    :param job: runs the slot's Spark job to its end, and returns the reason; it raises nothing.
    :param is_over: whether the Spark application has ended.
    :ivar status: its current status.
    """

    def __init__(
        self, number: int, consumer: str, runtime: Runtime, job: Callable[[int], str], is_over: Callable[[], bool]
    ) -> None:
        self.number = number
        self.status = SlotStatus(number, consumer)
        self._runtime = runtime
        self._job = job
        self._is_over = is_over
        self._ending = runtime.event()
        self._thread = InheritableThread(target=self._run, name=f"pool-slot-{number}", daemon=True)

    def start(self) -> None:
        """Start the slot. Once."""
        self._thread.start()

    def end(self) -> None:
        """Start no further job. The running one ends by the pool's znode."""
        self._ending.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it has ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Repeat the job, with backoff unless it ran for long."""
        backoff_s = FIRST_BACKOFF_S
        while not self._ending.is_set() and not self._is_over():
            started = self._runtime.monotonic()
            self._note(state=RUNNING, attempts=self.status.attempts + 1)
            problem = self._job(self.number)
            if self._ending.is_set():
                break
            if self._runtime.monotonic() - started >= GOOD_WHILE_S:
                backoff_s = FIRST_BACKOFF_S
            self._note(state=WAITING, last_error=problem)
            log.warning("slot restarted: slot=%d in_s=%.1f reason=%s", self.number, backoff_s, problem)
            self._ending.wait(backoff_s)
            backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)
        self._note(state=ENDED)

    def _note(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)


def slots_table(title: str, slots: Sequence[SlotStatus]) -> str:
    """The slots as a table in HTML, for notebooks."""
    names = [field.name for field in fields(SlotStatus)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = [["" if (value := getattr(slot, name)) is None else str(value) for name in names] for slot in slots]
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def reason_of(error: Exception) -> str:
    """The error that ended a job, in one line: the last line of a Python task's traceback if there is one."""
    text = str(error)
    _, separator, traceback = text.rpartition("Traceback (most recent call last):")
    if not separator:
        return text.partition("\n")[0]
    lines = [line for line in traceback.split("\n")[1:] if line and not line[0].isspace()]
    return lines[0] if lines else text.partition("\n")[0]


class SlotJobs:
    """Runs and cancels slot jobs.

    :param spec_of: the number of a slot -> its task's current parameters.
    """

    def __init__(self, sc: SparkContext, cluster: SparkCluster, spec_of: Callable[[int], SlotSpec]) -> None:
        self._sc = sc
        self._cluster = cluster
        self._spec_of = spec_of
        self._profile: ResourceProfile | None = None

    def prepare(self, runtime: Runtime, executors_timeout_s: float, slot_cpus: float) -> None:
        """Wait for executors, and send them the modules.

        :raises CoordinatorError: when no executor registers.
        """
        wait_for_executors(self._sc, self._cluster, runtime, executors_timeout_s)
        ship(self._sc)
        if not self._cluster.threads:  # `local[N]` supports no profile
            self._profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(slot_cpus)).build

    def run(self, number: int) -> str:
        """Run a slot's job to its end; the reason of its end."""
        spec = self._spec_of(number)
        try:
            for name in INHERITED:
                self._sc.setLocalProperty(name, None)  # type: ignore[arg-type]
            self._sc.addJobTag(_tag(spec))
            self._sc.setJobDescription(f"{spec.config.consumer(number)} of group {spec.config.group}")
            rdd = self._sc.parallelize([spec], 1)
            if self._profile is not None:
                rdd = rdd.withResources(self._profile)
            results = rdd.map(run_slot).collect()
            return str(results[0]["reason"])
        except Exception as error:  # noqa: BLE001  the slot is restarted after any of them
            return reason_of(error)

    def cancel(self, number: int) -> None:
        """Cancel a slot's job."""
        self._sc.cancelJobsWithTag(_tag(self._spec_of(number)))

    def is_over(self) -> bool:
        """Whether the Spark application has ended."""
        return self._sc._jsc is None or bool(self._sc._jsc.sc().isStopped())


def _tag(spec: SlotSpec) -> str:
    return f"zk-group-{spec.run}-slot-{spec.number}"
