"""A pool in a consistent region, on real executors: queries end at its checkpoints, and hold the same records there."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.region import checkpoint, contributions, running
from tests.support.spark import Delivered, executors, pool, produce, query, read, slots
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World
from zk_group.consumer.spark import register
from zk_group.coordinator.zk.embedded.ensemble import descendants

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(400)]

NAMES = ("one", "two", "three")
Rows = list[tuple[str, int, int]]


def held_at(sink: Delivered, checkpoint_dir: Path) -> dict[int, Rows]:
    """Checkpoint -> all records delivered up to it: the end offset of a batch names its checkpoint."""
    found: dict[int, Rows] = {}
    rows: Rows = []
    for path in sorted((checkpoint_dir / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        if not (checkpoint_dir / "commits" / path.name).exists():
            break
        rows += sink.batches.get(int(path.name), [])
        if number := json.loads(path.read_text().splitlines()[-1]).get("checkpoint"):
            found[number] = sorted(rows)
    return found


def batch(spark: SparkSession, world: World, **options: str) -> Rows:
    register(spark)
    reader = spark.read.format("zk_group").option("zk", world.zk).option("group", "g")
    frame = reader.option("sessionTimeoutMs", str(SESSION_MS)).options(**options).load()
    return sorted((row.topic, row.partition, row.offset) for row in frame.collect())


def zk_port(world: World) -> int:
    return int(world.zk.partition("/")[0].rpartition(":")[2])


def incarnations(world: World) -> set[tuple[str, str]]:
    return {(name, one.incarnation) for name, one in world.state("g").target.items()}


def whole_again(world: World, before: set[tuple[str, str]], killed: int = 1) -> None:
    """The pool, once it has noticed so many deaths and each slot runs: a later rebalance aborts a checkpoint."""
    eventually(lambda: len(incarnations(world) - before) >= killed, 90, "other incarnations have joined")
    world.stable("g", 2, timeout_s=90)


def complete(world: World, records: int) -> int:
    """A checkpoint that has all records: one is taken when all are sealed, since each costs every query a batch."""
    eventually(lambda: sum(world.offsets("g").values()) == records, 60, "every record is sealed")
    number = checkpoint(world)
    assert sum(sum(each.offsets.values()) for each in contributions(world, number).values()) == records
    return number


def test_queries_agree_at_each_checkpoint_despite_kills(spark: SparkSession, world: World, tmp_path: Path) -> None:
    first = world.elected(world.coordinator(checkpoints_kept=100))
    world.topic("t", 4)
    sinks = {name: Delivered() for name in NAMES}
    rates = {"one": "0", "two": "150", "three": "400"}
    count = 0

    def more() -> None:
        nonlocal count
        produce(world, tmp_path / "log", "t", 100)
        count += 100

    with pool(spark, world, "g", tmp_path, {"t": 1}, region="r", seal_interval_ms=50):
        world.stable("g", 2, timeout_s=90)
        running(world)
        streams = [
            query(
                read(spark, world, "g", query=name, alignCheckpoints="true", maxRecordsPerTrigger=rates[name]),
                sinks[name],
                tmp_path / name,
            )
            for name in NAMES
        ]
        more()
        eventually(lambda: sinks["one"].count, 60, "some of these are delivered")
        cuts = [checkpoint(world)]
        more()
        before = incarnations(world)
        os.kill(slots(os.getpid(), zk_port(world))[0], signal.SIGKILL)
        second = world.coordinator(checkpoints_kept=100)
        world.stop_coordinator(first)
        world.elected(second)
        more()
        whole_again(world, before)
        cuts.append(checkpoint(world))
        more()
        before = incarnations(world)
        running_slots = slots(os.getpid(), zk_port(world))
        executor = next(each for each in executors(os.getpid()) if running_slots[0] in descendants(each))
        killed = len(set(running_slots) & set(descendants(executor)))
        os.kill(executor, signal.SIGKILL)
        whole_again(world, before, killed)
        cuts.append(checkpoint(world))
        more()
        last = complete(world, 4 * count)

        def all_reached() -> bool:
            reached = {name: held_at(sinks[name], tmp_path / name) for name in NAMES}
            missing = {name: set(cuts) - set(found) for name, found in reached.items() if set(cuts) - set(found)}
            assert not missing and all(last in found for found in reached.values()), missing
            return True

        eventually(all_reached, 120, "every query has reached every checkpoint")
        reached = {name: held_at(sinks[name], tmp_path / name) for name in NAMES}
        for stream in streams:
            stream.stop()

        for number in (*cuts, last):
            assert reached["one"][number] == reached["two"][number] == reached["three"][number]
        assert reached["one"][cuts[0]], "segments before the first kept checkpoint may be collected by now"
        for earlier, number in pairwise([*cuts, last]):
            news = sorted(set(reached["one"][number]) - set(reached["one"][earlier]))
            between = {"startingSegments": f"checkpoint:{earlier}", "endingSegments": f"checkpoint:{number}"}
            assert batch(spark, world, **between) == news
        wanted = sorted(("t", partition, offset) for partition in range(4) for offset in range(count))
        assert reached["one"][last] == wanted, "each record once"

        again = Delivered()
        frame = read(
            spark, world, "g", query="again", startingSegments=f"checkpoint:{cuts[0]}", alignCheckpoints="true"
        )
        assert query(frame, again, tmp_path / "again", availableNow=True).awaitTermination(120)
        rest = sorted(set(wanted) - set(reached["one"][cuts[0]]))
        assert sorted(row for rows in again.batches.values() for row in rows) == rest
        assert rest == batch(spark, world, startingSegments=f"checkpoint:{cuts[0]}")
