"""Applications of consistent regions in a simulated world: they keep a state in memory only, and say what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.actors import ApplicationActor
from zk_group.consumer.consumer import Consumer, Record
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.drills.workloads.application import Sketching


@dataclass
class Stateful(Sketching, ApplicationActor):
    """The drills' application, with its troubles.

    :ivar padding: what its states have besides: over 4,096 bytes they go to a file.
    :ivar slowness: how often it says that it has not finished yet, at each drain.
    :ivar asks: what it asks for behind its next poll: `checkpoint` or `reset`.
    """

    padding: int = 0
    slowness: int = 0
    asks: list[str] = field(default_factory=list)
    _runtime: Runtime | None = None
    _drains: int = 0

    def names(self) -> dict[str, str]:
        return {**super().names(), "region": self.config.region}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        self._runtime = runtime
        return super().run(runtime, open_store)

    def met(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def took(self, consumer: Consumer, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Take in what a poll returned, in between what it asks for."""
        self.take(found)
        while self.asks:
            self._ask(consumer, self.asks.pop())

    def _ask(self, consumer: Consumer, what: str) -> None:
        try:
            if what == "reset":
                consumer.request_reset("the application has lost its way")
            else:
                consumer.request_checkpoint()
        except CoordinatorError:
            pass  # as an application that can do without

    def on_drain(self) -> bool:
        self._drains += 1
        return self._drains > self.slowness

    def on_checkpoint(self, checkpoint: int) -> State:
        self._drains = 0
        found = super().on_checkpoint(checkpoint)
        if self._runtime is not None:
            self._runtime.sleep(0.02)
        padding = b" " * self.padding
        return replace(found, partitions={part: data + padding for part, data in found.partitions.items()})

    def record(self, event: str, **fields: Any) -> None:
        if self._runtime is not None:
            self._runtime.record(event, **self.names(), **fields)
