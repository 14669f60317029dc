"""The checker on real processes: their own histories, and ZooKeeper's transaction log as the witness."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli import run_json, run_ok
from tests.support.clients import fresh_chroot
from tests.support.histories import HistoryOfTest, bounds
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import eventually
from tests.support.world import World, a_world
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.errors import BadData, Refused
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Check, Create, Delete, SetData
from zk_group.coordinator.zk.znodes.paths import COORDINATOR
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord
from zk_group.drills.checker.replay.history_files import Lines, merged
from zk_group.drills.checker.replay.txn_log import events_of, transactions
from zk_group.drills.evidence.measurements import measured

pytestmark = pytest.mark.full("processes, beside the same in virtual time")
SESSION_S, TICK_S, SWEEP_S = 2.0, 0.2, 2.0


def version_folder(ensemble: Ensemble) -> Path:
    return next(Path(ensemble.directory).rglob("log.*")).parent


class Stand:
    """Nodes and consumers as processes that keep their histories, in a chroot of their own with topic `t`."""

    def __init__(
        self, ensemble: Ensemble, folder: Path, stack: ExitStack, session_s: float, sweep_s: float, poll_s: float = 300
    ) -> None:
        self.zk = fresh_chroot(ensemble.hosts)
        self.world = stack.enter_context(a_world(self.zk))
        self._folder, self._stack, self._files = folder, stack, 0
        self._session_s, self._sweep_s, self._poll_s = session_s, sweep_s, poll_s
        self._kept = ("--history-dir", str(folder / "histories"))
        measure = bounds(session_s, TICK_S, sweep_s, poll_s)
        chroot = f"/{self.zk.partition('/')[2]}"
        self.history = HistoryOfTest(folder / "histories", version_folder(ensemble), chroot, **measure)
        self.world.topic("t", 4)
        self._producer = stack.enter_context(Producer.for_store(self.world.store, folder / "log", self.world.brokers))

    def node(self, name: str) -> ProjectProcess:
        options = ("--sweep-interval-ms", str(round(1000 * self._sweep_s)), *self._kept)
        return self._stack.enter_context(node_process(self._folder, self.zk, name, 2000, *options))

    def consumer(self, name: str) -> ProjectProcess:
        self._files += 1
        options = ["--session-timeout-ms", str(round(1000 * self._session_s)), *self._kept]
        options += ["--max-poll-interval-ms", str(round(1000 * self._poll_s))]
        log, file = self._folder / "log", f"{name}-{self._files}"
        made = consumer_process(self._folder, self.zk, "g", name, log, *options, as_file=file)
        return self._stack.enter_context(made)

    def produce(self, records: int = 1) -> None:
        """So many records more into each partition."""
        for partition in range(4):
            self._producer.send_batch("t", partition, [b"x"] * records)
        self._producer.flush()


def printed(*consumers: ProjectProcess) -> set[tuple[int, int]]:
    return {(line["partition"], line["offset"]) for consumer in consumers for line in consumer.printed()}


def all_printed(end: int, *consumers: ProjectProcess) -> None:
    wanted = {(partition, offset) for partition in range(4) for offset in range(end)}
    eventually(lambda: printed(*consumers) >= wanted, 30, f"all records up to {end} are printed")


def elected(world: World, epoch: int) -> str:
    def look() -> str:
        record = CoordinatorRecord.parse(COORDINATOR, world.data(COORDINATOR) or b"")
        return record.node if record.epoch == epoch else ""

    return eventually(look, 20, f"a node is elected in epoch {epoch}", ignoring=(BadData,))


@pytest.fixture(scope="module")
def history(own_ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> HistoryOfTest:
    """A node and a consumer are killed, a consumer is suspended for longer than its session, one joins, one leaves."""
    with ExitStack() as stack:
        stand = Stand(own_ensemble, tmp_path_factory.mktemp("processes"), stack, SESSION_S, SWEEP_S)
        world, history = stand.world, stand.history
        nodes = {name: stand.node(name) for name in ("a", "b")}
        first, second = stand.consumer("c1"), stand.consumer("c2")
        world.stable("g", 2)
        stand.produce(50)
        all_printed(50, first, second)

        victim = elected(world, 1)
        history.note("fault", kind="kill", process=victim)
        nodes[victim].kill()
        history.killed(victim)
        history.note("fault", kind="kill", process="c1")
        first.kill()
        history.killed("c1")
        third = stand.consumer("c3")
        elected(world, 2)
        stand.produce(50)
        all_printed(100, first, second, third)

        second.pause()
        history.note("fault", kind="pause", process="c2")
        eventually(lambda: set(world.state("g").target) == {"c3"}, 20, "the paused one has lost its session")
        second.resume()
        history.note("calm", stuck=[])
        calm_at = time.monotonic()
        world.stable("g", 2)
        stand.produce(50)
        all_printed(150, first, second, third)
        promised_s = SESSION_S + 2 * TICK_S + 1 + 0.5
        eventually(lambda: time.monotonic() > calm_at + promised_s, 10, "the time in which it had to settle is over")
        history.end()
    return history


def test_killed_and_paused_processes_leave_a_history_in_which_every_invariant_holds(history: HistoryOfTest) -> None:
    verdicts = history.verdicts()

    assert verdicts.set_aside == 0, verdicts.text()
    assert not verdicts.broken, verdicts.text()
    assert [v.outcome for v in verdicts.verdicts.values() if v.invariant in ("S1", "S3", "S4", "S5", "S6", "L1")] == [
        "held"
    ] * 6, verdicts.text()


def test_transaction_log_has_exactly_the_committed_changes(own_ensemble: Ensemble) -> None:
    zk = fresh_chroot(own_ensemble.hosts)
    store = open_kazoo(zk, 2000)
    store.commit([Create("/a", b'{"x":1}'), Create("/a/s-", sequential=True), Create("/a/e", b"\xff", ephemeral=True)])
    store.commit([Check("/a", 0), SetData("/a", b"z", 0)])
    with pytest.raises(Refused):
        store.commit([Create("/b"), Check("/a", 7)])
    store.commit([Delete("/a/s-0000000000")])
    store.close()

    chroot = f"/{zk.partition('/')[2]}"
    events = events_of([version_folder(own_ensemble)], {store.session_id: "me#1"}, lambda ms: ms / 1000, chroot)
    found = [event for event in events if event["who"] == "me#1"]

    assert [event["event"] for event in found] == ["session", "commit", "commit", "commit", "closed"]
    assert found[0]["timeout"] == store.negotiated_timeout_s
    assert found[1]["ops"] == [
        {"op": "create", "path": "/a", "data": '{"x":1}', "ephemeral": False},
        {"op": "create", "path": "/a/s-0000000000", "data": "", "ephemeral": False},
        {"op": "create", "path": "/a/e", "data": "\\xff", "ephemeral": True},
    ]
    assert found[2]["ops"] == [
        {"op": "check", "path": "/a", "version": 0},
        {"op": "set", "path": "/a", "data": "z", "version": 1},
    ]
    assert found[3]["ops"] == [{"op": "delete", "path": "/a/s-0000000000"}]
    assert (found[4]["why"], found[4]["paths"]) == ("closed", ["/a/e"])
    assert sorted(event["zxid"] for event in found[1:]) == [event["zxid"] for event in found[1:]]


def test_damaged_transaction_log_is_refused_and_a_truncated_one_is_read(own_ensemble: Ensemble, tmp_path: Path) -> None:
    whole = max(version_folder(own_ensemble).glob("log.*"), key=lambda path: path.stat().st_size)
    data = whole.read_bytes()
    count = len(list(transactions(whole)))
    cut, damaged, other = (tmp_path / name for name in ("log.1", "log.2", "log.3"))
    cut.write_bytes(data[:100])
    damaged.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    other.write_bytes(b"something else altogether")

    assert 0 <= len(list(transactions(cut))) < count
    with pytest.raises(BadData, match="checksum"):
        list(transactions(damaged))
    with pytest.raises(BadData, match="no transaction log"):
        list(transactions(other))


# ---- the standstill in `history`, held against what a drill measures from the processes' own histories


MEASURED_TO_MS = 500
"""Of the way from an acknowledgement to the coordinator's turn, and to the fetcher's first poll, on a busy machine."""


class Drill(Stand):
    """A node and two consumers, whose records flow until the block ends."""

    def __init__(self, ensemble: Ensemble, folder: Path, stack: ExitStack, session_s: float, poll_s: float) -> None:
        super().__init__(ensemble, folder, stack, session_s, 600, poll_s)
        self.node("a")
        self.victim, self.other = self.consumer("c1"), self.consumer("c2")
        self.world.stable("g", 2)
        self.flow_until(lambda: len(self.victim.lines()) >= 20 and len(self.other.lines()) >= 20, "records flow")

    def process_of(self, name: str) -> str:
        """Its process, as histories name it."""
        (path,) = self.history.folder.glob(f"{name}#*.jsonl")
        return path.stem

    def flow_until(self, condition: Callable[[], object], what: str) -> None:
        """Send a record to each partition at each look at the condition."""

        def step() -> bool:
            self.produce()
            return bool(condition())

        eventually(step, 40, what)

    def alone(self) -> bool:
        state = self.world.state("g")
        return set(state.target) == {"c2"} and state.state == "Stable" and not state.marks

    def longest_ms(self, fault_at: float) -> float:
        """The longest standstill since the fault, as the drill's page has it."""
        self.history.end()
        events = list(merged([Lines(path) for path in self.history.files()]))
        return 1000 * max(measured(events, fault_at).standstill.values())

    def most_ms(self) -> int:
        """The longest standstill in `history`."""
        return max(int(each["standstill_ms"] or 0) for each in run_json(self.zk, "history", "g"))


