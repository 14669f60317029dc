"""A Kafka without ZooKeeper: its topics are synced, and everything else works the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.logs import open_log
from tests.support import cli
from tests.support.kafka import Kafka, a_kafka
from tests.support.processes import ProjectProcess
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = [pytest.mark.full("each way to run a broker"), pytest.mark.real_zookeeper("the commands are processes")]


@pytest.fixture(scope="module")
def kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker in KRaft mode."""
    with a_kafka(tmp_path_factory.mktemp("kraft")) as kafka:
        yield kafka


def synced(world: World, kraft: Kafka) -> list[tuple[str, str]]:
    rows = cli.run_json(world.zk, "topics", "sync", "--bootstrap-servers", kraft.servers)
    return [(row["topic"], row["change"]) for row in rows]


def test_group_follows_synced_topics_when_created_extended_deleted_and_recreated(kraft: Kafka, world: World) -> None:
    kraft.topic("orders", 2)
    world.topic("embedded", 1)
    assert synced(world, kraft) == [("orders", "created")]
    assert synced(world, kraft) == []
    world.elected(world.coordinator("a"))
    consumer = world.consumer("g", "c1", {"orders": 1}, log=open_log(kraft.url))
    kraft.write("orders", [b"a"] * 3, partition=1)
    eventually(lambda: len(consumer.records) == 3, 30, "what was written is consumed")

    kraft.more_partitions("orders", 3)
    assert synced(world, kraft) == [("orders", "grown")]
    kraft.write("orders", [b"b"] * 2, partition=2)
    eventually(lambda: len(consumer.records) == 5, 30, "the new partition is consumed")

    kraft.delete("orders")
    new = kraft.topic("orders", 1)
    assert synced(world, kraft) == [("orders", "recreated")]
    kraft.write("orders", [b"c"] * 4)
    eventually(lambda: len(consumer.records) == 9, 30, "the new topic is consumed from its first record")
    assert world.channel("g", "c1").topics == {"orders": new}

    kraft.delete("orders")
    eventually(lambda: synced(world, kraft) == [("orders", "removed")], 20, "it is removed")
    assert world.names(world.brokers.topics) == ["embedded"]


def test_brokers_that_keep_their_topics_in_zookeeper_are_not_synced_over(kafka: Kafka, kraft: Kafka) -> None:
    result = cli.run(kafka.zk, "topics", "sync", "--bootstrap-servers", kraft.servers)

    assert result.exit_code == 2
    assert "keep their topics in ZooKeeper themselves" in result.stderr


def test_continuous_sync_follows_the_brokers_until_it_is_stopped(kraft: Kafka, world: World, tmp_path: Path) -> None:
    arguments = ["topics", "sync", "--zk", world.zk, "--bootstrap-servers", kraft.servers, "--every", "0.2"]
    with ProjectProcess(tmp_path, "sync", "coordinator.cli", *arguments) as sync:
        kraft.topic("payments", 2)
        path = world.brokers.topic("payments")
        eventually(lambda: world.data(path) is not None, 30, "the topic is synced")
        kraft.delete("payments")
        eventually(lambda: world.data(path) is None, 30, "it is gone")
        sync.signal(signal.SIGTERM)
        assert sync.ends() == 0
        assert sync.said().count("topic synced: topic=payments") == 2
