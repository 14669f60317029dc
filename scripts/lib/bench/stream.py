"""`bench stream`: from a log to a DataFrame, through fetcher slots and sealed segments on real executors.

A round reads the whole log in a new group: the query runs, and the time is from the start of the pool to the last
record that Spark has processed (`noop` sink). CPU seconds are those of the driver, the executors and their Python
workers. Peers alternate with it, over the same records in the same broker: poll loops, whose start is not counted
either, and Spark's own source. Beside the embedded log a plain loop reads the same files: the machine's speed of the
hour. Spark ends Python workers after an idle minute, as during the peers' rounds: a small round before each
restarts them.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.embedded.ensemble import class_path
from zk_group.coordinator.zk.embedded.kafka import Artifact, cache_directory, fetched
from zk_group.coordinator.zk.errors import MissingProgram

from .figures import machine, summary
from .ground import EMBEDDED, PARTITIONS, SMALL_TOPIC, TOPIC, Ground, session
from .group import eventually
from .peers import LOOP, PATIENCE_S, Took, check_installed, run_peer

OURS = "ours"
TRIGGER = "1 second"
"""As docs/deploy.md advises: a batch costs the driver and the executors 0.1 to 0.2 s of CPU, for any size."""

KAFKA_OPTIONS = {"max.partition.fetch.bytes": "8388608"}
"""Long runs of one partition: as docs/deploy.md advises for slots with two."""

LITTLE = 8000
"""Records of the small round."""


class Rows(StreamingQueryListener):
    """The number of rows processed by a query, from Spark's events: its progress takes dozens of calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.has_begun = False

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        with self._lock:
            self.count += event.progress.numInputRows
            self.has_begun = True

    def onQueryIdle(self, event: Any) -> None:
        self.has_begun = True

    def onQueryTerminated(self, event: Any) -> None: ...


def run_ours(
    spark: SparkSession, ground: Ground, folder: Path, number: int, slots: int, records: int, topic: str = TOPIC
) -> Took:
    """One round in its own group: from the start of the pool to the last record."""
    name = f"bench-{topic}-{number}"
    segments, checkpoint = folder / "segments" / name, folder / "checkpoints" / name
    pool = FetcherPool(
        spark,
        zk=ground.zk,
        group=name,
        topics=[topic],
        slots=slots,
        log_dir=ground.log_dir,
        segments_dir=str(segments),
        pool=name,
        kafka=KAFKA_OPTIONS if ground.log_dir == "kafka:" else {},
    )
    source = spark.readStream.format("zk_group").option("zk", ground.zk).option("group", name).load()
    rows = Rows()
    spark.streams.addListener(rows)
    sink = source.writeStream.format("noop").trigger(processingTime=TRIGGER)
    query = sink.option("checkpointLocation", str(checkpoint)).start()
    try:
        eventually(lambda: rows.has_begun or not query.isActive, "the query has started")
        cpu, began = ground.cpu_s(), time.monotonic()
        pool.start()
        while rows.count < records:
            if not query.isActive or time.monotonic() > began + PATIENCE_S:
                states = [(status.state, status.last_error) for status in pool.status()]
                problem = f"the query has seen {rows.count} of {records} records: {query.exception()}; {states}"
                raise RuntimeError(problem)
            time.sleep(0.05)
        if rows.count > records:
            raise RuntimeError(f"the query has seen {rows.count} records, expected {records}")
        return Took(time.monotonic() - began, ground.cpu_s() - cpu)
    finally:
        query.stop()
        spark.streams.removeListener(rows)
        pool.stop()
        for made in (segments, checkpoint):
            shutil.rmtree(made, ignore_errors=True)


