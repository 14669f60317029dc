"""A rule of client-side assignment, broken with more than an edit of the source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.rebalance.ask_reader import AskReader
from coordinator.zk.znodes.group_state import Answer, MemberAnswer
from coordinator.zk.znodes.paths import MEMBER_PREFIX, Brokers
from coordinator.zk.znodes.records import Topic
from tests.simulation.mutation import Patch, replaced


def _takes_half(original: Any) -> Any:
    """Entries without an answer are one."""

    def with_entries(self: Any, *args: Any) -> Any:
        return tuple(_answered(self, view) for view in original(self, *args))

    return with_entries


def _answered(reader: Any, view: Any) -> Any:
    consumers = [name[len(MEMBER_PREFIX) :] for name in view.children if name.startswith(MEMBER_PREFIX)]
    if view.is_answered or not consumers:
        return view
    paths = [reader._paths.member_answer(view.name, consumer) for consumer in consumers]
    nodes = zip(consumers, paths, reader._store.get_many(paths), strict=True)
    entries = {consumer: MemberAnswer.parse(path, node.data) for consumer, path, node in nodes if node is not None}
    brokers, topics = Brokers(), {}
    for name in sorted({part.topic for one in entries.values() for parts in one.threads.values() for part in parts}):
        node = reader._store.get(brokers.topic(name))
        if node is not None:
            topics[name] = Topic.parse("", name, node.data, node.stat.czxid)
    answer = Answer(
        tuple(entries),
        {name: topic.id for name, topic in topics.items()},
        {name: frozenset(topic.partitions) for name, topic in topics.items()},
    )
    return replace(view, answer=answer, entries=entries)


HALF_TAKEN: tuple[Patch, ...] = (replaced(AskReader, "with_entries", _takes_half),)
