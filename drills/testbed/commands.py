"""The command lines of a drill's processes: module and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..base.processes import module_command
from ..base.settings import POOL, QUERY, Settings
from ..environments.access import COORDINATOR, MEMBER
from .probes import slot

CHECKPOINT_MS = 500
MOST_SLOTS = 50
"""The pool size includes slots that join later."""


class ProcessCommand(NamedTuple):
    """A process: its name, its command line, and the role that it authenticates as."""

    name: str
    words: list[str]
    role: str = MEMBER


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands for one drill.

    :ivar log_dir: the folder of the records.
    :ivar quota_bytes: the segments' quota, enforced by each fetcher; 0 for none.
    :ivar hosts: maps a process name to its connect string.
    """

    settings: Settings
    folder: Path
    histories: Path
    log_dir: str
    segments_dir: Path
    quota_bytes: int
    hosts: Callable[[str], str]

    def node(self, name: str, *more: str) -> ProcessCommand:
        """A coordinator; `more` are further options."""
        options = {
            "--zk": self.hosts(name),
            "--node": name,
            "--session-timeout-ms": str(self.settings.session_timeout_ms),
            "--sweep-interval-ms": str(self.settings.sweep_interval_ms),
            "--assignment-timeout-ms": str(self.settings.assignment_timeout_ms),
            "--checkpoint-interval-ms": str(CHECKPOINT_MS),
            "--history-dir": str(self.histories),
        }
        words = ["run", *(word for pair in options.items() for word in pair), *more]
        return ProcessCommand(name, module_command("coordinator.cli", words), COORDINATOR)

    def pool(self) -> ProcessCommand:
        """The driver's part of the pool: it declares the slots as running."""
        zk, session_ms = self.hosts("pool"), self.settings.session_timeout_ms
        fields = {"zk": zk, "session_timeout_ms": session_ms, "group": self.settings.group, "pool": POOL}
        return _workload("pool", {**fields, "run": "drill", "slots": MOST_SLOTS})

    def slot(self, number: int) -> ProcessCommand:
        """A fetcher; in a consistent region a counting application."""
        name = slot(number)
        if self.settings.region:
            fields = {**self._consumer(name), "consumer": name, "region": self.settings.region}
            return _workload(name, fields, "counting")
        fields = {
            **self._consumer(name),
            "pool": POOL,
            "segments_dir": str(self.segments_dir),
            "slots": MOST_SLOTS,
            "number": number,
            "run": "drill",
            "quota_bytes": self.quota_bytes,
        }
        return _workload(name, fields, "slot")

    def application(self, name: str, hangs: str) -> ProcessCommand:
        """An application with a consumer that hangs on request, at `hangs`."""
        return _workload(name, {**self._consumer(name), "consumer": name, "hangs": hangs}, "application")

    def lying_member(self, name: str, lie: str) -> ProcessCommand:
        """A member that tells this kind of lie."""
        return _workload(name, {**self._consumer(name), "consumer": name, "lie": lie}, "lying_member")

    def spark(self) -> ProcessCommand:
        """The Spark application, with a query, and with the pool if slots run in executors."""
        fields: dict[str, object] = {"folder": str(self.folder), "zk": self.hosts("spark")}
        fields |= {"group": self.settings.group, "query": QUERY}
        if self.settings.spark == "pool":
            pool = {**self._consumer("spark"), "pool": POOL, "segments_dir": str(self.segments_dir)}
            options = {name: value for name, value in pool.items() if name not in ("zk", "group")}
            fields["pool"] = {**options, "slots": self.settings.slots}
        return _workload("spark", fields, "spark_app")

    def churn(self, times: int, seed: int) -> ProcessCommand:
        """Consumers that join and leave, `times` times."""
        return _workload("churn", {**self._consumer("churn"), "times": times, "seed": seed})

    def producer(self, broker: str | None) -> ProcessCommand:
        """A producer of numbered records for every partition; `broker` is Kafka's address, if the records are there."""
        topics = {self.settings.topic: 1}
        fields = {"zk": self.hosts("producer"), "log_dir": self.log_dir, "topics": topics, "rate": self.settings.rate}
        if broker is None:
            return _workload("producer", fields)
        return _workload("producer", {**fields, **self._kafka(broker)}, "kafka_producer")

    def kafka_reader(self, broker: str) -> ProcessCommand:
        """A reader of Kafka with an independent client."""
        return _workload("kafka_reader", self._kafka(broker))

    def _kafka(self, broker: str) -> dict[str, object]:
        return {"topics": {self.settings.topic: 1}, "servers": broker, "partitions": self.settings.partitions}

    def _consumer(self, name: str) -> dict[str, object]:
        """The configuration of a consumer; `name` is its process."""
        return {
            "zk": self.hosts(name),
            "group": self.settings.group,
            "log_dir": self.log_dir,
            "session_timeout_ms": self.settings.session_timeout_ms,
            "max_poll_interval_ms": self.settings.max_poll_interval_ms,
            "history_dir": str(self.histories),
            "topics": {self.settings.topic: 1},
            **self._assignment(),
        }

    def _assignment(self) -> dict[str, object]:
        """Empty for assignment by the coordinator."""
        strategy, misbehaves = self.settings.strategy, self.settings.misbehaves
        if not strategy:
            return {}
        if not misbehaves:
            return {"assignment": "client", "protocols": strategy}
        own = {"strategy": strategy, "misbehaves": misbehaves, "state_bytes": self.settings.state_bytes}
        return {"assignment": "client", "protocols": "drill", **own}


def _workload(name: str, fields: dict[str, object], module: str = "") -> ProcessCommand:
    return ProcessCommand(name, module_command(f"drills.workloads.{module or name}", [json.dumps(fields)]))
