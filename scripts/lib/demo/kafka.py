"""The demo's records in a real Kafka: a broker in ZooKeeper mode, a topic, and Kafka's producer."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer as Client

from coordinator.zk.embedded.kafka import Broker, KafkaConfig
from drills.workloads.kafka_producer import created

PATIENCE_S = 60.0


class KafkaProducer:
    """Starts a broker that registers in `zk`, and writes to it. As a context manager it stops the broker at the end.

    :raises MissingProgram: when Kafka's jars cannot be fetched.
    """

    def __init__(self, folder: Path, zk: str, topic: str, partitions: int) -> None:
        self._broker = Broker(folder / "kafka", KafkaConfig(zookeeper=zk))
        self._topic = topic
        self._partitions = partitions

    def __enter__(self) -> KafkaProducer:
        self._broker.__enter__()
        try:
            options = {"bootstrap.servers": self._broker.address, "log_level": 0}
            created(self._broker.address, [self._topic], self._partitions)
            self._client = Client({**options, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
        except BaseException:
            self._broker.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._broker.stop(2.0)

    def send(self, topic: str, value: bytes, key: bytes) -> None:
        """Write one record asynchronously."""
        self._client.produce(topic, value, key)
        self._client.poll(0)

    def flush(self) -> None:
        """Wait until the broker has acknowledged all records.

        :raises TimeoutError: when it does not acknowledge them.
        """
        if self._client.flush(PATIENCE_S):
            raise TimeoutError(f"the broker does not acknowledge records: {self._broker.log}")
