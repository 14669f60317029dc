"""Removing the channels of ended consumers, and the offsets of topics that were deleted long ago."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from ..term.reading import Findings, FirstSeen
from ..term.term import Term
from ..zk.errors import AccessDenied, BadData
from ..zk.store import Delete, Node, Operation, SetData, nodes_at
from ..zk.update import batches
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.paths import Brokers, GroupPaths, is_name, names_below
from ..zk.znodes.records import Registration, Seat, parsed_channel
from ..zk.znodes.segments import Segment

log = logging.getLogger(__name__)

ROOM = 395
"""Operations beside the fence and the state."""
SEGMENTS_READ = 2_000
"""A group with more segments keeps its offsets for now: a segment may name the topic."""


class Collector:
    """Removes the channels of ended consumers, group by group, for one term. Every removal is fenced."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._store = term.store
        self._problems = Findings(term.problems)
        self._memory = FirstSeen(term.runtime)

    def collect(self, groups: Iterable[str]) -> None:
        """One round over `groups`.

        :raises Retryable: when ZooKeeper did not answer; the next round continues.
        """
        for group in groups:
            try:
                self._collect_channels(GroupPaths(group))
            except AccessDenied as error:
                self._problems.report(error.path, str(error))
        self._memory.forget_unseen()
        self._problems.done()
        self._term.lines.settle()

    def _collect_channels(self, paths: GroupPaths) -> None:
        """Remove channels of consumers that ended long ago.

        Not before `channel_retention_ms`: a recreated channel has version 0, and so no fence against
        late writers of an earlier incarnation. No session survives that long without a reply.
        """
        names = names_below(self._store, paths.channels)
        channels = self._store.get_many([paths.channel(name) for name in names])
        ids = self._store.get_many([paths.id(name) for name in names])
        for name, channel, member in zip(names, channels, ids, strict=True):
            if channel is None or member is not None or channel.stat.children:
                continue
            if not self._is_over(paths, name, channel):
                continue
            if self._term.collect([Delete(paths.channel(name), channel.stat.version)], f"channel of {name}"):
                if self._term.lines.take("channel removed"):
                    log.info("channel removed: group=%s channel=%s", paths.group, name)
                self._term.metrics.collected(paths.group, channels=1)

    def _is_over(self, paths: GroupPaths, name: str, node: Node) -> bool:
        try:
            channel = parsed_channel(paths.channel(name), node.data)
        except BadData as error:
            self._problems.report(paths.channel(name), str(error))
            return False
        seen_s = self._memory.age_s(paths.channel(name), str(node.stat.mzxid))
        age_ms = self._term.clock.now_ms() - node.stat.mtime_ms
        watched_long_enough = seen_s >= 2 * self._store.negotiated_timeout_s
        is_old = age_ms >= self._term.config.channel_retention_ms
        return not channel.is_live and not channel.running and is_old and watched_long_enough


class OffsetCollector:
    """Removes the offsets of deleted topics, group by group, for one term. Every removal is fenced.

    Each has `setData(state, version)` with the version that was read before the channels: a turn that sends a start
    meanwhile is refused, and starts over without these offsets; or it came first, and the removal is refused.

    :param is_paused: whether an operator has paused a group: then none of its znodes is written.
    """

    def __init__(self, term: Term, is_paused: Callable[[str], bool] = lambda group: False) -> None:
        self._is_paused = is_paused
        self._term = term
        self._store = term.store
        self._brokers = Brokers(term.config.brokers_path)
        self._memory = FirstSeen(term.runtime)
        self._findings = Findings(term.problems)

    def collect(self, groups: Iterable[str]) -> None:
        """One round over `groups`.

        A topic counts as deleted from when this coordinator first saw it missing; none does while there are no topics.

        :raises Retryable: when ZooKeeper did not answer; the next round continues.
        """
        every = [GroupPaths(group) for group in groups]
        listings = self._store.children_many([paths.offsets for paths in every])
        topics = self._store.children(self._brokers.topics)
        if topics is None or not topics.names:
            self._memory = FirstSeen(self._term.runtime)  # another `brokers_path`, or topics that are still to come
            return
        known, old_s = frozenset(topics.names), self._term.config.channel_retention_ms / 1000
        for paths, listing in zip(every, listings, strict=True):
            try:
                names = sorted(set(listing.names) - known) if listing is not None else []
                gone = [name for name in names if is_name(name) and self._memory.age_s(paths.group, name) >= old_s]
                if gone and not self._is_paused(paths.group):
                    self._collect(paths, gone)
            except AccessDenied as error:
                self._findings.report(error.path, str(error))
        self._findings.done()
        self._memory.forget_unseen()

    def _collect(self, paths: GroupPaths, gone: Sequence[str]) -> None:
        node = self._store.get(paths.state)
        needed = self._needed(paths, node) if node is not None else None
        if node is None or needed is None:
            return
        version = node.stat.version
        for topic, _, found in nodes_at(self._store, gone, self._brokers.topic):  # after the state, as all else
            if found is not None or topic in needed or self._names(paths.owners_of(topic)):
                continue
            below = [f"{paths.offsets_of(topic)}/{name}" for name in self._names(paths.offsets_of(topic))]
            units: list[list[Operation]] = [[Delete(path)] for path in sorted(below)]
            units.append([Delete(paths.offsets_of(topic))])
            for batch in batches(units, ROOM):
                change = SetData(paths.state, node.data, version)
                if not self._term.collect([change, *batch], f"offsets of {topic}"):
                    return
                version += 1
            log.info("offsets removed: group=%s topic=%s partitions=%d", paths.group, topic, len(below))
            self._term.metrics.collected(paths.group, offsets=len(below))

    def _names(self, path: str) -> list[str]:
        listing = self._store.children(path)
        return listing.names if listing is not None else []

    def _needed(self, paths: GroupPaths, node: Node) -> frozenset[str] | None:
        """The topics in the group's target, its channels or its segments; None while unknown.

        Read after the state. A group in a consistent region keeps all: its cut names them, and leaving the region sets
        them. With an outstanding command, or an unreadable record, the next round retries.
        """
        try:
            state = GroupState.parse(paths.state, node.data)
            if state.region is not None:
                return None
            channels = self._below(paths.channels)
            if any(channel.stat.children for channel in channels):
                return None
            needed = {*state.topics, *(part.topic for mark in state.marks for part in mark.partitions)}
            for each in channels:
                needed |= {part.topic for part in parsed_channel(paths.channels, each.data).running}
            for each in self._below(paths.ids):
                needed |= set(Registration.parse(paths.ids, each.data).subscription)
            for each in self._below(paths.seats):  # of members that are away
                needed |= set(Seat.parse(paths.seats, each.data).registration.subscription)
            for each in self._below(paths.segments, SEGMENTS_READ):  # a query may still read them
                needed |= {part.topic for part in Segment.parse(paths.segments, each.data).ranges}
            return frozenset(needed)
        except BadData:
            return None  # it is reported where it is used

    def _below(self, root: str, most: int | None = None) -> list[Node]:
        """The znodes below `root`.

        :raises BadData: when there are more than `most`.
        """
        names = names_below(self._store, root)
        if most is not None and len(names) > most:
            raise BadData(f"{root} has {len(names)} znodes")
        return [node for node in self._store.get_many([f"{root}/{name}" for name in names]) if node is not None]
