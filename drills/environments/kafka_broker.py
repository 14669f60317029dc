"""The Kafka broker that holds the records of some drills."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from coordinator.zk.embedded.kafka import Broker, KafkaConfig, fetch_kafka
from coordinator.zk.errors import MissingProgram

from ..base.signals import held

SESSION_MS = 1500
"""Of the broker's ZooKeeper session: a killed broker cannot register again before that session expires."""


def require_kafka() -> None:
    """Check the dependencies of a broker and its clients; missing jars are fetched.

    :raises MissingProgram: when a dependency is missing.
    """
    if find_spec("confluent_kafka") is None:
        raise MissingProgram(
            "confluent-kafka, with which drills write to Kafka, is not installed: "
            "pip install 'zk-group-coordinator[kafka]'"
        )
    fetch_kafka()


class DrillBroker:
    """The broker of one drill, registered in the drill's chroot; started by the constructor.

    :param folder: for its data.  :param logs: receives its log when it is closed.
    :ivar address: `host:port`.
    :raises EnsembleError: when it does not start.
    """

    def __init__(self, folder: Path, logs: Path, zk: str) -> None:
        self._logs = logs
        self._broker = Broker(
            folder, KafkaConfig(zookeeper=zk, extra={"zookeeper.session.timeout.ms": str(SESSION_MS)})
        )
        self.address = self._broker.address
        self.start()

    def start(self) -> None:
        """Start it with its data, and wait until it listens."""
        try:
            with held():
                self._broker.start()
            self._broker.wait_ready()
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._broker.kill()

    def close(self) -> None:
        """End it, running or not."""
        with held():
            self._broker.stop(2.0)
            if self._broker.log.exists():
                self._logs.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._broker.log, self._logs / "broker.log")
