"""Retention of segments until all queries have finished them, expiry of queries, and back-pressure on fetchers.

A round reads one znode of each group, and more only of groups that seal: the list of segments, the progress of each
query, the seal interval of each fetcher. Segments are immutable and cached; everything else is read in each round,
so that another coordinator can continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..planning import backpressure
from ..term.reading import Findings, FirstSeen
from ..term.term import Term
from ..zk.below import unlink_segment
from ..zk.errors import AccessDenied, BadData
from ..zk.store import DENIED, Check, Delete, Listing, Node, Operation, SetData, existing_nodes, nodes_at
from ..zk.values import in_chunks
from ..zk.znodes.cuts import Cut, GroupCuts
from ..zk.znodes.json_fields import readable
from ..zk.znodes.paths import SEGMENT_PREFIX, GroupPaths, is_name, names_below, sequence
from ..zk.znodes.records import Registration
from ..zk.znodes.segments import QUERY_ABSENCE_S, SEAL_INTERVAL_MS, Query, Segment, SegmentsRecord, local_file

log = logging.getLogger(__name__)

WATCHED_S = 180.0
"""A query expires only after this coordinator has missed three of its updates, independent of clocks."""

QueryRun = tuple[str, int, str]
"""A query's name, its znode's czxid, and its run: another one with each registration."""

SEGMENTS_A_MULTI = 300
READ_A_ROUND = 2000
"""Limit of one group's new segments in a round, and `MULTIS_A_ROUND` of its collecting multis: the rest waits."""
MULTIS_A_ROUND = 10


@dataclass(slots=True)
class SeenQueries:
    """The queries of a group, as this coordinator last read them.

    :ivar version: the version of the set of queries.
    :ivar runs: the registered runs.
    :ivar ephemeral: the progress of each query with an ephemeral znode.
    :ivar lost: the progress of each query whose session has ended, while it counts.
    """

    version: int = 0
    runs: frozenset[QueryRun] = frozenset()
    ephemeral: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    def newly_lost(
        self, names: Collection[str], version: int, runs: frozenset[QueryRun], ephemeral: Collection[str]
    ) -> dict[str, int]:
        """The progress of each query whose znode has gone with its session since.

        The end of a session does not change the version of the set. Each registration, and each removal, raises it by
        one, and a new query with a persistent znode has registered twice: when it is higher than that, one
        was removed, and none counts as lost.

        :param names: the znodes listed now, with the set's `version` and `runs`.
        :param ephemeral: those of `names` with ephemeral znodes.
        """
        previous = {*ephemeral, *(name for name, _, _ in self.runs if name not in self.ephemeral)}
        if version - self.version > sum(1 if name in previous else 2 for name, _, _ in runs - self.runs):
            return {}
        return {name: finished for name, finished in self.ephemeral.items() if name not in names}


class Queries:
    """Reads the queries of all groups, round by round, for one term, and expires the silent ones."""

    def __init__(self, term: Term, problems: Findings) -> None:
        self._term = term
        self._store = term.store
        self._retention_ms = term.config.query_retention_ms
        self._problems = problems
        self._memory = FirstSeen(term.runtime)

    def forget_unseen(self) -> None:
        """A round has ended."""
        self._memory.forget_unseen()

    def readers(self, paths: GroupPaths, listing: Listing, seen: SeenQueries) -> tuple[dict[str, int], int]:
        """The progress of each counted query, and the version that identifies the set of queries.

        The version is read before them: a registration in between changes it, and the decision is refused. A query
        whose session has ended counts for `QUERY_ABSENCE_S` more: its driver may only have paused, and registers again.

        :param seen: of the group's last round; updated.
        """
        version = listing.stat.version
        names = sorted(name for name in listing.names if is_name(name))
        readers: dict[str, int] = {}
        ephemeral: dict[str, int] = {}
        runs: set[QueryRun] = set()
        for name, path, node in nodes_at(self._store, names, paths.query):
            if node is None:  # the next listing shows whether it was removed
                if name in seen.ephemeral:
                    readers[name] = ephemeral[name] = seen.ephemeral[name]
                continue
            is_silent = self._is_silent(path, node)
            try:
                query = Query.parse(path, node.data)
            except BadData as error:
                self._problems.report(path, str(error))
                if not is_silent:
                    readers[name] = backpressure.UNKNOWN
                continue
            runs.add((name, node.stat.czxid, query.run))
            if node.stat.ephemeral_owner:
                ephemeral[name] = query.finished
            if is_silent and self._expire(paths, name, query, node, version):
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
        """The queries that have not registered again, within `QUERY_ABSENCE_S` of their session's end."""
        for name, finished in newly.items():
            if self._term.lines.take("query session ended"):
                log.info("query session ended: group=%s query=%s finished=%d", paths.group, name, finished)
        gone = {name: finished for name, finished in {**before, **newly}.items() if name not in names}
        absent_s = {name: self._memory.age_s(paths.query(name), "lost") for name in gone}
        return {name: finished for name, finished in gone.items() if absent_s[name] < QUERY_ABSENCE_S}

    def _is_silent(self, path: str, node: Node) -> bool:
        """Whether a znode has not changed for `query_retention_ms`; an ephemeral znode goes with its session."""
        watched_s = self._memory.age_s(path, str(node.stat.mzxid))
        is_old = self._term.clock.now_ms() - node.stat.mtime_ms >= self._retention_ms
        return not node.stat.ephemeral_owner and is_old and watched_s >= min(WATCHED_S, self._retention_ms / 1000)

    def _expire(self, paths: GroupPaths, name: str, query: Query, node: Node, version: int) -> bool:
        """Mark a query as expired; a query marked long enough ago is removed."""
        path = paths.query(name)
        marked = replace(query, expired_ms=self._term.clock.now_ms()).to_bytes()
        change = Delete(path, node.stat.version) if query.expired_ms else SetData(path, marked, node.stat.version)
        if not self._term.collect([SetData(paths.queries, b"", version), change], f"query {name}"):
            return False
        is_logged = self._term.lines.take("query expired")
        if is_logged and query.expired_ms:
            log.info("expired query removed: group=%s query=%s", paths.group, name)
        elif is_logged:
            log.warning("query expired: group=%s query=%s finished=%d", paths.group, name, query.finished)
        return True


