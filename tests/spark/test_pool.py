"""Fetcher slots in real Spark executors: what they seal comes out of a query exactly once, whatever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consumer.spark import FetcherPool
from consumer.spark.ship import ship
from coordinator.zk.errors import UsageError
from tests.support.spark import Delivered, pool, produce, query, read
from tests.support.spark_processes import executors, slots
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = pytest.mark.timeout(400)


def zk_port(world: World) -> int:
    return int(world.zk.partition("/")[0].rpartition(":")[2])


@contextmanager
def running(spark: SparkSession, world: World, folder: Path) -> Iterator[tuple[FetcherPool, Delivered]]:
    """A pool of two slots on topic `t` with four partitions, and a query that collects what it delivers."""
    world.coordinator()
    world.topic("t", 4)
    sink = Delivered()
    with pool(spark, world, "g", folder, {"t": 1}) as fetchers:
        stream = query(read(spark, world, "g"), sink, folder / "checkpoint")
        try:
            yield fetchers, sink
        finally:
            stream.stop()


def test_every_record_comes_out_of_a_query_exactly_once(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with running(spark, world, tmp_path) as (fetchers, sink):
        produce(world, tmp_path / "log", "t", 1000)
        eventually(lambda: sink.has_exactly("t", 4, 1000), 90, "every record came once")
        produce(world, tmp_path / "log", "t", 500)
        eventually(lambda: sink.has_exactly("t", 4, 1500), 30, "later ones too")
        assert [status.state for status in fetchers.status()] == ["running", "running"]
        assert [status.last_error for status in fetchers.status()] == [None, None]
        assert fetchers.stop(30) is True
        assert world.owners("g") == {}
        assert [status.state for status in fetchers.status()] == ["ended", "ended"]


@pytest.mark.parametrize("find", [slots, lambda root, port: executors(root)], ids=["python worker", "executor"])
def test_a_killed_process_costs_no_record_and_brings_none_twice(
    spark: SparkSession, world: World, tmp_path: Path, find: Callable[[int, int], list[int]]
) -> None:
    with running(spark, world, tmp_path) as (_, sink):
        world.stable("g", 2, timeout_s=90)
        for number in range(2):
            produce(world, tmp_path / "log", "t", 1000)
            eventually(lambda: sink.count > 4000 * number, 60, "some of these came")  # noqa: B023
            os.kill(find(os.getpid(), zk_port(world))[0], signal.SIGKILL)
        produce(world, tmp_path / "log", "t", 1000)
        eventually(lambda: sink.has_exactly("t", 4, 3000), 90, "every record came once")


def test_a_slot_that_cannot_run_is_tried_again_and_its_status_says_why(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    world.topic("t", 1)
    produce(world, tmp_path / "log", "t", 10)
    world.coordinator()
    fetchers = pool(spark, world, "g", tmp_path, {"t": 1}, slots=1, log_dir="nonsense:/log")
    with fetchers:
        eventually(lambda: fetchers.status()[0].attempts >= 2, 60, "tried again")
        assert "is no log that can be opened" in str(fetchers.status()[0].last_error)


def test_the_newest_driver_has_the_pool(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    with pool(spark, world, "g", tmp_path, {"t": 1}) as older:
        world.stable("g", 2, timeout_s=90)
        with pool(spark, world, "g", tmp_path, {"t": 1}) as newer:
            eventually(lambda: {s.state for s in older.status()} == {"ended"}, 60, "the older pool has ended")
            assert "another driver" in str(older.problem)
            produce(world, tmp_path / "log", "t", 100)
            world.stable("g", 2, timeout_s=60)
            assert older.stop(10) is True
            assert {s.state for s in newer.status()} == {"running"}


def test_executors_run_the_drivers_own_modules(spark: SparkSession) -> None:
    name = ship(spark.sparkContext)
    assert name == ship(spark.sparkContext)

    def where(_: int) -> tuple[str, str]:
        import consumer.spark.slot
        import coordinator.zk.store

        return consumer.spark.slot.__file__, coordinator.zk.store.__file__

    for files in spark.sparkContext.parallelize(range(4), 4).map(where).collect():
        assert all(f"/{name}/" in file for file in files)


def test_a_pool_that_leaves_no_room_for_the_query_is_refused(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"10 slots of 0\.25 cores may leave no room"):
        pool(spark, world, "g", tmp_path, {"t": 1}, slots=10)


def test_an_unknown_option_is_refused(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no option 'slotz'"):
        pool(spark, world, "g", tmp_path, {"t": 1}, slotz=10)
