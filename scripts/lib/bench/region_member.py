"""One member of `bench region`: it counts records, and measures the pauses of checkpoints.

python -m bench.region_member CONFIG     one JSON object, the fields of `ConsumerConfig`
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections import Counter
from typing import Any

from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.runtime import ThreadRuntime, on_signals
from zk_group.coordinator.zk.values import load
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.drills.workloads.process import emit

from .group import TOPIC

RECORDS_A_POLL = 2
PROCESSING_S = 0.01


class Counts(Callbacks):
    """The number of records of each partition."""

    def __init__(self) -> None:
        self.counts: Counter[TopicPartition] = Counter()

    def on_checkpoint(self, checkpoint: int) -> State:
        """Its current state."""
        return State({partition: b"%d" % count for partition, count in self.counts.items()})

    def on_reset(self, checkpoint: int, state: State) -> None:
        """Restore its state of the checkpoint."""
        self.counts = Counter({partition: int(data) for partition, data in state.partitions.items()})


def main(fields: dict[str, Any]) -> None:
    """Poll until SIGTERM. There is always a record: a poll waits for checkpoints only."""
    stopping = ThreadRuntime().event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    config, counts = load(ConsumerConfig, fields, env={}), Counts()
    with Consumer(config, Subscription({TOPIC: 1}), counts) as consumer:
        processed, before = time.monotonic(), (0, 0)
        while not stopping.is_set():
            found = consumer.poll(100, RECORDS_A_POLL)
            if not found:
                continue
            came = time.monotonic()
            counts.counts.update({partition: len(records) for partition, records in found.items()})
            now = (consumer.region.drained, consumer.region.resets) if config.region else (0, 0)
            if now[0] != before[0] and now[1] == before[1]:
                emit("pause", checkpoint=now[0], pause_ms=1000 * (came - processed))
            before = now
            time.sleep(PROCESSING_S)
            processed = time.monotonic()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    main(json.loads(sys.argv[1]))
