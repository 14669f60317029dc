"""`/metrics` and JSON logs of nodes and consumers as processes on a real ZooKeeper."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.memlog import MemoryLog
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.metrics import ConsumerMetrics
from zk_group.coordinator.zk.znodes.paths import GroupPaths

pytestmark = pytest.mark.real_zookeeper("processes")

SESSION_MS = 2000
LOG_JSON = ("--log-format", "json")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Scraped:
    """One process' `/metrics`."""

    def __init__(self, port: int) -> None:
        self._port = port

    def samples(self) -> list[Sample]:
        with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def health(self) -> int:
        """The status of `/healthz`."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=5) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def value(self, name: str, **labels: str) -> float:
        """The sum over the series with these labels, 0 when there is none."""
        wanted = f"zk_group_{name}"
        return sum(s.value for s in self.samples() if s.name == wanted and labels.items() <= s.labels.items())

    def shows(self, value: float, name: str, timeout_s: float = 30.0, **labels: str) -> None:
        """Wait until it does."""

        def look() -> bool:
            seen = self.value(name, **labels)
            assert seen == value, [sample for sample in self.samples() if sample.name == f"zk_group_{name}"]
            return True

        eventually(look, timeout_s, f"{name}{labels} is {value}", ignoring=(OSError,), pause_s=0.1)


class Metered:
    """Nodes, and consumers of group `g`, as processes that serve metrics."""

    def __init__(self, world: World, processes: ExitStack, folder: Path) -> None:
        self._world, self._processes, self._folder = world, processes, folder
        self.log = folder / "log"

    def node(self, name: str, *options: str) -> tuple[ProjectProcess, Scraped]:
        port = free_port()
        arguments = ("--metrics-port", str(port), "--metrics-host", "127.0.0.1", *options)
        made = node_process(self._folder, self._world.zk, name, SESSION_MS, *arguments)
        return self._processes.enter_context(made), Scraped(port)

    def consumer(self, name: str, *options: str) -> tuple[ProjectProcess, Scraped]:
        port = free_port()
        arguments = ("--metrics-port", str(port), "--session-timeout-ms", str(SESSION_MS), *options)
        made = consumer_process(self._folder, self._world.zk, "g", name, self.log, *arguments)
        return self._processes.enter_context(made), Scraped(port)

    def write(self, records: int, partitions: int = 4) -> None:
        with Producer.for_store(self._world.store, self.log, self._world.brokers) as producer:
            for partition in range(partitions):
                producer.send_batch("t", partition, [b"x"] * records)


@pytest.fixture
def metered(world: World, processes: ExitStack, tmp_path: Path) -> Metered:
    return Metered(world, processes, tmp_path)


def test_elected_node_standby_and_member_are_healthy(world: World, metered: Metered) -> None:
    world.topic("t", 1)
    metered.write(1, partitions=1)
    _, elected = metered.node("a")
    elected.shows(1, "active_coordinator")
    _, standby = metered.node("b")
    _, member = metered.consumer("c1")

    for scraped in (elected, standby, member):
        eventually(lambda s=scraped: s.health() == 200, 30, "it is healthy", ignoring=(OSError,))  # type: ignore[misc]


@pytest.mark.full("processes, beside the same in virtual time")
def test_a_scrape_follows_joins_a_kill_and_more_partitions(world: World, metered: Metered) -> None:
    world.topic("t", 4)
    metered.write(50)
    _, at_node = metered.node("a")
    at_node.shows(1, "active_coordinator")
    assert at_node.value("coordinator_epoch") == 1
    eventually(lambda: 0 < at_node.value("coordinator_lease_left_seconds") <= SESSION_MS / 1000, 10, "a lease runs")
    _, at_c1 = metered.consumer("c1")
    at_c1.shows(4, "consumer_assigned_partitions", group="g", consumer="c1")
    at_node.shows(1, "groups", state="Stable")

    dies, at_c2 = metered.consumer("c2")
    generation = world.stable("g", 2).generation
    at_node.shows(2, "rebalances_total", group="g", trigger="joined", result="completed")
    at_c1.shows(2, "consumer_assigned_partitions")
    at_c2.shows(2, "consumer_assigned_partitions")

    assert at_node.value("generation", group="g") == generation
    assert at_node.value("members", group="g") == 2
    assert at_node.value("rebalance_duration_seconds_count", trigger="joined", result="completed") == 2
    assert 0 < at_node.value("rebalance_stop_duration_seconds_sum", trigger="joined") < 10
    sent = [at_node.value("commands_sent_total", group="g", option=o) for o in ("stop-fetcher", "start-fetcher")]
    assert sent == [1, 3], "c1 started, stopped and started; c2 started"
    applied = [at_c1.value("consumer_commands_applied_total", option=o) for o in ("stop-fetcher", "start-fetcher")]
    assert applied == [1, 2]
    at_c1.shows(generation, "consumer_generation")
    assert at_c1.value("consumer_rebalances_total") == 2
    eventually(lambda: sum(world.offsets("g").values()) == 200, 10, "all is committed")
    consumed = [scraped.value("consumer_records_consumed_total") for scraped in (at_c1, at_c2)]
    assert sum(consumed) == 200
    at_c1.shows(0, "consumer_records_lag")
    assert at_c1.value("consumer_bytes_consumed_total") >= consumed[0]
    assert at_c1.value("consumer_polls_total") > 0
    assert at_c1.value("consumer_commit_duration_seconds_count") >= 1
    eventually(lambda: 0 < at_c1.value("consumer_lease_left_seconds") <= SESSION_MS / 1000, 10, "a lease runs")
    assert at_c1.value("consumer_last_poll_age_seconds") < 5

    dies.kill()
    world.stable("g", 1, above=generation)
    at_node.shows(1, "rebalances_total", group="g", trigger="left", result="completed")
    assert at_node.value("members", group="g") == 1
    at_c1.shows(4, "consumer_assigned_partitions")
    world.more_partitions("t", 6)
    at_c1.shows(6, "consumer_assigned_partitions")
    at_node.shows(6, "assigned_partitions", group="g")
    at_node.shows(1, "rebalances_total", group="g", trigger="partitions", result="completed")


@pytest.mark.full("processes, beside the same in virtual time")
def test_next_node_alone_has_the_metrics_of_the_elected(world: World, metered: Metered) -> None:
    first, at_first = metered.node("first", *LOG_JSON)
    at_first.shows(1, "active_coordinator")
    world.topic("t", 4)
    world.consumer("g", "c1", {"t": 1}, log=MemoryLog())
    world.stable("g", 1)
    at_first.shows(4, "assigned_partitions", group="g")
    _, at_second = metered.node("second")
    at_second.shows(0, "coordinator_epoch")
    assert at_second.value("members", group="g") == 0

    first.pause()
    at_second.shows(1, "active_coordinator")
    first.resume()

    at_first.shows(0, "active_coordinator")
    assert at_second.value("coordinator_epoch") == 2
    at_second.shows(4, "assigned_partitions", group="g")
    assert at_first.value("assigned_partitions", group="g") == 0
    assert at_first.value("groups", state="Stable") == 0
    assert at_second.value("rebalances_total") == 0, "a failover alone is no reason to rebalance"
    said = [json.loads(line) for line in first.said().splitlines()]
    assert [line["epoch"] for line in said if line["event"] == "elected"] == [1]
    (state,) = [line for line in said if line["event"] == "group state changed" and line["state"] == "Stable"]
    assert (state["group"], state["members"], state["partitions"], state["level"]) == ("g", 1, 4, "INFO")
    assert any(line["event"] == "resigned" and line["reason"] for line in said)


@pytest.mark.full("processes, beside the same in virtual time")
def test_eviction_is_counted_until_the_group_is_deleted(world: World, metered: Metered) -> None:
    _, at_node = metered.node("a", "--sweep-interval-ms", "200")
    world.topic("t", 4)
    stuck = world.consumer("g", "stuck", {"t": 1}, log=MemoryLog(), max_poll_interval_ms=60_000)
    world.stable("g", 1)
    paths = GroupPaths("g")
    registration = world.data(paths.id("stuck"))
    assert registration is not None
    # The coordinator loses patience long before the consumer itself would leave.
    world.put(paths.id("stuck"), registration.replace(b'"max_poll_interval_ms":60000', b'"max_poll_interval_ms":500'))

    stuck.hang()
    at_node.shows(1, "evictions_total", group="g")
    stuck.close()
    world.put(paths.id("not a name!"), b"")
    at_node.shows(1, "bad_data_paths")
    world.remove(paths.id("not a name!"))
    at_node.shows(0, "bad_data_paths")
    assert at_node.value("turns_total", group="g", result="taken") > 0

    world.remove(paths.ids.rpartition("/")[0])

    at_node.shows(0, "evictions_total", group="g")
    eventually(lambda: not [s for s in at_node.samples() if s.labels.get("group") == "g"], 10, "nothing is left of g")


def test_consumers_of_one_process_share_a_metrics_server_that_drops_closed_ones(world: World) -> None:
    world.coordinator()
    world.topic("t", 4)
    port, shared = free_port(), ConsumerMetrics()

    def made(name: str, **options: int) -> Consumer:
        config = ConsumerConfig(world.zk, "g", name, session_timeout_ms=2000, **options)
        return Consumer(config, Subscription({"t": 1}), source=MemoryLog(end=10), metrics=shared)

    scraped = Scraped(port)
    with made("c1", metrics_port=port) as one:
        two = made("c2")

        def both_hold() -> bool:
            one.poll(10)
            two.poll(10)
            return all(scraped.value("consumer_assigned_partitions", consumer=name) == 2 for name in ("c1", "c2"))

        eventually(both_hold, 15, "each holds two partitions")
        two.close()
        assert [s for s in scraped.samples() if s.labels.get("consumer") == "c2"] == []
        assert scraped.value("consumer_registrations_total", consumer="c1") == 1
    with pytest.raises(OSError):
        scraped.samples()


@pytest.mark.parametrize("side", ["node", "consumer"])
def test_taken_port_is_one_sentence(world: World, processes: ExitStack, tmp_path: Path, side: str) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        if side == "node":
            process = node_process(tmp_path, world.zk, "a", 1000, "--metrics-port", port)
        else:
            process = consumer_process(tmp_path, world.zk, "g", "c1", tmp_path / "log", "--metrics-port", port)
        processes.enter_context(process)

        assert process.ends() == 1

    assert process.said() == (
        f"error: cannot serve metrics at 127.0.0.1:{port} (Address already in use): "
        "choose a free metrics_port, and an address of this host as metrics_host\n"
    )


@pytest.mark.full("processes, beside the same in virtual time")
def test_json_log_is_json_from_the_first_line_to_the_last(world: World, metered: Metered) -> None:
    world.coordinator()
    world.topic("t", 4)
    process, _ = metered.consumer("c1", *LOG_JSON)
    generation = world.stable("g", 1).generation
    process.signal(signal.SIGTERM)

    assert process.ends() == 0
    said = [json.loads(line) for line in process.said().splitlines()]
    applied = next(line for line in said if line["event"] == "command applied")
    assert (applied["consumer"], applied["option"], applied["generation"]) == ("c1", "start-fetcher", generation)
    assert (applied["partitions"], applied["refused"]) == (4, 0)
    assert said[-1]["event"] == "left"
    assert {"ts", "level", "logger", "event"} <= set(said[0])
