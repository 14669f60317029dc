"""A slot in a real executor serves what it counts, on the pool's port plus its number."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from tests.support.spark import pool, produce
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = [pytest.mark.full("pools and queries in each situation"), pytest.mark.timeout(400)]


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
