"""Segments of every group: what its queries have finished is collected, and its fetchers are told when to pause.

A round reads one znode of each group, and more only of those that seal: which segments are there, how far each query
has come, how often each fetcher seals. What it knows of a segment it keeps, since a segment never changes; everything
else that decides it reads anew, so that another coordinator goes on where this one stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from .backlog import (
    UNKNOWN,
    Backlog,
    Bounds,
    directions,
    finished_by_all,
    is_pressing,
    may_hold,
    published_interval_ms,
    shortest_interval_ms,
)
from .collect import FencedCommits, ServerClock
from .metrics import CoordinatorMetrics
from .problems import Findings, Problems
from .reading import Memory
from .segments import local_file
from .zk.cuts import Cut, GroupCuts
from .zk.errors import BadData
from .zk.names import is_name
from .zk.paths import SEGMENT_PREFIX, GroupPaths, sequence
from .zk.records import Registration
from .zk.runtime import Runtime
from .zk.sealed import SEAL_INTERVAL_MS, Query, Segment, SegmentsRecord
from .zk.store import Check, Delete, Listing, Node, Operation, SetData, Store

log = logging.getLogger(__name__)

SEGMENTS_A_MULTI = 300

READ_A_ROUND = 2000
"""New segments that are read of one group in a round, and `MULTIS_A_ROUND` its collecting multis: the others wait."""

MULTIS_A_ROUND = 10

WATCHED_S = 180.0
"""No query is expired before this coordinator has missed three of its signs of life, whatever clocks say."""


class _Known(NamedTuple):
    """What is kept of a segment; `problem` says why its znode cannot be read, empty when it can."""

    czxid: int
    size: int
    problem: str = ""


@dataclass(slots=True)
class _Group:
    """What is known of a group that seals.

    :ivar root: the data of `segments` with its stat, as this round has read or written it.
    :ivar has_read: whether `record.collected` is known: it was read once, or written with a collection.
    :ivar life: the czxid of `segments`, in which each name stands for one segment.
    :ivar listed: (czxid, pzxid) of `segments` when all that it lists had been read.
    :ivar unread: segments that are there and have not been read yet.
    :ivar intervals: the seal interval of each registered member.
    :ivar registered: the pzxid of `ids` that they are of.
    :ivar cuts: the checkpoints of its consistent region.
    """

    paths: GroupPaths
    root: Node
    record: SegmentsRecord = field(default_factory=SegmentsRecord)
    has_read: bool = False
    life: int = 0
    listed: tuple[int, int] = (0, 0)
    segments: dict[str, _Known] = field(default_factory=dict)
    unread: int = 0
    registered: int = 0
    cuts: GroupCuts | None = None
    intervals: tuple[int, ...] = ()

    @property
    def backlog(self) -> Backlog:
        size = sum(known.size for known in self.segments.values())
        return Backlog(len(self.segments) + self.unread, size, self.unread)


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """What an operator has configured.

    :ivar max_seals_per_s: of all groups together.
    """

    bounds: Bounds
    max_seals_per_s: int
    query_retention_ms: int
    sweep_interval_ms: int


class SegmentCollector:
    """Looks after the segments of all groups, one round after the other, for one term. Every write is fenced."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        commits: FencedCommits,
        clock: ServerClock,
        problems: Problems,
        rules: SegmentRules,
        metrics: CoordinatorMetrics | None = None,
        remove: Callable[[Path], None] = Path.unlink,
    ) -> None:
        self._remove = remove
        self._store = store
        self._commits = commits
        self._clock = clock
        self._problems = Findings(problems)
        self._rules = rules
        self._metrics = metrics or CoordinatorMetrics()
        self._memory = Memory(runtime)
        self._runtime = runtime
        self._swept_at = runtime.monotonic()
        self._groups: dict[str, _Group] = {}

    def collect(self, groups: Iterable[str]) -> None:
        """One round over `groups`.

        :raises Retryable: when ZooKeeper did not answer; the next round goes on.
        :raises EpochOver: when the term is over.
        """
        if not self._commits.may_act:
            return
        now = self._runtime.monotonic()
        is_sweep = now - self._swept_at >= self._rules.sweep_interval_ms / 1000
        self._swept_at = now if is_sweep else self._swept_at
        self._look(sorted(groups))
        known = [self._groups[name] for name in sorted(self._groups)]
        self._look_at_members(known)
        shortest_ms = shortest_interval_ms(
            [own for group in known for own in group.intervals], self._rules.max_seals_per_s
        )
        listings = self._store.children_many([group.paths.queries for group in known])
        for group, listing in zip(known, listings, strict=True):
            self._look_at_segments(group)
            readers, version = self._readers(group.paths, listing) if listing is not None else ({}, 0)
            if is_sweep or is_pressing(group.record, group.backlog, self._rules.bounds):
                self._collect(group, readers, version)
            self._direct(group, readers, shortest_ms)
        self._memory.forget_unseen()
        self._problems.done()

    # ---- looking

    def _look(self, names: Sequence[str]) -> None:
        """The groups that have ever sealed, each with what `segments` says now."""
        found: dict[str, _Group] = {}
        every = [GroupPaths(name) for name in names]
        for paths, node in zip(every, self._store.get_many([paths.segments for paths in every]), strict=True):
            if node is None or not (node.stat.cversion or node.data):
                continue
            group = self._groups.get(paths.group) or _Group(paths, node)
            group.root = node
            self._read_record(group)
            found[paths.group] = group
        self._groups = found

    def _read_record(self, group: _Group) -> None:
        """What `segments` says. Of data that cannot be read only `collected` stays as it was read before: it must never
        go back, or a query that returns would not be told of what is gone."""
        path = group.paths.segments
        try:
            group.record, group.has_read = SegmentsRecord.parse(path, group.root.data), True
        except BadData as error:
            self._problems.report(path, str(error))
            group.record = SegmentsRecord(group.record.collected)

    def _look_at_members(self, groups: Sequence[_Group]) -> None:
        """How often each fetcher seals by itself; read again when somebody came or went."""
        nodes = self._store.get_many([group.paths.ids for group in groups])
        for group, node in zip(groups, nodes, strict=True):
            registered = node.stat.pzxid if node else 0
            if registered != group.registered:
                group.registered, group.intervals = registered, self._intervals(group.paths)

    def _intervals(self, paths: GroupPaths) -> tuple[int, ...]:
        listing = self._store.children(paths.ids)
        members = [paths.id(name) for name in sorted(listing.names if listing else ()) if is_name(name)]
        found = []
        for path, node in zip(members, self._store.get_many(members), strict=True):
            if node is not None:
                found.append(_own_interval_ms(path, node))
        return tuple(found)

    def _look_at_segments(self, group: _Group) -> None:
        """List what has changed, and read what is new."""
        self._list_segments(group)
        for name, known in group.segments.items():
            if known.problem:
                self._problems.report(group.paths.segment(name), known.problem)

    def _list_segments(self, group: _Group) -> None:
        if group.listed == (group.root.stat.czxid, group.root.stat.pzxid):
            return
        listing = self._store.children(group.paths.segments)
        if listing is None:
            return
        names = {name for name in listing.names if name.startswith(SEGMENT_PREFIX) and is_name(name)}
        if listing.stat.czxid != group.life:
            group.life, group.segments = listing.stat.czxid, {}
        group.segments = {name: known for name, known in group.segments.items() if name in names}
        new = sorted(names - set(group.segments), key=lambda name: (sequence(name) or 0, name))
        some = new[:READ_A_ROUND]
        nodes = self._store.get_many([group.paths.segment(name) for name in some])
        group.segments |= {
            name: _known(group.paths.segment(name), node)
            for name, node in zip(some, nodes, strict=True)
            if node is not None
        }
        group.unread = len(new) - len(some)
        if not group.unread:
            group.listed = (listing.stat.czxid, listing.stat.pzxid)

    # ---- queries

    def _readers(self, paths: GroupPaths, listing: Listing) -> tuple[dict[str, int], int]:
        """How far each query that counts has come, and the version that stands for the set of queries.

        The version was read before them: whoever registers in between moves it, and what this decides is refused.
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
        """Whether a znode has not changed for `query_retention_ms`; an ephemeral one tells by itself that it lives."""
        watched_s = self._memory.age_s(path, str(node.stat.mzxid))
        retention_ms = self._rules.query_retention_ms
        return (
            not node.stat.ephemeral_owner
            and self._clock.now_ms() - node.stat.mtime_ms >= retention_ms
            and watched_s >= min(WATCHED_S, retention_ms / 1000)
        )

    def _expire(self, paths: GroupPaths, name: str, query: Query, node: Node, version: int) -> bool:
        """Mark a query as expired; one that was marked as long ago is removed."""
        path = paths.query(name)
        marked = replace(query, expired_ms=self._clock.now_ms()).to_bytes()
        change = Delete(path, node.stat.version) if query.expired_ms else SetData(path, marked, node.stat.version)
        if not self._commits.commit([SetData(paths.queries, b"", version), change], f"query {name}"):
            return False
        if query.expired_ms:
            log.info("expired query removed: group=%s query=%s", paths.group, name)
        else:
            log.warning("query expired: group=%s query=%s finished=%d", paths.group, name, query.finished)
        return True

    # ---- collecting

    def _collect(self, group: _Group, readers: Mapping[str, int], version: int) -> None:
        """Remove the segments that every query has finished; with no query, nothing is.

        In a consistent region those after the oldest checkpoint that is kept stay, while there is room for them; then
        one checkpoint after the other, the oldest first, can no longer be begun at.
        """
        finished = finished_by_all(readers)
        cuts = self._cuts(group) if finished is not None else None
        if finished is None or cuts is None:
            return
        lost: Cut | None = None
        for cut in (*cuts, None):
            until = min(finished, cut.czxid) if cut is not None else finished
            before = len(group.segments)
            is_whole = self._collect_up_to(group, until, version)
            count = before - len(group.segments)
            if count and lost is not None:
                log.warning(
                    "segments of a checkpoint collected: group=%s checkpoint=%d segments=%d reason=backlog",
                    group.paths.group, lost.sequence, count,
                )  # fmt: skip
            if not is_whole or until == finished or may_hold(group.backlog, self._rules.bounds):
                return
            lost = cut

    def _cuts(self, group: _Group) -> Sequence[Cut] | None:
        """The checkpoints of the group's region, the oldest first; None while it is not known which one that is."""
        group.cuts = group.cuts or GroupCuts(self._runtime, group.paths.group)
        try:
            return group.cuts.read(self._store)
        except BadData as error:
            self._problems.report(group.paths.state, str(error))
            return None

    def _collect_up_to(self, group: _Group, czxid: int, version: int) -> bool:
        """Whether all of these segments were removed."""
        done = sorted((known.czxid, name) for name, known in group.segments.items() if known.czxid <= czxid)
        some = done[: MULTIS_A_ROUND * SEGMENTS_A_MULTI]
        for first in range(0, len(some), SEGMENTS_A_MULTI):
            if not self._collect_some(group, [name for _, name in some[first : first + SEGMENTS_A_MULTI]], version):
                return False
        return len(some) == len(done)

    def _collect_some(self, group: _Group, names: Sequence[str], version: int) -> bool:
        paths = group.paths
        nodes = self._store.get_many([paths.segment(name) for name in names])
        found = [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
        if not found:  # somebody else has removed them
            return False
        collected = max([group.record.collected, *(node.stat.czxid for _, node in found)])
        operations: list[Operation] = [
            Check(paths.queries, version),
            *(Delete(paths.segment(name)) for name, _ in found),
        ]
        if not self._write(group, replace(group.record, collected=collected), operations):
            return False
        group.has_read = True
        log.info("segments collected: group=%s segments=%d up_to=%d", paths.group, len(found), collected)
        self._metrics.collected(paths.group, segments=len(found))
        for name in names:
            del group.segments[name]
        self._remove_files(paths, found)
        return True

    def _direct(self, group: _Group, readers: Mapping[str, int], shortest_ms: int) -> None:
        """Tell the fetchers to pause, to go on, or to seal less often."""
        if not group.has_read:
            return
        before = group.record
        interval_ms = published_interval_ms(group.intervals, shortest_ms)
        after = directions(before, group.backlog, self._rules.bounds, readers, interval_ms)
        if after == before or not self._write(group, after):
            return
        name, backlog = group.paths.group, group.backlog
        if after.paused and after.paused != before.paused:
            log.warning("fetchers paused: group=%s reason=%s", name, after.paused)
        elif before.paused and not after.paused:
            log.info("fetchers go on: group=%s segments=%d bytes=%d", name, backlog.segments, backlog.size)
        if after.seal_interval_ms != before.seal_interval_ms:
            log.info("seal interval published: group=%s seal_interval_ms=%s", name, after.seal_interval_ms)

    def _write(self, group: _Group, record: SegmentsRecord, operations: Sequence[Operation] = ()) -> bool:
        """Replace the data of `segments`, as this round has read it, together with `operations`."""
        stat = group.root.stat
        change = SetData(group.paths.segments, record.to_bytes(), stat.version)
        if not self._commits.commit([change, *operations], f"segments of {group.paths.group}"):
            return False
        group.root, group.record = Node(change.data, stat._replace(version=stat.version + 1)), record
        return True

    def _remove_files(self, paths: GroupPaths, done: Sequence[tuple[str, Node]]) -> None:
        """Remove files after their znodes, where this node can reach them; elsewhere a fetcher pool's sweep does."""
        for name, node in done:
            try:
                segment = Segment.parse(paths.segment(name), node.data)
                path = local_file(paths.group, segment)
                if path is not None:
                    self._remove(path)
            except FileNotFoundError:
                continue
            except (BadData, OSError, ValueError) as error:
                log.warning("segment file not removed: segment=%s reason=%s", name, error)


def _known(path: str, node: Node) -> _Known:
    """A segment; of one that cannot be read nobody knows the bytes."""
    try:
        return _Known(node.stat.czxid, Segment.parse(path, node.data).size)
    except BadData as error:
        return _Known(node.stat.czxid, 0, str(error))


def _own_interval_ms(path: str, node: Node) -> int:
    """What a member seals at; one of an earlier release does not say, and one that cannot be read may do anything."""
    try:
        return Registration.parse(path, node.data).seal_interval_ms or SEAL_INTERVAL_MS
    except BadData:
        return SEAL_INTERVAL_MS
