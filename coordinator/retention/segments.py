"""Retention of segments: those that all queries have finished are removed; and back-pressure on fetchers.

A round reads one znode of each group, and more only of groups that seal: the list of segments, the progress of each
query, the seal interval of each fetcher. Segments are immutable and cached; everything else is read in each round,
so that another coordinator can continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..planning.backpressure import (
    Backlog,
    Bounds,
    Finished,
    Retention,
    collectable,
    directions,
    finished_by_all,
    is_pressing,
    may_hold,
    published_interval_ms,
    shortest_intervals_ms,
)
from ..term.reading import Findings
from ..term.term import ServerClock, Term
from ..zk.below import unlink_segment
from ..zk.errors import AccessDenied, BadData
from ..zk.store import DENIED, Check, Delete, Node, Operation, SetData
from ..zk.znodes.cuts import Cut, GroupCuts
from ..zk.znodes.json_fields import readable
from ..zk.znodes.names import is_name, names_below
from ..zk.znodes.paths import SEGMENT_PREFIX, GroupPaths, sequence
from ..zk.znodes.records import Registration
from ..zk.znodes.segments import SEAL_INTERVAL_MS, Segment, SegmentsRecord, local_file
from .queries import Queries, SeenQueries

log = logging.getLogger(__name__)

SEGMENTS_A_MULTI = 300

READ_A_ROUND = 2000
"""New segments that are read of one group in a round, and `MULTIS_A_ROUND` its collecting multis: the others wait."""

MULTIS_A_ROUND = 10


class _Known(NamedTuple):
    """The cached fields of a segment; `problem` is why its znode is unreadable, empty when it is not."""

    czxid: int
    sealed_ms: int
    size: int
    problem: str = ""


@dataclass(slots=True)
class _Group:
    """The cached state of a group that seals.

    :ivar root: the data of `segments` with its stat, as last read or written by this round.
    :ivar has_read: whether `record.collected` is known: it was read once, or written with a collection.
    :ivar life: the czxid of `segments`, under which each name identifies one segment.
    :ivar listed: (czxid, pzxid) of `segments` when all that it lists had been read.
    :ivar unread: existing segments that have not been read yet.
    :ivar intervals: the seal interval of each registered member.
    :ivar registered: the pzxid of `ids` that `intervals` belongs to.
    :ivar cuts: the checkpoints of its consistent region.
    :ivar queries: its queries, as last read.
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
    queries: SeenQueries = field(default_factory=SeenQueries)

    @property
    def backlog(self) -> Backlog:
        size = sum(known.size for known in self.segments.values())
        return Backlog(len(self.segments) + self.unread, size, self.unread)


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """An operator's settings.

    :ivar retention: of segments that every query has finished.
    :ivar max_seals_per_s: of all groups together.
    """

    bounds: Bounds
    retention: Retention
    max_seals_per_s: int
    query_retention_ms: int
    sweep_interval_ms: int


