"""The standstill in a group's history, held against what a drill measures from the same processes' own histories."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from consumer.logs.embedded.producer import Producer
from coordinator.zk.embedded.ensemble import Ensemble
from drills.checker.replay.history_files import Lines, merged
from drills.evidence.measurements import measured
from tests.support.cli import run_json, run_ok
from tests.support.clients import fresh_chroot
from tests.support.histories import HistoryOfTest, bounds
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import eventually
from tests.support.world import World, a_world

TICK_S = 0.2
MEASURED_TO_MS = 500
"""Of the way from an acknowledgement to the coordinator's turn, and to the fetcher's first poll, on a busy machine."""


class Drill:
    """A node and two consumers as processes, whose records flow until the block ends."""

    def __init__(self, ensemble: Ensemble, folder: Path, stack: ExitStack, session_s: float, poll_s: float) -> None:
        self.zk = fresh_chroot(ensemble.hosts)
        self.world: World = stack.enter_context(a_world(self.zk))
        self._folder, self._stack = folder, stack
        self._session_s, self._poll_s = session_s, poll_s
        self._sent = 0
        chroot = f"/{self.zk.partition('/')[2]}"
        version_folder = next(Path(ensemble.directory).rglob("log.*")).parent
        self.history = HistoryOfTest(
            folder / "histories", version_folder, chroot, **bounds(session_s, TICK_S, 600, poll_s)
        )
        self.world.topic("t", 4)
        stack.enter_context(node_process(folder, self.zk, "a", 2000, "--history-dir", str(folder / "histories")))
        self.victim, self.other = self.consumer("c1"), self.consumer("c2")
        self.world.stable("g", 2)
        self._producer = stack.enter_context(Producer.for_store(self.world.store, folder / "log", self.world.brokers))
        self.flow_until(lambda: len(self.victim.lines()) >= 20 and len(self.other.lines()) >= 20, "records flow")

    def consumer(self, name: str) -> ProjectProcess:
        options = ["--session-timeout-ms", str(round(1000 * self._session_s))]
        options += ["--max-poll-interval-ms", str(round(1000 * self._poll_s))]
        options += ["--history-dir", str(self._folder / "histories")]
        return self._stack.enter_context(
            consumer_process(self._folder, self.zk, "g", name, self._folder / "log", *options)
        )

    def process_of(self, name: str) -> str:
        """Its process, as histories name it."""
        (path,) = self.history.folder.glob(f"{name}#*.jsonl")
        return path.stem

    def flow_until(self, condition: Callable[[], object], what: str) -> None:
        """Send a record to each partition at each look at the condition."""

        def step() -> bool:
            for partition in range(4):
                self._producer.send_batch("t", partition, [b"x"])
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


@pytest.mark.full("processes, beside the same in virtual time")
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


@pytest.mark.full("processes, beside the same in virtual time")
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
