"""The testbed of a drill: coordinators, fetchers and a producer in their own chroot, behind proxies; and the reader of
the DataFrames, one Spark process for all drills of a run."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from zk_group.coordinator.admin.acl import apply, create_group, read_policy
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.embedded.kafka import Broker, KafkaConfig
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, spark_options
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.session.kazoo_store import WRITES_DIR, open_kazoo
from zk_group.coordinator.zk.values import shown
from zk_group.coordinator.zk.znodes.paths import Brokers

from ..base.processes import END_S, NotReached, Process, end_all, finished, held, module_command, wait_for
from ..base.settings import Settings
from ..environments.base import COORDINATOR, MEMBER, OPERATOR, Environment, connect_string
from ..evidence.files import Notes, logged, sessions_in, with_strangers, write_history
from ..evidence.watch_observer import WatchObserver
from ..faults.proxy import Loss, ZxidClock
from .commands import READY_S, Processes, Produced, Proxies

OWN_SESSION_MS = 30_000
BROKER_SESSION_MS = 1500


class Stage(Processes):
    """One drill's processes. The context manager ends all of them, also after an error.

    :ivar notes: the drill's own events.
    :ivar wrong: violations observed by the drill.
    :ivar random: the only random generator, seeded by the drill.
    :ivar observer: the witness of ZooKeeper where its transaction logs are unreadable; else None.
    """

    def __init__(
        self, environment: Environment, folder: Path, chroot: str, settings: Settings, seed: int, profile: str = "drill"
    ) -> None:
        self.environment = environment
        self.chroot = chroot
        self.zk = connect_string(environment.addresses, chroot)
        self.observer: WatchObserver | None = None
        clock = ZxidClock() if environment.is_observed else None
        self._writes = str(folder / "writes") if environment.is_observed else ""
        with ExitStack() as self._stack:
            if clock is not None:
                roots = environment.watched(chroot)
                observer = WatchObserver(environment.addresses, clock, roots, chroot, self._writes, environment.access)
                self.observer = self._stack.enter_context(observer)
            proxies = self._stack.enter_context(Proxies(environment.addresses, chroot, clock, environment.access.tls))
            access = environment.access.behind_proxy(OPERATOR)
            self._admin = open_kazoo(proxies.hosts("drill"), OWN_SESSION_MS, access=access, writes_dir=self._writes)
            super().__init__(self._admin, folder, settings, proxies, self._environment_of)
            self._stack.callback(self.store.close)
            if settings.segments_mb:
                self.quota_bytes = self._limit_segments(settings.segments_mb)
            self._stack = self._stack.pop_all()
        self.notes = Notes()
        self.random = random.Random(seed)
        self.wrong: list[str] = []
        self.bounds = settings.bounds(environment.tick_s)
        self.notes.note("run", version=1, seed=seed, profile=profile, bounds=self.bounds)

    def _environment_of(self, role: str) -> dict[str, str]:
        recorded = {WRITES_DIR: self._writes} if self._writes else {}
        return {**self.environment.access.environment(role), **recorded}

    def _limit_segments(self, megabytes: int) -> int:
        """Mount a small tmpfs if permitted; else each fetcher enforces a quota. Returns the quota in bytes, else 0."""
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
        """Create the topic, and start coordinators, fetchers with their pool, and the producer."""
        self._secure()
        if self.settings.kafka:
            self.start_broker()
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

    def _secure(self) -> None:
        """With roles: ACLs with only the needed rights of each kind of process. In a secured path: the group in it.

        :raises UsageError: when the processes, which have the drill's identity there, may not be coordinators.
        """
        access = self.environment.access
        if access.has_roles:
            coordinators, operators = access.acl_ids(COORDINATOR), access.acl_ids(OPERATOR)
            apply(self._admin, AclPolicy(is_secure=True, coordinators=coordinators, operators=operators), Brokers())
        elif not (policy := read_policy(self._admin)).is_secure:
            return
        elif not set(access.acl_ids(COORDINATOR)) & set(policy.coordinators):
            raise UsageError("the path of --zk is secured: the drill needs an identity of its coordinators")
        regions = [self.settings.region] if self.settings.region else []
        create_group(self._admin, self.settings.group, access.acl_ids(MEMBER), regions)

    def start_broker(self) -> None:
        """Start the broker with its data. It connects to the servers directly: no fault cuts it off from them."""
        if self.broker is None:
            # A killed broker cannot register again before its session expires.
            config = KafkaConfig(zookeeper=self.zk, extra={"zookeeper.session.timeout.ms": str(BROKER_SESSION_MS)})
            self.broker = Broker(self.folder / "kafka", config)
            self._stack.callback(self._end_broker, self.broker)
        with held():
            self.broker.start()
        self.broker.wait_ready()

    def _end_broker(self, broker: Broker) -> None:
        broker.stop(2.0)
        if broker.log.exists():
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(broker.log, self.folder / "logs" / "broker.log")

    def in_log(self) -> Produced:
        """The log's records after the last write; Kafka's as read by an independent process.

        :raises NotReached: when the log is unreadable, or Kafka lacks acknowledged records.
        """
        acknowledged = self.produced()
        if self.broker is None:
            return acknowledged
        reader = self._workload("kafka_reader", "kafka_client.read", **self._log(), **self._kafka(self.broker))
        ended = reader.wait(READY_S)
        del self.processes[reader.name]
        answers = reader.printed()
        if ended != 0 or not answers:
            raise NotReached("Kafka is unreadable for an independent client: see kafka_reader.log")
        stored: Produced = answers[-1]["ends"]
        if stored != acknowledged or answers[-1]["misplaced"]:
            raise NotReached(f"Kafka has {stored} records, but has acknowledged {acknowledged}")
        return stored

    # ---- faults

    def fault(self, kind: str, seconds: float = 0.0, **hit: object) -> float:
        """Record the start of a fault; returns its time. A lasting fault ends after `seconds`."""
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
        if not self.has_ended(name, READY_S, "ended"):
            raise NotReached(f"{name} does not end after SIGTERM")

    def has_ended(self, name: str, timeout_s: float, why: str) -> bool:
        """Whether a process ends in this time; then its end is recorded."""
        process = self.processes[name]
        if process.wait(timeout_s) is None:
            return False
        del self.processes[name]
        self.gone(process, why)
        return True

    def gone(self, process: Process, why: str) -> None:
        """Record the end of a process."""
        self.notes.note("exit", process.who, why=why)

    def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP to a process, and SIGCONT after `seconds`."""
        process = self.processes[name]
        self.fault("pause", seconds, process=process.who)
        process.pause()
        time.sleep(seconds)
        process.resume()

    def cut(self, name: str, seconds: float) -> None:
        """Drop all packets between a process and ZooKeeper for `seconds`."""
        self.cut_off(name, seconds)
        time.sleep(seconds)
        self.join(name)

    def cut_off(self, name: str, seconds: float) -> None:
        """Drop all packets between a process and ZooKeeper until `join`, after `seconds` at most."""
        self.fault("cut", seconds, process=self.processes[name].who)
        for proxy in self._proxies.of[name]:
            proxy.black_hole()

    def join(self, name: str) -> None:
        """End the faults on the packets of a process."""
        for proxy in self._proxies.of[name]:
            proxy.resume()

    def hang(self, name: str, seconds: float, kind: str = "stuck") -> Process:
        """Hang a consumer at its workload's hanging point. The caller resumes it, after `seconds` at most."""
        process = self.processes[name]
        self.fault(kind, seconds, process=process.who, group=self.settings.group, consumer=name)
        process.hang()
        return process

    def lose(self, name: str, loss: Loss) -> Loss:
        """Lose one packet between a process and its current server."""
        for proxy in self._proxies.of[name]:
            proxy.arm(loss)
        return loss

    # ---- its end

    def witnessed(self) -> list[Path]:
        """Write the histories of the drill and of ZooKeeper beside those of the processes; returns all the files.

        The drill's changes are the only manual ones. Commits without a known session are not attributed; the observer
        reports them (`Observer.missing`).
        """
        self.histories.mkdir(parents=True, exist_ok=True)
        histories, sessions = sorted(self.histories.glob("*#*.jsonl")), sessions_in(self.histories)
        if self.observer is not None:
            done = self.observer.events(sessions)
        else:
            done = logged(self.environment.transaction_logs(), sessions, self.notes.behind_s, self.chroot)
        own, zookeeper = self.histories / "drill.jsonl", self.histories / "zookeeper.jsonl"
        write_history(own, self.notes.events)
        write_history(zookeeper, with_strangers(done, {self.store.session_id, None, *sessions}))
        return [own, zookeeper, *histories]

    def end(self) -> None:
        end_all(self._started)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with held():
            try:
                self.end()
            finally:
                self._stack.close()


