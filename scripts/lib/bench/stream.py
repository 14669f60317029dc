"""`bench stream`: from a log to a DataFrame, through fetcher slots and sealed segments on real executors.

A round takes a new group over the whole log: from the start of the pool and of the query to the last record that Spark
has processed (`noop` sink). CPU seconds are those of the driver, the executors and their Python workers. Peers, which
only poll, take turns with it, over the same records in the same broker.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from consumer.spark import FetcherPool

from .figures import machine, summary
from .ground import PARTITIONS, TOPIC, Ground, session
from .peers import Took, check_installed, run_peer

OURS = "ours"
PATIENCE_S = 600.0


class Rows(StreamingQueryListener):
    """How many rows a query has processed, as Spark tells: asking for its progress takes dozens of calls a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        with self._lock:
            self.count += event.progress.numInputRows

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...


class Round:
    """One round: a group of its own."""

    def __init__(self, spark: SparkSession, ground: Ground, folder: Path, number: int, slots: int) -> None:
        self._spark = spark
        self._ground = ground
        self._folder = folder
        self._name = f"bench-{number}"
        self._slots = slots

    def run(self, records: int) -> Took:
        """From the start of the pool to the last record."""
        zk = self._ground.zk
        segments, checkpoint = self._folder / "segments" / self._name, self._folder / "checkpoints" / self._name
        cpu, began = self._ground.cpu_s(), time.monotonic()
        pool = FetcherPool(
            self._spark,
            zk=zk,
            group=self._name,
            topics=[TOPIC],
            slots=self._slots,
            log_dir=self._ground.log_dir,
            segments_dir=str(segments),
            pool=self._name,
        ).start()
        source = self._spark.readStream.format("zk_group").option("zk", zk).option("group", self._name)
        rows = Rows()
        self._spark.streams.addListener(rows)
        query = source.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            self._wait(query, rows, pool, records)
            return Took(time.monotonic() - began, self._ground.cpu_s() - cpu)
        finally:
            query.stop()
            self._spark.streams.removeListener(rows)
            pool.stop()
            for made in (segments, checkpoint):
                shutil.rmtree(made, ignore_errors=True)

    def _wait(self, query: Any, rows: Rows, pool: FetcherPool, records: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while rows.count < records:
            if not query.isActive or time.monotonic() > deadline:
                slots = [(status.state, status.last_error) for status in pool.status()]
                told = f"the query has seen {rows.count} of {records} records: {query.exception()}; {slots}"
                raise RuntimeError(told)
            time.sleep(0.05)
        if rows.count > records:
            raise RuntimeError(f"the query has seen {rows.count} records, and there are {records}")


def measure(
    folder: Path,
    source: str,
    against: tuple[str, ...],
    records: int,
    record_bytes: int,
    slots: int,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, and return one object for `--json`.

    :raises MissingProgram: when a peer is not installed.
    """
    check_installed(list(against))
    loaded = machine()
    took: dict[str, list[Took]] = {name: [] for name in (OURS, *against)}
    with Ground(folder, source, bool(against)) as ground:
        ground.fill(records, record_bytes)
        tell(f"{records:,} records are there")
        spark = session(folder)
        try:
            for number in range(rounds + 1):  # the first one warms up
                for name in took:
                    took[name].append(_turn(name, spark, ground, folder, number, slots, records))
                    warms = " (warms up)" if number == 0 else ""
                    tell(f"round {number}{warms}: {name:<13} {records / took[name][-1].seconds:>9,.0f} records/s")
        finally:
            spark.stop()
    ours = took.pop(OURS)[1:]
    return {
        "bench": "stream",
        "source": source,
        "records": records,
        "record_bytes": record_bytes,
        "slots": slots,
        "rounds": rounds,
        **_rates(records, ours),
        **({"peers": {name: _rates(records, them[1:]) for name, them in took.items()}} if took else {}),
        **({"ratio": _ratios(ours, took, lambda one: one.seconds)} if took else {}),
        **({"ratio_cpu": _ratios(ours, took, lambda one: one.cpu_s)} if took else {}),
        **loaded,
    }


def _turn(name: str, spark: SparkSession, ground: Ground, folder: Path, number: int, slots: int, records: int) -> Took:
    if name == OURS:
        return Round(spark, ground, folder, number, slots).run(records)
    return run_peer(name, ground.servers, TOPIC, PARTITIONS, records)


def _rates(records: int, took: Iterable[Took]) -> dict[str, Any]:
    took = list(took)
    return {
        "records_per_s": summary((records / one.seconds for one in took), 0),
        "records_per_cpu_s": summary((records / one.cpu_s for one in took), 0),
        "cpu_s": summary((one.cpu_s for one in took), 2),
    }


def _ratios(ours: list[Took], took: dict[str, list[Took]], cost: Callable[[Took], float]) -> dict[str, float]:
    """How many times as fast as each peer ours is: the median over rounds, in each of which both ran."""
    return {
        name: round(median(cost(them) / cost(us) for us, them in zip(ours, peer[1:], strict=True)), 3)
        for name, peer in took.items()
    }
