"""The processes of one scenario in a chroot of their own, and the kit's writes to the group."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count as numbers_from
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinator.admin.control import pause, resume
from coordinator.admin.topics import create_topic
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

from ..base.processes import Process, end_all, module_command
from ..base.settings import Settings
from ..base.waiting import NotReached
from ..environments.base import Environment, connect_string
from ..evidence.histories import Notes
from ..faults.packets import MULTI, op_code
from ..faults.proxy import Loss
from ..testbed.proxies import Proxies
from .definition import Scenario, require
from .event_lines import EventLines
from .sight import GROUP, TOPIC, WAIT_S, Sight, Trial

OWN_SESSION_MS = 30_000
SWEEP_MS = 2000
LONG_SESSION_FACTOR = 3
KIT = "the conformance kit"


@dataclass(frozen=True)
class Ground:
    """What all scenarios of a run share.

    :ivar folder: gets a folder for each scenario.
    :ivar consumer: the command line of the consumer under trial.
    :ivar stopping: set when the run is interrupted.
    """

    environment: Environment
    folder: Path
    consumer: Sequence[str]
    session_timeout_ms: int
    stopping: threading.Event


class Bench(Sight):
    """One scenario's processes. The context manager ends all of them.

    :ivar session_s: the session timeout of all processes.
    :ivar notes: the kit's own events of the history.
    :ivar nodes: coordinators.
    :ivar killed: names of the processes that the scenario has killed.
    """

    def __init__(self, scenario: Scenario, ground: Ground) -> None:
        environment = ground.environment
        self.folder = ground.folder / scenario.name
        self.session_ms = ground.session_timeout_ms * (LONG_SESSION_FACTOR if scenario.long_sessions else 1)
        self.session_s = self.session_ms / 1000
        self.chroot = environment.chroot_of(f"kit-{scenario.name}")
        self.notes = Notes()
        self.histories = self.folder / "histories"
        self.nodes: dict[str, Process] = {}
        self.killed: set[str] = set()
        self.log_dir = self.folder / "log"
        self._consumer = ground.consumer
        self._started: list[Process] = []
        settings = Settings(
            session_timeout_ms=self.session_ms,
            sweep_interval_ms=SWEEP_MS,
            max_poll_interval_ms=scenario.max_poll_interval_ms,
        )
        self.notes.note("run", version=1, seed=0, profile="conformance", bounds=settings.bounds(environment.tick_s))
        with ExitStack() as stack:
            self._proxies = Proxies(environment.addresses, self.chroot, None)
            stack.callback(self._proxies.close)
            store = open_kazoo(connect_string(environment.addresses, self.chroot), OWN_SESSION_MS)
            stack.callback(store.close)
            super().__init__(scenario, store, ground.stopping)
            self._stack = stack.pop_all()

    # ---- processes

    def node(self, name: str) -> Process:
        """Start a coordinator."""
        options = {
            "--zk": self._proxies.hosts(name), "--node": name, "--session-timeout-ms": str(self.session_ms),
            "--sweep-interval-ms": str(SWEEP_MS), "--group-initial-rebalance-delay-ms": "0",
            "--history-dir": str(self.histories),
        }  # fmt: skip
        words = ["run", *(word for pair in options.items() for word in pair)]
        self.nodes[name] = self._start(name, module_command("coordinator.cli", words))
        return self.nodes[name]

    def consumer(
        self,
        name: str,
        *more: str,
        topics: str = f"{TOPIC}:1",
        protocols: str = "range",
        process: str = "",
    ) -> Trial:
        """Start a process of the consumer under trial.

        :param more: further options.
        :param topics: "" when `more` has the subscription.
        :param process: its name as a process; that of the consumer by default.
        """
        process = process or name
        options = {
            "--zk": self._proxies.hosts(process), "--group": GROUP, "--log-dir": str(self.log_dir),
            "--session-timeout-ms": str(self.session_ms),
            "--max-poll-interval-ms": str(self.scenario.max_poll_interval_ms), "--protocols": protocols,
        }  # fmt: skip
        if "--group-instance-id" not in more:
            options["--consumer"] = name
        if topics:
            options["--topics"] = topics
        words = [*(word for pair in options.items() for word in pair), *more, "--events"]
        started = self.trials[process] = Trial(name, self._start(process, [*self._consumer, *words]))
        return started

    def _start(self, name: str, command: Sequence[str]) -> Process:
        if self._stopping.is_set():
            raise NotReached("interrupted")
        process = Process(self.folder / "logs", name, command)
        self._started.append(process)
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.notes.note("fault", kind="kill", process=process.who)
        process.kill()
        self.killed.add(process.name)
        self.notes.note("exit", process.who, why="killed")

    def ended_nodes(self) -> list[str]:
        """The coordinators that have ended, and not by the scenario."""
        return sorted(name for name, node in self.nodes.items() if not node.is_running and name not in self.killed)

    def suspend(self, trial: Trial) -> None:
        """SIGSTOP, for as long as the scenario wants."""
        self.notes.note("fault", kind="pause", process=trial.process.who, until=time.monotonic() + WAIT_S)
        trial.process.pause()

    def cut(self, trial: Trial) -> None:
        """Drop all packets between a consumer and ZooKeeper until `join`."""
        self._disturb(trial, "cut", self._proxies.cut)

    def mute(self, trial: Trial) -> None:
        """Hold back all replies of ZooKeeper to a consumer, except those to pings, until `join`."""
        self._disturb(trial, "mute", self._proxies.mute)

    def _disturb(self, trial: Trial, kind: str, how: Callable[[str], None]) -> None:
        self.notes.note("fault", kind=kind, process=trial.process.who, until=time.monotonic() + WAIT_S)
        how(trial.process.name)

    def withdraw_at(self, trial: Trial, nth: int) -> Loss:
        """Lose a consumer's nth multi from now on that names a command, and withdraw the command before it knows."""
        prefix = self.paths.command_prefix(trial.name).encode()
        found = numbers_from(1)

        def is_it(request: bytes) -> bool:
            return op_code(request) == MULTI and prefix in request and next(found) == nth

        def withdraw() -> None:
            for name in self.commands(trial.name):
                self.remove(self.paths.command(trial.name, name))

        loss = Loss(is_it, is_request=True, then=withdraw)
        self._proxies.lose(trial.process.name, loss)
        return loss

    def join(self, trial: Trial) -> None:
        """End `cut` or `mute`."""
        self._proxies.resume(trial.process.name)

    def terminate(self, trial: Trial) -> EventLines:
        """SIGTERM; the consumer leaves, prints `shutdown_complete`, and ends with exit code 0. Returns its events."""
        trial.process.terminate()
        code = trial.process.wait(WAIT_S)
        require(code is not None, f"{trial.process.name} does not end within {WAIT_S:.0f} s of SIGTERM")
        require(code == 0, f"{trial.process.name} ends with exit code {code} after SIGTERM, not with 0")
        events = trial.events()
        require(events.has_ended, f"{trial.process.name} ends without shutdown_complete")
        self.notes.note("exit", trial.process.who, why="left")
        return events

    # ---- topics and records

    def topic(self, name: str = TOPIC) -> Topic:
        """Create a topic with the scenario's partitions."""
        return create_topic(self.store, Brokers(), name, self.scenario.partitions)

    def consuming(self, partitions: Sequence[int] | None = None) -> tuple[Trial, str]:
        """The consumer c1, which has consumed and committed records of these partitions or all, and its incarnation."""
        self.topic()
        trial = self.consumer("c1")
        self.settled("c1")
        self.produce(partitions=partitions)
        self.consumed()
        self.wait(lambda: trial.events().committed == self.written, "c1 prints offsets_committed for all records")
        return trial, self.channel("c1").incarnation

    def flow(self, count: int = 20) -> None:
        """Write `count` records into each partition, and wait until they are consumed."""
        self.produce(count)
        self.consumed()

    def produce(self, count: int = 20, topic: str = TOPIC, partitions: Sequence[int] | None = None) -> None:
        """Write `count` records into each partition of the topic, or into each of `partitions`."""
        from consumer.logs.embedded.producer import Producer  # a command that is only listed loads no pyarrow

        producer = Producer.for_store(self.store, self.log_dir, Brokers())
        for number in partitions if partitions is not None else range(self.scenario.partitions):
            part = TopicPartition(topic, number)
            first = self.written.get(part, 0)
            producer.send_batch(topic, number, [str(first + each).encode() for each in range(count)])
            self.written[part] = first + count

    # ---- the kit's writes to the group

    def hold_still(self) -> None:
        """Pause the group: the coordinator sends and withdraws nothing, so that the kit's own commands count."""
        before = self._pauses()
        pause(self.store, GROUP, KIT, 0, None)
        self.wait(lambda: self._pauses() > before, "the coordinator has paused the group")

    def go_on(self) -> None:
        """Resume it."""
        resume(self.store, GROUP)

    def _pauses(self) -> int:
        """How often coordinators have logged that the group is paused."""
        return sum(path.read_text().count(f"paused: group={GROUP}") for path in self._node_logs())

    def _node_logs(self) -> list[Path]:
        return [self.folder / "logs" / f"{name}.log" for name in self.nodes]

    def send(self, name: str, **fields: object) -> str:
        """Put a command into a consumer's channel, as its incarnation's and of its epoch and generation.

        :param fields: replace or add some.
        """
        channel = self.channel(name)
        own = {"version": 1, "epoch": channel.epoch, "generation": channel.generation}
        return self.send_raw(name, json.dumps({**own, "incarnation": channel.incarnation, **fields}).encode())

    def send_raw(self, name: str, data: bytes) -> str:
        """Put any data into a consumer's channel as a command; returns the name."""
        path = self.paths.command_prefix(name)
        (made,) = self.store.commit([Create(path, data, sequential=True)])
        return made.rpartition("/")[2]

    def removed(self, name: str) -> None:
        """Wait until a consumer's channel has no command."""
        self.wait(lambda: not self.commands(name), f"{name} removes every command of its channel")

    def write(self, path: str, data: bytes) -> None:
        """Overwrite a znode, or create it."""
        self.store.commit([SetData(path, data) if self.store.get(path) is not None else Create(path, data)])

    def remove(self, path: str) -> None:
        """Remove a znode."""
        self.store.commit([Delete(path)])

    # ---- its end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            end_all(self._started)
        finally:
            self._stack.close()
