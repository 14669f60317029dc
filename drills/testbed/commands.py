"""The processes of a drill, the module and the arguments of each, and the proxies between them and the ensemble."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from coordinator.zk.embedded.kafka import Broker
from coordinator.zk.security.access import ZooKeeperAccess
from coordinator.zk.store import Store

from ..base.processes import Process, module_command
from ..base.settings import POOL, QUERY, Settings
from ..base.signals import held
from ..environments.base import COORDINATOR, MEMBER, connect_string
from ..faults.proxy import Proxy, ZxidClock
from .probes import Sight, slot


class Proxies:
    """Started on first use.

    :param clock: sees the progress of the servers.
    :param access: the TLS to the servers; None for none.
    """

    def __init__(
        self, addresses: Sequence[str], chroot: str, clock: ZxidClock | None, access: ZooKeeperAccess | None = None
    ) -> None:
        self._addresses = addresses
        self._chroot = chroot
        self._clock = clock
        self._access = access
        self._stack = ExitStack()
        self._of: dict[str, list[Proxy]] = {}

    def hosts(self, name: str) -> str:
        """The connect string of a process."""
        if name not in self._of:
            # One after the other: a port that is chosen and not bound yet is free for the next one.
            proxies = (Proxy(address, self._clock, self._access) for address in self._addresses)
            self._of[name] = [self._stack.enter_context(proxy) for proxy in proxies]
        return connect_string([proxy.hosts for proxy in self._of[name]], self._chroot)

    def close(self) -> None:
        """Close all of them."""
        self._stack.close()

    def of(self, name: str) -> Sequence[Proxy]:
        """Those of a process."""
        return self._of[name]


CHECKPOINT_MS = 500
MOST_SLOTS = 50
"""The pool size includes slots that join later."""


class Processes(Sight):
    """Starts the processes of a drill: one method for each kind.

    :param proxies: between them and ZooKeeper.
    :param variables: of their environment, by role.
    :ivar segments_dir: the folder of the segments.
    :ivar quota_bytes: the segments' quota, enforced by each fetcher; 0 for none.
    :ivar broker: the Kafka broker of the records, if any.
    :ivar applications: whether consumers without segments have taken part.
    :ivar has_liars: whether members that lie have taken part.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        settings: Settings,
        proxies: Proxies,
        variables: Callable[[str], Mapping[str, str]],
    ) -> None:
        super().__init__(store, folder, settings)
        self.segments_dir = folder / "segments"
        self.quota_bytes = 0
        self.broker: Broker | None = None
        self.applications = False
        self.has_liars = False
        self._proxies = proxies
        self._variables = variables
        self._started: list[Process] = []

    def _start(self, name: str, command: Sequence[str], role: str = MEMBER) -> Process:
        """Start a process, which authenticates as this role."""
        with held():  # so that a started process is always registered
            process = Process(self.folder / "logs", name, command, self._variables(role))
            self.processes[name] = process
            self._started.append(process)
        return process

    def start_node(self, name: str, *more: str) -> Process:
        """Start a coordinator; `more` are further options."""
        options = {
            "--zk": self._proxies.hosts(name),
            "--node": name,
            "--session-timeout-ms": str(self.settings.session_timeout_ms),
            "--sweep-interval-ms": str(self.settings.sweep_interval_ms),
            "--assignment-timeout-ms": str(self.settings.assignment_timeout_ms),
            "--checkpoint-interval-ms": str(CHECKPOINT_MS),
            "--history-dir": str(self.histories),
        }
        words = ["run", *(word for pair in options.items() for word in pair), *more]
        return self._start(name, module_command("coordinator.cli", words), COORDINATOR)

    def start_pool(self) -> Process:
        """Start the driver's part of the pool: it declares the slots as running."""
        zk, session_ms = self._proxies.hosts("pool"), self.settings.session_timeout_ms
        fields = {"zk": zk, "session_timeout_ms": session_ms, "group": self.settings.group, "pool": POOL}
        return self._workload("pool", {**fields, "run": "drill", "slots": MOST_SLOTS})

    def start_slot(self, number: int) -> Process:
        """Start a fetcher; in a consistent region a counting application."""
        name = slot(number)
        if self.settings.region:
            fields = {**self._consumer_fields(name), "consumer": name, "region": self.settings.region}
            return self._workload(name, fields, "counting")
        fields = {
            **self._consumer_fields(name),
            "pool": POOL,
            "segments_dir": str(self.segments_dir),
            "slots": MOST_SLOTS,
            "number": number,
            "run": "drill",
            "quota_bytes": self.quota_bytes,
        }
        return self._workload(name, fields, "slot")

    def start_application(self, name: str, hangs: str) -> Process:
        """Start an application with a consumer that hangs on request, at `hangs`."""
        self.applications = True
        return self._workload(name, {**self._consumer_fields(name), "consumer": name, "hangs": hangs}, "application")

    def start_lying_member(self, name: str, lie: str) -> Process:
        """Start a member that tells this kind of lie."""
        self.has_liars = True
        return self._workload(name, {**self._consumer_fields(name), "consumer": name, "lie": lie}, "lying_member")

    def start_spark(self) -> Process:
        """Start the Spark application, with a query, and with the pool if slots run in executors."""
        fields: dict[str, object] = {"folder": str(self.folder), "zk": self._proxies.hosts("spark")}
        fields |= {"group": self.settings.group, "query": QUERY}
        if self.settings.spark == "pool":
            pool = {**self._consumer_fields("spark"), "pool": POOL, "segments_dir": str(self.segments_dir)}
            options = {name: value for name, value in pool.items() if name not in ("zk", "group")}
            fields["pool"] = {**options, "slots": self.settings.slots}
        return self._workload("spark", fields, "spark_app")

    def start_churn(self, times: int, seed: int) -> Process:
        """Start consumers that join and leave, `times` times."""
        self.applications = True
        return self._workload("churn", {**self._consumer_fields("churn"), "times": times, "seed": seed}, "application")

    def start_producer(self) -> Process:
        """Start the producer of numbered records for every partition."""
        fields = {"zk": self._proxies.hosts("producer"), **self._log(), "rate": self.settings.rate}
        if self.broker is None:
            return self._workload("producer", fields)
        return self._workload("producer", {**fields, **self._kafka(self.broker)}, "kafka_client")

    def _start_kafka_reader(self, broker: Broker) -> Process:
        return self._workload("kafka_reader", self._kafka(broker), "kafka_client")

    def _kafka(self, broker: Broker) -> dict[str, object]:
        return {**self._log(), "servers": broker.address, "partitions": self.settings.partitions}

    def _log(self) -> dict[str, object]:
        log_dir = "kafka:" if self.settings.kafka else str(self.folder / "log")
        return {"log_dir": log_dir, "topics": {self.settings.topic: 1}}

    def _consumer_fields(self, name: str) -> dict[str, object]:
        """The configuration of a consumer; `name` is its process."""
        return {
            "zk": self._proxies.hosts(name),
            "group": self.settings.group,
            **self._log(),
            "session_timeout_ms": self.settings.session_timeout_ms,
            "max_poll_interval_ms": self.settings.max_poll_interval_ms,
            "history_dir": str(self.histories),
            **self._assignment(),
        }

    def _assignment(self) -> dict[str, object]:
        """Empty for assignment by the coordinator."""
        settings = self.settings
        if not settings.strategy:
            return {}
        own = {"strategy": settings.strategy, "misbehaves": settings.misbehaves, "state_bytes": settings.state_bytes}
        return {"assignment": "client", "protocols": "drill" if settings.misbehaves else settings.strategy, **own}

    def _workload(self, name: str, fields: dict[str, object], module: str = "") -> Process:
        return self._start(name, module_command(f"drills.workloads.{module or name}", [json.dumps(fields)]))
