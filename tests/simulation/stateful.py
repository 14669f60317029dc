"""Applications of consistent regions in a simulated world: they keep a state in memory only, and say what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consumer.consumer import Consumer, Record
from consumer.operator.states import State
from coordinator.checker.sketches import NOTHING, Sketch, of_range
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import StoreFactory
from tests.simulation.actors import Application

Key = tuple[str, str, int]
"""Topic, its id, and partition."""


@dataclass
class Stateful(Application):
    """Sketches what it has taken in twice: of each partition, and of all as a member.

    :ivar padding: what its states have besides: over 4,096 bytes they go to a file.
    :ivar slowness: how often it says that it has not finished yet, at each drain.
    :ivar asks: what it asks for behind its next poll: `checkpoint` or `reset`.
    """

    padding: int = 0
    slowness: int = 0
    asks: list[str] = field(default_factory=list)
    by_partition: dict[TopicPartition, Sketch] = field(default_factory=dict)
    by_key: dict[Key, Sketch] = field(default_factory=dict)
    _consumer: Consumer | None = None
    _runtime: Runtime | None = None
    _checkpoint: int = 0
    _drains: int = 0

    def names(self) -> dict[str, str]:
        return {**super().names(), "region": self.config.region}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        self._runtime = runtime
        return super().run(runtime, open_store)

    def took(self, consumer: Consumer, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Take in what a poll returned, in between what it asks for."""
        self._consumer = consumer
        ranges = []
        for part, records in found.items():
            for first, last, topic_id in _runs(records):
                key = (part.topic, topic_id, part.partition)
                some = of_range(first, last)
                self.by_partition[part] = self.by_partition.get(part, NOTHING).plus(some)
                self.by_key[key] = self.by_key.get(key, NOTHING).plus(some)
                ranges.append({**_names(*key), "first": first, "next": last})
        if ranges:
            self._record("taken", ranges=ranges)
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

    # ---- what the consumer calls

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._forget(partitions)

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self._forget(partitions)

    def _forget(self, partitions: PartitionSet) -> None:
        for part in partitions:
            self.by_partition.pop(part, None)

    def on_drain(self) -> bool:
        self._drains += 1
        return self._drains > self.slowness

    def on_checkpoint(self, checkpoint: int) -> State:
        self._drains = 0
        self._checkpoint = checkpoint
        self._record_state("saved")
        if self._runtime is not None:
            self._runtime.sleep(0.02)
        padding = " " * self.padding
        states = {part: (_text(each) + padding).encode() for part, each in self.by_partition.items()}
        member = json.dumps([[*key, *each] for key, each in sorted(self.by_key.items())])
        return State(states, member.encode())

    def on_reset(self, checkpoint: int, state: State) -> None:
        self._checkpoint = checkpoint
        held = self._consumer.assignment() if self._consumer is not None else frozenset()
        self.by_partition = {part: NOTHING for part in sorted(held)}
        self.by_partition.update({part: Sketch(*json.loads(data)) for part, data in sorted(state.partitions.items())})
        self.by_key = {}
        for data in (state.member, *(state.inherited[name] for name in sorted(state.inherited))):
            for topic, topic_id, number, *rest in json.loads(data) if data else ():
                key = (topic, topic_id, number)
                self.by_key[key] = self.by_key.get(key, NOTHING).plus(Sketch(*rest))
        self._record_state("restored")

    # ---- the history

    def said(self) -> dict[str, Any] | None:
        """What it says that it is; None before it has been given a state."""
        channel = self._consumer.member.channel if self._consumer is not None else None
        if channel is None or channel.region is None:
            return None
        return {
            "incarnation": channel.incarnation,
            "reset": channel.region.reset,
            "checkpoint": self._checkpoint,
            "states": [{**_of(part), **_fields(each)} for part, each in sorted(self.by_partition.items())],
            "member": [{**_names(*key), **_fields(each)} for key, each in sorted(self.by_key.items())],
        }

    def _record_state(self, event: str) -> None:
        said = self.said()
        if self._runtime is not None and said is not None:
            self._runtime.record(event, **self.names(), **said)

    def _record(self, event: str, **fields: Any) -> None:
        channel = self._consumer.member.channel if self._consumer is not None else None
        if self._runtime is not None and channel is not None:
            self._runtime.record(event, **self.names(), incarnation=channel.incarnation, **fields)

    def met(self, consumer: Consumer) -> None:
        self._consumer = consumer


def _runs(records: Sequence[Record]) -> list[tuple[int, int, str]]:
    """First offset, the one after the last, and topic id of records that follow each other."""
    found: list[tuple[int, int, str]] = []
    for record in records:
        topic_id = (record.key or b"").decode()
        if found and found[-1][1:] == (record.offset, topic_id):
            found[-1] = (found[-1][0], record.offset + 1, topic_id)
        else:
            found.append((record.offset, record.offset + 1, topic_id))
    return found


def _text(sketch: Sketch) -> str:
    return json.dumps(list(sketch))


def _names(topic: str, topic_id: str, partition: int) -> dict[str, Any]:
    return {"topic": topic, "topic_id": topic_id, "partition": partition}


def _of(part: TopicPartition) -> dict[str, Any]:
    return {"topic": part.topic, "partition": part.partition}


def _fields(sketch: Sketch) -> dict[str, int]:
    return {"count": sketch.records, "sum": sketch.sum, "squares": sketch.squares}
