"""Metrics of both sides: times of counting, and removal of series."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from socketserver import BaseServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from consumer.config import ConsumerConfig
from consumer.fetching.polling import READ_AGAIN_S, Fetcher, Lag
from consumer.logs.base import LogError, Position
from consumer.metrics import MOST_PARTITIONS, ConsumerMetrics
from consumer.spark.fetchers.config import SlotConfig
from coordinator.listeners.members import MEMBERS_READ
from coordinator.listeners.topics import _what_happened
from coordinator.planning.asking import Asking
from coordinator.planning.plan import End, Plan
from coordinator.planning.rebalance_history import TRIGGERS, changes_between, changes_of, kind_of, trigger_kind
from coordinator.planning.snapshot import AskView, ChannelView, SentCommand, Snapshot
from coordinator.planning.target import Wanted
from coordinator.term.config import CoordinatorConfig
from coordinator.term.metrics import CoordinatorMetrics
from coordinator.term.reading import Findings, Problems
from coordinator.term.request_queue import RequestQueue
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.process.metrics_server import TRY_AGAIN_S, MetricsServer
from coordinator.zk.znodes.group_state import FAILED, STABLE, Ask, ClientSide, GroupState, Rebalance, Target
from coordinator.zk.znodes.partitions import NONE, TopicPartition
from coordinator.zk.znodes.records import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    Topic,
)
from tests.support.memlog import MemoryLog
from tests.unit.manual import ManualRuntime

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LABELS = {"group": "g", "consumer": "c1"}


class Lease:
    """A lease with so much left."""

    left_s = 3.5


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"zk_group_{name}", labels)


def series(registry: CollectorRegistry, **labels: str) -> list[str]:
    """Every series that has these labels."""
    return [
        sample.name
        for family in registry.collect()
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    ]


# ---- triggers of a rebalance


def topic(partitions: int, topic_id: str = "id") -> Topic:
    return Topic("has", topic_id, tuple(range(partitions)))


@pytest.mark.parametrize(
    ("trigger", "kind"),
    [
        (changes_between({}, {"c1": (1, 1)}), "joined"),
        (changes_between({"c1": (1, 1), "c2": (2, 2)}, {"c1": (1, 1)}), "left"),
        (changes_between({"c1": (1, 1)}, {"c1": (1, 5)}), "changed"),
        (changes_between({"c1": (1, 1)}, {"c1": (7, 7)}), "joined"),
        (changes_between({"c1": (1, 1)}, {"c1": (1, 1)}), "other"),
        (_what_happened(None, topic(3)), "topic"),
        (_what_happened(topic(3), None), "topic"),
        (_what_happened(topic(3), topic(3, "another")), "topic"),
        (_what_happened(topic(3), topic(4)), "partitions"),
        (changes_of(["c1/1234"], []), "joined"),
        (changes_of([], ["c1/1234"]), "left"),
        ("topics or owners changed", "other"),
        ("coordinator elected; joined c1", "elected"),
        (f"{MEMBERS_READ}; joined c1", "joined"),
        ("sweep", "sweep"),
        ("requested by root@host: look", "requested"),
        ("resumed", "resumed"),
        ("c1: topic t has changed", "topic"),
        ("topic t has the partitions 0-3", "partitions"),
        ("topic t has the id a, not b", "topic"),
        ("", "other"),
        ("topic", "other"),
        ("any text of a znode", "other"),
    ],
)
def test_trigger_of_a_rebalance_is_one_of_a_few_words(trigger: str, kind: str) -> None:
    assert trigger_kind(trigger) == kind
    assert kind in TRIGGERS


def test_empty_trigger_is_derived_from_joined_and_left_members() -> None:
    def kind(trigger: str, joined: tuple[str, ...], left: tuple[str, ...]) -> str:
        return kind_of(Rebalance(3, 7, trigger, 1000, joined, left))

    found = MEMBERS_READ  # the group had been found, and its member registered before the turn
    assert kind(found, ("c1/1234",), ()) == "joined"
    assert kind(found, (), ("c1/1234",)) == "left"
    assert kind(found, (), ()) == "other"
    assert kind("coordinator elected", (), ("c1/1234",)) == "elected"


# ---- a turn that was written


def command(option: str, epoch: int = 7, incarnation: str = "i1") -> Command:
    return Command(option, epoch, 3, incarnation)


def view(consumer: str, incarnation: str = "i1") -> ChannelView:
    return ChannelView(consumer, 0, Channel(incarnation))


def snapshot(rebalance: Rebalance | None = None, now_ms: int = 1000) -> Snapshot:
    channels = {"c1": view("c1"), "c2": view("c2")}
    return Snapshot("g", 7, GroupState(), 0, channels, rebalance=rebalance, now_ms=now_ms)


def test_commands_are_counted_by_option_and_evictions_by_group() -> None:
    metrics = CoordinatorMetrics()
    decided = Plan(
        GroupState(),
        ends=(End(view("c1"), "evicted: …", True, NONE), End(view("c2"), "its session ended", False, NONE)),
        withdrawn=(
            ("c1", SentCommand("command-1", command(STOP_FETCHER))),
            ("c1", SentCommand("command-2", command(START_FETCHER, epoch=6))),
            ("c2", SentCommand("command-3", command(START_FETCHER, incarnation="i0"))),
            ("c2", SentCommand("command-4", None)),
        ),
        stops=(("c1", command(STOP_FETCHER)),),
        starts=(("c1", command(START_FETCHER)), ("c2", command(START_FETCHER))),
    )

    metrics.turn_written(snapshot(), decided)

    def count(name: str, **labels: str) -> float | None:
        return value(metrics.registry, name, group="g", **labels)

    assert count("evictions_total") == 1
    assert [count("commands_sent_total", option=option) for option in (STOP_FETCHER, START_FETCHER)] == [1, 2]
    withdrawn = [count("commands_withdrawn_total", option=o) for o in (STOP_FETCHER, START_FETCHER, "unreadable")]
    assert withdrawn == [1, 2, 1]
    assert count("commands_stale_total") == 3


def over(metrics: CoordinatorMetrics, trigger: str, result: str) -> tuple[float | None, float | None]:
    """The number of rebalances with this outcome, and their seconds."""
    return (
        value(metrics.registry, "rebalances_total", group="g", trigger=trigger, result=result),
        value(metrics.registry, "rebalance_duration_seconds_sum", trigger=trigger, result=result),
    )


def stops(metrics: CoordinatorMetrics, trigger: str) -> tuple[float | None, float | None]:
    name = "rebalance_stop_duration_seconds"
    return (
        value(metrics.registry, f"{name}_count", trigger=trigger),
        value(metrics.registry, f"{name}_sum", trigger=trigger),
    )


def test_a_rebalance_counts_once_when_it_is_over_with_its_durations() -> None:
    metrics = CoordinatorMetrics()
    begun = Rebalance(3, 7, "joined c2", started_ms=1000)
    stopped = Rebalance(3, 7, "joined c2", 1000, stopped_ms=1250)
    done = Rebalance(3, 7, "joined c2", 1000, stopped_ms=1250, finished_ms=1500)

    metrics.turn_written(snapshot(), Plan(GroupState(), is_new_generation=True, rebalance=begun))
    assert over(metrics, "joined", "completed") == (None, None)
    metrics.turn_written(snapshot(begun), Plan(GroupState(), rebalance=stopped))
    metrics.turn_written(snapshot(stopped), Plan(GroupState(), rebalance=done))
    metrics.turn_written(snapshot(done), Plan(GroupState()))

    assert over(metrics, "joined", "completed") == (1, 0.5)
    assert stops(metrics, "joined") == (1, 0.25)


def test_standstill_is_counted_as_the_history_has_it() -> None:
    metrics = CoordinatorMetrics()
    begun = Rebalance(3, 7, "left c1", 10_000, stopped_ms=10_050, silent_since_ms=1000)
    done = Rebalance(3, 7, "left c1", 10_000, stopped_ms=10_050, finished_ms=10_100, standstill_ms=9_100)

    metrics.turn_written(snapshot(begun), Plan(GroupState(), rebalance=done))
    metrics.turn_written(snapshot(done), Plan(GroupState()))

    name = "rebalance_standstill_seconds"
    assert value(metrics.registry, f"{name}_count", trigger="left") == 1
    assert value(metrics.registry, f"{name}_sum", trigger="left") == 9.1


def test_rebalance_superseded_by_the_next_one_counts_as_replaced() -> None:
    metrics = CoordinatorMetrics()
    first = Rebalance(3, 7, "joined c2", started_ms=1000)
    second = Rebalance(4, 7, "topic t has 5 partitions", started_ms=1400, stopped_ms=1400)

    decided = Plan(GroupState(), is_new_generation=True, rebalance=second)
    metrics.turn_written(snapshot(first, now_ms=1400), decided)

    assert over(metrics, "joined", "replaced") == (1, 0.4)
    assert over(metrics, "partitions", "completed") == (None, None)
    assert stops(metrics, "partitions") == (None, None), "no member had to stop"


def test_rebalance_after_a_finished_one_replaces_none() -> None:
    metrics = CoordinatorMetrics()
    first = Rebalance(3, 7, "joined c2", 1000, stopped_ms=1100, finished_ms=1200)

    decided = Plan(GroupState(), is_new_generation=True, rebalance=Rebalance(4, 7, "left c2", 5000))
    metrics.turn_written(snapshot(first, now_ms=5000), decided)

    assert over(metrics, "joined", "replaced") == (None, None)


def test_clock_skew_gives_no_negative_duration() -> None:
    metrics = CoordinatorMetrics()
    done = Rebalance(3, 7, "sweep", 1000, stopped_ms=900, finished_ms=900)

    metrics.turn_written(snapshot(Rebalance(3, 7, "sweep", 1000)), Plan(GroupState(), rebalance=done))

    assert over(metrics, "sweep", "completed") == (1, 0)
    assert stops(metrics, "sweep") == (1, 0)


# ---- the term and the groups


def elected() -> tuple[CoordinatorMetrics, ManualRuntime, RequestQueue]:
    metrics, runtime = CoordinatorMetrics(), ManualRuntime()
    queue = RequestQueue(runtime)
    metrics.elected(7, queue, Lease())
    return metrics, runtime, queue


def state_of(name: str) -> GroupState:
    target = {"c1": Target("i1", {"c1-0": frozenset([T0]), "c1-1": frozenset([T1])}), "c2": Target("i2", {})}
    return GroupState(name, generation=5, target=target)


def test_elected_node_exports_its_epoch_and_its_remaining_lease() -> None:
    idle = CoordinatorMetrics().registry
    metrics, _, _ = elected()

    names = ("active_coordinator", "coordinator_epoch", "coordinator_lease_left_seconds")
    assert [value(idle, name) for name in names] == [0, 0, 0]
    assert [value(metrics.registry, name) for name in names] == [1, 7, 3.5]
    assert value(metrics.registry, "coordinator_elections_total") == 1


def test_the_queue_shows_its_size_and_how_long_the_oldest_request_has_been_due() -> None:
    metrics, runtime, queue = elected()
    queue.request("g", "joined c1")
    queue.request("h", "again", delay_s=60)
    queue.request("i", "again", delay_s=2)

    runtime.now += 5

    assert value(metrics.registry, "event_queue_size") == 3
    assert value(metrics.registry, "event_queue_age_seconds") == 5
    assert queue.take() is not None
    assert value(metrics.registry, "event_queue_age_seconds") == 3
    assert queue.take() is not None
    assert value(metrics.registry, "event_queue_age_seconds") == 0


def test_turn_exports_the_metrics_of_the_group() -> None:
    metrics, _, _ = elected()

    metrics.turn_taken("g", 0.02, state_of(STABLE))
    metrics.turn_put_off("g")
    metrics.turn_failed("g")

    results = [value(metrics.registry, "turns_total", group="g", result=r) for r in ("taken", "put_off", "failed")]
    assert results == [1, 1, 1]
    shown = [value(metrics.registry, n, group="g") for n in ("members", "assigned_partitions", "generation")]
    assert shown == [2, 2, 5]
    assert value(metrics.registry, "turn_duration_seconds_sum") == 0.02
    assert value(metrics.registry, "groups", state=STABLE) == 1
    assert value(metrics.registry, "groups", state=FAILED) == 0


def test_a_failed_group_is_shown_until_a_turn_succeeds() -> None:
    metrics, _, _ = elected()
    metrics.turn_taken("g", 0.02, state_of(STABLE))

    metrics.rebalance_failed("g", "joined c1", 15.5)
    failed = value(metrics.registry, "rebalance_failed", group="g"), value(metrics.registry, "groups", state=FAILED)
    metrics.turn_taken("g", 0.02, state_of(STABLE))
    mended = value(metrics.registry, "rebalance_failed", group="g"), value(metrics.registry, "groups", state=FAILED)

    assert (failed, mended) == ((1, 1), (0, 0))
    assert over(metrics, "joined", "failed") == (1, 15.5)


def test_removed_group_leaves_no_metrics_behind() -> None:
    metrics, _, _ = elected()
    for group in ("g", "h"):
        metrics.turn_taken(group, 0.02, state_of(STABLE))
        metrics.rebalance_failed(group, "joined c1", 1)
        metrics.collected(group, segments=3, channels=1)
    metrics.turn_written(snapshot(), Plan(GroupState(), stops=(("c1", command(STOP_FETCHER)),)))
    assert len(series(metrics.registry, group="g")) > len(series(metrics.registry, group="h")) > 5

    metrics.group_gone("g")
    metrics.collected("g", segments=1)

    assert series(metrics.registry, group="g") == []
    assert value(metrics.registry, "collected_segments_total", group="h") == 3
    assert value(metrics.registry, "collected_channels_total", group="h") == 1
    assert value(metrics.registry, "groups", state=FAILED) == 1


def test_resigned_node_exports_no_group_metrics_and_restarts_them_when_reelected() -> None:
    metrics, runtime, queue = elected()
    metrics.turn_taken("g", 0.02, state_of(STABLE))
    queue.request("g", "joined c1")

    metrics.resigned()
    metrics.turn_taken("g", 0.02, state_of(STABLE))  # a handler that was in a turn
    metrics.rebalance_failed("h", "joined c1", 1)

    names = ("active_coordinator", "coordinator_epoch", "coordinator_lease_left_seconds", "event_queue_size")
    assert [value(metrics.registry, name) for name in names] == [0, 0, 0, 0]
    assert value(metrics.registry, "members", group="g") is None
    assert value(metrics.registry, "rebalance_failed", group="h") is None
    assert [value(metrics.registry, "groups", state=state) for state in (STABLE, FAILED)] == [0, 0]
    assert value(metrics.registry, "turns_total", group="g", result="taken") == 2
    metrics.elected(9, RequestQueue(runtime), Lease())
    assert series(metrics.registry, group="g") == []
    assert value(metrics.registry, "coordinator_elections_total") == 2


def test_bad_data_is_counted_when_found_and_exported_until_it_is_repaired() -> None:
    metrics = CoordinatorMetrics()
    findings = Findings(Problems(ManualRuntime(), metrics))

    def shown() -> tuple[float | None, float | None]:
        return value(metrics.registry, "bad_data_found_total"), value(metrics.registry, "bad_data_paths")

    for _ in range(2):
        findings.report("/a", "is wrong")
        findings.report("/b", "is wrong")
        findings.done()
    assert shown() == (2, 2)
    findings.report("/b", "is wrong")
    findings.done()
    assert shown() == (2, 1)


# ---- consumers


def test_partitions_of_a_consumer_are_exported_and_a_generation_counts_once() -> None:
    metrics = ConsumerMetrics()
    meter = metrics.of("g", "c1")

    for held in ((0, 0, 0), (4, 1, 3), (4, 1, 3), (2, 0, 4)):
        meter.holds(*held)

    names = ("assigned_partitions", "refused_partitions", "generation", "rebalances_total")
    assert [value(metrics.registry, f"consumer_{name}", **LABELS) for name in names] == [2, 0, 4, 2]
    meter.holds(0, 0, 0)
    assert [value(metrics.registry, f"consumer_{name}", **LABELS) for name in names] == [0, 0, 0, 2]


def test_consumers_share_one_registry_and_a_closed_one_is_no_longer_exported() -> None:
    metrics = ConsumerMetrics()
    one, two = metrics.of("g", "c1"), metrics.of("g", "c2")
    for meter in (one, two):
        meter.fetched(10, 1000)
        meter.sealed(0.1, 10, 500)
        meter.command_applied(STOP_FETCHER)

    one.gone()
    one.fetched(1, 1)

    assert series(metrics.registry, **LABELS) == []
    assert value(metrics.registry, "consumer_records_consumed_total", group="g", consumer="c2") == 10
    again = metrics.of("g", "c1")
    again.fetched(1, 1)
    assert value(metrics.registry, "consumer_records_consumed_total", **LABELS) == 1


class LogWithEnds(MemoryLog):
    """A log whose ends can be set, or refused; it counts its queries."""

    def __init__(self, ends: dict[int, int]) -> None:
        super().__init__(end=100)
        self.ends = ends
        self.asked = 0

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        self.asked += 1
        if partition not in self.ends:
            raise LogError("damaged")
        return self.ends[partition]


def test_lag_is_read_on_demand_and_cached_for_a_while() -> None:
    log, runtime, metrics = LogWithEnds({0: 100, 1: 40, 2: 5}), ManualRuntime(), ConsumerMetrics()
    fetcher = Fetcher(log)
    Lag(log, fetcher, runtime).reported(metrics.of("g", "c1"))
    fetcher.begin({TopicPartition("t", n): Position("id", 10) for n in range(4)})

    def total_and_most() -> tuple[float | None, float | None]:
        lags = (value(metrics.registry, f"consumer_records_lag{which}", **LABELS) for which in ("", "_max"))
        return next(lags), next(lags)

    assert log.asked == 0
    assert total_and_most() == (120, 90), "partition 2 is ahead of its end, 3 is unknown"
    log.ends[0] = 200
    assert (total_and_most(), log.asked) == ((120, 90), 4)
    runtime.now += READ_AGAIN_S
    assert (total_and_most(), log.asked) == ((220, 190), 8)
    fetcher.end([TopicPartition("t", 0)])
    runtime.now += READ_AGAIN_S
    assert total_and_most() == (30, 30)


def test_lag_is_exported_per_held_partition_up_to_a_limit() -> None:
    ends = {number: 10 + number for number in range(MOST_PARTITIONS + 2)}
    log, runtime, metrics = LogWithEnds(ends), ManualRuntime(), ConsumerMetrics()
    fetcher, meter = Fetcher(log), metrics.of("g", "c1")
    Lag(log, fetcher, runtime).reported(meter)

    def lags() -> dict[int, float]:
        family = next(f for f in metrics.registry.collect() if f.name == "zk_group_consumer_partition_records_lag")
        assert all(LABELS.items() <= sample.labels.items() for sample in family.samples)
        return {int(sample.labels["partition"]): sample.value for sample in family.samples}

    assert lags() == {}
    fetcher.begin({TopicPartition("t", number): Position("id", 10) for number in ends})
    runtime.now += READ_AGAIN_S
    assert lags() == {number: number for number in ends if number >= 2}, "those that are furthest behind"
    fetcher.end([TopicPartition("t", number) for number in range(3, len(ends))])
    runtime.now += READ_AGAIN_S
    assert lags() == {0: 0, 1: 1, 2: 2}
    meter.gone()
    assert lags() == {}


# ---- serving


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port that was free a moment ago. A server that is closed there ends at once, not within half a second."""
    monkeypatch.setattr(BaseServer.serve_forever, "__defaults__", (0.01,))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def server(port: int, runtime: ManualRuntime | None = None, host: str = "127.0.0.1") -> MetricsServer:
    return MetricsServer(ConsumerMetrics().registry, host, port, runtime or ManualRuntime())


