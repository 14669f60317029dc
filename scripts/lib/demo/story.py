"""The demo from start to verdict: processes, faults, rebalances, and the comparison at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from common import secure, start_node

from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.embedded.directory import Identities
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig, command_line, descendants
from zk_group.coordinator.zk.embedded.kafka import Broker, KafkaConfig
from zk_group.coordinator.zk.security.access import environment_of
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.drills.base.processes import END_S, Process, end_all, module_command

from .flights import CarrierResult, load_flights, records, repeated, straight, streamed
from .intruder import Intruder
from .watching import Observer, summary

GROUP, TOPIC, PARTITIONS, SLOTS, MORE_SLOTS = "flights-group", "flights", 8, 4, 6
SESSION_MS = 4000
FIRST_SHARE = 0.4
CHUNKS = 36
CHUNK_PAUSE_S = 0.5
KILL_COORDINATOR_AT, KILL_EXECUTOR_AT, GROW_AT, SHRINK_AT = 4, 11, 20, 30
"""The number of the chunk after which each event happens."""
LEAST_ATTEMPTS = 40
LEAST_REBALANCES = 3
"""The group's start, and one per resize of the pool."""


@dataclass
class Verdict:
    """The result of the demo. `verdict` is PASS only when `failures` is empty.

    :ivar coordinator_failover_ms: from the kill to the creation of the next coordinator's znode, its `ctime`.
    """

    verdict: str = "FAIL"
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    coordinator_failover_ms: int | None = None
    executors_killed: int = 0
    rebalances: int = 0
    longest_standstill_ms: int | None = None
    generation: int = 0
    seconds: float = 0.0
    state: str = ""
    intruder_attempts: int | None = None
    intruder_refused: int | None = None
    failures: list[str] = field(default_factory=list)


class Failed(Exception):
    """The demo cannot continue; the message has the reason."""


class Driver(Process):
    """The Spark application (`demo.driver`), and its events.

    :param variables: environment variables, as of its credentials; its executors inherit them.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        file = folder / "driver.json"
        file.write_text(json.dumps(config))
        super().__init__(folder, "spark", module_command("demo.driver", [str(file)]), variables, takes_requests=True)
        self._heard = 0

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call; `ended` when it has ended."""
        is_over = not self.is_running  # before its last events are read
        found = self.printed()
        new, self._heard = found[self._heard :], len(found)
        return [*new, {"event": "ended"}] if is_over else new

    def resize(self, slots: int) -> None:
        """Resize the pool to `slots`; the event `resized` follows."""
        with contextlib.suppress(OSError):
            self.request(f"resize {slots}")

    def finish(self, timeout_s: float = 60.0) -> None:
        """Stop the query and the pool, and end it; SIGKILL after `timeout_s` seconds."""
        if self.is_running:
            with contextlib.suppress(OSError):
                self.request("stop")
        if self.wait(timeout_s) is None:
            for pid in descendants(self.pid):
                kill(pid)
        super().finish(END_S)

    def executors_with_fetchers(self) -> list[int]:
        """The driver's executor processes with Python workers, those with most of them first."""
        executors = [pid for pid in descendants(self.pid) if "CoarseGrainedExecutorBackend" in command_line(pid)]
        workers = {pid: sum("pyspark.daemon" in command_line(child) for child in descendants(pid)) for pid in executors}
        return sorted((pid for pid in executors if workers[pid] > 1), key=lambda pid: -workers[pid])


