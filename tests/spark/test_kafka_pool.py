"""Slots of a real pool fetch from a real broker: a DataFrame holds exactly the records of a Kafka client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.support.kafka import USERS, Kafka
from tests.support.spark import Delivered, pool, query, read
from tests.support.wait import eventually
from tests.support.world import World, a_world
from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(400)]

PARTITIONS = 4
((_USER, _PASSWORD),) = USERS.items()
WITH_PASSWORD = {
    "kafka.security.protocol": "sasl_plaintext",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": _USER,
    "kafka.sasl.password": _PASSWORD,
}
Row = tuple[int, int, bytes | None, bytes | None]


@pytest.fixture
def world(kafka: Kafka) -> Iterator[World]:
    """A coordinator in the chroot in which the broker registers."""
    with a_world(kafka.zk) as world:
        yield world


def in_kafka(kafka: Kafka, topic: str) -> list[Row]:
    """Every record, as a consumer reads it that has nothing of this project."""
    read = kafka.read_all(topic, PARTITIONS)
    return sorted((number, *record) for number, records in read.items() for record in records)


def in_dataframe(spark: SparkSession, world: World, group: str) -> list[Row]:
    """Every record that the group has sealed, with what `read` has made of it."""
    register(spark)
    frame = spark.read.format("zk_group").option("zk", world.zk).option("group", group).load()
    rows = frame.select("partition", "offset", "key", "value").collect()
    return sorted((row.partition, row.offset, _bytes(row.key), _bytes(row.value)) for row in rows)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def write(kafka: Kafka, topic: str, count: int) -> None:
    """`count` records to each partition, with keys that are no text, and one record with neither key nor value."""
    for number in range(PARTITIONS):
        values = [f"{number}-{each}".encode() for each in range(count - 1)]
        kafka.write(topic, values, partition=number, key=b"\xff\x00")
        kafka.write(topic, [None], partition=number)


def stream_offsets(sink: Delivered, topic: str) -> list[tuple[int, int]]:
    """The offsets that the stream has delivered, duplicates included."""
    return sorted((number, offset) for (name, number), offsets in sink.offsets.items() for offset in offsets)


def has_come(kafka: Kafka, sink: Delivered, topic: str, count: int) -> None:
    eventually(lambda: sink.count >= count, 90, f"{count} records are delivered")
    assert stream_offsets(sink, topic) == [(number, offset) for number, offset, _, _ in in_kafka(kafka, topic)]


def progress(stream: StreamingQuery) -> Any:
    """The log's ends and the lag, from the last progress."""
    last = stream.lastProgress
    latest = json.loads(last["sources"][0]["latestOffset"] or "{}") if last else {}
    return latest.get("log_end"), latest.get("lag")


def ends(kafka: Kafka, topic: str) -> tuple[dict[str, dict[str, int]], int]:
    """Where Kafka ends by an independent read, when the group has everything."""
    found = kafka.read_all(topic, PARTITIONS)
    return {topic: {str(number): records[-1].offset + 1 for number, records in found.items()}}, 0


def test_kafkas_records_after_a_broker_restart(spark: SparkSession, kafka: Kafka, world: World, tmp_path: Path) -> None:
    topic, group = kafka.name("pool"), kafka.name("group")
    kafka.topic(topic, PARTITIONS)
    write(kafka, topic, 250)
    world.elected(world.coordinator())
    sink = Delivered()
    fetchers: FetcherPool = pool(spark, world, group, tmp_path, {topic: 1}, log_dir="kafka:", kafka=WITH_PASSWORD)
    with fetchers:
        stream = query(read(spark, world, group, logDir="kafka:", **WITH_PASSWORD), sink, tmp_path / "checkpoint")
        try:
            has_come(kafka, sink, topic, 1000)
            write(kafka, topic, 50)
            kafka.broker.stop()
            kafka.broker.start()
            kafka.broker.wait_ready()
            kafka.wait_ready()
            write(kafka, topic, 100)
            has_come(kafka, sink, topic, 1600)
            eventually(lambda: progress(stream) == ends(kafka, topic), 30, "the progress has Kafka's log end")
            assert in_dataframe(spark, world, group) == in_kafka(kafka, topic)
            assert [(status.state, status.attempts) for status in fetchers.status()] == [("fetching", 1)] * 2
        finally:
            stream.stop()
