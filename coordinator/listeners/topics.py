"""The two topic listeners (sources D19, D20): of the list of topics, and of their partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..term.directory import Directory
from ..term.reading import Findings
from ..term.request_queue import GroupTurn, TurnKey
from ..term.term import Term
from ..zk.errors import BadData
from ..zk.store import Node, Watch, nodes_at
from ..zk.znodes.paths import Brokers
from ..zk.znodes.records import Topic

RequestTurn = Callable[[TurnKey, str], None]
"""Called with the key of a turn, and the change that requires it."""


class TopicListener:
    """Reads topics and sets their watches, and requests turns of the groups that a change concerns.

    :param on_topics: the watch on the list of topics.  :param on_topic: the watch on one topic.
    """

    def __init__(
        self, term: Term, directory: Directory, request_turn: RequestTurn, on_topics: Watch, on_topic: Watch
    ) -> None:
        self._term = term
        self._store = term.store
        self._brokers = Brokers(term.config.brokers_path)
        self._directory = directory
        self._request_turn = request_turn
        self._on_topics = on_topics
        self._on_topic = on_topic
        self._findings = Findings(term.problems)
        self._unreadable: set[str] = set()

    def topic_change(self, all_of_them: bool = False) -> None:
        """`TopicChangeListener` (sources D19), also for deleted and re-created topics."""
        path = self._brokers.topics
        listed = self._findings.listed(path, self._store.children(path, watch=self._on_topics))
        names = set(self._directory.topics if listed is None else listed)  # unlisted ones stay as they were
        self._findings.done()
        for name in self._unreadable - names:
            self._readable(name)
        gone = set(self._directory.topics) - names
        self._directory.topics = {name: topic for name, topic in self._directory.topics.items() if name not in gone}
        for topic in sorted(gone):
            self._concern(topic, f"topic {topic} deleted")
        self.topic_partition_change(sorted(names if all_of_them else names - set(self._directory.topics)))

    def topic_partition_change(self, names: Iterable[str]) -> None:
        """`TopicPartitionChangeListener` (sources D20): partitions are in the topic's data, not among its children."""
        nodes = [*nodes_at(self._store, names, self._brokers.topic, self._on_topic)]
        topics, changed = dict(self._directory.topics), []
        for name, path, node in nodes:
            before, after = topics.pop(name, None), self._parsed_topic(name, path, node)
            if after is not None:
                topics[name] = after
            if after != before:
                changed.append((name, _what_happened(before, after)))
        self._directory.topics = topics
        for name, reason in changed:
            self._concern(name, reason)

    def _readable(self, name: str) -> None:
        """A topic is readable, or gone."""
        self._unreadable.discard(name)
        self._term.problems.clear(self._brokers.topic(name))

    def _parsed_topic(self, name: str, path: str, node: Node | None) -> Topic | None:
        """The topic; unreadable data leaves the last value."""
        if node is None:
            self._readable(name)
            return None
        try:
            topic = Topic.parse(path, name, node.data, node.stat.czxid)
        except BadData as error:
            self._unreadable.add(name)
            self._term.problems.report(path, str(error))
            return self._directory.topics.get(name)
        self._readable(name)
        return topic

    def _concern(self, topic: str, reason: str) -> None:
        for group in sorted(self._directory.groups_of(topic)):
            self._request_turn(GroupTurn(group), reason)


def _what_happened(before: Topic | None, after: Topic | None) -> str:
    name = (after or before or Topic("?", "", ())).name
    if before is None:
        return f"topic {name} appeared"
    if after is None:
        return f"topic {name} deleted"
    if before.id != after.id:
        return f"topic {name} recreated"
    return f"topic {name} has {len(after.partitions)} partitions"
