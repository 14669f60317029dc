"""Applications with consumers, in their own process.

`main` hangs between polls or in a callback. `churn` lets many join and leave, sequentially in each of a few threads, a
given number of times. `count` is in a consistent region, keeps sketches of its records in memory, reports them, and
hangs in `on_drain`; the simulation runs its callbacks, too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer, Record
from zk_group.consumer.errors import CommitFailed, FencedInstanceId
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import KazooStore, open_kazoo
from zk_group.coordinator.zk.values import load
from zk_group.coordinator.zk.znodes.json_fields import Fields
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.drills.checker.replay.sketches import NOTHING, Key, Sketch, of_range

from .process import HangGate, emit, topics_of

POLL_MS = 100
THREADS = 4
LONGEST_S = 0.6
SHORT_POLL_MS = 50
BETWEEN_POLLS = "between polls"
IN_REVOKE = "in on_partitions_revoked"


class Hanging(Callbacks):
    """Callbacks whose `on_partitions_revoked` blocks while the gate is shut."""

    def __init__(self, gate: HangGate) -> None:
        self._gate = gate

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._gate.pass_through()


def main(fields: Fields) -> None:
    """Poll and commit until SIGTERM. `hangs` is the hanging point; the rest is `topics` and `ConsumerConfig`."""
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
                try:
                    consumer.commit()
                except CommitFailed as error:
                    emit("not committed", reason=str(error))
                if hangs == BETWEEN_POLLS:
                    gate.pass_through()
    except FencedInstanceId as over:
        emit("fenced", reason=str(over))
    emit("ended", records=count)


def churn(fields: Fields) -> None:
    """Let `times` consumers join and leave; the other fields are those of `ConsumerConfig`, `topics` and `seed`."""
    gate = HangGate()
    chance = random.Random(fields.number("seed"))
    topics = topics_of(fields)
    names = [f"churn-{number}" for number in range(fields.number("times"))]
    stays_s = [chance.random() * LONGEST_S for _ in names]

    def has_joined_and_left(name: str, seconds: float) -> bool:
        if gate.ended.is_set():
            return False
        config = load(ConsumerConfig, {**fields.values, "consumer": name}, env={})
        try:
            with Consumer(config, Subscription(topics)) as consumer:
                for _ in range(max(1, round(1000 * seconds) // SHORT_POLL_MS)):
                    consumer.poll(SHORT_POLL_MS)
                    consumer.commit()
        except CommitFailed:
            return True  # it was evicted meanwhile
        except CoordinatorError:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        ended = sum(pool.map(has_joined_and_left, names, stays_s))
    emit("churned", joined=ended, left=ended)


# ---- in a consistent region


@dataclass
class Sketching(Callbacks):
    """Adds every record to two sketches: of its partition, and of the member. Records are as `producer.py` writes them.

    :ivar by_partition: the states of partitions, `by_topic_id` that of the member.
    :ivar consumer: the consumer of these callbacks; set before the first poll.
    """

    by_partition: dict[TopicPartition, Sketch] = field(default_factory=dict)
    by_topic_id: dict[Key, Sketch] = field(default_factory=dict)
    consumer: Consumer | None = None
    _checkpoint: int = 0

    def record(self, event: str, **fields: Any) -> None:
        """Record an event of the application in the history of its process (`drills/checker/history.md`)."""
        raise NotImplementedError

    def take(self, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Process the records of a poll."""
        ranges = []
        for part, records in found.items():
            for first, following, topic_id in _runs(records):
                key, sketch = (part.topic, topic_id, part.partition), of_range(first, following)
                self.by_partition[part] = self.by_partition.get(part, NOTHING).plus(sketch)
                self.by_topic_id[key] = self.by_topic_id.get(key, NOTHING).plus(sketch)
                ranges.append({**_names(key), "first": first, "next": following})
        channel = self.consumer.member.channel if self.consumer is not None else None
        if ranges and channel is not None:
            self.record("taken", incarnation=channel.incarnation, ranges=ranges)

    # ---- callbacks

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        for part in partitions:
            self.by_partition.pop(part, None)

    on_partitions_lost = on_partitions_revoked

    def on_checkpoint(self, checkpoint: int) -> State:
        self._checkpoint = checkpoint
        self.record_state("saved")
        member = [[*key, *each] for key, each in sorted(self.by_topic_id.items())]
        partitions = {part: json.dumps(each).encode() for part, each in self.by_partition.items()}
        return State(partitions, json.dumps(member).encode())

    def on_reset(self, checkpoint: int, state: State) -> None:
        self._checkpoint = checkpoint
        held = self.consumer.assignment() if self.consumer is not None else frozenset()
        self.by_partition = {part: NOTHING for part in sorted(held)}
        self.by_partition.update({part: Sketch(*json.loads(data)) for part, data in sorted(state.partitions.items())})
        self.by_topic_id = {}
        for data in (state.member, *(state.inherited[name] for name in sorted(state.inherited))):
            for topic, topic_id, number, *rest in json.loads(data) if data else ():
                key = (topic, topic_id, number)
                self.by_topic_id[key] = self.by_topic_id.get(key, NOTHING).plus(Sketch(*rest))
        self.record_state("restored")

    # ---- the history

    def record_state(self, event: str) -> None:
        """Record its state, once it has one."""
        channel = self.consumer.member.channel if self.consumer is not None else None
        if channel is None or channel.region is None:
            return
        states = [
            {"topic": part.topic, "partition": part.partition, **each.to_json()}
            for part, each in sorted(self.by_partition.items())
        ]
        member = [{**_names(key), **each.to_json()} for key, each in sorted(self.by_topic_id.items())]
        of = {"incarnation": channel.incarnation, "reset": channel.region.reset, "checkpoint": self._checkpoint}
        self.record(event, **of, states=states, member=member)


def _runs(records: Sequence[Record]) -> list[tuple[int, int, str]]:
    """First number, the one after the last, and topic id of consecutive records."""
    runs: list[tuple[int, int, str]] = []
    for record in records:
        number, topic_id = int(record.value or b""), (record.key or b"").decode()
        if runs and runs[-1][1:] == (number, topic_id):
            runs[-1] = (runs[-1][0], number + 1, topic_id)
        else:
            runs.append((number, number + 1, topic_id))
    return runs


def _names(key: Key) -> dict[str, Any]:
    return dict(zip(("topic", "topic_id", "partition"), key, strict=True))


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
        """There is nothing to finish; it hangs while the gate is shut."""
        if not self.gate.is_open:
            emit("hangs in on_drain")
            self.gate.pass_through()

    def record(self, event: str, **fields: Any) -> None:
        """Adds the newest zxid seen by the process."""
        if self._store is not None:
            self._heard = max(self._heard, self._store.last_zxid)
        names = {"group": self.config.group, "consumer": self.config.consumer}
        self.runtime.record(event, **names, **fields, heard=self._heard)


def count(fields: Fields) -> None:
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
