"""The demo from start to verdict: what runs, what is killed when, and what is compared at the end."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from consumer.logs.producer import Producer
from coordinator.topics import create_topic
from coordinator.zk.ensemble import Ensemble, EnsembleConfig
from coordinator.zk.kazoo_store import open_kazoo
from coordinator.zk.paths import Brokers

from .flights import CarrierResult, load_flights, records, repeated, straight, streamed
from .processes import Driver, Node, kill
from .watching import Observer

GROUP, TOPIC, PARTITIONS, SLOTS = "flights-group", "flights", 8, 4
SESSION_MS = 4000
FIRST_SHARE = 0.4
CHUNKS = 40
CHUNK_PAUSE_S = 0.5
KILL_COORDINATOR_AT, KILL_EXECUTOR_AT = 6, 20


@dataclass
class Verdict:
    """What the demo found. `verdict` is PASS only when nothing is amiss."""

    verdict: str = "FAIL"
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    coordinator_failover_ms: int | None = None
    executors_killed: int = 0
    rebalances: int = 0
    generation: int = 0
    seconds: float = 0.0
    state: str = ""
    amiss: list[str] = field(default_factory=list)


class Failed(Exception):
    """The demo cannot go on; the message says why."""


class Story:
    """One run, everything of it below `folder`.

    :param tell: called with each step, for whoever watches.
    :param progress: called with (records appended, records streamed, records in all).
    :param on_kafka: the records are in a real Kafka, not in the embedded log.
    """

    def __init__(
        self,
        folder: Path,
        servers: int,
        tell: Callable[[str], None],
        progress: Callable[[int, int, int], None],
        on_kafka: bool = False,
    ) -> None:
        self._on_kafka = on_kafka
        self._folder = folder
        self._servers = servers
        self._tell = tell
        self._progress = progress
        self._stack = ExitStack()
        self._appended = 0
        self._streamed = 0
        self._total = 0
        self._ended = False
        self.verdict = Verdict()
        self.timeline: list[tuple[float, str]] = []
        self.carriers: dict[str, tuple[CarrierResult | None, CarrierResult]] = {}

    def run(self) -> Verdict:
        """The whole story. Whatever it started is ended, also when it fails."""
        started = time.monotonic()
        try:
            with self._stack:
                self._run()
        except Failed as error:
            self.verdict.amiss.append(str(error))
        self.verdict.seconds = round(time.monotonic() - started, 1)
        self.verdict.verdict = "FAIL" if self.verdict.amiss else "PASS"
        return self.verdict

    def _run(self) -> None:
        flights = load_flights()
        self._total = flights.num_rows
        zk = self._start_zookeeper()
        self._start_nodes(zk)
        observer = self._stack.enter_context(closing(Observer(zk, GROUP)))
        chunks = self._start_log(zk, flights)
        self._append(next(chunks))
        driver = self._start_spark(zk)
        self._wait(driver, observer, lambda: self._streamed > 0, 240, "the first records to come out of the query")
        observer.note("the first records come out of the query")
        self._tell("records flow; appending the rest while they do")
        self._faults_while_appending(driver, observer, chunks)
        self._wait(driver, observer, self._is_through, 240, "every record to come out of the query")
        self._wait(driver, observer, lambda: self._is_settled(observer), 60, "the group to be Stable again")
        observer.note("every record has come out of the query")
        self._compare(flights, observer)
        self._tell("stopping the query and releasing every partition")
        driver.finish()

    # ---- starting

    def _start_zookeeper(self) -> str:
        self._tell(f"starting ZooKeeper ({self._servers} server{'s' if self._servers > 1 else ''})")
        ensemble = Ensemble(self._folder / "zookeeper", EnsembleConfig(servers=self._servers))
        self._stack.enter_context(ensemble)
        return f"{ensemble.hosts}/demo"

    def _start_nodes(self, zk: str) -> None:
        self._tell("starting coordinator nodes a and b")
        self._nodes = {name: Node(name, zk, self._folder, SESSION_MS) for name in ("a", "b")}
        for node in self._nodes.values():
            self._stack.callback(node.stop)

    def _start_log(self, zk: str, flights: pa.Table) -> Any:
        """Create the topic; chunks of records to append: a large one for the beginning, then many small ones."""
        self._producer = self._stack.enter_context(self._kafka(zk) if self._on_kafka else self._embedded(zk))
        every = list(records(flights))
        first = int(len(every) * FIRST_SHARE)
        size = -(-(len(every) - first) // CHUNKS)
        self._tell(f"topic {TOPIC} of {PARTITIONS} partitions; appending the first {first:,} of {len(every):,} flights")
        return iter([every[:first], *(every[at : at + size] for at in range(first, len(every), size))])

    def _embedded(self, zk: str) -> Producer:
        store = open_kazoo(zk, 10_000)
        self._stack.callback(store.close)
        create_topic(store, Brokers(), TOPIC, PARTITIONS)
        return Producer.for_store(store, self._folder / "log", Brokers())

    def _kafka(self, zk: str) -> Any:
        from .kafka import KafkaProducer  # which the demo without Kafka need not load

        self._tell("starting a Kafka broker on it")
        return KafkaProducer(self._folder, zk, TOPIC, PARTITIONS)

    def _start_spark(self, zk: str) -> Driver:
        self._tell(f"starting Spark on local-cluster[2,2,1024] with {SLOTS} fetcher slots, and the streaming query")
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
        driver = Driver(self._folder, config)
        self._stack.callback(driver.finish)
        return driver

    # ---- records and faults

    def _append(self, chunk: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in chunk:
            self._producer.send(TOPIC, value, key)
        self._producer.flush()
        self._appended += len(chunk)
        self._report()

    def _faults_while_appending(self, driver: Driver, observer: Observer, chunks: Any) -> None:
        electing: threading.Thread | None = None
        for number, chunk in enumerate(chunks, 1):
            self._append(chunk)
            if number == KILL_COORDINATOR_AT:
                electing = self._kill_coordinator(observer)
            if number == KILL_EXECUTOR_AT:
                self._wait(driver, observer, self._is_elected_again, 30, "the next election")
                self._kill_executor(driver, observer)
            self._read_events(driver, CHUNK_PAUSE_S)
        if electing is not None:
            electing.join(30)

    def _kill_coordinator(self, observer: Observer) -> threading.Thread:
        """SIGKILL the elected node; how long until the next one is elected is measured beside."""
        elected = observer.coordinator()
        if elected is None or elected.node not in self._nodes:
            raise Failed("nobody is elected: there is no coordinator to kill")
        killed_at = observer.note(f"coordinator {elected.node} killed with SIGKILL")
        self._nodes[elected.node].kill()
        self._tell(f"killed the elected coordinator, node {elected.node}")
        thread = threading.Thread(target=self._measure, args=(observer, killed_at, elected.epoch), daemon=True)
        thread.start()
        return thread

    def _measure(self, observer: Observer, killed_at: float, epoch: int) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            later = [at for at, record in observer.elected if record.epoch > epoch]
            if later:
                self.verdict.coordinator_failover_ms = round((later[0] - killed_at) * 1000)
                self._tell(f"node {observer.elected[-1][1].node} took over")
                return
            time.sleep(0.01)

    def _kill_executor(self, driver: Driver, observer: Observer) -> None:
        executors = driver.executors_with_fetchers()
        if not executors:
            raise Failed("no executor with fetchers was found: there is none to kill")
        observer.note(f"executor process {executors[0]} killed with SIGKILL")
        kill(executors[0])
        self.verdict.executors_killed += 1
        self._tell(f"killed an executor that hosts fetchers, process {executors[0]}")

    # ---- waiting

    def _read_events(self, driver: Driver, seconds: float) -> None:
        """Follow what the Spark application tells, for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = driver.events.get(timeout=left)
            except queue.Empty:
                return
            if event["event"] == "batch":
                self._streamed += event["rows"]
                self._report()
            elif event["event"] == "again":
                self._tell("Spark's Python process for the query came too late; starting the query again")
            elif event["event"] == "failed":
                raise Failed(f"the query has failed: {event['reason']}")
            elif event["event"] == "ended" and not self._ended:
                self._ended = True
                raise Failed(f"the Spark application ended early: see {self._folder / 'spark.log'}")

    def _wait(
        self, driver: Driver, observer: Observer, condition: Callable[[], bool], seconds: float, what: str
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"waited {seconds:g} s in vain for {what}: {observer.situation()}")
            self._read_events(driver, 0.1)

    def _is_through(self) -> bool:
        return self._streamed >= self._total

    def _is_elected_again(self) -> bool:
        return self.verdict.coordinator_failover_ms is not None

    def _is_settled(self, observer: Observer) -> bool:
        state = observer.state
        return state.state == "Stable" and len(state.target) == SLOTS and not state.marks

    def _report(self) -> None:
        self._progress(self._appended, self._streamed, self._total)

    # ---- the end

    def _compare(self, flights: pa.Table, observer: Observer) -> None:
        results = self._folder / "results"
        seen = pa.concat_tables(pq.read_table(file) for file in sorted(results.glob("seen-*.parquet")))
        found = pa.concat_tables(pq.read_table(file) for file in sorted(results.glob("carriers-*.parquet")))
        self.verdict.records = seen.num_rows
        self.verdict.duplicated = repeated(seen["row"])
        self.verdict.lost = flights.num_rows - (seen.num_rows - self.verdict.duplicated)
        self.verdict.generation = observer.state.generation
        self.verdict.state = observer.state.state
        self.verdict.rebalances = len(observer.rebalances())
        self.timeline = [(happening.at, happening.what) for happening in observer.timeline()]
        told, true = streamed(found), straight(flights)
        self.carriers = {carrier: (told.get(carrier), true[carrier]) for carrier in sorted(true)}
        self._judge(told == true)

    def _judge(self, is_equal: bool) -> None:
        verdict = self.verdict
        if verdict.lost:
            verdict.amiss.append(f"{verdict.lost} records were lost")
        if verdict.duplicated:
            verdict.amiss.append(f"{verdict.duplicated} records came more than once")
        if not is_equal:
            verdict.amiss.append("the streamed result differs from the one computed from the data set")
        if verdict.coordinator_failover_ms is None:
            verdict.amiss.append("no other coordinator was elected after the first was killed")
        if not verdict.executors_killed:
            verdict.amiss.append("no executor was killed")
        if verdict.state != "Stable":
            verdict.amiss.append(f"the group is {verdict.state}, not Stable")


def as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict's fields; `amiss` only when something is."""
    values = asdict(verdict)
    if not values["amiss"]:
        del values["amiss"]
    return values
