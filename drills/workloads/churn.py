"""Consumers that join and leave, sequentially in each of a few threads, a given number of times."""

from __future__ import annotations

import random
import threading

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import CommitFailed
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.values import load
from coordinator.zk.znodes.json_fields import Fields

from .process import HangGate, emit, run, topics_of

THREADS = 4
LONGEST_S = 0.6
POLL_MS = 50


def main(fields: Fields) -> None:
    """Let `times` consumers join and leave; the other fields are those of `ConsumerConfig`, `topics` and `seed`."""
    gate = HangGate()
    chance = random.Random(fields.number("seed"))
    topics = topics_of(fields)
    lives = [(f"churn-{number}", chance.random() * LONGEST_S) for number in range(fields.number("times"))]
    ended: list[str] = []

    def work(lifetimes: list[tuple[str, float]]) -> None:
        for name, seconds in lifetimes:
            if gate.ended.is_set():
                return
            config = load(ConsumerConfig, {**fields.values, "consumer": name}, env={})
            if _joined_and_left(config, topics, round(1000 * seconds)):
                ended.append(name)

    threads = [threading.Thread(target=work, args=(lives[first::THREADS],)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit("churned", joined=len(ended), left=len(ended))


def _joined_and_left(config: ConsumerConfig, topics: dict[str, int], longest_ms: int) -> bool:
    try:
        with Consumer(config, Subscription(topics)) as consumer:
            for _ in range(max(1, longest_ms // POLL_MS)):
                consumer.poll(POLL_MS)
                consumer.commit()
    except CommitFailed:
        return True  # it was evicted meanwhile: it has joined and left
    except CoordinatorError:
        return False
    return True


if __name__ == "__main__":
    run(main)
