"""Topics and records of a trial's Kafka broker, through confluent-kafka: for people without Kafka's own tools."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ..errors import CoordinatorError, MissingProgram, UsageError

try:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions, NewTopic
except ImportError as error:
    raise MissingProgram(
        "confluent-kafka, which talks to Kafka, is not installed: pip install 'confluent-kafka>=2.6'"
    ) from error

ANSWER_S = 30.0
_POLL_S = 0.5


class TrialKafka:
    """A broker's topics and records.

    :param address: host:port.
    """

    def __init__(self, address: str) -> None:
        self._options: dict[str, str | int | float | bool] = {"bootstrap.servers": address, "log_level": 0}
        self._admin = AdminClient(self._options)

    def partitions(self, topic: str) -> int:
        """The number of partitions that can be written to; 0 for a missing topic.

        :raises CoordinatorError: when the broker does not answer.
        """
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                listed = self._admin.list_topics(timeout=ANSWER_S)
            except KafkaException as error:
                raise _failure("the broker does not answer", error) from error
            metadata = listed.topics.get(topic)
            parts = metadata.partitions.values() if metadata is not None else ()
            is_settled = listed.controller_id >= 0 and all(part.leader >= 0 for part in parts)
            if is_settled or time.monotonic() > deadline:
                return len(parts)
            time.sleep(0.1)

    def make_topic(self, topic: str, partitions: int) -> str:
        """Create a topic, or give it more partitions; returns the action, as a word.

        :raises UsageError: when it has more partitions, or the broker refuses.
        """
        has = self.partitions(topic)
        if has == partitions:
            return "unchanged"
        if has > partitions:
            raise UsageError(f"topic {topic} has {has} partitions, which cannot become fewer")
        if has:
            _done(self._admin.create_partitions([NewPartitions(topic, partitions)])[topic])
        else:
            _done(self._admin.create_topics([NewTopic(topic, partitions, 1)])[topic])
        deadline = time.monotonic() + ANSWER_S
        while self.partitions(topic) < partitions:
            if time.monotonic() > deadline:
                raise CoordinatorError(f"topic {topic} has no leaders after {ANSWER_S:g} s: see the broker's log")
            time.sleep(0.1)
        return "altered" if has else "created"

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its records.

        :raises UsageError: when the broker refuses, as without such a topic.
        """
        _done(self._admin.delete_topics([topic])[topic])

    def write(self, topic: str, values: Iterable[tuple[bytes | None, bytes]]) -> int:
        """Write records (key and value), and wait until the broker has them; their number.

        :raises UsageError: when there is no such topic.
        :raises CoordinatorError: when the broker does not take them.
        """
        self._existing(topic)
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: object) -> None:
            if error is not None:
                failed.append(error)

        producer, count = Producer({**self._options, "linger.ms": 20}), 0
        try:
            for key, value in values:
                while True:
                    try:
                        producer.produce(topic, value, key, on_delivery=delivered)
                        break
                    except BufferError:  # its queue is full
                        producer.poll(_POLL_S)
                producer.poll(0)
                count += 1
        finally:  # those before a bad one, too
            left = producer.flush(ANSWER_S)
        if left:
            raise CoordinatorError(f"the broker has not taken {left} of {count} records within {ANSWER_S:g} s")
        if failed:
            raise CoordinatorError(f"the broker has not taken {len(failed)} of {count} records: {failed[0].str()}")
        return count

    def read(self, topic: str, idle_s: float | None) -> Iterator[bytes | None]:
        """The values of all records, from the beginning on; without end, or until none has come for `idle_s`.

        :raises UsageError: when there is no such topic.
        """
        numbers = range(self._existing(topic))
        consumer = Consumer({**self._options, "group.id": "trial", "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
            last = time.monotonic()
            while idle_s is None or time.monotonic() - last < idle_s:
                message = consumer.poll(_POLL_S if idle_s is None else min(_POLL_S, idle_s))
                if message is None:
                    continue
                if (problem := message.error()) is not None:
                    raise CoordinatorError(f"topic {topic} cannot be read: {problem.str()}")
                last = time.monotonic()
                yield message.value()
        finally:
            consumer.close()

    def _existing(self, topic: str) -> int:
        if not (partitions := self.partitions(topic)):
            raise UsageError(f"there is no topic {topic}: scripts/ensemble kafka topic {topic} --partitions 4")
        return partitions


def _done(future: object) -> None:
    try:
        future.result(ANSWER_S)  # type: ignore[attr-defined]
    except KafkaException as error:
        raise _failure("refused", error, UsageError) from error


def _failure(what: str, error: KafkaException, kind: type[CoordinatorError] = CoordinatorError) -> CoordinatorError:
    return kind(f"{what}: {' '.join(error.args[0].str().split())}")
