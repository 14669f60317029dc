"""An application in a consistent region, in its own process: it counts in memory, and hangs in `on_drain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import FencedInstanceId
from coordinator.zk.runtime import Runtime, ThreadRuntime
from coordinator.zk.session.kazoo_store import KazooStore, open_kazoo
from coordinator.zk.values import load
from coordinator.zk.znodes.json_fields import Fields

from .process import HangGate, emit, run, topics_of
from .sketching import Sketching

POLL_MS = 100


@dataclass(kw_only=True)
class Counts(Sketching):
    """The counts of each partition, and of the member."""

    gate: HangGate
    config: ConsumerConfig
    runtime: Runtime
    _store: KazooStore | None = None
    _heard: int = 0

    def open_store(self) -> KazooStore:
        """Open a session, for the consumer."""
        config = self.config
        self._store = open_kazoo(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
        return self._store

    def on_drain(self) -> None:
        """See `Callbacks`. There is nothing to finish; it hangs while the gate is shut."""
        if not self.gate.is_open:
            emit("hangs in on_drain")
            self.gate.pass_through()

    def record(self, event: str, **fields: Any) -> None:
        """See `Sketching`. Adds the newest zxid that the process has seen."""
        if self._store is not None:
            self._heard = max(self._heard, self._store.last_zxid)
        names = {"group": self.config.group, "consumer": self.config.consumer}
        self.runtime.record(event, **names, **fields, heard=self._heard)


def main(fields: Fields) -> None:
    """Count until SIGTERM. The fields are those of `ConsumerConfig`, and `topics`."""
    config = load(ConsumerConfig, fields.values, env={})
    runtime = ThreadRuntime(config.recorder("consumer", region=config.region))
    counts = Counts(gate=HangGate(), config=config, runtime=runtime)
    subscription = Subscription(topics_of(fields))
    try:
        with Consumer(config, subscription, counts, open_store=counts.open_store, runtime=runtime) as consumer:
            counts.consumer = consumer
            while not counts.gate.ended.is_set():
                counts.take(consumer.poll(POLL_MS))
    except FencedInstanceId as over:
        emit("fenced", reason=str(over))
    emit("ended", records=sum(each.records for each in counts.by_partition.values()))


if __name__ == "__main__":
    run(main)
