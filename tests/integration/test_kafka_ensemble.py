"""`scripts/ensemble kafka`, a Kafka without ZooKeeper, whose topics are synced, and a broker that has just started."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cli import run, run_json
from tests.support.kafka import Kafka, a_kafka, refused
from tests.support.processes import REPOSITORY, ProjectProcess
from tests.support.wait import eventually, within
from tests.support.world import World
from zk_group.consumer.logs import KafkaPlace, open_log
from zk_group.consumer.logs.kafka.client import KafkaClient
from zk_group.consumer.logs.kafka.options import kafka_options
from zk_group.consumer.logs.kafka.topics import TopicLookup
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.embedded.kafka import fetch_kafka
from zk_group.coordinator.zk.errors import MissingProgram, UsageError

pytestmark = pytest.mark.full("each way to run a broker")


def ensemble(*arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
    """`scripts/ensemble`, in a process of its own."""
    command = [sys.executable, "-c", "from zk_group.coordinator.cli.ensemble import main; main()", *arguments]
    streams = {"input": lines, "capture_output": True, "text": True}
    return subprocess.run(command, cwd=REPOSITORY, timeout=120, check=False, **streams)  # type: ignore[call-overload,no-any-return]


def test_broker_is_started_on_the_ensemble_reported_and_stopped(kafka: Kafka, zookeeper: Ensemble) -> None:
    """`kafka` is asked for so that its jars are there, or the test is skipped with the reason."""
    directory = ["--dir", str(zookeeper.directory)]
    try:
        started = ensemble("kafka", "start", *directory)
        assert started.returncode == 0, started.stderr
        assert f"--zk {zookeeper.hosts} --log-dir kafka:" in started.stderr
        status = ensemble("kafka", "status", "-o", "json", *directory)
        assert (status.returncode, json.loads(status.stdout)["address"]) == (0, started.stdout.strip())
        with closing(open_log("kafka:", KafkaPlace(zk=zookeeper.hosts))) as log:
            assert "no such topic" in str(refused(log, "nothing", "x"))
    finally:
        stopped = ensemble("kafka", "stop", *directory)
    assert stopped.returncode == 0
    down = ensemble("kafka", "status", *directory)
    assert down.returncode == 5
    assert "down" in down.stdout


def test_a_trial_of_kafka_needs_no_tools_of_kafka(kafka: Kafka, zookeeper: Ensemble) -> None:
    directory = ["--dir", str(zookeeper.directory)]
    try:
        missing = ensemble("kafka", "topic", "flights", *directory)
        assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
        assert f"scripts/ensemble kafka start --dir {zookeeper.directory}" in missing.stderr
        assert "scripts/ensemble kafka topic NAME" in ensemble("kafka", "start", *directory).stderr

        refused = run(zookeeper.hosts, "topics", "create", "flights", "--partitions", "2")
        assert refused.exit_code == 2 and "scripts/ensemble kafka topic NAME --partitions 4" in refused.output
        early = ensemble("kafka", "produce", "flights", *directory, lines="1\n")
        assert early.returncode == 2 and "kafka topic flights --partitions 4" in early.stderr

        said = [ensemble("kafka", "topic", "flights", "--partitions", n, *directory).stdout for n in ("2", "2", "3")]
        assert said == [
            "topic flights created: 2 partitions\n",
            "topic flights unchanged: 2 partitions\n",
            "topic flights altered: 3 partitions\n",
        ]
        fewer = ensemble("kafka", "topic", "flights", "--partitions", "1", *directory)
        assert fewer.returncode == 2 and "cannot become fewer" in fewer.stderr
        listed = run_json(zookeeper.hosts, "topics", "list")
        assert {topic["topic"]: topic["partitions"] for topic in listed}["flights"] == 3

        numbers = "".join(f"{number}\n" for number in range(3000))
        produced = ensemble("kafka", "produce", "flights", *directory, lines=numbers)
        assert (produced.returncode, produced.stderr) == (0, "3000 records written to flights\n")
        keyed = ensemble("kafka", "produce", "flights", "--key-separator", ":", *directory, lines="k:3000\nbad\n")
        assert keyed.returncode == 2 and "'bad' has no ':'" in keyed.stderr
        consumed = ensemble("kafka", "consume", "flights", "--timeout-ms", "3000", *directory)
        assert sorted(map(int, consumed.stdout.split())) == list(range(3001)), "those before a bad line, too"
        some = ensemble("kafka", "consume", "flights", "--max-records", "5", *directory)
        assert (some.returncode, len(some.stdout.split())) == (0, 5)

        deleted = ensemble("kafka", "topic", "flights", "--delete", *directory)
        assert (deleted.returncode, deleted.stdout) == (0, "topic flights deleted\n")
        again = ensemble("kafka", "topic", "flights", "--delete", *directory)
        assert again.returncode == 2 and again.stderr.startswith("ensemble: refused: ")
    finally:
        ensemble("kafka", "stop", *directory)


def test_a_broker_needs_an_ensemble_that_runs(tmp_path: Path) -> None:
    Ensemble(tmp_path)

    done = ensemble("kafka", "start", "--dir", str(tmp_path))

    assert done.returncode == 4
    assert "scripts/ensemble start" in done.stderr


def test_unreachable_jars_are_reported_and_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ZK_GROUP_IVY_SETTINGS", str(tmp_path / "none.xml"))

    with pytest.raises(MissingProgram, match="Maven repository") as raised:
        fetch_kafka()

    assert raised.value.exit_code == 69
    assert [path.name for path in (tmp_path / "zk-group-coordinator").iterdir()] == ["kafka.lock"]


def test_options_that_librdkafka_does_not_know_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no\.such\.option"):
        open_log("kafka://127.0.0.1:1", KafkaPlace(options={"no.such.option": "1"}))


# ---- without ZooKeeper


@pytest.fixture(scope="module")
def kraft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker in KRaft mode."""
    with a_kafka(tmp_path_factory.mktemp("kraft")) as kafka:
        yield kafka


