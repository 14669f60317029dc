"""Writes numbered records into every partition of some topics, a few at a time, until it is stopped.

A record's value is its number in its partition, equal to its offset; its key is the topic's id. After each round it
reports the number of records in each partition, for comparison with the DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable

from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.json_fields import Fields
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.coordinator.zk.znodes.records import Topic

from .process import HangGate, emit

ROUND_S = 0.05
REFRESH_S = 0.5
SESSION_MS = 4000

Ends = dict[str, dict[str, dict[str, int]]]
"""Topic -> its id -> partition -> records."""


class CachedTopics:
    """Cached topics: writers do not wait for ZooKeeper, which may be unavailable."""

    def __init__(self, zk: str, names: list[str]) -> None:
        self._zk = zk
        self._names = names
        self._runtime = ThreadRuntime()
        self.known: dict[str, Topic] = {}
        store = open_kazoo(self._zk, SESSION_MS)
        self._refresh(store)
        self._runtime.spawn(lambda: self._run(store), "topics")

    def _run(self, store: Store) -> None:
        while True:
            try:
                store = open_kazoo(self._zk, SESSION_MS) if store.lost else store
                self._refresh(store)
            except CoordinatorError:
                pass  # retried
            self._runtime.sleep(REFRESH_S)

    def _refresh(self, store: Store) -> None:
        paths = [Brokers().topic(name) for name in self._names]
        for name, path, node in zip(self._names, paths, store.get_many(paths), strict=True):
            if node is None:
                self.known.pop(name, None)
            else:
                self.known[name] = Topic.parse(path, name, node.data, node.stat.czxid)


def produce(gate: HangGate, fields: Fields, write: Callable[[Topic, int], None], ends: Ends) -> None:
    """Write `rate` records a second to each partition of `topics` below `zk`, until SIGTERM, and report the ends.

    :param write: adds so many records to each partition of a topic, and updates `ends`.
    """
    count = max(1, round(fields.number("rate") * ROUND_S))
    topics = CachedTopics(fields.text("zk"), sorted(fields.mapping("topics")))
    while not gate.ended.wait(ROUND_S):
        gate.pass_through()
        for topic in list(topics.known.values()):
            write(topic, count)
        emit("produced", ends=ends)


def main(fields: Fields) -> None:
    """Produce into `log_dir`."""
    ends: Ends = {}
    producers: dict[str, tuple[Topic, Producer]] = {}

    def write(topic: Topic, count: int) -> None:
        if topic.name not in producers or producers[topic.name][0] != topic:
            producers[topic.name] = topic, Producer(fields.text("log_dir"), {topic.name: topic})
        written = ends.setdefault(topic.name, {}).setdefault(topic.id, {})
        for partition in topic.partitions:
            first = written.get(str(partition), 0)
            values = [b"%d" % number for number in range(first, first + count)]
            producers[topic.name][1].send_batch(topic.name, partition, values, [topic.id.encode()] * count)
            written[str(partition)] = first + count

    produce(HangGate(), fields, write, ends)