def measure(
    folder: Path,
    source: str,
    against: tuple[str, ...],
    records: int,
    record_bytes: int,
    slots: int,
    warm_ups: int,
    rounds: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure, and return one object for `--json`.

    :param warm_ups: rounds before the measured ones, until the JVMs have compiled the hot code; loops, without
       compilation, take part in the last one.
    :raises MissingProgram: when a peer is not installed.
    """
    check_installed(list(against))
    jars = connector_jars() if SPARK in against else []
    loaded = machine()
    names = [OURS, *against, *([LOOP] if source == EMBEDDED else [])]
    took: dict[str, list[Took]] = {name: [] for name in names}
    with Ground(folder, source, bool(against)) as ground:
        ground.fill(records, record_bytes)
        ground.fill(LITTLE, record_bytes, SMALL_TOPIC)
        tell(f"{records:,} records written")
        spark = session(folder, jars)
        try:
            for number in range(warm_ups + rounds):
                for name in [name for name in names if name in (OURS, SPARK) or number >= warm_ups - 1]:
                    took[name].append(_turn(name, spark, ground, folder, number, slots, records))
                    warms = " (warm-up)" if number < warm_ups else ""
                    tell(f"round {number}{warms}: {name:<13} {records / took[name][-1].seconds:>9,.0f} records/s")
        finally:
            spark.stop()
    took = {name: them[-rounds:] for name, them in took.items()}
    ours = took.pop(OURS)
    return {
        "bench": "stream",
        "source": source,
        "records": records,
        "record_bytes": record_bytes,
        "slots": slots,
        "warm_ups": warm_ups,
        "rounds": rounds,
        **_rates(records, ours),
        **({"peers": {name: _rates(records, them) for name, them in took.items()}} if took else {}),
        **({"ratio": _ratios(ours, took, lambda one: one.seconds)} if took else {}),
        **({"ratio_cpu": _ratios(ours, took, lambda one: one.cpu_s)} if took else {}),
        **loaded,
    }


def _turn(name: str, spark: SparkSession, ground: Ground, folder: Path, number: int, slots: int, records: int) -> Took:
    if name == OURS:
        run_ours(spark, ground, folder, number, slots, LITTLE, SMALL_TOPIC)
        return run_ours(spark, ground, folder, number, slots, records)
    if name == SPARK:
        return run_spark(spark, ground.cpu_s, ground.servers, TOPIC, records, folder / "checkpoints" / SPARK)
    return run_peer(name, ground.log_dir if name == LOOP else ground.servers, TOPIC, PARTITIONS, records)


def _rates(records: int, took: Iterable[Took]) -> dict[str, Any]:
    took = list(took)
    return {
        "records_per_s": summary((records / one.seconds for one in took), 0),
        "records_per_cpu_s": summary((records / one.cpu_s for one in took), 0),
        "cpu_s": summary((one.cpu_s for one in took), 2),
    }


def _ratios(ours: list[Took], took: dict[str, list[Took]], cost: Callable[[Took], float]) -> dict[str, float]:
    """The ratio of our speed to each peer's: the median over the rounds with both."""
    return {
        name: round(median(cost(them) / cost(us) for us, them in zip(ours, peer, strict=True)), 3)
        for name, peer in took.items()
    }


SPARK = "spark"
MODULE = "spark-sql-kafka-0-10"
JARS = "ZK_GROUP_BENCH_SPARK_KAFKA_JARS"
"""A folder with the connector's jars; without it they are fetched once into the user's cache folder."""


def connector_jars() -> list[Path]:
    """The jars of the connector of PySpark's Scala and Spark, without PySpark's own.

    :raises MissingProgram: when they are unavailable; the message has the remedy.
    """
    sql = Path(class_path(("spark-sql_",)))
    match = re.fullmatch(r"spark-sql_([\d.]+)-(.+)\.jar", sql.name)
    if match is None:
        raise MissingProgram(f"PySpark's {sql.name} does not tell its version: install pyspark>=4.2,<5")
    scala, version = match.groups()
    given = os.environ.get(JARS, "")
    artifact = Artifact(f"{MODULE}_{scala} {version}", "org.apache.spark", f"{MODULE}_{scala}", version)
    try:
        folder = Path(given) if given else fetched(artifact, cache_directory() / f"{artifact.module}-{version}")
    except MissingProgram as error:
        raise MissingProgram(f"{error}, or name a folder that has them in {JARS}") from error
    if not list(folder.glob(f"{MODULE}_{scala}-*.jar")):
        raise MissingProgram(
            f"{JARS} names {folder}, which has no {MODULE}_{scala}-*.jar: put the connector's jars there"
        )
    own = {_module(jar.name) for jar in sql.parent.glob("*.jar")}
    return sorted(jar for jar in folder.glob("*.jar") if _module(jar.name) not in own)


def _module(name: str) -> str:
    """A jar's name without its version."""
    return re.sub(r"-\d.*$", "", name)


def run_spark(
    spark: SparkSession, cpu_s: Callable[[], float], servers: str, topic: str, records: int, checkpoint: Path
) -> Took:
    """One run of Spark's own Kafka source over the whole topic, in the same Spark session as ours.

    A streaming query from the earliest offsets into the `noop` sink with the trigger `availableNow`. The time is from
    the call of `start()` to the query's end.

    :param cpu_s: the CPU seconds of the application so far.
    :raises RuntimeError: when it fails, or reads another number of records.
    """
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    sink = source.option("startingOffsets", "earliest").load().writeStream.format("noop").trigger(availableNow=True)
    sink = sink.option("checkpointLocation", str(checkpoint))
    cpu, began = cpu_s(), time.monotonic()
    query = sink.start()
    try:
        has_ended = query.awaitTermination(int(PATIENCE_S))
        took = Took(time.monotonic() - began, cpu_s() - cpu)
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        if not has_ended or rows != records:
            raise RuntimeError(f"Spark's Kafka source has read {rows} of {records} records: {query.exception()}")
        return took
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
