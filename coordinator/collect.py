"""Collection: what the dead leave behind, and the segments that every query has finished."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from .metrics import CoordinatorMetrics
from .problems import Findings, Problems
from .reading import Memory
from .term import Term
from .zk.errors import BadData, Refused
from .zk.lease import Lease
from .zk.names import is_name
from .zk.paths import COORDINATOR_EPOCH, GroupPaths, sequence
from .zk.records import parsed_channel
from .zk.runtime import Runtime
from .zk.sealed import Query, Segment, SegmentsRecord
from .zk.store import Check, Delete, Node, Operation, SetData, Store

log = logging.getLogger(__name__)

SEGMENTS_A_MULTI = 300


class Collector:
    """Collects one group at a time, for one term. Every removal is fenced."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        term: Term,
        lease: Lease,
        problems: Problems,
        channel_retention_ms: int,
        query_retention_ms: int,
        metrics: CoordinatorMetrics | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._term = term
        self._lease = lease
        self._problems = Findings(problems)
        self._channel_retention_ms = channel_retention_ms
        self._query_retention_ms = query_retention_ms
        self._metrics = metrics or CoordinatorMetrics()
        self._memory = Memory(runtime)

    def collect(self, groups: Iterable[str]) -> None:
        """One round over `groups`.

        :raises Retryable: when ZooKeeper did not answer; the next round goes on.
        """
        for group in groups:
            paths = GroupPaths(group)
            self._collect_channels(paths)
            self._collect_segments(paths)
        self._memory.forget_unseen()
        self._problems.done()

    # ---- channels of the dead

    def _collect_channels(self, paths: GroupPaths) -> None:
        """Remove channels whose consumer is long gone.

        Not before `channel_retention_ms`: a channel that is made anew has version 0 again, and with it the fence that
        keeps a late writer of an earlier life out. No session lives that long without an answer.
        """
        names = self._names(paths.channels)
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
            if self._commit([Delete(paths.channel(name), channel.stat.version)], f"channel of {name}"):
                self._metrics.collected(paths.group, channels=1)

    def _is_over(self, paths: GroupPaths, name: str, node: Node) -> bool:
        try:
            channel = parsed_channel(paths.channel(name), node.data)
        except BadData as error:
            self._problems.report(paths.channel(name), str(error))
            return False
        seen_s = self._memory.age_s(paths.channel(name), str(node.stat.mzxid))
        age_ms = self._runtime.wall_ms() - node.stat.mtime_ms
        watched_long_enough = seen_s >= 2 * self._store.negotiated_timeout_s
        return (
            not channel.is_live and not channel.running and age_ms >= self._channel_retention_ms and watched_long_enough
        )

    # ---- segments

    def _collect_segments(self, paths: GroupPaths) -> None:
        """Remove the segments that every query has finished; with no query, nothing is."""
        self._store.sync()
        queries = self._store.get(paths.queries)
        segments = self._store.get(paths.segments)
        finished = self._finished(paths)
        if queries is None or segments is None or finished is None:
            return
        try:
            record = SegmentsRecord.parse(paths.segments, segments.data)
        except BadData as error:
            self._problems.report(paths.segments, str(error))
            record = SegmentsRecord()
        names = sorted(self._names(paths.segments), key=lambda name: (sequence(name) or 0, name))
        for first in range(0, len(names), SEGMENTS_A_MULTI):
            chunk = names[first : first + SEGMENTS_A_MULTI]
            nodes = self._store.get_many([paths.segment(name) for name in chunk])
            done = [(name, n) for name, n in zip(chunk, nodes, strict=True) if n and n.stat.czxid <= finished]
            if not done:
                return
            collected = max(record.collected, *(node.stat.czxid for _, node in done))
            record = SegmentsRecord(collected, record.paused, record.seal_interval_ms)
            operations: list[Operation] = [
                Check(paths.queries, queries.stat.version),
                SetData(paths.segments, record.to_bytes(), segments.stat.version),
                *(Delete(paths.segment(name)) for name, _ in done),
            ]
            if not self._commit(operations, f"{len(done)} segments of {paths.group}"):
                return
            self._metrics.collected(paths.group, segments=len(done))
            self._remove_files(paths, done)
            segments = self._store.get(paths.segments)
            if segments is None or len(done) < len(chunk):
                return

    def _finished(self, paths: GroupPaths) -> int | None:
        """The czxid up to which every query that counts has finished; None when there is none or one is unreadable."""
        names = self._names(paths.queries)
        finished = []
        for name, node in zip(names, self._store.get_many([paths.query(name) for name in names]), strict=True):
            if node is None:
                continue
            try:
                query = Query.parse(paths.query(name), node.data)
            except BadData as error:
                self._problems.report(paths.query(name), str(error))
                return None
            if self._runtime.wall_ms() - node.stat.mtime_ms < self._query_retention_ms:
                finished.append(query.finished)
        return min(finished, default=None)

    def _remove_files(self, paths: GroupPaths, done: Sequence[tuple[str, Node]]) -> None:
        """Remove the files after their znodes, where this node can reach them; elsewhere a fetcher's sweep does."""
        for name, node in done:
            try:
                segment = Segment.parse(paths.segment(name), node.data)
                root = Path(segment.segments_dir.removeprefix("file://"))
                if root.is_absolute() and _is_own_file(paths.group, segment):
                    (root / segment.file).unlink(missing_ok=True)
            except (BadData, OSError, ValueError) as error:
                log.warning("segment file not removed: segment=%s reason=%s", name, error)

    def _names(self, path: str) -> list[str]:
        listing = self._store.children(path)
        return sorted(name for name in (listing.names if listing else ()) if is_name(name))

    def _commit(self, operations: Sequence[Operation], what: str) -> bool:
        if not self._lease.is_held:
            return False
        try:
            self._store.commit([Check(COORDINATOR_EPOCH, self._term.fence), *operations])
        except Refused as refused:
            if refused.path == COORDINATOR_EPOCH:
                self._term.check(self._store)
            log.info("collection waits for the next round: what=%s refused=%s", what, refused.path)
            return False
        log.info("collected: what=%s", what)
        return True


def _is_own_file(group: str, segment: Segment) -> bool:
    """Whether a segment names a file as its fetcher names them: a znode must not be able to remove any other."""
    stem = f"{group}/{segment.consumer}/{segment.incarnation}-"
    number = segment.file.removeprefix(stem).removesuffix(".arrow")
    return segment.file == f"{stem}{number}.arrow" and len(number) == 10 and number.isascii() and number.isdigit()
