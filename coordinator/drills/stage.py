"""What a drill happens on: coordinators, fetchers and a producer below a chroot of their own, behind proxies."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ..topics import create_topic
from ..zk.kazoo_store import open_kazoo
from ..zk.paths import Brokers
from .broker import DrillBroker
from .ground import Ground, connect_string
from .histories import Notes
from .interrupts import finished, held
from .observer import Observer
from .processes import Process, end_all
from .proxy import Loss, Proxy
from .settings import POOL, QUERY, Settings
from .sight import READY_S, Produced, Sight, slot
from .tap import Tap
from .waiting import NotReached

OWN_SESSION_MS = 30_000
CHECKPOINT_MS = 500
MOST_SLOTS = 50
"""The pool has room for those that join later."""


class Stage(Sight):
    """One drill's processes. As a context manager it ends all of them, whatever happens.

    :ivar notes: what the drill itself knows of what happened.
    :ivar wrong: what the drill has seen that must not be.
    :ivar applications: whether consumers that seal nothing have taken part.
    :ivar stuck: consumers that live and do not poll.
    :ivar random: the only source of chance, from the drill's seed.
    :ivar broker: what the records are in, where they are in Kafka; it runs from `start_all` on.
    :ivar observer: tells what ZooKeeper did, where its transaction logs cannot be read; else None.
    """

    def __init__(self, ground: Ground, folder: Path, chroot: str, settings: Settings, seed: int) -> None:
        self.ground = ground
        self.chroot = chroot
        self.zk = connect_string(ground.addresses, chroot)
        self.observer: Observer | None = None
        self._proxies: dict[str, list[Proxy]] = {}
        self._tap = Tap() if ground.is_observed else None
        with ExitStack() as self._stack:
            if self._tap is not None:
                observer = Observer(ground.addresses, self._tap, ground.watched(chroot), chroot)
                self.observer = self._stack.enter_context(observer)
            super().__init__(open_kazoo(self._behind_proxies("drill"), OWN_SESSION_MS), folder, settings)
            self._stack.callback(self.store.close)
            self.segments_dir = folder / "segments"
            self.quota_bytes = self._limit_segments(settings.segments_mb) if settings.segments_mb else 0
            self._stack = self._stack.pop_all()
        self.notes = Notes()
        self.random = random.Random(seed)
        self.log_dir = "kafka:" if settings.kafka else str(folder / "log")
        self.broker: DrillBroker | None = None
        self.stuck: set[str] = set()
        self.wrong: list[str] = []
        self.applications = False
        self._started: list[Process] = []
        self.bounds = settings.bounds(ground.tick_s)
        self.notes.note("run", version=1, seed=seed, profile="drill", bounds=self.bounds)

    def _limit_segments(self, megabytes: int) -> int:
        """A small tmpfs where we may mount one; else each fetcher minds a quota: of so many bytes, else 0."""
        self.segments_dir.mkdir(parents=True)
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return megabytes << 20
        self._stack.callback(self._unmount)
        options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "drill", str(self.segments_dir)]
        return megabytes << 20 if finished("mount", *options, timeout_s=READY_S).returncode else 0

    def _unmount(self) -> None:
        if self.segments_dir.is_mount():
            finished("umount", "-l", str(self.segments_dir), timeout_s=READY_S)

    # ---- processes

    def start_all(self) -> None:
        """The topic, coordinators, fetchers with their pool, and the producer."""
        if self.settings.kafka:
            self._start_broker()
        else:
            create_topic(self.store, Brokers(), self.settings.topic, self.settings.partitions)
        for number in range(self.settings.nodes):
            self.start_node(f"node-{number + 1}")
        if self.settings.spark:
            self.start_spark()
        if self.settings.spark != "pool":
            if not self.settings.region:
                self.start_pool()
            for number in range(self.settings.slots):
                self.start_slot(number)
        self.start_producer()

    def start_node(self, name: str) -> Process:
        """A coordinator."""
        options = {
            "--zk": self._behind_proxies(name),
            "--node": name,
            "--session-timeout-ms": str(self.settings.session_timeout_ms),
            "--sweep-interval-ms": str(self.settings.sweep_interval_ms),
            "--assignment-timeout-ms": str(self.settings.assignment_timeout_ms),
            "--checkpoint-interval-ms": str(CHECKPOINT_MS),
            "--history-dir": str(self.histories),
        }
        return self._start(name, "coordinator.cli", ["run", *(word for pair in options.items() for word in pair)])

    def start_pool(self) -> Process:
        """Who says that the slots run."""
        zk, session_ms = self._behind_proxies("pool"), self.settings.session_timeout_ms
        told = {"zk": zk, "session_timeout_ms": session_ms, "group": self.settings.group, "pool": POOL}
        return self._start_told("pool", {**told, "run": "drill", "slots": MOST_SLOTS})

    def start_slot(self, number: int) -> Process:
        """A fetcher; in a consistent region an application that counts."""
        name = slot(number)
        if self.settings.region:
            told = {**self._consumer_told(name), "consumer": name, "region": self.settings.region}
            return self._start_told(name, told, "counting")
        told = {
            **self._consumer_told(name),
            "pool": POOL,
            "segments_dir": str(self.segments_dir),
            "slots": MOST_SLOTS,
            "number": number,
            "run": "drill",
            "quota_bytes": self.quota_bytes,
        }
        return self._start_told(name, told, "slot")

    def start_application(self, name: str, hangs: str) -> Process:
        """An application with a consumer that can be told to hang."""
        self.applications = True
        told = {**self._consumer_told(name), "consumer": name, "hangs": hangs}
        return self._start_told(name, told, "application")

    def start_spark(self) -> Process:
        """The Spark application, with a query, and the pool where slots run in executors."""
        zk = self._behind_proxies("spark")
        told: dict[str, object] = {"folder": str(self.folder), "zk": zk, "group": self.settings.group, "query": QUERY}
        if self.settings.spark == "pool":
            pool = {**self._consumer_told("spark"), "pool": POOL, "segments_dir": str(self.segments_dir)}
            options = {name: value for name, value in pool.items() if name not in ("zk", "group")}
            told["pool"] = {**options, "slots": self.settings.slots}
        return self._start("spark", "consumer.spark.drill_app", [json.dumps(told)])

    def start_churn(self, times: int) -> Process:
        """So many consumers that join and leave."""
        self.applications = True
        told = {**self._consumer_told("churn"), "times": times, "seed": self.random.randrange(1 << 30)}
        return self._start_told("churn", told)

    def start_producer(self) -> Process:
        """Numbered records into every partition."""
        told = {
            "zk": self._behind_proxies("producer"),
            "log_dir": self.log_dir,
            "topics": {self.settings.topic: 1},
            "rate": self.settings.rate,
        }
        if self.broker is None:
            return self._start_told("producer", told)
        return self._start_told("producer", {**told, **self._broker_told(self.broker)}, "kafka_producer")

    def _start_broker(self) -> None:
        """It registers at the servers themselves: no fault is done to what is between it and them."""
        logs = self.folder / "logs"
        self.broker = DrillBroker(self.folder / "kafka", logs, connect_string(self.ground.addresses, self.chroot))
        self._stack.callback(self.broker.close)

    def _broker_told(self, broker: DrillBroker) -> dict[str, object]:
        return {
            "topics": {self.settings.topic: 1},
            "servers": broker.address,
            "partitions": self.settings.partitions,
        }

    def in_log(self) -> Produced:
        """What the log holds, once nobody writes any more; of Kafka as read by a process that has nothing of ours.

        :raises NotReached: when it cannot be read, or Kafka does not hold what it has acknowledged.
        """
        told = self.produced()
        if self.broker is None:
            return told
        reader = self._start_told("kafka_reader", self._broker_told(self.broker))
        ended = reader.wait(READY_S)
        del self.processes[reader.name]
        answers = reader.printed()
        if ended != 0 or not answers:
            raise NotReached("Kafka could not be read by somebody else: see kafka_reader.log")
        found: Produced = answers[-1]["ends"]
        if found != told or answers[-1]["misplaced"]:
            raise NotReached(f"Kafka holds {found} records, and has acknowledged {told}")
        return found

    # ---- faults

    def fault(self, kind: str, seconds: float = 0.0, **hit: object) -> float:
        """Note a fault that begins now; when. One that lasts ends by itself, `seconds` later."""
        fields = {**hit, "until": time.monotonic() + seconds} if seconds else hit
        return self.notes.note("fault", "server", **{"kind": kind, **fields})

    def kill(self, name: str) -> None:
        """SIGKILL to a process."""
        process = self.processes[name]
        self.fault("kill", process=process.who)
        process.kill()
        del self.processes[name]
        self.gone(process, "killed")

    def terminate(self, name: str) -> None:
        """SIGTERM to a process, and wait until it has ended."""
        process = self.processes[name]
        self.fault("sigterm", process=process.who)
        process.terminate()
        if process.wait(READY_S) is None:
            raise NotReached(f"{name} does not end after SIGTERM")
        del self.processes[name]
        self.gone(process, "ended")

    def gone(self, process: Process, why: str) -> None:
        """Note that a process has ended."""
        self.notes.note("exit", process.who, why=why)

    def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP to a process, and SIGCONT after so long."""
        process = self.processes[name]
        self.fault("pause", seconds, process=process.who)
        process.pause()
        time.sleep(seconds)
        process.resume()

    def cut(self, name: str, seconds: float) -> None:
        """No packet between a process and ZooKeeper, either way, for so long."""
        self.fault("cut", seconds, process=self.processes[name].who)
        for proxy in self._proxies[name]:
            proxy.black_hole()
        time.sleep(seconds)
        for proxy in self._proxies[name]:
            proxy.resume()

    def hang(self, name: str, seconds: float) -> None:
        """Let a process hang where it can, and go on after so long."""
        process = self.processes[name]
        self.fault("stuck", seconds, process=process.who, group=self.settings.group, consumer=name)
        process.hang()
        time.sleep(seconds)
        process.go_on()

    def _consumer_told(self, name: str) -> dict[str, object]:
        """What every consumer is told; `name` is its process."""
        return {
            "zk": self._behind_proxies(name),
            "group": self.settings.group,
            "log_dir": self.log_dir,
            "session_timeout_ms": self.settings.session_timeout_ms,
            "max_poll_interval_ms": self.settings.max_poll_interval_ms,
            "history_dir": str(self.histories),
            "topics": {self.settings.topic: 1},
            **self._assignment_told(),
        }

    def _assignment_told(self) -> dict[str, object]:
        """Nothing where the coordinator assigns."""
        strategy, misbehaves = self.settings.strategy, self.settings.misbehaves
        if not strategy:
            return {}
        if not misbehaves:
            return {"assignment": "client", "protocols": strategy}
        own = {"strategy": strategy, "misbehaves": misbehaves, "state_bytes": self.settings.state_bytes}
        return {"assignment": "client", "protocols": "drill", **own}

    def lose(self, name: str, loss: Loss) -> Loss:
        """Lose one packet between a process and whichever server it is connected to."""
        for proxy in self._proxies[name]:
            proxy.arm(loss)
        return loss

    def _behind_proxies(self, name: str) -> str:
        if name not in self._proxies:
            proxies = [self._stack.enter_context(Proxy(address, self._tap)) for address in self.ground.addresses]
            self._proxies[name] = proxies
        return connect_string([proxy.hosts for proxy in self._proxies[name]], self.chroot)

    def _start_told(self, name: str, told: dict[str, object], module: str = "") -> Process:
        return self._start(name, f"consumer.drill.{module or name}", [json.dumps(told)])

    def _start(self, name: str, module: str, arguments: list[str]) -> Process:
        with held():  # so that none is started and then forgotten
            process = self.processes[name] = Process(self.folder / "logs", name, module, arguments)
            self._started.append(process)
        return process

    # ---- its end

    def end(self) -> None:
        """End every process."""
        end_all(self._started)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with held():
            try:
                self.end()
            finally:
                self._stack.close()
