"""Every part on an ensemble of three servers that has TLS on its client ports and lets only SASL users in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.kafka import Kafka
from tests.support.processes import REPOSITORY, consumer_process, node_process
from tests.support.secured import flags, identities_of_session, printed_secrets, zk_config
from tests.support.spark import SESSION_MS, Delivered, query
from tests.support.wait import eventually
from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.errors import AuthenticationFailed
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, environment_of, spark_options
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.drills.environments.base import ENFORCED_SASL

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(400)]
RECORDS = 200


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    config = EnsembleConfig(servers=3, durable=False, tls=True, auth=True, extra=ENFORCED_SASL)
    with Ensemble(tmp_path_factory.mktemp("secured"), config) as ensemble:
        yield ensemble


def command(module: str, *words: str, access: ZooKeeperAccess | None = None, text: str = "") -> str:
    """What a command prints; its credentials are those of the environment, or of the words."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ZK_GROUP_")}
    environment |= environment_of(access) if access is not None else {}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        input=text, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_every_part_works_with_credentials_and_tls(spark: SparkSession, secured: Ensemble, tmp_path: Path) -> None:
    zk, log_dir = f"{secured.hosts}/prod", tmp_path / "log"
    as_coordinator, as_operator = secured.identities.access("coordinator"), secured.identities.access("operator")
    as_team_a, as_team_b = secured.identities.access("team-a"), secured.identities.access("team-b")
    debug = ["--log-level", "debug"]
    with (
        node_process(tmp_path, zk, "a", SESSION_MS, *flags(as_coordinator), *debug) as node,
        consumer_process(tmp_path, zk, "ga", "c1", log_dir, *flags(as_team_a), *debug) as consumer,
    ):
        eventually(lambda: "elected: node=a" in node.said(), 60, "a node is elected")
        config = str(zk_config(tmp_path, as_operator))
        command(
            "zk_group.coordinator.cli", "topics", "create", "t", "--partitions", "2", "--zk", zk, "--zk-config", config
        )
        told = command("zk_group.coordinator.cli", "status", "--zk", zk, access=as_operator)
        values = "".join(f'{{"partition": {number % 2}, "value": "{number}"}}\n' for number in range(RECORDS))
        produce = ["produce", "t", "--format", "jsonl", "--zk", zk, "--log-dir", str(log_dir)]
        told += command("zk_group.consumer.cli", *produce, access=as_team_a, text=values)
        eventually(lambda: len(consumer.lines()) == RECORDS, 60, "the consumer has all records")

        places = {"log_dir": str(log_dir), "segments_dir": str(tmp_path / "segments")}
        options = places | asdict(as_team_b)
        sink = Delivered()
        pool = FetcherPool(
            spark, {"t": 1}, zk=zk, group="gb", pool="p", slots=2, session_timeout_ms=SESSION_MS, **options
        )
        with pool:
            register(spark)
            frame = spark.readStream.format("zk_group").option("zk", zk).option("group", "gb")
            running = query(frame.options(**spark_options(as_team_b)).load(), sink, tmp_path / "checkpoint")
            eventually(lambda: sink.has_exactly("t", 2, RECORDS // 2), 120, "the query has all records, once")
            told += command("zk_group.coordinator.cli", "groups", "describe", "gb", "--zk", zk, access=as_operator)
            running.stop()
        told += node.said() + consumer.said() + repr(pool)
    servers = "".join(path.read_text(errors="replace") for path in secured.directory.rglob("*.log"))
    users = set(re.findall(r"Successfully authenticated client: authenticationID=([\w-]+);", servers))
    assert users == {"coordinator", "operator", "team-a", "team-b"}
    assert printed_secrets(told, secured.directory) == []


def test_nobody_comes_in_without_credentials(spark: SparkSession, secured: Ensemble, tmp_path: Path) -> None:
    without = ZooKeeperAccess(**asdict(secured.identities.access("team-a")) | {"zk_auth_file": ""})

    with pytest.raises(AuthenticationFailed):
        open_kazoo(secured.hosts, 5000, access=without)
    register(spark)
    frame = spark.readStream.format("zk_group").option("zk", secured.hosts).option("group", "g")
    running = query(frame.options(**spark_options(without)).load(), Delivered(), tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="ZooKeeper refuses the credentials of this client"):
        running.awaitTermination(60)


def test_topics_are_synced_with_credentials(secured: Ensemble, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.name()
    kafka.topic(topic, 3)
    config = str(zk_config(tmp_path, secured.identities.access("operator")))

    words = ["--zk", f"{secured.hosts}/synced", "--bootstrap-servers", kafka.servers, "--zk-config", config]
    said = command("zk_group.coordinator.cli", "topics", "sync", *words)

    assert topic in said
    store = open_kazoo(f"{secured.hosts}/synced", 5000, access=secured.identities.access("reader"))
    try:
        assert store.get(f"/brokers/topics/{topic}") is not None
        assert "sasl:reader" in identities_of_session(store)
    finally:
        store.close()