def kill(pid: int) -> None:
    """SIGKILL to a process; it may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class KafkaProducer:
    """Writes to a Kafka broker, which keeps its own topics."""

    def __init__(self, broker: Broker) -> None:
        from confluent_kafka import Producer as Client  # not loaded by the demo without Kafka

        from zk_group.coordinator.zk.embedded.kafka_client import TrialKafka

        TrialKafka(broker.address).make_topic(TOPIC, PARTITIONS)
        options = {"bootstrap.servers": broker.address, "log_level": 0, "linger.ms": 20}
        self._client = Client({**options, "queue.buffering.max.messages": 1_000_000})

    def send(self, topic: str, value: bytes, key: bytes) -> None:
        """Write one record asynchronously."""
        self._client.produce(topic, value, key)
        self._client.poll(0)

    def flush(self) -> None:
        """Wait until the broker has acknowledged all records."""
        if self._client.flush(60.0):
            raise Failed("the broker does not acknowledge records")


class Story:
    """One run, with all files below `folder`.

    :param announce: called with a message for each step.
    :param progress: called with (records appended, records streamed, records in total).
    :param on_kafka: use a real Kafka, not the embedded log.
    :param is_secure: TLS, SASL and ACLs, with an intruder beside the group.
    """

    def __init__(
        self,
        folder: Path,
        servers: int,
        announce: Callable[[str], None],
        progress: Callable[[int, int, int], None],
        on_kafka: bool = False,
        is_secure: bool = False,
    ) -> None:
        self._on_kafka = on_kafka
        self._is_secure = is_secure
        self._intruder: Intruder | None = None
        self._folder = folder
        self._servers = servers
        self._announce = announce
        self._progress = progress
        self._stack = ExitStack()
        self._appended = 0
        self._streamed = 0
        self._total = 0
        self._slots = SLOTS
        self._shown = 0
        self._nodes: dict[str, Process] = {}
        self._environments: dict[str, dict[str, str]] = {"coordinator": {}, "team-a": {}}
        self.verdict = Verdict()
        self.timeline: list[tuple[float, str]] = []
        self.carriers: dict[str, tuple[CarrierResult | None, CarrierResult]] = {}

    def run(self) -> Verdict:
        """The whole story. All started processes are ended, also after a failure."""
        started = time.monotonic()
        try:
            with self._stack:
                self._run()
        except Failed as error:
            self.verdict.failures.append(str(error))
        self.verdict.seconds = round(time.monotonic() - started, 1)
        self.verdict.verdict = "FAIL" if self.verdict.failures else "PASS"
        return self.verdict

    def _run(self) -> None:
        flights = load_flights()
        self._total = flights.num_rows
        zk = self._start_zookeeper()
        self._start_nodes(zk)
        self._observer = self._stack.enter_context(closing(Observer(zk, GROUP)))
        chunks = self._start_log(zk, flights)
        self._append(next(chunks))
        self._driver = self._start_spark(zk)
        self._wait(lambda: self._streamed > 0, 240, "the first records to come out of the query")
        self._observer.note("the first records come out of the query")
        self._intrude()
        self._announce("records flow; appending the rest")
        self._append_the_rest(chunks)
        self._wait(lambda: self._streamed >= self._total, 240, "every record to come out of the query")
        self._wait(self._is_settled, 60, "the group to be Stable again")
        self._observer.note("every record has come out of the query")
        self._intrude()
        self._show_rebalances()
        self._compare(flights)
        self._announce("stopping the query and releasing every partition")
        self._driver.finish()

    # ---- starting

    def _start_zookeeper(self) -> str:
        self._announce(f"starting ZooKeeper ({self._servers} server{'s' if self._servers > 1 else ''})")
        config = EnsembleConfig(servers=self._servers, tls=self._is_secure, auth=self._is_secure)
        ensemble = Ensemble(self._folder / "zookeeper", config)
        self._stack.enter_context(ensemble)
        zk = f"{ensemble.hosts}/demo"
        if self._is_secure:
            self._secure(zk, ensemble.identities)
        return zk

    def _secure(self, zk: str, identities: Identities) -> None:
        """This process is the operator; nodes and the application get an identity each."""
        self._announce("securing the chroot: coordinators, operators, and the members of the group")
        os.environ.update(environment_of(identities.access("operator")))
        self._environments = {name: environment_of(identities.access(name)) for name in ("coordinator", "team-a")}
        store = self._operator = open_kazoo(zk, 10_000)
        self._stack.callback(store.close)
        secure(store, identities, {GROUP: "team-a", "another-group": "team-b"})
        self._intruder = Intruder(zk, identities)

    def _intrude(self) -> None:
        if self._intruder is not None:
            self._intruder.try_all(self._operator, GROUP)
            tried, refused = self._intruder.tried, self._intruder.refused
            self._announce(f"the intruder has tried {tried} operations; {refused} were refused")

    def _start_nodes(self, zk: str) -> None:
        self._announce("starting coordinator nodes a and b")
        options, variables = ["--session-timeout-ms", str(SESSION_MS)], self._environments["coordinator"]
        self._stack.callback(lambda: end_all([*self._nodes.values()]))
        for name in ("a", "b"):
            self._nodes[name] = start_node(self._folder, name, zk, *options, variables=variables)

    def _start_log(self, zk: str, flights: pa.Table) -> Any:
        """Create the topic; returns chunks of records to append: a large one at the beginning, then many small ones."""
        self._producer = self._kafka(zk) if self._on_kafka else self._embedded(zk)
        every = list(records(flights))
        first = int(len(every) * FIRST_SHARE)
        size = -(-(len(every) - first) // CHUNKS)
        self._announce(
            f"topic {TOPIC} of {PARTITIONS} partitions; appending the first {first:,} of {len(every):,} flights"
        )
        return iter([every[:first], *(every[at : at + size] for at in range(first, len(every), size))])

    def _embedded(self, zk: str) -> Producer:
        store = open_kazoo(zk, 10_000)
        self._stack.callback(store.close)
        create_topic(store, Brokers(), TOPIC, PARTITIONS)
        return self._stack.enter_context(Producer.for_store(store, self._folder / "log", Brokers()))

    def _kafka(self, zk: str) -> KafkaProducer:
        self._announce("starting a Kafka broker on it")
        return KafkaProducer(self._stack.enter_context(Broker(self._folder / "kafka", KafkaConfig(zookeeper=zk))))

    def _start_spark(self, zk: str) -> Driver:
        self._announce(f"starting Spark on local-cluster[2,2,1024] with {SLOTS} fetcher slots, and the streaming query")
        results = self._folder / "results"
        results.mkdir()
        config = {
            "folder": str(self._folder),
            "zk": zk,
            "group": GROUP,
            "topic": TOPIC,
            "slots": SLOTS,
            "log_dir": "kafka:" if self._on_kafka else str(self._folder / "log"),
            "segments_dir": str(self._folder / "segments"),
            "results": str(results),
            "checkpoint": str(self._folder / "checkpoint"),
            "session_timeout_ms": SESSION_MS,
        }
        driver = Driver(self._folder, config, self._environments["team-a"])
        self._stack.callback(driver.finish)
        return driver

    # ---- records, faults and rebalances

    def _append(self, chunk: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in chunk:
            self._producer.send(TOPIC, value, key)
        self._producer.flush()
        self._appended += len(chunk)
        self._progress(self._appended, self._streamed, self._total)

    def _append_the_rest(self, chunks: Any) -> None:
        """Append all chunks; in between, kill the coordinator and an executor, and grow and shrink the pool."""
        for number, chunk in enumerate(chunks, 1):
            self._append(chunk)
            if number == KILL_COORDINATOR_AT:
                self._kill_coordinator()
            if number == KILL_EXECUTOR_AT:
                self._wait(self._is_elected_again, 30, "the next election")
                self._kill_executor()
            if number in (GROW_AT, SHRINK_AT):
                self._resize(MORE_SLOTS if number == GROW_AT else SLOTS)
            self._read_events(CHUNK_PAUSE_S)
            self._show_rebalances()

    def _kill_coordinator(self) -> None:
        """SIGKILL the elected node."""
        if not self._observer.elected:
            raise Failed("no coordinator is elected")
        elected = self._observer.elected[-1][1]
        self._killed = self._observer.note(f"coordinator {elected.node} killed with SIGKILL"), elected.epoch
        self._nodes[elected.node].kill()
        self._announce(f"killed the elected coordinator, node {elected.node}")

    def _is_elected_again(self) -> bool:
        """Whether there is a coordinator since that kill; the first time measures the failover."""
        killed_at, epoch = self._killed
        later = [(at, record) for at, record in self._observer.elected if record.epoch > epoch]
        if later and self.verdict.coordinator_failover_ms is None:
            self.verdict.coordinator_failover_ms = round((later[0][0] - killed_at) * 1000)
            self._announce(f"node {later[0][1].node} took over")
        return bool(later)

    def _kill_executor(self) -> None:
        executors = self._driver.executors_with_fetchers()
        if not executors:
            raise Failed("no executor with fetchers found")
        self._observer.note(f"executor process {executors[0]} killed with SIGKILL")
        kill(executors[0])
        self.verdict.executors_killed += 1
        self._announce(f"killed an executor that hosts fetchers, process {executors[0]}")

    def _resize(self, slots: int) -> None:
        """Resize the pool, once the group is Stable with the current slots."""
        self._wait(self._is_settled, 60, "the group to be Stable")
        self._observer.note(f"the pool is resized from {self._slots} to {slots} slots")
        self._announce(f"resizing the pool from {self._slots} to {slots} slots")
        self._slots = slots
        self._driver.resize(slots)

    def _show_rebalances(self) -> None:
        """Announce each rebalance finished since the last call."""
        for rebalance in self._observer.rebalances():
            is_over = rebalance.finished_ms is not None or rebalance.replaced_by is not None
            if is_over and rebalance.generation > self._shown:
                self._shown = rebalance.generation
                self._announce(summary(rebalance))

    # ---- waiting

    def _read_events(self, seconds: float) -> None:
        """Process the events of the Spark application for `seconds` seconds."""
        deadline = time.monotonic() + seconds
        while True:
            self._observer.look()
            for event in self._driver.events():
                self._on_event(event)
            if time.monotonic() >= deadline:
                return
            time.sleep(0.05)

    def _on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "batch":
            self._streamed += event["rows"]
            self._progress(self._appended, self._streamed, self._total)
        elif event["event"] == "again":
            self._announce("Spark's Python process for the query started too late; starting the query again")
        elif event["event"] == "failed":
            raise Failed(f"the query failed: {event['reason']}")
        elif event["event"] == "ended":
            raise Failed(f"the Spark application ended early: see {self._folder / 'spark.log'}")

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"timed out after {seconds:g} s, waiting for {what}: {self._observer.situation()}")
            self._read_events(0.1)

    def _is_settled(self) -> bool:
        state = self._observer.state
        return state.state == "Stable" and len(state.target) == self._slots and not state.marks

    # ---- the end

    def _compare(self, flights: pa.Table) -> None:
        results = self._folder / "results"
        seen = pa.concat_tables(pq.read_table(file) for file in sorted(results.glob("seen-*.parquet")))
        found = pa.concat_tables(pq.read_table(file) for file in sorted(results.glob("carriers-*.parquet")))
        self.verdict.records = seen.num_rows
        self.verdict.duplicated = repeated(seen["row"])
        self.verdict.lost = flights.num_rows - (seen.num_rows - self.verdict.duplicated)
        self.verdict.generation = self._observer.state.generation
        self.verdict.state = self._observer.state.state
        rebalances = self._observer.rebalances()
        self.verdict.rebalances = len(rebalances)
        self.verdict.longest_standstill_ms = max((each.standstill_ms or 0 for each in rebalances), default=None)
        self.timeline = self._observer.timeline()
        found_by_carrier, expected = streamed(found), straight(flights)
        self.carriers = {carrier: (found_by_carrier.get(carrier), expected[carrier]) for carrier in sorted(expected)}
        if self._intruder is not None:
            self.verdict.intruder_attempts = self._intruder.tried
            self.verdict.intruder_refused = self._intruder.refused
        self._judge(found_by_carrier == expected)

    def _judge(self, is_equal: bool) -> None:
        verdict = self.verdict
        wrong = {
            f"{verdict.lost} records were lost": verdict.lost,
            f"{verdict.duplicated} records came more than once": verdict.duplicated,
            "the streamed result differs from that of the data set": not is_equal,
            "no coordinator was elected after the kill": verdict.coordinator_failover_ms is None,
            "no executor was killed": not verdict.executors_killed,
            f"{verdict.rebalances} rebalances, expected at least {LEAST_REBALANCES}": (
                verdict.rebalances < LEAST_REBALANCES
            ),
            f"the group is {verdict.state}, not Stable": verdict.state != "Stable",
        }
        verdict.failures += [what for what, is_so in wrong.items() if is_so]
        if self._intruder is not None:
            verdict.failures += [f"the intruder succeeded: {what}" for what in self._intruder.succeeded]
            if self._intruder.tried < LEAST_ATTEMPTS:
                verdict.failures.append(f"the intruder tried only {self._intruder.tried} operations")


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict's fields; `failures` only when it is not empty, those of the intruder only when there was one."""
    values = asdict(verdict)
    if verdict.intruder_attempts is None:
        del values["intruder_attempts"], values["intruder_refused"]
    if not values["failures"]:
        del values["failures"]
    return values
