"""Topics, groups and subscriptions of a term, as last read: filled by listeners, read by handlers and collectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..zk.runtime import Runtime
from ..zk.znodes.group_state import CLIENT
from ..zk.znodes.records import STATIC, Registration, Topic
from ..zk.znodes.topic_filter import GroupFilters, TopicFilter
from .request_queue import GroupTurn, TurnKey


class Directory:
    """Topics by name, groups, and the groups that subscribe to each topic. For any thread.

    `consumerGroupsPerTopic` and `groupsWithWildcardTopics` (sources D7) hold every registration of every group.

    :ivar topics: all topics; replaced, never changed.
    :ivar is_complete: whether all groups have been read: before that, a group without a known member may have some.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.lock()
        self.is_complete = False
        self.topics: Mapping[str, Topic] = {}
        self.consumer_groups_per_topic: dict[str, set[str]] = {}
        self.groups_with_wildcard_topics: dict[str, tuple[TopicFilter, ...]] = {}
        self._groups: frozenset[str] = frozenset()
        self._members: dict[str, int] = {}
        self._assigned: dict[str, frozenset[str]] = {}
        self._topics: dict[str, set[str]] = {}

    # ---- groups

    def groups(self) -> list[str]:
        """All groups."""
        with self._lock:
            return sorted(self._groups)

    def is_idle(self, key: TurnKey) -> bool:
        """Whether `key` is of a group that exists, and has no member."""
        if not self.is_complete:
            return False
        with self._lock:
            return isinstance(key, GroupTurn) and key.name in self._groups and not self._members.get(key.name)

    def listed(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """These groups exist; returns the new ones, and those that are gone."""
        with self._lock:
            before, self._groups = self._groups, frozenset(names)
            return sorted(self._groups - before), sorted(before - self._groups)

    def forget(self, group: str) -> None:
        """`group` is gone."""
        with self._lock:
            self._members.pop(group, None)
            self._assigned.pop(group, None)
            self._replace(group, set())
            self.groups_with_wildcard_topics.pop(group, None)

    # ---- subscriptions

    def update(self, group: str, registrations: Sequence[Registration | None]) -> None:
        """Replace the subscriptions of `group` by its members' current ones (joiners, leavers and changes alike).

        :param registrations: of all members; None for an unreadable one.
        """
        topics: set[str] = set()
        wildcards: list[tuple[str, str]] = []
        for registration in filter(None, registrations):
            if registration.pattern in (STATIC, CLIENT):
                topics.update(registration.subscription)
            else:
                wildcards += ((registration.pattern, text) for text in registration.subscription)
        filters = GroupFilters(wildcards).usable  # the turn reports the others, with the member's name
        with self._lock:
            self._members[group] = len(registrations)
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
        """Replace the topics of `group`, by its gained and lost ones only."""
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
