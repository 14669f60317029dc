"""`bench assignors`: the run time of the sticky strategy, compared with those of kafka-python and aiokafka.

A group of equal subscriptions is assigned, then a member joins, then one leaves; the second and third time with all
members' claims. Each contender has its own process; they alternate in each round, so that a slowdown of the machine
affects all. Measured is the assignor's call only, without the preparation of its input.
"""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, Self

from zk_group.coordinator.assignors import Assignment, Subscriber, assigned
from zk_group.coordinator.assignors.sticky import StickyAssignor
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from .figures import machine, summary

Tell = Callable[[str], None]
MOST_A_TOPIC = 1000
STEPS = ("fresh", "join", "leave")
SERIES = (1, 2, 4)
"""The multiples of the partitions, with the same number of consumers: the scaling of our strategy."""
OURS = "ours"
START_S = 60.0
"""Time limit for a contender's process to start."""


def topics(partitions: int) -> dict[str, range]:
    """Topics of a thousand partitions, and one with the rest."""
    counts = [min(MOST_A_TOPIC, partitions - first) for first in range(0, partitions, MOST_A_TOPIC)]
    return {f"topic-{number:04d}": range(count) for number, count in enumerate(counts)}


class Ours:
    """As called by a turn of the coordinator, with the validation of the result."""

    def __init__(self, partitions: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._assignor = StickyAssignor()
        self._topics = topics(partitions)
        self._last: Assignment = {}

    def seconds(self, names: Sequence[str], is_first: bool) -> float:
        """Assign to these members, with their claims of the last assignment unless it `is_first`."""
        last = {} if is_first else self._last
        members = [self._claiming(name, last.get(name, {})) for name in names]
        began = self._clock()
        self._last = assigned(self._assignor, members, self._topics)
        return self._clock() - began

    def _claiming(self, name: str, threads: Mapping[str, frozenset[TopicPartition]]) -> Subscriber:
        on_thread = {part: thread for thread, parts in threads.items() for part in parts}
        new = Subscriber(name, dict.fromkeys(self._topics, 1), generation=1)
        return replace(new, running=frozenset(on_thread), on_thread=on_thread)


class _Cluster:
    """The cluster metadata read by a peer."""

    def __init__(self, partitions: int) -> None:
        self._topics = {topic: set(numbers) for topic, numbers in topics(partitions).items()}

    def topics(self) -> set[str]:
        return set(self._topics)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self._topics.get(topic)


class Peer:
    """The strategy of kafka-python (package `kafka`), or aiokafka's copy of it with another interface."""

    def __init__(self, package: str, partitions: int) -> None:
        sticky = importlib.import_module(f"{package}.coordinator.assignors.sticky.sticky_assignor")
        is_copy = package == "aiokafka"
        self._assignor = sticky.StickyPartitionAssignor if is_copy else sticky.StickyPartitionAssignor()
        self._members = dict if is_copy else _members
        self._cluster = _Cluster(partitions)
        self._last: dict[str, list[Any]] = {}

    def seconds(self, names: Sequence[str], is_first: bool) -> float:
        """See `Ours`."""
        last, topics = {} if is_first else self._last, self._cluster.topics()
        members = self._members({name: self._assignor._metadata(topics, last.get(name), 1) for name in names})
        began = time.perf_counter()
        found = self._assignor.assign(self._cluster, members)
        took = time.perf_counter() - began
        self._last = {name: list(one.partitions()) for name, one in found.items()}
        return took


def _members(metadata: Mapping[str, Any]) -> list[Any]:
    return [SimpleNamespace(member_id=name, metadata=each) for name, each in metadata.items()]


CONTENDERS: dict[str, tuple[Callable[[int], Ours | Peer], str]] = {
    OURS: (Ours, "coordinator"),
    "kafka-python": (partial(Peer, "kafka"), "kafka"),
    "aiokafka": (partial(Peer, "aiokafka"), "aiokafka"),
}
"""Name -> constructor, and the required module; except for the product the name is the package."""


class Unmeasured(Exception):
    """A contender failed; its process has logged the reason."""


class TooSlow(Unmeasured):
    """A contender exceeded its time limit."""


class Worker:
    """A contender in its own process, which is killed at the time limit."""

    def __init__(self, name: str, partitions: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, name, partitions), daemon=True)
        self._process.start()
        self._answer(name, START_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()

    def seconds(self, names: Sequence[str], is_first: bool, limit_s: float) -> float:
        """See `Ours`.

        :raises TooSlow: after `limit_s`; the process is killed.
        :raises Unmeasured: when it failed.
        """
        self._ours.send((list(names), is_first))
        return self._answer("an assignment", limit_s)

    def _answer(self, what: str, limit_s: float) -> float:
        if not self._ours.poll(limit_s):
            self._process.kill()
            raise TooSlow(f"{what} took more than {limit_s:g} s")
        try:
            found: float = self._ours.recv()
        except EOFError:
            raise Unmeasured(f"{what}: failed") from None
        return found


def _work(asked: Connection, name: str, partitions: int) -> None:
    logging.disable(logging.CRITICAL)
    contender = CONTENDERS[name][0](partitions)
    asked.send(0.0)
    while True:
        names, is_first = asked.recv()
        gc.collect()
        asked.send(contender.seconds(names, is_first))


class Rounds:
    """The measured rounds of all contenders.

    :ivar measured: contender -> step -> seconds.
    :ivar late: contender -> the step that exceeded the limit; empty after a failure.
    """

    def __init__(self, workers: Mapping[str, Worker], consumers: int, peer_limit_s: float, tell: Tell) -> None:
        self._workers = workers
        self._names = [f"consumer-{number:05d}" for number in range(consumers + 1)]
        self._limit_s = peer_limit_s
        self._tell = tell
        self.measured: dict[str, dict[str, list[float]]] = {name: {step: [] for step in STEPS} for name in workers}
        self.late: dict[str, str] = {}

    def run(self, rounds: int) -> None:
        """An uncounted warm-up round, then `rounds` measured ones."""
        groups = {"fresh": self._names[:-1], "join": self._names, "leave": self._names[1:]}
        for number in range(rounds + 1):
            for step, names in groups.items():
                for contender in self._workers:
                    self._take(contender, step, names, number)
            shown = {
                name: {step: f"{took[-1]:.3f} s" for step, took in steps.items() if took}
                for name, steps in self.measured.items()
                if number
            }
            self._tell(f"round {number}{'' if number else ' (warm-up)'} {shown if number else ''}".rstrip())

    def _take(self, contender: str, step: str, names: Sequence[str], number: int) -> None:
        if contender in self.late:
            return
        limit_s = 3600.0 if contender == OURS else self._limit_s
        try:
            took = self._workers[contender].seconds(names, step == "fresh", limit_s)
        except Unmeasured as reason:
            if contender == OURS:
                raise
            self.late[contender] = step if isinstance(reason, TooSlow) else ""
            self._tell(f"{contender}: {step}: {reason}")
        else:
            if number:
                self.measured[contender][step].append(took)

    def figures(self, contender: str, step: str) -> dict[str, float] | None:
        """Milliseconds; `more than` the limit when it was exceeded; None without a measurement."""
        if self.late.get(contender) == step:
            return {"more_than": self._limit_s * 1000}
        return summary((seconds * 1000 for seconds in self.measured.get(contender, {}).get(step, [])), 1)


def measure(consumers: int, partitions: int, rounds: int, peer_limit_s: float, tell: Tell) -> dict[str, Any]:
    """Measure, and return one object for `--json`."""
    loaded = machine()
    there = [name for name, (_, module) in CONTENDERS.items() if find_spec(module) is not None]
    absent = [name for name in CONTENDERS if name not in there]
    if absent:
        tell(f"not installed, skipped: {', '.join(absent)} (pip install zk-group-coordinator[bench])")
    with ExitStack() as stack:
        workers = {}
        for name in there:
            try:
                workers[name] = stack.enter_context(Worker(name, partitions))
            except Unmeasured as reason:
                if name == OURS:
                    raise
                tell(f"not measured: {reason}")
        done = Rounds(workers, consumers, peer_limit_s, tell)
        done.run(rounds)
    found: dict[str, Any] = {
        "bench": "assignors",
        "consumers": consumers,
        "partitions": partitions,
        "rounds": rounds,
    }
    for name in CONTENDERS:
        for step in STEPS:
            found[f"{name.replace('-', '_')}_{step}_ms"] = done.figures(name, step)
    series = {str(times * partitions): _joining_cpu_ms(consumers, times * partitions, rounds) for times in SERIES}
    found["ours_join_cpu_ms_by_partitions"] = series
    found["versions"] = {name: version(name) if name in there else None for name in CONTENDERS if name != OURS}
    return {**found, **loaded}


def _joining_cpu_ms(consumers: int, partitions: int, rounds: int) -> float:
    """CPU milliseconds, the minimum of some rounds: the scaling, independent of the machine's load."""
    names = [f"consumer-{number:05d}" for number in range(consumers + 1)]
    ours, best = Ours(partitions, time.process_time), float("inf")
    for _ in range(rounds):
        ours.seconds(names[:-1], True)
        gc.collect()
        best = min(best, ours.seconds(names, False))
    return round(1000 * best, 1)
