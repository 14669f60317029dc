"""An application with a consumer, as a process of its own. It hangs between polls or in a callback."""

from __future__ import annotations

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.errors import CommitFailed, FencedInstanceId
from coordinator.zk.config import load
from coordinator.zk.fields import Fields
from coordinator.zk.partitions import PartitionSet

from .process import Gate, run, tell, topics_of

POLL_MS = 100
BETWEEN_POLLS = "between polls"
IN_REVOKE = "in on_partitions_revoked"


class Hanging(Callbacks):
    """Callbacks of which the one that gives partitions up does not return while the gate is shut."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        """See `Callbacks`."""
        self._gate.pass_through()


def main(fields: Fields) -> None:
    """Poll and commit until SIGTERM. `hangs` is where; the other fields are those of `ConsumerConfig`, and `topics`."""
    gate = Gate()
    hangs = fields.text("hangs", BETWEEN_POLLS)
    topics = topics_of(fields)
    config = load(ConsumerConfig, fields.values, env={})
    callbacks = Hanging(gate) if hangs == IN_REVOKE else Callbacks()
    count = 0
    try:
        with Consumer(config, Subscription(topics), callbacks) as consumer:
            while not gate.ended.is_set():
                count += sum(map(len, consumer.poll(POLL_MS).values()))
                _commit(consumer)
                if hangs == BETWEEN_POLLS:
                    gate.pass_through()
    except FencedInstanceId as over:
        tell("fenced", reason=str(over))
    tell("ended", records=count)


def _commit(consumer: Consumer) -> None:
    try:
        consumer.commit()
    except CommitFailed as error:
        tell("not committed", reason=str(error))


if __name__ == "__main__":
    run(main)
