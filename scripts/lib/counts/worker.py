"""One worker: it counts the records of each key in memory; only checkpoints have its state on disk.

python -m counts.worker ZK NAME LOG_DIR CHECKPOINT_DIR
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections import Counter

from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.runtime import ThreadRuntime, on_signals

GROUP = REGION = "counts"
TOPIC = "words"
SESSION_TIMEOUT_MS = 3000


class Counts(Callbacks):
    """The number of records of each key. It is the member's state, independent of partitions."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def on_checkpoint(self, checkpoint: int) -> State:
        """Its current state."""
        return State(member=json.dumps(self.counts).encode())

    def on_reset(self, checkpoint: int, state: State) -> None:
        """Restore its state of the checkpoint, and those of departed members."""
        self.counts = Counter()
        for data in (state.member, *state.inherited.values()):
            self.counts.update(json.loads(data) if data else {})


def main(zk: str, name: str, log_dir: str, checkpoint_dir: str) -> None:
    """Count until SIGTERM."""
    stopping = ThreadRuntime().event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    counts = Counts()
    config = ConsumerConfig(
        zk=zk, group=GROUP, consumer=name, region=REGION, log_dir=log_dir, checkpoint_dir=checkpoint_dir,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )  # fmt: skip
    with Consumer(config, Subscription({TOPIC: 1}), counts) as consumer:
        while not stopping.is_set():
            for records in consumer.poll(100).values():
                counts.counts.update((record.key or b"").decode() for record in records)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    main(*sys.argv[1:5])