def test_metrics_are_served_until_the_end_with_those_of_the_process(port: int) -> None:
    served = server(port)
    for _ in range(2):  # a worker process is used again
        with served:
            text = read(port)
            assert "zk_group_build_info{version=" in text
            assert text.count("\nprocess_resident_memory_bytes ") == 1
        with pytest.raises(OSError):
            read(port)


def answer_of(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_health_is_served_and_other_paths_are_not_found(port: int) -> None:
    reason = [""]
    with MetricsServer(ConsumerMetrics().registry, "127.0.0.1", port, ManualRuntime(), lambda: reason[0]):
        assert answer_of(port, "/healthz") == (200, "ok\n")
        reason[0] = "no session with ZooKeeper"
        assert answer_of(port, "/healthz") == (503, "no session with ZooKeeper\n")
        for path in ("/", "/metrics/", "/metric", "/favicon.ico", "/healthz/x", "/../metrics"):
            assert answer_of(port, path)[0] == 404, path
        assert "zk_group_build_info" in answer_of(port, "/metrics?name[]=zk_group_build_info")[1]


def test_metrics_are_served_to_this_host_only_unless_told() -> None:
    defaults = (CoordinatorConfig("z:1").metrics_host, ConsumerConfig("z:1", "g").metrics_host, slots().metrics_host)

    assert defaults == ("127.0.0.1",) * 3


def test_consumers_are_healthy_while_each_holds_its_lease() -> None:
    metrics = ConsumerMetrics()
    assert metrics.unhealthy() == "no membership with a lease: no consumer"
    left = {"c1": 5.0, "c2": 5.0}
    meters = {name: metrics.of("g", name) for name in left}
    for name, meter in meters.items():
        meter.reads_member(lambda name=name: left[name], lambda: 0.0)  # type: ignore[misc]
    assert metrics.unhealthy() == ""

    left["c2"] = 0.0

    assert metrics.unhealthy() == "no membership with a lease: c2"
    meters["c2"].gone()
    assert metrics.unhealthy() == ""


def test_port_0_serves_nothing() -> None:
    with server(0) as nothing:
        nothing.keep()
        assert nothing._server is None


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "203.0.113.1"])
def test_unavailable_metrics_address_is_reported_in_one_sentence(port: int, host: str) -> None:
    with server(port), pytest.raises(CoordinatorError) as caught:
        server(port, host=host).start()

    assert str(caught.value).startswith(f"cannot serve metrics at {host}:{port} (")
    assert "choose a free metrics_port" in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 1


