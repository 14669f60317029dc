"""Seed 000's two topic listeners, of the list of topics and of their partitions; and which groups they concern."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..term.reading import Findings
from ..term.request_queue import GroupTurn, TurnKey
from ..term.term import Term
from ..zk.errors import BadData
from ..zk.runtime import Runtime
from ..zk.store import Node, Watch, nodes_at
from ..zk.znodes.group_state import CLIENT
from ..zk.znodes.paths import Brokers
from ..zk.znodes.records import STATIC, Registration, Topic
from ..zk.znodes.topic_filter import GroupFilters, TopicFilter


class Interests:
    """The groups interested in each topic: seed 000's `consumerGroupsPerTopic` and `groupsWithWildcardTopics`.

    Updated by the listeners with every member's registration of every group; read by them too.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self.consumer_groups_per_topic: dict[str, set[str]] = {}
        self.groups_with_wildcard_topics: dict[str, tuple[TopicFilter, ...]] = {}
        self._assigned: dict[str, frozenset[str]] = {}
        self._topics: dict[str, set[str]] = {}

    def update(self, group: str, registrations: Iterable[Registration]) -> None:
        """Replace the interests of `group` by its members' current ones (joiners, leavers and changes alike)."""
        topics: set[str] = set()
        wildcards: list[tuple[str, str]] = []
        for registration in registrations:
            if registration.pattern in (STATIC, CLIENT):
                topics.update(registration.subscription)
            else:
                wildcards += ((registration.pattern, text) for text in registration.subscription)
        filters = GroupFilters(wildcards).usable  # the turn reports the others, with the member's name
        with self._lock:
            self._replace(group, topics)
            self.groups_with_wildcard_topics.pop(group, None)
            if filters:
                self.groups_with_wildcard_topics[group] = filters

    def assigned(self, group: str, topics: Iterable[str]) -> None:
        """A leader has assigned these topics: they concern its group, independent of its members' registrations."""
        names = frozenset(topics)
        with self._lock:
            self._assigned.pop(group, None)
            if names:
                self._assigned[group] = names

    def forget(self, group: str) -> None:
        """`group` is gone."""
        with self._lock:
            self._assigned.pop(group, None)
            self._replace(group, set())
            self.groups_with_wildcard_topics.pop(group, None)

    def groups_of(self, topic: str) -> set[str]:
        """The groups that a change of `topic` concerns."""
        with self._lock:
            by_pattern = {
                group
                for group, filters in self.groups_with_wildcard_topics.items()
                if any(topic_filter.allows(topic) for topic_filter in filters)
            }
            by_leader = {group for group, topics in self._assigned.items() if topic in topics}
            return by_pattern | by_leader | self.consumer_groups_per_topic.get(topic, set())

    def _replace(self, group: str, topics: set[str]) -> None:
        """These are the topics of `group`: only those that it has gained or lost are looked at."""
        before = self._topics.pop(group, set())
        if topics:
            self._topics[group] = topics
        for topic in topics - before:
            self.consumer_groups_per_topic.setdefault(topic, set()).add(group)
        for topic in before - topics:
            groups = self.consumer_groups_per_topic[topic]
            groups.discard(group)
            if not groups:
                del self.consumer_groups_per_topic[topic]


AskForTurn = Callable[[TurnKey, str], None]
"""Called with the key of a turn, and the change that requires it."""


class TopicListener:
    """Reads topics and sets their watches, and requests turns of the groups that a change concerns.

    :param on_topics: the watch on the list of topics.  :param on_topic: the watch on one topic.
    :ivar topics: all topics, as last read; replaced, never changed.
    """

    def __init__(self, term: Term, interests: Interests, ask: AskForTurn, on_topics: Watch, on_topic: Watch) -> None:
        self._term = term
        self._store = term.store
        self._brokers = Brokers(term.config.brokers_path)
        self._interests = interests
        self._ask = ask
        self._on_topics = on_topics
        self._on_topic = on_topic
        self._findings = Findings(term.problems)
        self._unreadable: set[str] = set()
        self.topics: dict[str, Topic] = {}

    def topic_change(self, all_of_them: bool = False) -> None:
        """Seed 000, `TopicChangeListener`, also for deleted and re-created topics."""
        path = self._brokers.topics
        listed = self._findings.listed(path, self._store.children(path, watch=self._on_topics))
        names = set(self.topics if listed is None else listed)  # unlisted ones stay as they were
        self._findings.done()
        for name in self._unreadable - names:
            self._readable(name)
        gone = set(self.topics) - names
        self.topics = {name: topic for name, topic in self.topics.items() if name not in gone}
        for topic in sorted(gone):
            self._concern(topic, f"topic {topic} deleted")
        self.topic_partition_change(sorted(names if all_of_them else names - set(self.topics)))

    def topic_partition_change(self, names: Iterable[str]) -> None:
        """Seed 000, `TopicPartitionChangeListener`: partitions are in the topic's data, not among its children."""
        nodes = [*nodes_at(self._store, names, self._brokers.topic, self._on_topic)]
        topics, changed = dict(self.topics), []
        for name, path, node in nodes:
            before, after = topics.pop(name, None), self._parsed_topic(name, path, node)
            if after is not None:
                topics[name] = after
            if after != before:
                changed.append((name, _what_happened(before, after)))
        self.topics = topics
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
            return self.topics.get(name)
        self._readable(name)
        return topic

    def _concern(self, topic: str, reason: str) -> None:
        for group in sorted(self._interests.groups_of(topic)):
            self._ask(GroupTurn(group), reason)


def _what_happened(before: Topic | None, after: Topic | None) -> str:
    name = (after or before or Topic("?", "", ())).name
    if before is None:
        return f"topic {name} appeared"
    if after is None:
        return f"topic {name} deleted"
    if before.id != after.id:
        return f"topic {name} recreated"
    return f"topic {name} has {len(after.partitions)} partitions"
