"""An application in a consistent region, as a process of its own: it counts in memory only, and hangs in `on_drain`.

Of record n of a partition the key is `partition:n%KEYS`. The counts of a partition are that partition's state; those of
each key are of the member as a whole, which knows nothing of partitions.
"""

from __future__ import annotations

import json
from collections import Counter

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.errors import FencedInstanceId
from consumer.operator.states import State
from coordinator.zk.config import load
from coordinator.zk.fields import Fields
from coordinator.zk.partitions import TopicPartition

from .process import Gate, run, tell, topics_of

POLL_MS = 100
KEYS = 3


class Counts(Callbacks):
    """How many records of each partition, and of each key, have come."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.by_partition: Counter[TopicPartition] = Counter()
        self.by_key: Counter[str] = Counter()

    def on_drain(self) -> None:
        """See `Callbacks`. Nothing is left to finish; it hangs while the gate is shut."""
        if not self._gate.is_open:
            tell("hangs in on_drain")
            self._gate.pass_through()

    def on_checkpoint(self, checkpoint: int) -> State:
        """See `Callbacks`."""
        partitions = {partition: b"%d" % count for partition, count in self.by_partition.items()}
        return State(partitions, json.dumps(self.by_key).encode())

    def on_reset(self, checkpoint: int, state: State) -> None:
        """See `Callbacks`."""
        self.by_partition = Counter({partition: int(data) for partition, data in state.partitions.items()})
        self.by_key = Counter()
        for data in (state.member, *state.inherited.values()):
            self.by_key.update(json.loads(data) if data else {})

    def count(self, partition: TopicPartition, numbers: list[int]) -> None:
        """These have come."""
        self.by_partition[partition] += len(numbers)
        self.by_key.update(f"{partition.partition}:{number % KEYS}" for number in numbers)


def main(fields: Fields) -> None:
    """Count until SIGTERM. The fields are those of `ConsumerConfig`, and `topics`."""
    gate = Gate()
    config, counts = load(ConsumerConfig, fields.values, env={}), Counts(gate)
    try:
        with Consumer(config, Subscription(topics_of(fields)), counts) as consumer:
            while not gate.ended.is_set():
                for partition, records in consumer.poll(POLL_MS).items():
                    counts.count(partition, [int(record.value or b"") for record in records])
    except FencedInstanceId as over:
        tell("fenced", reason=str(over))
    tell("ended", records=sum(counts.by_partition.values()))


if __name__ == "__main__":
    run(main)