ANSWER_S = 120.0


class DataFrameReader:
    """`zk_group.drills.workloads.spark_app.read`, started during the first drill, and restarted after it has ended.

    :ivar process: the current one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start()

    def _start(self) -> None:
        (self._folder / "reader.out").unlink(missing_ok=True)
        with held():  # so that the started process is always registered
            command = module_command("zk_group.drills.workloads.spark_app", [])
            self.process = Process(self._folder, "reader", command, takes_requests=True)
        self._heard = 0

    def read(
        self, zk: str, group: str, is_whole: bool = True, access: ZooKeeperAccess | None = None
    ) -> list[dict[str, Any]]:
        """The contents of the DataFrame, for each partition.

        :param access: TLS and the file of credentials.
        :param is_whole: whether all records must be in it; else applications have read some of them.
        :raises NotReached: when Spark does not answer, or cannot read it; with the reason.
        """
        if not self.process.is_running:
            self.close()
            self._start()
        if not self._heard:
            self._answer()  # it is ready
        options = {"zk": zk, "group": group, "failOnDataLoss": str(is_whole).lower()}
        options |= spark_options(access) if access is not None else {}
        try:
            self.process.request(json.dumps(options))
        except OSError as error:
            raise NotReached(f"Spark has ended: {error}") from error
        answer = self._answer()
        if answer.get("event") != "read":
            raise NotReached(f"the DataFrame is unreadable: {answer.get('reason')}")
        partitions: list[dict[str, Any]] = answer["partitions"]
        return partitions

    def _answer(self) -> dict[str, Any]:
        def unheard() -> list[dict[str, Any]]:
            return self.process.printed()[self._heard :]

        try:
            wait_for(lambda: unheard() or not self.process.is_running, ANSWER_S, "Spark answers")
        except NotReached:
            self.process.kill()  # a late reply must not be taken for the next one
            raise
        answers = unheard()
        if not answers:
            self.close()  # its remaining children
            lines = (self._folder / "reader.log").read_text(errors="replace").splitlines()
            last = next((shown(line, 300) for line in reversed(lines) if line.strip()), "no output")
            raise NotReached(f"Spark has ended: {last}")
        self._heard += 1
        return answers[0]

    def close(self) -> None:
        """End it; the JVM ends shortly after its Python process."""
        self.process.finish(4 * END_S)
