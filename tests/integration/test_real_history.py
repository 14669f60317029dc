"""The checker on real processes: their own histories, and ZooKeeper's transaction log as the witness."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from consumer.logs.embedded.producer import Producer
from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.errors import BadData, Refused
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Check, Create, Delete, SetData
from coordinator.zk.znodes.paths import COORDINATOR
from coordinator.zk.znodes.records import CoordinatorRecord
from drills.checker.replay.txn_log import events_of, transactions
from tests.support.clients import fresh_chroot
from tests.support.histories import HistoryOfTest, bounds
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import eventually
from tests.support.world import World, a_world

SESSION_S, TICK_S, SWEEP_S = 2.0, 0.2, 2.0


def version_folder(ensemble: Ensemble) -> Path:
    return next(Path(ensemble.directory).rglob("log.*")).parent


class Stand:
    """Nodes and consumers as processes that keep their histories."""

    def __init__(self, world: World, folder: Path, stack: ExitStack) -> None:
        self._world = world
        self._stack = stack
        self._files = 0
        self.folder = folder
        self.histories = folder / "histories"
        self.log = folder / "log"
        self.options = ("--history-dir", str(self.histories))

    def node(self, name: str) -> ProjectProcess:
        options = ("--sweep-interval-ms", str(round(1000 * SWEEP_S)), *self.options)
        process = node_process(self.folder, self._world.zk, name, round(1000 * SESSION_S), *options)
        return self._stack.enter_context(process)

    def consumer(self, name: str) -> ProjectProcess:
        self._files += 1
        options = ("--session-timeout-ms", str(round(1000 * SESSION_S)), *self.options)
        return self._stack.enter_context(
            consumer_process(
                self.folder, self._world.zk, "g", name, self.log, *options, as_file=f"{name}-{self._files}"
            )
        )

    def produce(self, records: int) -> None:
        """So many records more into each partition of topic t."""
        with Producer.for_store(self._world.store, self.log, self._world.brokers) as producer:
            for partition in range(4):
                producer.send_batch("t", partition, [b"x"] * records)


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
    zk = fresh_chroot(own_ensemble.hosts)
    folder = tmp_path_factory.mktemp("processes")
    with ExitStack() as stack:
        world = stack.enter_context(a_world(zk))
        stand = Stand(world, folder, stack)
        measure = bounds(SESSION_S, TICK_S, SWEEP_S, 300)
        history = HistoryOfTest(stand.histories, version_folder(own_ensemble), f"/{zk.partition('/')[2]}", **measure)
        world.topic("t", 4)
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


@pytest.mark.full("processes, beside the same in virtual time")
def test_killed_and_paused_processes_leave_a_history_in_which_every_invariant_holds(history: HistoryOfTest) -> None:
    verdicts = history.verdicts()

    assert verdicts.set_aside == 0, verdicts.text()
    assert not verdicts.broken, verdicts.text()
    assert [v.outcome for v in verdicts.verdicts.values() if v.invariant in ("S1", "S3", "S4", "S5", "S6", "L1")] == [
        "held"
    ] * 6, verdicts.text()


@pytest.mark.full("processes, beside the same in virtual time")
def test_one_lie_in_the_same_history_is_found(history: HistoryOfTest) -> None:
    """As if a consumer had continued fetching revoked partitions: its `halt` is missing."""
    changed = 0
    for path in history.folder.glob("until-end-c*"):
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if '"event":"halt"' not in line]
        changed += len(lines) - len(kept)
        path.write_text("".join(kept))

    verdicts = history.verdicts()

    assert changed > 0
    assert {verdict.invariant for verdict in verdicts.broken} & {"S1", "S6"}, verdicts.text()


@pytest.mark.full("processes, beside the same in virtual time")
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
    found = [
        event
        for event in events_of([version_folder(own_ensemble)], {store.session_id: "me#1"}, lambda ms: ms / 1000, chroot)
        if event["who"] == "me#1"
    ]

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


@pytest.mark.full("processes, beside the same in virtual time")
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
