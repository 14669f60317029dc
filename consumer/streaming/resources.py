"""Whether a Spark application can run a pool: its session, its options, and CPUs for its own tasks beside the slots.

And this project's modules, sent to executors that lack them, or have another version.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

import zk_group
from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.runtime import Runtime

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """The resources of a Spark application.

    :ivar threads: concurrent tasks when driver and executor are one process (`local[N]`); otherwise 0.
    :ivar executors: number of executors; with dynamic allocation, at the start.
    :ivar cores: of one executor.
    :ivar task_cpus: CPUs of one of the application's own tasks.
    """

    threads: int
    executors: int
    cores: float
    task_cpus: float
    is_dynamic: bool = False

    def refusal(self, slots: int, slot_cpus: float) -> str | None:
        """The reason why `slots` would leave no CPUs for the application's own tasks; None when they fit.

        Spark chooses the executors of slots. An executor is full when the CPUs left by its slots are fewer than a
        task's.
        """
        if self.threads:
            enough = slots < self.threads
            return None if enough else f"{slots} slots need at least local[{slots + 1}], not local[{self.threads}]"
        if self.is_dynamic:
            return None  # tasks of another profile get separate executors
        fill_one = int((self.cores - self.task_cpus) / slot_cpus + 1e-9) + 1
        if self.cores >= self.task_cpus and slots < self.executors * fill_one:
            return None
        return (
            f"{slots} slots of {slot_cpus:g} cores may leave no room for the query's own tasks of {self.task_cpus:g} "
            f"on {self.executors} executors of {self.cores:g} cores: give them more cores (spark.executor.cores=2), "
            "use more executors or fewer slots, or lower spark.task.cpus (0.5)"
        )


def classic_context(spark: SparkSession) -> SparkContext:
    """The session's context.

    :raises UsageError: when the session is a Spark Connect client.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UsageError(
            "zk-group-coordinator does not run on Spark Connect, where it can start no Spark jobs and send executors "
            "no modules: use a classic session (SparkSession.builder.master, or spark-submit without --remote)"
        )
    return spark.sparkContext


def context_of(spark: SparkSession) -> SparkContext:
    """The context of a session that can run a pool.

    :raises UsageError: when the session is a Spark Connect client, would kill idle workers, or would run slots twice.
    """
    sc = classic_context(spark)
    conf = sc.getConf()
    is_killed = _is_true(conf, "spark.python.worker.killOnIdleTimeout")
    if is_killed and _number(conf, "spark.python.worker.idleTimeoutSeconds"):
        raise UsageError(
            "spark.python.worker.killOnIdleTimeout=true kills slots, which are silent by nature: "
            "set it to false, or spark.python.worker.idleTimeoutSeconds to 0"
        )
    # Without the threshold, Spark never speculates a job of one task, as a slot's is.
    if _is_true(conf, "spark.speculation") and _number(conf, "spark.speculation.task.duration.threshold"):
        raise UsageError(
            "spark.speculation=true with spark.speculation.task.duration.threshold starts each slot, whose task never "
            "ends, again and again: set spark.speculation to false, or leave out the threshold"
        )
    return sc


def _is_true(conf: SparkConf, name: str) -> bool:
    return (conf.get(name, "false") or "").strip().lower() == "true"


def _number(conf: SparkConf, name: str) -> int:
    """An option's leading digits: 30 of `30s`."""
    digits = re.match(r"\s*(\d+)", conf.get(name, "0") or "")
    return int(digits[1]) if digits else 0


def cluster_of(sc: SparkContext) -> SparkCluster:
    """The application's resources, by its configuration."""
    conf, master = sc.getConf(), str(sc.master)
    task_cpus = float(conf.get("spark.task.cpus", "1") or 1)
    if local := _LOCAL.fullmatch(master):
        threads = (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
        return SparkCluster(threads, 1, threads, task_cpus)
    if small := _LOCAL_CLUSTER.fullmatch(master):
        return SparkCluster(0, int(small[1]), int(small[2]), task_cpus)
    executors = int(conf.get("spark.executor.instances") or max(1, executors_now(sc)))
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    return SparkCluster(0, executors, _cores(sc, executors), task_cpus, is_dynamic)


def _cores(sc: SparkContext, executors: int) -> float:
    """An executor's cores: as configured, else all of a standalone worker, else YARN's and Kubernetes' one."""
    configured = sc.getConf().get("spark.executor.cores")
    if configured:
        return float(configured)
    if str(sc.master).startswith("spark:") and not sc.getConf().get("spark.default.parallelism"):
        return max(1.0, sc.defaultParallelism / executors)
    return 1.0


def executors_now(sc: SparkContext) -> int:
    """Registered executors, without the driver."""
    return len(sc._jsc.sc().statusTracker().getExecutorInfos()) - 1


def wait_for_executors(sc: SparkContext, cluster: SparkCluster, runtime: Runtime, timeout_s: float) -> None:
    """Wait until all have registered: small tasks are packed on the registered ones.

    :raises CoordinatorError: when none has registered within `timeout_s`.
    """
    deadline = runtime.monotonic() + timeout_s
    while not cluster.threads and executors_now(sc) < cluster.executors:
        if runtime.monotonic() >= deadline:
            if executors_now(sc) > 0:
                return
            raise CoordinatorError(f"no executor has come within {timeout_s:g} s: slots have nowhere to run")
        runtime.sleep(0.05)


SHIPPED = ("coordinator", "consumer")
"""The packages that executors run."""


def ship(sc: SparkContext) -> str | None:
    """Send the driver's own `zk_group` to the executors, where it precedes an installed one.

    :returns: the zip's name; None when the driver itself runs from a zip, which `--py-files` has sent already.
    """
    root = Path(zk_group.__path__[0])
    if not root.is_dir():
        return None
    modules = [root / "__init__.py", *(path for name in SHIPPED for path in sorted((root / name).rglob("*.py")))]
    files = {path.relative_to(root.parent).as_posix(): path.read_bytes() for path in modules}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    name = f"zk-group-coordinator-{zk_group.__version__}-{digest}.zip"
    if name not in (sc._python_includes or ()):
        path = Path(str(sc._temp_dir)) / name  # Spark serves it from there, and removes it with the context
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, data in files.items():
                archive.writestr(file, data)
        sc.addPyFile(str(path))
    return name
