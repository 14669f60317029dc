"""The queries of a group: their progress, and their expiry."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ..planning.backpressure import UNKNOWN
from ..term.reading import Findings, FirstSeen
from ..term.term import ServerClock, Term
from ..zk.errors import BadData
from ..zk.store import Delete, Listing, Node, SetData
from ..zk.znodes.names import is_name
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.segments import QUERY_ABSENCE_S, Query

log = logging.getLogger(__name__)

WATCHED_S = 180.0
"""A query expires only after this coordinator has missed three of its updates, independent of clocks."""

QueryRun = tuple[str, int, str]
"""A query's name, its znode's czxid, and its run: another one with each registration."""


@dataclass(slots=True)
class SeenQueries:
    """The queries of a group, as this coordinator last read them.

    :ivar version: the version of the set of queries.
    :ivar runs: those registered.
    :ivar ephemeral: the progress of each query whose znode goes with its session.
    :ivar lost: the progress of each query whose session has ended, while it counts.
    """

    version: int = 0
    runs: frozenset[QueryRun] = frozenset()
    ephemeral: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    def newly_lost(
        self, names: Collection[str], version: int, runs: frozenset[QueryRun], ephemeral: Collection[str]
    ) -> dict[str, int]:
        """The progress of each query whose znode went with its session since.

        The end of a session leaves the version of the set alone. Each registration, and each removal, moves it by
        one, and a new query whose znode is persistent has registered twice: when it has moved further than that, one
        was removed, and none counts as lost.

        :param names: the znodes listed now, with the set's `version` and `runs`.
        :param ephemeral: those of `names` that go with their sessions.
        """
        known = {*ephemeral, *(name for name, _, _ in self.runs if name not in self.ephemeral)}
        if version - self.version > sum(1 if name in known else 2 for name, _, _ in runs - self.runs):
            return {}
        return {name: finished for name, finished in self.ephemeral.items() if name not in names}


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

    def readers(self, paths: GroupPaths, listing: Listing, seen: SeenQueries) -> tuple[dict[str, int], int]:
        """The progress of each counted query, and the version that identifies the set of queries.

        The version is read before them: a registration in between changes it, and the decision is refused. A query
        whose session has ended counts for `QUERY_ABSENCE_S` more: its driver may only have paused, and registers again.

        :param seen: of the group's last round; brought up to date.
        """
        version = listing.stat.version
        names = sorted(name for name in listing.names if is_name(name))
        readers: dict[str, int] = {}
        ephemeral: dict[str, int] = {}
        runs: set[QueryRun] = set()
        for name, node in zip(names, self._store.get_many([paths.query(name) for name in names]), strict=True):
            if node is None:  # the next listing shows whether it was removed
                if name in seen.ephemeral:
                    readers[name] = ephemeral[name] = seen.ephemeral[name]
                continue
            is_silent = self._is_silent(paths.query(name), node)
            try:
                query = Query.parse(paths.query(name), node.data)
            except BadData as error:
                self._problems.report(paths.query(name), str(error))
                if not is_silent:
                    readers[name] = UNKNOWN
                continue
            runs.add((name, node.stat.czxid, query.run))
            if node.stat.ephemeral_owner:
                ephemeral[name] = query.finished
            if not is_silent:
                if not query.expired_ms:
                    readers[name] = query.finished
            elif self._expire(paths, name, query, node, version):
                version += 1
            elif not query.expired_ms:
                readers[name] = query.finished
        newly = seen.newly_lost(names, listing.stat.version, frozenset(runs), ephemeral)
        lost = self._lost(paths, names, seen.lost, newly)
        seen.version, seen.runs, seen.ephemeral, seen.lost = version, frozenset(runs), ephemeral, lost
        return {**readers, **lost}, version

    def _lost(
        self, paths: GroupPaths, names: Collection[str], before: Mapping[str, int], newly: Mapping[str, int]
    ) -> dict[str, int]:
        """Those that have not registered again, and whose session has not ended too long ago."""
        for name, finished in newly.items():
            if self._term.lines.take("query session ended"):
                log.info("query session ended: group=%s query=%s finished=%d", paths.group, name, finished)
        return {
            name: finished
            for name, finished in {**before, **newly}.items()
            if name not in names and self._memory.age_s(paths.query(name), "lost") < QUERY_ABSENCE_S
        }

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