def test_standstill_of_a_killed_member_begins_at_its_last_sign_of_life(own_ensemble: Ensemble, tmp_path: Path) -> None:
    with ExitStack() as stack:
        drill = Drill(own_ensemble, tmp_path, stack, session_s=3.0, poll_s=300)
        fault_at = time.monotonic()
        drill.history.note("fault", kind="kill", process="c1")
        drill.victim.kill()
        drill.history.killed("c1")
        drill.flow_until(drill.alone, "the other has all partitions")
        longest_ms = drill.longest_ms(fault_at)
        most_ms = drill.most_ms()
        table = run_ok(drill.zk, "history", "g").stdout

    assert longest_ms > 3000 - 1000, "for its session timeout, which a heartbeat began up to a third of it before"
    assert longest_ms <= most_ms + MEASURED_TO_MS
    assert most_ms - longest_ms < 1000, "records flow: its last commit was not long before"
    assert str(most_ms) in table


def test_standstill_of_an_eviction_begins_with_the_last_heartbeat(own_ensemble: Ensemble, tmp_path: Path) -> None:
    with ExitStack() as stack:
        drill = Drill(own_ensemble, tmp_path, stack, session_s=4.0, poll_s=1.5)  # 20 ticks: the longest session
        fault_at = time.monotonic()
        drill.history.note("fault", kind="pause", process=drill.process_of("c1"))
        drill.victim.pause()
        drill.flow_until(lambda: drill.world.state("g").marks, "it is evicted")
        drill.flow_until(drill.alone, "its lease is over, and the other has all partitions")
        longest_ms = drill.longest_ms(fault_at)
        most_ms = drill.most_ms()
        drill.victim.kill()

    assert longest_ms > 1500 + 2000, "for max_poll_interval_ms and its lease"
    assert longest_ms <= most_ms + MEASURED_TO_MS
    assert most_ms - longest_ms < 1000, (longest_ms, most_ms)
