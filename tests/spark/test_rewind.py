"""A query with state is rewound to a checkpoint of its region on real executors, and reaches the same state again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.region import running
from tests.support.spark import pool, produce, read
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.cli import main

from .test_region import complete

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(400)]

PARTITIONS = 4
PROVIDERS = {
    "files": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocks": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
STATE = "spark.sql.streaming.stateStore"

Counts = dict[int, int]


class Table:
    """The output of an aggregation in complete mode: batch -> partition -> count, the newest of each batch."""

    def __init__(self) -> None:
        self.batches: dict[int, Counts] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = {row["partition"]: row["count"] for row in frame.collect()}

    def last(self) -> Counts:
        return self.batches[max(self.batches)]


def started(
    spark: SparkSession, world: World, name: str, table: Table, folder: Path, rate: int, **trigger: object
) -> StreamingQuery:
    frame = read(spark, world, "g", query=name, alignCheckpoints="true", maxRecordsPerTrigger=str(rate))
    spark.conf.set(f"{STATE}.providerClass", PROVIDERS[name])
    writer = frame.groupBy("partition").count().writeStream.outputMode("complete").foreachBatch(table)
    return writer.option("checkpointLocation", str(folder)).trigger(**trigger).start()  # type: ignore[arg-type]


def ends(folder: Path) -> Mapping[int, int]:
    """Checkpoint -> the batch that ended at it, of those that have finished."""
    found = {}
    for path in sorted((folder / "commits").glob("[0-9]*"), key=lambda path: int(path.name)):
        end = json.loads((folder / "offsets" / path.name).read_text().splitlines()[-1])
        if number := end.get("checkpoint"):
            found[number] = int(path.name)
    return found


def rewind(world: World, name: str, folder: Path, checkpoint: int, *more: str) -> Result:
    options = ["--checkpoint-location", str(folder), "--to", str(checkpoint), "--zk", world.zk, "-o", "json"]
    return CliRunner().invoke(main, ["rewind", "g", name, *options, *more])


def test_rewound_stateful_queries_reach_the_same_state(spark: SparkSession, world: World, tmp_path: Path) -> None:
    for name, value in (("minDeltasForSnapshot", "1"), ("maintenanceInterval", "1s")):
        spark.conf.set(f"{STATE}.{name}", value)
    world.elected(world.coordinator(checkpoint_interval_ms=600_000, checkpoints_kept=100))
    world.topic("t", PARTITIONS)
    tables = {name: Table() for name in PROVIDERS}
    folders = {name: tmp_path / name for name in PROVIDERS}
    count = 0

    def more(records: int) -> int:
        nonlocal count
        count += records
        for _ in range(4):
            produce(world, tmp_path / "log", "t", records // 4)
        return complete(world, PARTITIONS * count)

    def run(name: str, rate: int) -> None:
        stream = started(spark, world, name, tables[name], folders[name], rate, availableNow=True)
        assert stream.awaitTermination(180)

    with pool(spark, world, "g", tmp_path, {"t": 1}, region="r", seal_interval_ms=50):
        world.stable("g", 2, timeout_s=90)
        running(world)
        first = more(60)
        streams = {
            name: started(spark, world, name, tables[name], folders[name], 30, processingTime="100 milliseconds")
            for name in PROVIDERS
        }
        second = more(120)
        last = more(40)
        for name, folder in folders.items():
            eventually(lambda folder=folder: last in ends(folder), 120, "the query has reached the last checkpoint")
            running_query = rewind(world, name, folder, first, "--execute")
            assert running_query.exit_code == 2 and "sent a heartbeat" in running_query.stderr, running_query.stderr
        for stream in streams.values():
            stream.stop()

        at = {name: dict(ends(folder)) for name, folder in folders.items()}
        for name, folder in folders.items():
            held = {number: tables[name].batches[batch] for number, batch in at[name].items()}
            assert sum(held[first].values()) == PARTITIONS * 60 and sum(held[last].values()) == PARTITIONS * count
            before = sorted(path for path in folder.rglob("*") if path.is_file())
            dry = rewind(world, name, folder, first, "--stopped")
            assert dry.exit_code == 0, (dry.output, dry.exception)
            assert sorted(path for path in folder.rglob("*") if path.is_file()) == before, "a dry run removes nothing"

            done = rewind(world, name, folder, first, "--stopped", "--execute")

            assert done.exit_code == 0, (done.output, done.exception)
            assert json.loads(done.stdout)[0]["batch"] == at[name][first]
            assert max(ends(folder)) == first
            for batch in [each for each in tables[name].batches if each > at[name][first]]:
                del tables[name].batches[batch]
            run(name, 0)
            again = ends(folder)
            assert again[second] != at[name][second], "its batches are others than before"
            for number in (second, last):
                assert tables[name].batches[again[number]] == held[number], number

        end = more(20)
        for name, folder in folders.items():
            run(name, 0)  # its start is read from files of the previous run
            assert end in ends(folder)
            assert tables[name].last() == dict.fromkeys(range(PARTITIONS), count)
