"""Metrics of both sides: times of counting, and removal of series."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socketserver import BaseServer
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.memlog import MemoryLog
from tests.support.stories import split, statements
from tests.support.turns import cases, with_facts
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.fetching.polling import READ_AGAIN_S, Fetcher, Lag
from zk_group.consumer.logs.base import LogError, Position
from zk_group.consumer.metrics import MOST_PARTITIONS, ConsumerMetrics
from zk_group.consumer.streaming.fetchers.config import SlotConfig
from zk_group.coordinator.listeners.members import MEMBERS_READ
from zk_group.coordinator.listeners.topics import _what_happened
from zk_group.coordinator.planning.asking import Asking
from zk_group.coordinator.planning.plan import Plan, Termination
from zk_group.coordinator.planning.rebalance_history import TRIGGERS, changes_between, changes_of, kind_of, trigger_kind
from zk_group.coordinator.planning.snapshot import (
    ChannelView,
    CoordinatorFacts,
    HistoryFacts,
    MemberFacts,
    RequestView,
    SentCommand,
    Snapshot,
)
from zk_group.coordinator.planning.target import TargetAssignment
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.term.reading import Findings, Problems
from zk_group.coordinator.term.request_queue import RequestQueue
from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.process.metrics_server import TRY_AGAIN_S, MetricsServer
from zk_group.coordinator.zk.znodes.group_state import STABLE, Ask, ClientSide, GroupState, Rebalance, Target
from zk_group.coordinator.zk.znodes.partitions import NONE, TopicPartition
from zk_group.coordinator.zk.znodes.records import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    Topic,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def shown(metrics: CoordinatorMetrics | ConsumerMetrics) -> dict[str, float]:
    """Every series in words, without zk_group_: its name, and the values of its labels."""
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {" ".join((s.name.removeprefix("zk_group_"), *s.labels.values())): s.value for s in samples}


def shows(expected: str, *metrics: CoordinatorMetrics | ConsumerMetrics) -> None:
    """Each series of `one g 1, another g x -` has the value behind it, or is not there."""
    rows = [row.rpartition(" ") for row in expected.split(", ")]
    wanted = {name: None if value == "-" else float(value) for name, _, value in rows}
    found = {name: value for each in metrics for name, value in shown(each).items()}
    assert {name: found.get(name) for name in wanted} == wanted


def series(metrics: CoordinatorMetrics | ConsumerMetrics, label: str) -> list[str]:
    """Every series that has this value of a label."""
    return [name for name in shown(metrics) if label in name.split()[1:]]


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
    history = HistoryFacts(last=rebalance)
    return Snapshot("g", CoordinatorFacts(7, now_ms), GroupState(), MemberFacts(channels), history=history)


def test_commands_are_counted_by_option_and_evictions_by_group() -> None:
    metrics = CoordinatorMetrics()
    decided = Plan(
        GroupState(),
        terminations=(
            Termination(view("c1"), "evicted: …", True, NONE),
            Termination(view("c2"), "its session ended", False, NONE),
        ),
        withdrawn=(
            ("c1", SentCommand("command-1", command(STOP_FETCHER))),
            ("c1", SentCommand("command-2", command(START_FETCHER, epoch=6))),
            ("c2", SentCommand("command-3", command(START_FETCHER, incarnation="i0"))),
            ("c2", SentCommand("command-4", None)),
        ),
        stops=(("c1", command(STOP_FETCHER)),),
        starts=(("c1", command(START_FETCHER)), ("c2", command(START_FETCHER))),
        asking=Asking(
            TargetAssignment({}, {}, {}), assign=("c1", command(ASSIGN)), notices=(("c1", command(ASSIGNMENT_FAILED)),)
        ),
    )

    metrics.turn_written(snapshot(), decided)

    shows("evictions_total g 1, commands_sent_total g stop-fetcher 1, commands_sent_total g start-fetcher 2", metrics)
    shows(f"commands_sent_total g {ASSIGN} 1, commands_sent_total g {ASSIGNMENT_FAILED} 1", metrics)
    shows("commands_withdrawn_total g stop-fetcher 1, commands_withdrawn_total g start-fetcher 2", metrics)
    shows("commands_withdrawn_total g unreadable 1, commands_stale_total g 3", metrics)


BEGUN = Rebalance(3, 7, "joined c2", started_ms=1000)
STOPPED = replace(BEGUN, stopped_ms=1250)
DONE = replace(STOPPED, finished_ms=1500)
SILENT = Rebalance(3, 7, "left c1", 10_000, stopped_ms=10_050, silent_since_ms=1000)
STOOD = Rebalance(3, 7, "left c1", 10_000, stopped_ms=10_050, finished_ms=10_100, standstill_ms=9_100)
PARTITIONS = Rebalance(4, 7, "topic t has 5 partitions", started_ms=1400, stopped_ms=1400)
SWEEP = Rebalance(3, 7, "sweep", 1000)
SKEWED = replace(SWEEP, stopped_ms=900, finished_ms=900)
REBALANCES: dict[str, list[tuple[Rebalance | None, Rebalance | None, str]]] = {
    "a rebalance counts once when it is over with its durations": [
        (None, BEGUN, "rebalances_total g joined completed -, rebalance_duration_seconds_sum joined completed -"),
        (BEGUN, STOPPED, ""),
        (STOPPED, DONE, ""),
        (DONE, None, "rebalances_total g joined completed 1, rebalance_duration_seconds_sum joined completed 0.5, "
         "rebalance_stop_duration_seconds_count joined 1, rebalance_stop_duration_seconds_sum joined 0.25"),
    ],
    "standstill is counted as the history has it": [
        (SILENT, STOOD, ""),
        (STOOD, None, "rebalance_standstill_seconds_count left 1, rebalance_standstill_seconds_sum left 9.1"),
    ],
    "a rebalance superseded by the next one counts as replaced, and no member had to stop": [
        (BEGUN, PARTITIONS, "rebalances_total g joined replaced 1, rebalance_duration_seconds_sum joined replaced 0.4, "
         "rebalances_total g partitions completed -, rebalance_duration_seconds_sum partitions completed -, "
         "rebalance_stop_duration_seconds_count partitions -, rebalance_stop_duration_seconds_sum partitions -"),
    ],
    "a rebalance after a finished one replaces none": [
        (DONE, Rebalance(4, 7, "left c2", 5000),
         "rebalances_total g joined replaced -, rebalance_duration_seconds_sum joined replaced -"),
    ],
    "clock skew gives no negative duration": [
        (SWEEP, SKEWED, "rebalances_total g sweep completed 1, rebalance_duration_seconds_sum sweep completed 0, "
         "rebalance_stop_duration_seconds_count sweep 1, rebalance_stop_duration_seconds_sum sweep 0"),
    ],
}  # fmt: skip
"""Turns: the rebalance of before, the one that is written, and what is shown then."""


@pytest.mark.parametrize("turns", REBALANCES.values(), ids=REBALANCES)
def test_rebalances_are_counted(turns: list[tuple[Rebalance | None, Rebalance | None, str]]) -> None:
    metrics = CoordinatorMetrics()
    for before, after, expected in turns:
        is_new = after is not None and (before is None or before.generation != after.generation)
        now_ms = after.started_ms if after is not None else 1000
        metrics.turn_written(snapshot(before, now_ms), Plan(GroupState(), is_new_generation=is_new, rebalance=after))
        if expected:
            shows(expected, metrics)


# ---- the term and the groups


def state_of(name: str) -> GroupState:
    target = {"c1": Target("i1", {"c1-0": frozenset([T0]), "c1-1": frozenset([T1])}), "c2": Target("i2", {})}
    return GroupState(name, generation=5, target=target)


class Scene:
    """A node and consumers to whom the events of a text happen."""

    def __init__(self) -> None:
        self.node, self.consumers, self.runtime = CoordinatorMetrics(), ConsumerMetrics(), ManualRuntime()
        self.queue = RequestQueue(self.runtime)
        self.findings = Findings(Problems(self.runtime, self.node))
        self.c1, self.c2 = (self.consumers.of("k", name) for name in ("c1", "c2"))

    def play(self, text: str) -> None:
        for name, *words in (statement for line in text.splitlines() for statement in statements(line)):
            subject, _, event = name.rpartition(".")
            whose = getattr(self, subject) if subject else self if hasattr(self, name) else self.node
            plain, options = split(words)
            given = plain if whose is self else [argument(word) for word in plain]
            getattr(whose, event)(*given, **{key: argument(value) for key, value in options.items()})

    def shows(self, *words: str) -> None:
        shows(" ".join(words), self.node, self.consumers)

    def none(self, label: str) -> None:
        assert series(self.node, label) + series(self.consumers, label) == []

    def elected(self, epoch: str) -> None:
        lease: Any = SimpleNamespace(left_s=3.5)
        self.node.elected(int(epoch), self.queue, lease)

    def stop_sent(self) -> None:
        self.node.turn_written(snapshot(), Plan(GroupState(), stops=(("c1", command(STOP_FETCHER)),)))

    def joins(self, name: str) -> None:
        setattr(self, name, self.consumers.of("k", name))


def argument(word: str) -> object:
    """A number, a state with that name, or the word."""
    with suppress(ValueError):
        return float(word) if "." in word else int(word)
    return state_of(word) if word == STABLE else word


CASES = {case.title: case.text for case in cases(Path(__file__).with_name("metrics.txt").read_text())[1]}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_what_happens_is_exported(text: str) -> None:
    Scene().play(text)


# ---- consumers


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

    def shows_lag(total: int, most: int, asked: int) -> None:
        shows(f"consumer_records_lag g c1 {total}, consumer_records_lag_max g c1 {most}", metrics)
        assert log.asked == asked

    assert log.asked == 0
    shows_lag(120, 90, asked=4)  # partition 2 is ahead of its end, 3 is unknown
    log.ends[0] = 200
    shows_lag(120, 90, asked=4)
    runtime.now += READ_AGAIN_S
    shows_lag(220, 190, asked=8)
    fetcher.end([TopicPartition("t", 0)])
    runtime.now += READ_AGAIN_S
    shows_lag(30, 30, asked=11)


def test_lag_is_exported_per_held_partition_up_to_a_limit() -> None:
    ends = {number: 10 + number for number in range(MOST_PARTITIONS + 2)}
    log, runtime, metrics = LogWithEnds(ends), ManualRuntime(), ConsumerMetrics()
    fetcher, meter = Fetcher(log), metrics.of("g", "c1")
    Lag(log, fetcher, runtime).reported(meter)

    def lags() -> dict[int, float]:
        family = next(f for f in metrics.registry.collect() if f.name == "zk_group_consumer_partition_records_lag")
        assert all((sample.labels["group"], sample.labels["consumer"]) == ("g", "c1") for sample in family.samples)
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


def answer_of(port: int, path: str = "/metrics") -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def server(port: int, runtime: ManualRuntime | None = None, host: str = "127.0.0.1") -> MetricsServer:
    return MetricsServer(ConsumerMetrics().registry, host, port, runtime or ManualRuntime())


def test_metrics_are_served_until_the_end_with_those_of_the_process(port: int) -> None:
    served = server(port)
    for _ in range(2):  # a worker process is used again
        with served:
            text = answer_of(port)[1]
            assert "zk_group_build_info{version=" in text
            assert text.count("\nprocess_resident_memory_bytes ") == 1
        with pytest.raises(OSError):
            answer_of(port)


def test_health_is_served_and_other_paths_are_not_found(port: int) -> None:
    reason = [""]
    with MetricsServer(ConsumerMetrics().registry, "127.0.0.1", port, ManualRuntime(), lambda: reason[0]):
        assert answer_of(port, "/healthz") == (200, "ok\n")
        reason[0] = "no session with ZooKeeper"
        assert answer_of(port, "/healthz") == (503, "no session with ZooKeeper\n")
        for path in ("/", "/metrics/", "/metric", "/favicon.ico", "/healthz/x", "/../metrics"):
            assert answer_of(port, path)[0] == 404, path
        assert "zk_group_build_info" in answer_of(port, "/metrics?name[]=zk_group_build_info")[1]


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

    assert "zk_group_build_info" in answer_of(port)[1]
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


def test_metrics_are_served_to_this_host_only_and_each_slot_has_a_port_if_asked_for() -> None:
    hosts = {CoordinatorConfig("z:1").metrics_host, ConsumerConfig("z:1", "g").metrics_host, slots().metrics_host}
    assert hosts == {"127.0.0.1"}
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
    asks = tuple(RequestView(name, Ask("lag", "c1", "i1", {}, since_ms=1000)) for name in names)
    return with_facts(snapshot(now_ms=2500), state=before, asks=asks)


def test_assignment_counts_once_when_adopted_failed_or_outdated() -> None:
    metrics = CoordinatorMetrics()
    one, two, three = (f"ask-000000000{number}" for number in (1, 2, 3))
    nothing = TargetAssignment({}, {}, {})
    failing = Asking(nothing, has_failed=True, waits="leader c1 (lag) failed: no data")
    outdated = Asking(nothing, made=(three, Ask("lag", "c1", "i1", {}, outdated=1)))

    def written(before: GroupState, after: GroupState, asking: Asking, *asks: str) -> None:
        metrics.turn_written(asked(before, *asks), Plan(after, asking=asking))

    written(of_leaders(""), of_leaders(one), Asking(nothing, is_adopted=True), one)
    written(of_leaders(one), of_leaders(one), Asking(nothing), one)
    written(of_leaders(one), of_leaders(one, two), failing, one, two)
    written(of_leaders(one, two), of_leaders(one, two), failing, one, two)
    written(of_leaders(one), of_leaders(one), outdated, one, two)

    shows("assignments_total g adopted 1, assignments_total g failed 1, assignments_total g outdated 1", metrics)
    shows("assignment_duration_seconds_sum adopted 1.5, assignment_duration_seconds_sum failed 1.5", metrics)
    shows("assignment_duration_seconds_sum outdated -", metrics)
    metrics.group_gone("g")
    assert series(metrics, "g") == []
