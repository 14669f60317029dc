"""The Spark jobs of a pool's slots: each is one task, in a separate stage."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import SparkContext
from pyspark.resource import ResourceProfile

from coordinator.zk.runtime import Runtime

from ..resources import SparkCluster, slot_profile, wait_for_executors
from ..ship_modules import ship
from .config import SlotSpec
from .slot import run_slot
from .supervisor import reason_of

INHERITED = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.job.tags", "spark.sql.execution.id")
"""Local properties that a slot's job must not inherit from the thread that starts it: otherwise the end of a query
that resizes the pool in `foreachBatch` would cancel the slots, too."""


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
        self._profile = slot_profile(self._cluster, slot_cpus)

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