class SegmentCollector:
    """Manages the segments of all groups, round by round, for one term. Every write is fenced."""

    def __init__(
        self, term: Term, clock: ServerClock, rules: SegmentRules, remove: Callable[[Path], None] = unlink_segment
    ) -> None:
        self._term = term
        self._store = term.store
        self._clock = clock
        self._rules = rules
        self._remove = remove
        self._problems = Findings(term.problems)
        self._queries = Queries(term, clock, rules.query_retention_ms, self._problems)
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
        is_sweep = now - self._swept_at >= self._rules.sweep_interval_ms / 1000
        self._swept_at = now if is_sweep else self._swept_at
        self._look(sorted(groups))
        known = [self._groups[name] for name in sorted(self._groups)]
        self._look_at_members(known)
        shortest_ms = shortest_intervals_ms(
            {group.paths.group: group.intervals for group in known}, self._rules.max_seals_per_s
        )
        listings = self._store.children_many([group.paths.queries for group in known])
        for group, listing in zip(known, listings, strict=True):
            try:
                self._look_at_segments(group)
                readers, version = self._queries.readers(group.paths, listing, group.queries) if listing else ({}, 0)
            except AccessDenied as error:
                self._problems.report(error.path, str(error))
                continue
            if is_sweep or is_pressing(group.record, group.backlog, self._rules.bounds, self._rules.retention):
                self._collect(group, readers, version)
            self._direct(group, readers, shortest_ms[group.paths.group])
        self._queries.forget_unseen()
        self._problems.done()

    # ---- reading

    def _look(self, names: Sequence[str]) -> None:
        """The groups that have ever sealed, each with the current data of `segments`."""
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
        nodes = self._store.get_many([group.paths.ids for group in groups])
        for group, node in zip(groups, nodes, strict=True):
            registered = node.stat.pzxid if node else 0
            if registered != group.registered:
                with suppress(AccessDenied):  # the listeners report it
                    group.registered, group.intervals = registered, self._intervals(group.paths)

    def _intervals(self, paths: GroupPaths) -> tuple[int, ...]:
        members = [paths.id(name) for name in names_below(self._store, paths.ids)]
        found = []
        for path, node in zip(members, self._store.get_many(members), strict=True):
            own_ms = _own_interval_ms(path, node) if node is not None else None
            if own_ms is not None:
                found.append(own_ms)
        return tuple(found)

    def _look_at_segments(self, group: _Group) -> None:
        """List the changes, and read new segments."""
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
        batch = new[:READ_A_ROUND]
        nodes = self._store.get_many([group.paths.segment(name) for name in batch])
        closed = 0
        for name, node in zip(batch, nodes, strict=True):
            path = group.paths.segment(name)
            if node is not None and node.data == DENIED:  # it is read again until it is open, or gone
                closed += 1
                self._problems.report(path, str(AccessDenied(path)))
            elif node is not None:
                group.segments[name] = _known(path, node)
        group.unread = len(new) - len(batch) + closed
        if not group.unread:
            group.listed = (listing.stat.czxid, listing.stat.pzxid)

    # ---- collecting

    def _collect(self, group: _Group, readers: Mapping[str, int], version: int) -> None:
        """Remove the segments that every query has finished, and that are not retained; without a query none.

        In a consistent region those after the oldest kept checkpoint are kept, while they fit; then, oldest first,
        checkpoints lose their segments and can no longer be a start.
        """
        finished = finished_by_all(readers)
        cuts = self._cuts(group) if finished is not None else None
        if finished is None or cuts is None:
            return
        finished = self._unretained(group, finished)
        lost: Cut | None = None
        for cut in (*cuts, None):
            until = min(finished, cut.czxid) if cut is not None else finished
            before = len(group.segments)
            is_whole = self._collect_up_to(group, until, version)
            count = before - len(group.segments)
            if count and lost is not None:
                log.warning(
                    "checkpoint segments removed: group=%s checkpoint=%d segments=%d reason=backlog",
                    group.paths.group, lost.sequence, count,
                )  # fmt: skip
            if not is_whole or until == finished or may_hold(group.backlog, self._rules.bounds):
                return
            lost = cut

    def _unretained(self, group: _Group, finished: int) -> int:
        """The czxid up to which segments are not retained; a large backlog ends the retention."""
        if not may_hold(group.backlog, self._rules.bounds):
            return finished
        known = sorted((one for one in group.segments.values() if one.czxid <= finished), key=lambda one: one.czxid)
        done = [Finished(one.czxid, one.sealed_ms, one.size) for one in known]
        return collectable(done, self._clock.now_ms(), self._rules.retention)

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
        done = sorted((known.czxid, name) for name, known in group.segments.items() if known.czxid <= czxid)
        batch = done[: MULTIS_A_ROUND * SEGMENTS_A_MULTI]
        for first in range(0, len(batch), SEGMENTS_A_MULTI):
            if not self._collect_some(group, [name for _, name in batch[first : first + SEGMENTS_A_MULTI]], version):
                return False
        return len(batch) == len(done)

    def _collect_some(self, group: _Group, names: Sequence[str], version: int) -> bool:
        paths = group.paths
        nodes = self._store.get_many([paths.segment(name) for name in names])
        found = [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]
        if not found:  # a concurrent removal
            return False
        collected = max([group.record.collected, *(node.stat.czxid for _, node in found)])
        operations: list[Operation] = [
            Check(paths.queries, version),
            *(Delete(paths.segment(name)) for name, _ in found),
        ]
        if not self._write(group, replace(group.record, collected=collected), operations):
            return False
        group.has_read = True
        log.info("segments removed: group=%s segments=%d up_to=%d", paths.group, len(found), collected)
        self._term.metrics.collected(paths.group, segments=len(found))
        for name in names:
            del group.segments[name]
        self._remove_files(paths, found)
        return True

    def _direct(self, group: _Group, readers: Mapping[str, int], shortest_ms: int) -> None:
        """Make the fetchers pause, resume, or seal less often."""
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

    def _remove_files(self, paths: GroupPaths, done: Sequence[tuple[str, Node]]) -> None:
        """Remove files after their znodes, if this node can and may; a fetcher pool's sweep removes the others."""
        for name, node in done:
            try:
                segment = Segment.parse(paths.segment(name), node.data)
                path = local_file(paths.group, segment)
                if path is not None:
                    self._remove(path)
            except (FileNotFoundError, PermissionError):
                continue
            except (BadData, OSError, ValueError) as error:
                if self._term.lines.take("segment file removal failed"):
                    log.warning("segment file removal failed: segment=%s reason=%s", name, error)


def _known(path: str, node: Node) -> _Known:
    """A segment; the size of an unreadable one is unknown."""
    try:
        return _Known(node.stat.czxid, node.stat.ctime_ms, Segment.parse(path, node.data).size)
    except BadData as error:
        return _Known(node.stat.czxid, node.stat.ctime_ms, 0, str(error))


def _own_interval_ms(path: str, node: Node) -> int | None:
    """A member's own seal interval; None for unreadable data, whose consumer is left out of the group."""
    registration = readable(Registration.parse, path, node)
    return registration.seal_interval_ms or SEAL_INTERVAL_MS if registration is not None else None
