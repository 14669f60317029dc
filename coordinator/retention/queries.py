"""The queries of a group: their progress, and their expiry."""

from __future__ import annotations

import logging
from dataclasses import replace

from ..planning.backpressure import UNKNOWN
from ..term.bad_data import Findings
from ..term.first_seen import FirstSeen
from ..term.server_clock import ServerClock
from ..term.term import Term
from ..zk.errors import BadData
from ..zk.store import Delete, Listing, Node, SetData
from ..zk.znodes.names import is_name
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.segments import Query

log = logging.getLogger(__name__)

WATCHED_S = 180.0
"""A query expires only after this coordinator has missed three of its updates, independent of clocks."""


class Queries:
    """Reads the queries of all groups, round by round, for one term, and expires the silent ones."""

    def __init__(self, term: Term, clock: ServerClock, retention_ms: int, problems: Findings) -> None:
        self._term = term
        self._store = term.store
        self._clock = clock
        self._retention_ms = retention_ms
        self._problems = problems
        self._memory = FirstSeen(term.runtime)

    def forget_unseen(self) -> None:
        """A round has ended."""
        self._memory.forget_unseen()

    def readers(self, paths: GroupPaths, listing: Listing) -> tuple[dict[str, int], int]:
        """The progress of each counted query, and the version that identifies the set of queries.

        The version is read before them: a registration in between changes it, and the decision is refused.
        """
        version = listing.stat.version
        names = sorted(name for name in listing.names if is_name(name))
        readers: dict[str, int] = {}
        for name, node in zip(names, self._store.get_many([paths.query(name) for name in names]), strict=True):
            if node is None:
                continue
            is_silent = self._is_silent(paths.query(name), node)
            try:
                query = Query.parse(paths.query(name), node.data)
            except BadData as error:
                self._problems.report(paths.query(name), str(error))
                if not is_silent:
                    readers[name] = UNKNOWN
                continue
            if not is_silent:
                if not query.expired_ms:
                    readers[name] = query.finished
            elif self._expire(paths, name, query, node, version):
                version += 1
            elif not query.expired_ms:
                readers[name] = query.finished
        return readers, version

    def _is_silent(self, path: str, node: Node) -> bool:
        """Whether a znode has not changed for `query_retention_ms`; an ephemeral one goes with its session."""
        watched_s = self._memory.age_s(path, str(node.stat.mzxid))
        return (
            not node.stat.ephemeral_owner
            and self._clock.now_ms() - node.stat.mtime_ms >= self._retention_ms
            and watched_s >= min(WATCHED_S, self._retention_ms / 1000)
        )

    def _expire(self, paths: GroupPaths, name: str, query: Query, node: Node, version: int) -> bool:
        """Mark a query as expired; one that was marked long enough ago is removed."""
        path = paths.query(name)
        marked = replace(query, expired_ms=self._clock.now_ms()).to_bytes()
        change = Delete(path, node.stat.version) if query.expired_ms else SetData(path, marked, node.stat.version)
        if not self._term.collect([SetData(paths.queries, b"", version), change], f"query {name}"):
            return False
        if not self._term.lines.take("query expired"):
            return True
        if query.expired_ms:
            log.info("expired query removed: group=%s query=%s", paths.group, name)
        else:
            log.warning("query expired: group=%s query=%s finished=%d", paths.group, name, query.finished)
        return True
