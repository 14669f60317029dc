"""What a query has delivered stays with its checkpoint: no later start skips or repeats a record without an error.

Logs lose records, or are restored from older copies, while pools and queries come and go. What an operator has asked
for, by a reset of the offsets while the queries are stopped, is delivered.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.kafka import USERS, Kafka
from tests.support.query_runs import AVAILABLE_NOW, Offsets, Runs, Stage, span, summary, tells
from tests.support.spark import slots
from tests.support.wait import FAR_OFF_MS, eventually
from tests.support.world import World, a_world
from zk_group.consumer.streaming.fetchers.pool import FetcherPool

pytestmark = [pytest.mark.full("pools and queries in each situation"), pytest.mark.timeout(400)]

((_USER, _PASSWORD),) = USERS.items()
WITH_PASSWORD = {
    "kafka.security.protocol": "sasl_plaintext",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": _USER,
    "kafka.sasl.password": _PASSWORD,
}


def zk_port(world: World) -> int:
    return int(world.zk.partition("/")[0].rpartition(":")[2])


@pytest.fixture
def stage(spark: SparkSession, world: World, tmp_path: Path) -> Stage:
    """Topic `t` with two partitions in the embedded log."""
    world.coordinator()
    world.topic("t", 2)
    return Stage(spark, world, tmp_path)


# ---- Kafka deletes records while the pool is away


class OnKafka:
    """A topic of one partition, which loses records after 500 that the group has sealed."""

    def __init__(self, stage: Stage, kafka: Kafka) -> None:
        self.stage = stage
        self.topic = kafka.name("deleted")
        self._kafka = kafka
        self._written = 0
        kafka.topic(self.topic)

    def write(self, records: int) -> None:
        self._written += records
        self._kafka.write(self.topic, [f"{number:06d}".encode() for number in range(records)])

    def pool(self) -> FetcherPool:
        return self.stage.pool(self.topic, log_dir="kafka:", kafka=WITH_PASSWORD)

    def lose_records(self) -> None:
        """500 more are written, and the log begins at 800."""
        self.write(500)
        self._kafka.delete_records(self.topic, 800)

    @property
    def words(self) -> tuple[str, ...]:
        """The partition, where it goes on, and where it should."""
        return f"{self.topic}-0", "800", "500"

    def goes_on(self, runs: Runs) -> None:
        """With failOnDataLoss=false it goes on, after which it does so without that."""
        sealed = 500 + self._written - 800
        runs.run(failOnDataLoss="false")
        assert runs.offsets == {0: span((0, 500), (800, self._written))}
        self.write(10)
        self.stage.sealed(sealed + 10)
        runs.run()
        assert runs.offsets == {0: span((0, 500), (800, self._written))}


@pytest.fixture
def on_kafka(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> Iterator[OnKafka]:
    with a_world(kafka.zk) as world:
        world.elected(world.coordinator())
        yield OnKafka(Stage(spark, world, tmp_path, kafka.name("group")), kafka)


def test_query_that_was_stopped_while_kafka_deleted_records_fails_at_every_start(on_kafka: OnKafka) -> None:
    stage = on_kafka.stage
    stopped = stage.query("stopped")
    on_kafka.write(500)
    with on_kafka.pool():
        stage.sealed(500)
    stopped.run()
    assert stopped.offsets == {0: span((0, 500))}
    on_kafka.lose_records()

    with on_kafka.pool():
        stage.sealed(700)
        stopped.fails_at_every_start(*on_kafka.words)
        on_kafka.goes_on(stopped)


def test_query_that_ran_while_kafka_deleted_records_fails_again_when_restarted(on_kafka: OnKafka) -> None:
    stage = on_kafka.stage
    ran = stage.query("ran")
    on_kafka.write(500)
    with on_kafka.pool():
        stream = ran.start()
        ran.has({0: span((0, 500))}, stream)
    on_kafka.lose_records()

    with on_kafka.pool():
        ran.fails(stream, *on_kafka.words)
        ran.fails_at_every_start(*on_kafka.words)
        stage.sealed(700)
        on_kafka.goes_on(ran)


# ---- an older copy of the log is restored


def test_queries_deliver_nothing_again_after_an_older_copy_of_the_log_was_restored(stage: Stage) -> None:
    copy = stage.folder / "copy"
    stage.write(100)
    shutil.copytree(stage.log, copy)
    stage.write(100)
    stopped, periodic = stage.query("stopped"), stage.query("periodic")
    with stage.pool():
        stage.sealed(200)
        stream = stopped.start()
        stopped.finish({0: span((0, 200))}, stream)
        periodic.run()
    shutil.rmtree(stage.log)
    copy.rename(stage.log)

    with stage.pool():
        stage.sealed(300)
        stopped.fails(stopped.start(), "t-0", "0", "200")
        periodic.fails(periodic.start(AVAILABLE_NOW), "t-0", "0", "200")
        stage.write(50)
        stage.sealed(350)
        for runs in (stopped, periodic):
            runs.fails_at_every_start("t-0", "0", "200")
            runs.run(failOnDataLoss="false")
            assert runs.offsets == {0: span((0, 200), (0, 150))}
            runs.run()
            assert runs.offsets == {0: span((0, 200), (0, 150))}


# ---- a plan that is made twice


def test_query_with_a_union_of_its_own_fails_where_one_without_fails(stage: Stage) -> None:
    plain, union = stage.query("plain"), stage.query("union", lambda frame: frame.union(frame))
    queries = (plain, union)
    with stage.pool():
        streams = (of_plain, of_union) = [runs.start() for runs in queries]
        stage.write(50, partition=0)
        plain.has({0: span((0, 50))}, of_plain)
        union.has({0: span((0, 50), (0, 50))}, of_union)
        stage.write(50, partition=1)
        plain.has({0: span((0, 50)), 1: span((0, 50))}, of_plain)
        union.has({0: span((0, 50), (0, 50)), 1: span((0, 50), (0, 50))}, of_union)
    stage.write(100, partition=0)
    stage.reset("--topic", "t:0", "--to-offset", "80")

    with stage.pool():
        for runs, stream in zip(queries, streams, strict=True):
            runs.fails(stream, "t-0", "80", "50")
        for runs in queries:
            runs.fails_at_every_start("t-0", "80", "50")
        stage.sealed(170)
        for runs in queries:
            runs.run(failOnDataLoss="false")
        stage.write(10)
        stage.sealed(180)
        for runs in queries:
            runs.run()
    assert plain.offsets == {0: span((0, 50), (80, 160)), 1: span((0, 50))}
    twice = {partition: sorted(offsets * 2) for partition, offsets in plain.offsets.items()}
    assert {partition: sorted(offsets) for partition, offsets in union.offsets.items()} == twice


# ---- a later partition


def test_partition_added_without_its_first_file_fails_queries_that_had_begun(stage: Stage) -> None:
    ran, stopped, new = (stage.query(name) for name in ("ran", "stopped", "new"))
    with stage.pool():
        stage.write(50)
        stream = ran.start()
        ran.has({0: span((0, 50))}, stream)
        stopped.run()
    stage.lose_the_first_file_of_partition_2()

    with stage.pool():
        stage.sealed(100)
        ran.fails(stream, "t-2", "50", "0")
        for runs in (ran, stopped):
            runs.fails_at_every_start("t-2", "50", "0")
            runs.run(failOnDataLoss="false")
        new.run()
        stage.write(10, partition=2)
        stage.sealed(110)
        for runs in (ran, stopped, new):
            runs.run()
            assert runs.offsets == {0: span((0, 50)), 2: span((50, 110))}


# ---- a segment's file is another's


def test_file_of_another_segment_fails_queries_and_batch_reads(stage: Stage) -> None:
    with stage.pool():
        for done, partition in enumerate((0, 1, 0), start=1):
            stage.write(100, partition)
            stage.sealed(100 * done)
    segments = stage.segments()
    assert len({(segment.size, segment.rows) for segment in segments.values()}) == 1 and len(segments) == 3
    names = list(segments)
    files = [Path(segment.segments_dir, segment.file) for segment in segments.values()]
    contents = (("t-0", "0", "99"), ("t-1", "0", "99"), ("t-0", "100", "199"))
    runs = stage.query("q")

    for replaced in (1, 2):  # of another partition; other offsets of the same one
        its_own = files[replaced].read_bytes()
        files[replaced].write_bytes(files[0].read_bytes())
        words = (names[replaced], "t-0", "0", *contents[replaced])
        with pytest.raises(PySparkException, match=r"segment segment-.* cannot be read") as of_batch:
            stage.batch_read().select("topic", "partition", "offset").collect()
        with pytest.raises(StreamingQueryException, match=r"segment segment-.* cannot be read") as of_stream:
            runs.run()
        for raised in (of_batch, of_stream):
            tells(re.findall("segment segment-.* cannot be read.*", str(raised.value))[-1], *words)
        assert runs.offsets == {}
        files[replaced].write_bytes(its_own)

    runs.run()
    assert runs.offsets == {0: span((0, 200)), 1: span((0, 100))}
    assert stage.batch_read().count() == 300


# ---- what an operator has asked for


def continues(stage: Stage, runs: Runs, comes_first: str, sealed: int, wanted: Offsets) -> None:
    """A query starts again, beside a pool that starts before or after it; then it has these, and both stop."""
    earlier = runs.registered
    started = runs.start() if comes_first == "query" else None
    if started is not None:
        eventually(lambda: runs.registered not in ("", earlier), 60, "it is registered")
    with stage.pool():
        stage.sealed(sealed)
        runs.finish(wanted, started or runs.start())


@pytest.mark.parametrize("comes_first", ["pool", "query"])
def test_stopped_query_delivers_what_a_reset_back_and_one_forward_ask_for(stage: Stage, comes_first: str) -> None:
    runs = stage.query("q")
    for partition in (0, 1):
        stage.write(50, partition)
    continues(stage, runs, comes_first, 100, {0: span((0, 50)), 1: span((0, 50))})

    stage.reset("--topic", "t", "--to-earliest")
    continues(stage, runs, comes_first, 200, {0: span((0, 50), (0, 50)), 1: span((0, 50), (0, 50))})

    stage.write(50)
    stage.reset("--topic", "t:0", "--to-latest")
    stage.write(20)
    continues(stage, runs, comes_first, 220, {0: span((0, 50), (0, 50), (100, 120)), 1: span((0, 50), (0, 50))})

    stage.reset("--topic", "t:0", "--to-offset", "90")
    stage.write(10, partition=1)
    continues(
        stage,
        runs,
        comes_first,
        260,
        {0: span((0, 50), (0, 50), (100, 120), (90, 120)), 1: span((0, 50), (0, 50), (50, 60))},
    )


def test_query_that_was_away_during_two_resets_delivers_what_they_ask_for(stage: Stage) -> None:
    done, killed, behind = (stage.query(name) for name in ("done", "killed", "behind"))
    queries = (done, killed, behind, stage.query("new"))
    with stage.pool():
        stage.write(50)
        stage.sealed(50)
        behind.run()
        stage.write(50)
        stage.sealed(100)
        done.run()
        killed.run()
        killed.die_before_the_commit()
    stage.reset("--topic", "t:0", "--to-earliest")
    with stage.pool():
        stage.sealed(200)
    stage.write(100)
    stage.reset("--topic", "t:0", "--to-offset", "150")
    with stage.pool():
        stage.sealed(250)
        for runs in queries:
            runs.run()
            assert runs.offsets == {0: span((0, 100), (0, 100), (150, 200))}, summary(runs.offsets)
        stage.write(10)
        stage.sealed(260)
        for runs in queries:
            runs.run()
            assert runs.offsets == {0: span((0, 100), (0, 100), (150, 210))}


def test_what_a_slot_has_found_survives_its_death_before_the_first_seal(stage: Stage) -> None:
    runs = stage.query("q")
    with stage.pool():
        stage.write(50)
        stage.sealed(50)
    runs.run()
    stage.reset("--topic", "t:0", "--to-offset", "20")
    stage.lose_the_first_file_of_partition_2()

    with stage.pool(seal_interval_ms=FAR_OFF_MS):
        stage.world.stable("g", 1, timeout_s=90)
        incarnation = stage.world.channel("g", "p-slot-0").incarnation
        (worker,) = slots(os.getpid(), zk_port(stage.world))
        os.kill(worker, signal.SIGKILL)

        def has_another_life() -> bool:
            channel = stage.world.channel("g", "p-slot-0")
            return channel.incarnation != incarnation and len(channel.running) == 3

        eventually(has_another_life, 90, "the slot's next attempt runs its partitions")
        assert stage.segments().keys() == {"segment-0000000000"}
    with stage.pool():
        stage.sealed(130)  # by the stop of the one before, what it had fetched by then

    assert " t-0 " not in runs.fails_at_every_start("t-2", "50", "0"), "that reset is intended"
    runs.run(failOnDataLoss="false")
    assert runs.offsets == {0: span((0, 50), (20, 50)), 2: span((50, 100))}


def test_query_fails_where_its_group_begins_again_without_offsets(stage: Stage) -> None:
    runs = stage.query("q")
    stage.write(50)
    continues(stage, runs, "pool", 50, {0: span((0, 50))})

    stage.operate("delete-offsets", "--topic", "t")
    with stage.pool():
        stage.sealed(100)
    runs.fails_at_every_start("t-0", "0", "50")
    runs.run(failOnDataLoss="false")
    assert runs.offsets == {0: span((0, 50), (0, 50))}
