"""The groups interested in each topic: seed 000's `consumerGroupsPerTopic` and `groupsWithWildcardTopics`."""

from __future__ import annotations

from collections.abc import Iterable

from ..zk.runtime import Runtime
from ..zk.znodes.group_state import CLIENT
from ..zk.znodes.records import STATIC, Registration
from ..zk.znodes.topic_filter import GroupFilters, TopicFilter


class Interests:
    """Updated by the listeners with every member's registration of every group; read by them too."""

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