def synced(world: World, kraft: Kafka) -> list[tuple[str, str]]:
    rows = run_json(world.zk, "topics", "sync", "--bootstrap-servers", kraft.servers)
    return [(row["topic"], row["change"]) for row in rows]


@pytest.mark.real_zookeeper("the commands are processes")
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
    result = run(kafka.zk, "topics", "sync", "--bootstrap-servers", kraft.servers)

    assert result.exit_code == 2
    assert "keep their topics in ZooKeeper themselves" in result.stderr


@pytest.mark.real_zookeeper("the commands are processes")
def test_continuous_sync_follows_the_brokers_until_it_is_stopped(kraft: Kafka, world: World, tmp_path: Path) -> None:
    arguments = ["topics", "sync", "--zk", world.zk, "--bootstrap-servers", kraft.servers, "--every", "0.2"]
    with ProjectProcess(tmp_path, "sync", "zk_group.coordinator.cli", *arguments) as sync:
        kraft.topic("payments", 2)
        path = world.brokers.topic("payments")
        eventually(lambda: world.data(path) is not None, 30, "the topic is synced")
        kraft.delete("payments")
        eventually(lambda: world.data(path) is None, 30, "it is gone")
        sync.signal(signal.SIGTERM)
        assert sync.ends() == 0
        assert sync.said().count("topic synced: topic=payments") == 2


# ---- a broker that knows no broker yet, nor itself: played by a socket


YOUNG_S = 1.5
"""librdkafka itself asks again once, a second after its start, and then after ten."""

SOON_S = 5.0
METADATA, API_VERSIONS = 3, 18
NO_TOPICS = struct.pack(">ii", 0, -(1 << 31))
NEITHER = struct.pack(">iihi", 0, 0, -1, -1) + NO_TOPICS
"""Metadata, version 8: no brokers, no controller."""

UNSUPPORTED = struct.pack(">hi", 35, 0)
KNOWN = struct.pack(">hihhhhhh", 0, 2, METADATA, 8, 8, API_VERSIONS, 0, 0)


def itself(port: int) -> bytes:
    """Metadata, version 8: the broker, which is the controller."""
    host = b"127.0.0.1"
    broker = struct.pack(">ih", 0, len(host)) + host + struct.pack(">ih", port, -1)
    return struct.pack(">ii", 0, 1) + broker + struct.pack(">hi", -1, 0) + NO_TOPICS


class YoungBroker:
    """It knows no broker until `grow`.

    :ivar asked: the requests for metadata.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._port = server.getsockname()[1]
        self._metadata = NEITHER
        self.asked: list[bytes] = []
        self.address = f"127.0.0.1:{self._port}"

    def grow(self) -> None:
        """From now on it knows itself."""
        self._metadata = itself(self._port)

    def serve(self) -> None:
        """Accept connections until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while len(size := requests.read(4)) == 4:
                request = requests.read(struct.unpack(">i", size)[0])
                api, version = struct.unpack(">hh", request[:4])
                if api == METADATA:
                    self.asked.append(request)
                answered = self._metadata if api == METADATA else UNSUPPORTED if version else KNOWN
                body = request[4:8] + answered  # its correlation id first
                connection.sendall(struct.pack(">i", len(body)) + body)


@contextmanager
def young_broker() -> Iterator[YoungBroker]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = YoungBroker(server)
        threading.Thread(target=broker.serve, daemon=True).start()
        yield broker
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.integration
def test_a_topic_is_confirmed_soon_by_a_broker_that_knew_none_before() -> None:
    with young_broker() as broker:
        client = KafkaClient(broker.address, kafka_options({}, {}))
        topics, began = TopicLookup(client), time.monotonic()
        topics.of("its-topic", "an id")

        def has_asked_about_the_topic() -> bool:
            topics.ask({}, 0, time.monotonic())
            topics.collect(time.monotonic())
            if time.monotonic() > began + YOUNG_S:
                broker.grow()
            return any(b"its-topic" in request for request in broker.asked)

        try:
            what = "the request that waits for the controller is sent to it"
            within(has_asked_about_the_topic, SOON_S, what, ignoring=(RuntimeError,))  # of the empty answer
        finally:
            client.close()