@dataclass(slots=True)
class _Sealed:
    """The segments of a group, as last listed.

    :ivar life: the czxid of `segments`, under which each name identifies one segment.
    :ivar listed: (czxid, pzxid) of `segments` when all that it lists had been read.
    :ivar known: the fields that are needed of each; the size of an unreadable one, which `problems` has, is 0.
    :ivar unread: existing segments that have not been read yet.
    """

    life: int = 0
    listed: tuple[int, int] = (0, 0)
    known: dict[str, backpressure.Finished] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    unread: int = 0

    @property
    def backlog(self) -> backpressure.Backlog:
        size = sum(known.size for known in self.known.values())
        return backpressure.Backlog(len(self.known) + self.unread, size, self.unread)


@dataclass(slots=True)
class _Group:
    """The cached state of a group that seals.

    :ivar root: the data of `segments` with its stat, as last read or written by this round.
    :ivar has_read: whether `record.collected` is known: it was read once, or written with a collection.
    :ivar fetchers: the pzxid of `ids`, and the seal interval of each member that was registered then.
    :ivar cuts: the checkpoints of its consistent region.
    :ivar queries: its queries, as last read.
    """

    paths: GroupPaths
    root: Node
    record: SegmentsRecord = field(default_factory=SegmentsRecord)
    has_read: bool = False
    sealed: _Sealed = field(default_factory=_Sealed)
    fetchers: tuple[int, tuple[int, ...]] = (0, ())
    cuts: GroupCuts | None = None
    queries: SeenQueries = field(default_factory=SeenQueries)

    @property
    def intervals(self) -> tuple[int, ...]:
        return self.fetchers[1]


