"""An application with a consumer, in its own process. It hangs between polls or in a callback."""

from __future__ import annotations

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.errors import CommitFailed, FencedInstanceId
from coordinator.zk.values import load
from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.partitions import PartitionSet

from .process import HangGate, emit, run, topics_of

POLL_MS = 100
BETWEEN_POLLS = "between polls"
IN_REVOKE = "in on_partitions_revoked"


class Hanging(Callbacks):
    """Callbacks whose `on_partitions_revoked` blocks while the gate is shut."""

    def __init__(self, gate: HangGate) -> None:
        self._gate = gate

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._gate.pass_through()


def main(fields: Fields) -> None:
    """Poll and commit until SIGTERM. `hangs` is the place of the hang; the rest is `topics` and `ConsumerConfig`."""
    gate = HangGate()
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
        emit("fenced", reason=str(over))
    emit("ended", records=count)


def _commit(consumer: Consumer) -> None:
    try:
        consumer.commit()
    except CommitFailed as error:
        emit("not committed", reason=str(error))


if __name__ == "__main__":
    run(main)
