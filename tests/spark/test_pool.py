"""Fetcher slots in real Spark executors: a query delivers their records exactly once, also after kills."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession

from tests.support.object_store import object_store
from tests.support.proxy import Proxy
from tests.support.spark import SESSION_MS, ContinuousRecords, Delivered, executors, pool, produce, query, read, slots
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.consumer.streaming.resources import ship
from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.znodes.paths import GroupPaths

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


def test_query_delivers_every_record_exactly_once(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with running(spark, world, tmp_path) as (fetchers, sink):
        produce(world, tmp_path / "log", "t", 1000)
        eventually(lambda: sink.has_exactly("t", 4, 1000), 90, "each record is delivered once")
        produce(world, tmp_path / "log", "t", 500)
        eventually(lambda: sink.has_exactly("t", 4, 1500), 30, "later ones too")
        assert [status.state for status in fetchers.status()] == ["fetching", "fetching"]
        assert [status.last_error for status in fetchers.status()] == [None, None]
        assert fetchers.stop(30) is True
        assert world.owners("g") == {}
        assert [status.state for status in fetchers.status()] == ["ended", "ended"]
        with pytest.raises(UsageError, match="the pool has stopped"):
            fetchers.sweep()


@pytest.mark.full("pools and queries in each situation")
def test_pool_is_waited_for_logs_that_it_runs_and_shows_its_slots(
    spark: SparkSession, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.coordinator()
    world.topic("t", 4)
    caplog.set_level("INFO", "zk_group.consumer.streaming.fetchers.pool")
    with pool(spark, world, "g", tmp_path, {"t": 1}, slots=1) as fetchers:
        assert fetchers.wait_until_running(90) is fetchers

        assert len(world.owners("g")) == 4
        assert "pool running: group=g pool=p slots=1" in caplog.text
        assert repr(fetchers) == "<FetcherPool p of group g, slots: 1 fetching>"
        assert "<td>p-slot-0</td>" in fetchers._repr_html_()
        fetchers.resize(2)
        eventually(lambda: "pool running: group=g pool=p slots=2" in caplog.text, 90, "also without a waiting caller")
        fetchers.wait_until_running(90)
        owners = [json.loads(owner)["consumer"] for owner in world.owners("g").values()]
        assert sorted(owners) == ["p-slot-0", "p-slot-0", "p-slot-1", "p-slot-1"]
        assert [caplog.text.count(f"pool running: group=g pool=p slots={slots}") for slots in (1, 2)] == [1, 1]
    with pytest.raises(UsageError, match="the pool has stopped"):
        fetchers.wait_until_running(90)


@pytest.mark.full("pools and queries in each situation")
def test_a_pools_group_starts_with_one_generation_of_all(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator(group_initial_rebalance_delay_ms=600_000)
    world.topic("t", 4)
    with pool(spark, world, "g", tmp_path, {"t": 1}) as fetchers:
        fetchers.wait_until_running(90)

        assert world.state("g").generation == 1


@pytest.mark.full("pools and queries in each situation")
def test_pool_without_a_coordinator_says_so_when_waited_for(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.topic("t", 4)
    with pool(spark, world, "g", tmp_path, {"t": 1}) as fetchers:
        eventually(lambda: len(world.names(GroupPaths("g").ids)) == 2, 90, "its slots have registered")

        with pytest.raises(
            CoordinatorError, match="unassigned p-slot-0, p-slot-1: no coordinator is elected: start a node"
        ):
            fetchers.wait_until_running(0.5)


@pytest.mark.full("pools and queries in each situation")
def test_pool_without_zookeeper_is_shown_at_once_and_waits(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    host, _, chroot = world.zk.partition("/")
    with (
        Proxy(host) as proxy,
        pool(spark, world, "g", tmp_path, {"t": 1}, slots=1, zk=f"{proxy.hosts}/{chroot}") as fetchers,
    ):
        fetchers.wait_until_running(90)

        proxy.black_hole()
        asked_at = time.monotonic()
        assert "slots: 1 " in repr(fetchers) and "<td>p-slot-0</td>" in fetchers._repr_html_()
        assert time.monotonic() - asked_at < 1, "no request is waited for"
        with pytest.raises(CoordinatorError, match=r"does not run after 0\.5 s: unknown p-slot-0: "):
            fetchers.wait_until_running(0.5)
        assert time.monotonic() - asked_at < 2 * SESSION_MS / 1000 + 3

        proxy.resume()
        fetchers.wait_until_running(90)


@pytest.mark.full("pools and queries in each situation")
def test_killed_leading_slot_of_a_pool_loses_no_record(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    sink = Delivered()
    with pool(spark, world, "g", tmp_path, {"t": 1}, assignment="client", protocols="lag"):
        stream = query(read(spark, world, "g"), sink, tmp_path / "checkpoint")
        produce(world, tmp_path / "log", "t", 1000)
        state = world.stable("g", 2, timeout_s=90)
        assert state.strategy == "lag" and state.client is not None
        eventually(lambda: sink.count > 0, 60, "some of these are delivered")
        os.kill(slots(os.getpid(), zk_port(world))[0], signal.SIGKILL)
        produce(world, tmp_path / "log", "t", 1000)
        eventually(lambda: sink.has_exactly("t", 4, 2000), 90, "each record is delivered once")
        stream.stop()


@pytest.mark.parametrize("find", [slots, lambda root, port: executors(root)], ids=["python worker", "executor"])
def test_a_killed_process_costs_no_record_and_brings_none_twice(
    spark: SparkSession, world: World, tmp_path: Path, find: Callable[[int, int], list[int]]
) -> None:
    with running(spark, world, tmp_path) as (_, sink):
        world.stable("g", 2, timeout_s=90)
        for number in range(2):
            produce(world, tmp_path / "log", "t", 1000)
            eventually(lambda: sink.count > 4000 * number, 60, "some of these are delivered")  # noqa: B023
            os.kill(find(os.getpid(), zk_port(world))[0], signal.SIGKILL)
        produce(world, tmp_path / "log", "t", 1000)
        eventually(lambda: sink.has_exactly("t", 4, 3000), 90, "each record is delivered once")


@pytest.mark.full("pools and queries in each situation")
def test_segments_may_be_on_an_object_store(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    sink = Delivered()
    with object_store() as uri, pool(spark, world, "g", tmp_path, {"t": 1}, segments_dir=uri):
        produce(world, tmp_path / "log", "t", 500)
        stream = query(read(spark, world, "g"), sink, tmp_path / "checkpoint")
        eventually(lambda: sink.has_exactly("t", 2, 500), 90, "each record is delivered once")
        stream.stop()
        assert not (tmp_path / "segments").exists()


@pytest.mark.full("pools and queries in each situation")
def test_failed_slot_is_retried_and_its_status_has_a_reason(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.topic("t", 1)
    produce(world, tmp_path / "log", "t", 10)
    world.coordinator()
    fetchers = pool(spark, world, "g", tmp_path, {"t": 1}, slots=1, log_dir="nonsense:/log")
    with fetchers:
        eventually(lambda: fetchers.status()[0].attempts >= 2, 60, "tried again")
        assert "is no log that can be opened" in str(fetchers.status()[0].last_error)


@pytest.mark.full("pools and queries in each situation")
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("log_dir", r"UsageError: log_dir .*/nowhere is no folder on .*: give the log's folder"),
        ("segments_dir", r"UsageError: segments_dir .*/file/segments cannot be written on .*: Not a directory"),
    ],
)
def test_slot_without_folders_fails(spark: SparkSession, world: World, tmp_path: Path, place: str, reason: str) -> None:
    world.topic("t", 1)
    world.coordinator()
    (tmp_path / "file").touch()
    places = {"log_dir": tmp_path / "nowhere", "segments_dir": tmp_path / "file" / "segments"}
    with pool(spark, world, "g", tmp_path, {"t": 1}, slots=1, **{place: str(places[place])}) as fetchers:
        (status,) = eventually(lambda: [each for each in fetchers.status() if each.state == "failing"], 60, "it fails")
        assert re.search(reason, str(status.last_error))
        assert status.reason == status.last_error


@pytest.mark.full("pools and queries in each situation")
def test_slot_with_the_folder_of_another_chroot_says_so(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.topic("t", 1)
    world.coordinator()
    SegmentFolder(str(tmp_path / "shared")).mark("g", b'{"version":1,"chroot":"1f-195"}')
    with pool(spark, world, "g", tmp_path, {"t": 1}, slots=1, segments_dir=str(tmp_path / "shared")) as fetchers:
        (status,) = eventually(lambda: [each for each in fetchers.status() if each.state == "failing"], 60, "it fails")
        assert re.search(
            r"ForeignFolder: folder .*/shared/g belongs to another chroot, whose .* 0x1f", str(status.reason)
        )


@pytest.mark.full("pools and queries in each situation")
def test_status_of_slots_names_what_each_waits_for(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with pool(spark, world, "g", tmp_path, {"t": 1, "typo": 1}) as fetchers:
        eventually(lambda: {s.state for s in fetchers.status()} == {"unassigned"}, 90, "the slots are members")
        assert {s.reason for s in fetchers.status()} == {"no coordinator is elected: start a node (zk-coordinator run)"}

        world.coordinator()
        missing = "topic t: no such topic (yet); topic typo: no such topic (yet)"
        eventually(lambda: {s.reason for s in fetchers.status()} == {missing}, 30, "both topics are missing")
        assert {s.state for s in fetchers.status()} == {"unassigned"}

        world.topic("t", 1)
        eventually(lambda: {s.state for s in fetchers.status()} == {"fetching", "unassigned"}, 30, "one partition")
        assert {s.reason for s in fetchers.status()} == {"topic typo: no such topic (yet)"}

        world.topic("typo", 1)
        eventually(lambda: any(s.state == "fetching" and s.reason is None for s in fetchers.status()), 30, "it is so")
    assert {s.state for s in fetchers.status()} == {"ended"}


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
            eventually(lambda: {s.state for s in newer.status()} == {"fetching"}, 60, "the newer pool runs")


def incarnations(world: World, slots: int) -> list[str]:
    channels = [world.channel("g", f"p-slot-{number}") for number in range(slots)]
    assert all(channel.is_live for channel in channels)
    return [channel.incarnation for channel in channels]


def test_pool_resized_under_load_disturbs_no_slot_that_stays(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with (
        running(spark, world, tmp_path) as (fetchers, sink),
        ContinuousRecords.produced(world, tmp_path / "log") as records,
    ):
        before = world.stable("g", 2, timeout_s=90)
        lives = incarnations(world, 2)

        assert fetchers.resize(4) is True
        grown = world.stable("g", 4, timeout_s=60, above=before.generation)
        assert [status.consumer for status in fetchers.status()] == [f"p-slot-{number}" for number in range(4)]
        assert incarnations(world, 4)[:2] == lives
        flows_on(sink)

        assert fetchers.resize(1) is True
        shrunk = world.stable("g", 1, timeout_s=60, above=grown.generation)
        assert incarnations(world, 1) == lives[:1]
        assert [(status.slot, status.state, status.attempts) for status in fetchers.status()] == [(0, "fetching", 1)]
        assert all(not world.channel("g", f"p-slot-{number}").is_live for number in range(1, 4))
        flows_on(sink)

        assert fetchers.resize(1) is True  # nothing to do, and nothing done
        assert fetchers.resize(2) is True
        world.stable("g", 2, timeout_s=60, above=shrunk.generation)
        assert incarnations(world, 2)[0] == lives[0]
        flows_on(sink)
        records.stop()
        eventually(lambda: sink.has_exactly("t", 4, records.count), 90, "each record is delivered once")


def flows_on(sink: Delivered) -> None:
    so_far = sink.count
    eventually(lambda: sink.count > so_far, 30, "records flow on")


@pytest.mark.full("pools and queries in each situation")
def test_slot_between_two_attempts_leaves_too_and_restarts(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.topic("t", 1)
    world.coordinator()
    fetchers = pool(spark, world, "g", tmp_path, {"t": 1}, slots=2, log_dir="nonsense:/log")
    with fetchers:
        eventually(lambda: fetchers.status()[1].attempts >= 2, 60, "it was started again")
        eventually(lambda: fetchers.status()[1].state == "failing", 30, "it waits")
        assert fetchers.resize(1, timeout_s=10) is True
        assert [status.slot for status in fetchers.status()] == [0]
        assert fetchers.resize(2) is True
        eventually(lambda: fetchers.status()[1].attempts >= 1, 30, "a second attempt")


@pytest.mark.full("pools and queries in each situation")
def test_resizes_at_once_are_carried_out_one_after_another(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with running(spark, world, tmp_path) as (fetchers, sink):
        produce(world, tmp_path / "log", "t", 500)
        world.stable("g", 2, timeout_s=90)
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(fetchers.resize, (4, 1, 3, 2, 4, 3)))
        wanted = fetchers.config.slots
        assert [status.slot for status in fetchers.status()] == list(range(wanted))
        world.stable("g", wanted, timeout_s=60)
        eventually(lambda: sink.has_exactly("t", 4, 500), 60, "each record is delivered once")


@pytest.mark.full("pools and queries in each situation")
def test_a_pool_that_a_query_resizes_outlives_that_query(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    with pool(spark, world, "g", tmp_path, {"t": 1}, slots=1) as fetchers:
        resized = threading.Event()

        def resize(frame: DataFrame, batch: int) -> None:
            fetchers.resize(2)
            resized.set()

        produce(world, tmp_path / "log", "t", 10)
        writer = read(spark, world, "g").writeStream.foreachBatch(resize)
        stream = writer.option("checkpointLocation", str(tmp_path / "c")).start()
        assert resized.wait(90)
        generation = world.stable("g", 2, timeout_s=60).generation
        stream.stop()
        sink = Delivered()
        other = query(read(spark, world, "g"), sink, tmp_path / "checkpoint")
        produce(world, tmp_path / "log", "t", 10)
        eventually(lambda: sink.has_exactly("t", 2, 20), 60, "the slots fetch on")
        other.stop()
        assert [(status.state, status.attempts) for status in fetchers.status()] == [("fetching", 1)] * 2
        assert world.state("g").generation == generation


def test_an_impossible_size_is_refused_and_changes_nothing(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.topic("t", 1)
    fetchers = pool(spark, world, "g", tmp_path, {"t": 1}, slots=1)
    with pytest.raises(UsageError, match="start it first"):
        fetchers.resize(2)
    with fetchers:
        for wrong, why in (
            (0, "slots must be from 1 to 1000"),
            (1001, "slots must be from 1 to 1000"),
            ("2", "'2' is no number of slots"),
            (True, "True is no number of slots"),
            (10, "may leave no room"),
        ):
            with pytest.raises(UsageError, match=why):
                fetchers.resize(wrong)  # type: ignore[arg-type]
        assert [status.slot for status in fetchers.status()] == [0]
    with pytest.raises(UsageError, match="the pool has stopped"):
        fetchers.resize(1)


def test_executors_run_the_drivers_own_modules(spark: SparkSession) -> None:
    name = ship(spark.sparkContext)
    assert name == ship(spark.sparkContext)

    def where(_: int) -> tuple[str, str]:
        import zk_group.consumer.streaming.fetchers.slot
        import zk_group.coordinator.zk.store

        return zk_group.consumer.streaming.fetchers.slot.__file__, zk_group.coordinator.zk.store.__file__

    for files in spark.sparkContext.parallelize(range(4), 4).map(where).collect():
        assert all(f"/{name}/" in file for file in files)


def test_a_pool_that_leaves_no_room_for_the_query_is_refused(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"10 slots of 0\.25 cores may leave no room"):
        pool(spark, world, "g", tmp_path, {"t": 1}, slots=10)


def test_an_unknown_option_is_refused(spark: SparkSession, world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no option 'slotz'"):
        pool(spark, world, "g", tmp_path, {"t": 1}, slotz=10)


def two_ports() -> int:
    """The first of two ports in a row that were free a moment ago."""

    def look() -> int:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("0.0.0.0", 0))
            port = int(first.getsockname()[1])
            second.bind(("0.0.0.0", port + 1))
            return port

    return eventually(look, 10, "two ports in a row are free", ignoring=(OSError, OverflowError))


def scraped(port: int) -> dict[tuple[str, str], float]:
    """(metric, consumer) -> value, over the labels that there are besides."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(s.name, s.labels.get("consumer", "")): s.value for family in families for s in family.samples}


@pytest.mark.full("pools and queries in each situation")
def test_each_slot_exports_its_records_and_frees_its_port(spark: SparkSession, world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    port = two_ports()

    with pool(spark, world, "g", tmp_path, {"t": 1}, metrics_port=port) as fetchers:
        world.stable("g", 2, timeout_s=90)
        produce(world, tmp_path / "log", "t", 500)

        def sealed() -> list[float]:
            return [scraped(port + n)["zk_group_consumer_sealed_records_total", f"p-slot-{n}"] for n in range(2)]

        eventually(lambda: sealed() == [1000, 1000], 60, "all is sealed", ignoring=(OSError, KeyError))
        one = scraped(port)
        assert one["zk_group_consumer_assigned_partitions", "p-slot-0"] == 2
        assert one["zk_group_consumer_seal_duration_seconds_count", "p-slot-0"] >= 1
        assert one["zk_group_consumer_sealed_bytes_total", "p-slot-0"] > 0
        assert one["process_resident_memory_bytes", ""] > 0
        assert fetchers.stop(30) is True
        for number in range(2):
            with pytest.raises(OSError):
                scraped(port + number)