class SegmentCollector:
    """Manages the segments of all groups, round by round, for one term. Every write is fenced."""

    def __init__(self, term: Term, remove: Callable[[Path], None] = unlink_segment) -> None:
        self._term = term
        self._store = term.store
        self._bounds = backpressure.Bounds(term.config.max_backlog_segments, term.config.max_backlog_bytes)
        self._retention = backpressure.Retention(term.config.segment_retention_ms, term.config.segment_retention_bytes)
        self._sweep_s = term.config.sweep_interval_ms / 1000
        self._remove = remove
        self._problems = Findings(term.problems)
        self._queries = Queries(term, self._problems)
        self._swept_at = term.runtime.monotonic()
        self._groups: dict[str, _Group] = {}

    def collect(self, groups: Iterable[str]) -> None:
        """One round over `groups`.

        :raises Retryable: when ZooKeeper did not answer; the next round continues.
        :raises EpochOver: when the term is over.
        """
        if not self._term.lease.is_held:
            return
        now = self._term.runtime.monotonic()
        is_sweep = now - self._swept_at >= self._sweep_s
        self._swept_at = now if is_sweep else self._swept_at
        self._look(sorted(groups))
        groups_by_name = [self._groups[name] for name in sorted(self._groups)]
        self._look_at_members(groups_by_name)
        shortest_ms = backpressure.shortest_intervals_ms(
            {group.paths.group: group.intervals for group in groups_by_name}, self._term.config.max_seals_per_s
        )
        listings = self._store.children_many([group.paths.queries for group in groups_by_name])
        for group, listing in zip(groups_by_name, listings, strict=True):
            try:
                self._list_segments(group)
                for name, problem in group.sealed.problems.items():
                    if name in group.sealed.known:
                        self._problems.report(group.paths.segment(name), problem)
                readers, version = self._queries.readers(group.paths, listing, group.queries) if listing else ({}, 0)
            except AccessDenied as error:
                self._problems.report(error.path, str(error))
                continue
            if is_sweep or backpressure.is_pressing(group.record, group.sealed.backlog, self._bounds, self._retention):
                self._collect(group, readers, version)
            self._direct(group, readers, shortest_ms[group.paths.group])
        self._queries.forget_unseen()
        self._problems.done()

    # ---- reading

    def _look(self, names: Sequence[str]) -> None:
        """The groups that have ever sealed, each with the current data of `segments`."""
        sealing: dict[str, _Group] = {}
        for paths, _, node in nodes_at(self._store, map(GroupPaths, names), lambda paths: paths.segments):
            if node is None or not (node.stat.cversion or node.data):
                continue
            group = self._groups.get(paths.group) or _Group(paths, node)
            group.root = node
            self._read_record(group)
            sealing[paths.group] = group
        self._groups = sealing

    def _read_record(self, group: _Group) -> None:
        """Parse `segments`. Of unreadable data only `collected` is kept as last read: it must never decrease, or a
        returning query would miss the collected segments."""
        path = group.paths.segments
        try:
            group.record, group.has_read = SegmentsRecord.parse(path, group.root.data), True
        except BadData as error:
            self._problems.report(path, str(error))
            group.record = SegmentsRecord(group.record.collected)

    def _look_at_members(self, groups: Sequence[_Group]) -> None:
        """The seal interval of each fetcher; read again after members joined or left."""
        for group, _, node in nodes_at(self._store, groups, lambda group: group.paths.ids):
            registered = node.stat.pzxid if node else 0
            if registered != group.fetchers[0]:
                with suppress(AccessDenied):  # the listeners report it
                    ids = existing_nodes(self._store, names_below(self._store, group.paths.ids), group.paths.id)
                    found = (readable(Registration.parse, path, one) for _, path, one in ids)
                    # A consumer with an unreadable registration is left out of the group.
                    intervals = (each.seal_interval_ms or SEAL_INTERVAL_MS for each in found if each is not None)
                    group.fetchers = registered, tuple(intervals)

    def _list_segments(self, group: _Group) -> None:
        """List the changes, and read new segments."""
        sealed = group.sealed
        if sealed.listed == (group.root.stat.czxid, group.root.stat.pzxid):
            return
        listing = self._store.children(group.paths.segments)
        if listing is None:
            return
        names = {name for name in listing.names if name.startswith(SEGMENT_PREFIX) and is_name(name)}
        if listing.stat.czxid != sealed.life:
            sealed.life, sealed.known, sealed.problems = listing.stat.czxid, {}, {}
        sealed.known = {name: known for name, known in sealed.known.items() if name in names}
        sealed.problems = {name: problem for name, problem in sealed.problems.items() if name in names}
        new = sorted(names - set(sealed.known), key=lambda name: (sequence(name) or 0, name))
        batch = new[:READ_A_ROUND]
        nodes = self._store.get_many([group.paths.segment(name) for name in batch])
        closed = 0
        for name, node in zip(batch, nodes, strict=True):
            path = group.paths.segment(name)
            if node is not None and node.data == DENIED:  # read again until its ACL permits that, or it is removed
                closed += 1
                self._problems.report(path, str(AccessDenied(path)))
            elif node is not None:
                try:
                    size = Segment.parse(path, node.data).size
                except BadData as error:
                    size, sealed.problems[name] = 0, str(error)
                sealed.known[name] = backpressure.Finished(node.stat.czxid, node.stat.ctime_ms, size)
        sealed.unread = len(new) - len(batch) + closed
        if not sealed.unread:
            sealed.listed = (listing.stat.czxid, listing.stat.pzxid)

    # ---- collecting

    def _collect(self, group: _Group, readers: Mapping[str, int], version: int) -> None:
        """Remove the segments finished by every query and not retained; without a query none.

        In a consistent region segments after the oldest kept checkpoint stay, while they fit; then, oldest first,
        checkpoints lose their segments, and no query can start there.
        """
        finished = backpressure.finished_by_all(readers)
        cuts = self._cuts(group) if finished is not None else None
        if finished is None or cuts is None:
            return
        if backpressure.may_hold(group.sealed.backlog, self._bounds):  # a large backlog ends the retention
            done = sorted(one for one in group.sealed.known.values() if one.czxid <= finished)
            finished = backpressure.collectable(done, self._term.clock.now_ms(), self._retention)
        lost: Cut | None = None
        for cut in (*cuts, None):
            until = min(finished, cut.czxid) if cut is not None else finished
            before = len(group.sealed.known)
            is_whole = self._collect_up_to(group, until, version)
            count = before - len(group.sealed.known)
            if count and lost is not None:
                log.warning(
                    "checkpoint segments removed: group=%s checkpoint=%d segments=%d reason=backlog",
                    group.paths.group, lost.sequence, count,
                )  # fmt: skip
            if not is_whole or until == finished or backpressure.may_hold(group.sealed.backlog, self._bounds):
                return
            lost = cut

    def _cuts(self, group: _Group) -> Sequence[Cut] | None:
        """The checkpoints of the group's region, oldest first; None while the region is unknown."""
        group.cuts = group.cuts or GroupCuts(self._term.runtime, group.paths.group)
        try:
            return group.cuts.read(self._store)
        except BadData as error:
            self._problems.report(group.paths.state, str(error))
            return None

    def _collect_up_to(self, group: _Group, czxid: int, version: int) -> bool:
        """Whether all of these segments were removed."""
        done = sorted((known.czxid, name) for name, known in group.sealed.known.items() if known.czxid <= czxid)
        chosen = done[: MULTIS_A_ROUND * SEGMENTS_A_MULTI]
        for batch in in_chunks(chosen, SEGMENTS_A_MULTI):
            if not self._collect_some(group, [name for _, name in batch], version):
                return False
        return len(chosen) == len(done)

    def _collect_some(self, group: _Group, names: Sequence[str], version: int) -> bool:
        paths = group.paths
        nodes = [*existing_nodes(self._store, names, paths.segment)]
        if not nodes:  # a concurrent removal
            return False
        collected = max([group.record.collected, *(node.stat.czxid for _, _, node in nodes)])
        operations: list[Operation] = [Check(paths.queries, version), *(Delete(path) for _, path, _ in nodes)]
        if not self._write(group, replace(group.record, collected=collected), operations):
            return False
        group.has_read = True
        log.info("segments removed: group=%s segments=%d up_to=%d", paths.group, len(nodes), collected)
        self._term.metrics.collected(paths.group, segments=len(nodes))
        for name in names:
            del group.sealed.known[name]
        self._remove_files(paths, nodes)
        return True

    def _direct(self, group: _Group, readers: Mapping[str, int], shortest_ms: int) -> None:
        """Pause or resume the fetchers, or make them seal less often."""
        if not group.has_read:
            return
        before = group.record
        interval_ms = backpressure.published_interval_ms(group.intervals, shortest_ms)
        backlog = group.sealed.backlog
        after = backpressure.directions(before, backlog, self._bounds, readers, interval_ms)
        if after == before or not self._write(group, after):
            return
        name = group.paths.group
        if after.paused and after.paused != before.paused:
            log.warning("fetchers paused: group=%s reason=%s", name, after.paused)
        elif before.paused and not after.paused:
            log.info("fetchers resumed: group=%s segments=%d bytes=%d", name, backlog.segments, backlog.size)
        if after.seal_interval_ms != before.seal_interval_ms:
            log.info("seal interval changed: group=%s seal_interval_ms=%s", name, after.seal_interval_ms)

    def _write(self, group: _Group, record: SegmentsRecord, operations: Sequence[Operation] = ()) -> bool:
        """Replace the data of `segments`, as read in this round, together with `operations`."""
        stat = group.root.stat
        change = SetData(group.paths.segments, record.to_bytes(), stat.version)
        if not self._term.collect([change, *operations], f"segments of {group.paths.group}"):
            return False
        group.root, group.record = Node(change.data, stat._replace(version=stat.version + 1)), record
        return True

    def _remove_files(self, paths: GroupPaths, done: Sequence[tuple[str, str, Node]]) -> None:
        """Remove files after their znodes, if this node can and may; a fetcher pool's sweep removes the others."""
        for name, path, node in done:
            try:
                file = local_file(paths.group, Segment.parse(path, node.data))
                if file is not None:
                    self._remove(file)
            except (FileNotFoundError, PermissionError):
                continue
            except (BadData, OSError, ValueError) as error:
                if self._term.lines.take("segment file removal failed"):
                    log.warning("segment file removal failed: segment=%s reason=%s", name, error)