def test_slot_whose_port_is_in_use_continues_and_retries(port: int, caplog: pytest.LogCaptureFixture) -> None:
    runtime = ManualRuntime()
    predecessor, slot = server(port), server(port, runtime)
    predecessor.start()

    for _ in range(3):
        slot.keep()
        runtime.now += TRY_AGAIN_S
    slot.keep()
    predecessor.close()
    slot.keep()
    assert slot._server is None, "it does not try all the time"
    runtime.now += TRY_AGAIN_S
    slot.keep()

    assert "zk_group_build_info" in read(port)
    warned = [
        record.getMessage().partition(":")[0]
        for record in caplog.records
        if record.name.endswith("metrics_server") and record.levelname == "WARNING"
    ]
    assert warned == ["metrics server failed, retrying"]
    slot.close()


def test_disconnecting_reader_causes_no_traceback_on_stderr(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with server(port) as served:
        served._server.handle_error(None, ("127.0.0.1", 1))
        with socket.create_connection(("127.0.0.1", port)) as reader:
            reader.sendall(b"GET /metrics HT")

    assert capfd.readouterr().err == ""


def slots(**options: Any) -> SlotConfig:
    return SlotConfig(zk="z:1", group="g", pool="p", log_dir="/log", segments_dir="/segments", slots=3, **options)


def test_each_slot_has_a_port_of_its_own_unless_none_is_asked_for() -> None:
    assert [slots(metrics_port=9500).consumer_config(number).metrics_port for number in range(3)] == [9500, 9501, 9502]
    assert [slots().consumer_config(number).metrics_port for number in range(3)] == [0, 0, 0]
    assert slots(metrics_port=9500, metrics_host="::1").consumer_config(1).metrics_host == "::1"
    assert slots(metrics_port=65_533).consumer_config(2).metrics_port == 65_535
    with pytest.raises(UsageError, match="metrics_port"):
        slots(metrics_port=65_534)


def test_nothing_is_registered_where_other_libraries_would_serve_it(tmp_path: Path) -> None:
    from prometheus_client import REGISTRY

    assert [family.name for family in REGISTRY.collect() if family.name.startswith("zk_group")] == []


# ---- client-side assignment


def of_leaders(ask: str, failed_ask: str = "") -> GroupState:
    return GroupState(client=ClientSide("consumer", ask, attempts=bool(failed_ask), failed_ask=failed_ask))


def asked(before: GroupState, *names: str) -> Snapshot:
    """A snapshot, 1.5 s after the asks were made."""
    asks = tuple(AskView(name, Ask("lag", "c1", "i1", {}, since_ms=1000)) for name in names)
    return replace(snapshot(now_ms=2500), state=before, asks=asks)


def test_assignment_counts_once_when_adopted_failed_or_outdated() -> None:
    metrics = CoordinatorMetrics()
    one, two, three = (f"ask-000000000{number}" for number in (1, 2, 3))
    nothing = Wanted({}, {}, {})
    failing = Asking(nothing, has_failed=True, waits="leader c1 (lag) failed: no data")
    outdated = Asking(nothing, made=(three, Ask("lag", "c1", "i1", {}, outdated=1)))

    def written(before: GroupState, after: GroupState, asking: Asking, *asks: str) -> None:
        metrics.turn_written(asked(before, *asks), Plan(after, asking=asking))

    written(of_leaders(""), of_leaders(one), Asking(nothing, is_adopted=True), one)
    written(of_leaders(one), of_leaders(one), Asking(nothing), one)
    written(of_leaders(one), of_leaders(one, two), failing, one, two)
    written(of_leaders(one, two), of_leaders(one, two), failing, one, two)
    written(of_leaders(one), of_leaders(one), outdated, one, two)

    results = ("adopted", "failed", "outdated")
    assert [value(metrics.registry, "assignments_total", group="g", result=each) for each in results] == [1, 1, 1]
    assert [value(metrics.registry, "assignment_duration_seconds_sum", result=each) for each in results] == [
        1.5, 1.5, None,
    ]  # fmt: skip
    metrics.group_gone("g")
    assert series(metrics.registry, group="g") == []


def test_the_commands_of_client_side_assignment_are_counted_too() -> None:
    metrics = CoordinatorMetrics()
    asking = Asking(Wanted({}, {}, {}), assign=("c1", command(ASSIGN)), notices=(("c1", command(ASSIGNMENT_FAILED)),))

    metrics.turn_written(snapshot(), Plan(GroupState(), asking=asking))

    sent = [value(metrics.registry, "commands_sent_total", group="g", option=o) for o in (ASSIGN, ASSIGNMENT_FAILED)]
    assert sent == [1, 1]


def test_leader_counts_its_answers_and_each_member_its_failure_notices() -> None:
    metrics = ConsumerMetrics()
    meter = metrics.of("g", "c1")

    meter.assignment_answered(0.25)
    meter.assignment_answered(0.5, is_error=True)
    meter.assignment_failed()

    def count(name: str, **labels: str) -> float | None:
        return value(metrics.registry, f"consumer_{name}", **LABELS, **labels)

    assert [count("assignments_total", result=each) for each in ("assigned", "error")] == [1, 1]
    assert (count("assignment_duration_seconds_count"), count("assignment_duration_seconds_sum")) == (2, 0.75)
    assert count("failed_assignments_total") == 1
