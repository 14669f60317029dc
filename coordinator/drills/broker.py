"""The Kafka broker that the records of some drills are in."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from ..zk.ensemble_kafka import Broker, KafkaConfig
from ..zk.errors import MissingProgram
from ..zk.kafka_jars import fetch_kafka
from .interrupts import held

SESSION_MS = 1500
"""Of the broker in ZooKeeper: one that was killed cannot register again before that session has ended."""


def require_kafka() -> None:
    """See that all that a broker and its clients need is there; its jars are fetched when they are not.

    :raises MissingProgram: when something cannot be had.
    """
    if find_spec("confluent_kafka") is None:
        raise MissingProgram(
            "confluent-kafka, with which drills write to Kafka, is not installed: "
            "pip install 'zk-group-coordinator[kafka]'"
        )
    fetch_kafka()


class DrillBroker:
    """A broker of one drill, which registers in the drill's chroot. It runs when this is made.

    :param folder: for its data.  :param logs: gets what it said, when it is closed.
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
        """Start it, with the data that it has, and wait until it listens."""
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
