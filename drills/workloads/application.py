"""Applications with consumers, in their own process: one that hangs between polls or in a callback, and many that join
and leave, sequentially in each of a few threads, a given number of times.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.errors import CommitFailed, FencedInstanceId
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.values import load
from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.partitions import PartitionSet

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


def churn(fields: Fields) -> None:
    """Let `times` consumers join and leave; the other fields are those of `ConsumerConfig`, `topics` and `seed`."""
    gate = HangGate()
    chance = random.Random(fields.number("seed"))
    topics = topics_of(fields)
    names = [f"churn-{number}" for number in range(fields.number("times"))]
    stays_s = [chance.random() * LONGEST_S for _ in names]

    def live(name: str, seconds: float) -> bool:
        config = load(ConsumerConfig, {**fields.values, "consumer": name}, env={})
        return not gate.ended.is_set() and _joined_and_left(config, topics, round(1000 * seconds))

    with ThreadPoolExecutor(THREADS) as pool:
        count = sum(pool.map(live, names, stays_s))
    emit("churned", joined=count, left=count)


def _joined_and_left(config: ConsumerConfig, topics: dict[str, int], longest_ms: int) -> bool:
    try:
        with Consumer(config, Subscription(topics)) as consumer:
            for _ in range(max(1, longest_ms // SHORT_POLL_MS)):
                consumer.poll(SHORT_POLL_MS)
                consumer.commit()
    except CommitFailed:
        return True  # it was evicted meanwhile: it has joined and left
    except CoordinatorError:
        return False
    return True
