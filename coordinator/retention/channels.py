"""Removing the channels of ended consumers; and the base of a term's collectors."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..term.reading import Findings, FirstSeen
from ..term.term import ServerClock, Term
from ..zk.errors import AccessDenied, BadData
from ..zk.store import Delete, Node
from ..zk.znodes.names import names_below
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.records import parsed_channel

log = logging.getLogger(__name__)


class Collector:
    """Removes the channels of ended consumers, group by group, for one term. Every removal is fenced."""

    def __init__(self, term: Term, clock: ServerClock) -> None:
        self._term = term
        self._store = term.store
        self._clock = clock
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

        Not before `channel_retention_ms`: a channel that is created again has version 0, and so loses the fence against
        late writers of an earlier incarnation. No session survives that long without a response.
        """
        names = names_below(self._store, paths.channels)
        channels = self._store.get_many([paths.channel(name) for name in names])
        ids = self._store.get_many([paths.id(name) for name in names])
        for name, channel, member in zip(names, channels, ids, strict=True):
            if (
                channel is None
                or member is not None
                or channel.stat.children
                or not self._is_over(paths, name, channel)
            ):
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
        age_ms = self._clock.now_ms() - node.stat.mtime_ms
        watched_long_enough = seen_s >= 2 * self._store.negotiated_timeout_s
        is_old = age_ms >= self._term.config.channel_retention_ms
        return not channel.is_live and not channel.running and is_old and watched_long_enough
