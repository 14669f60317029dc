"""Sets a stopped query back to a checkpoint of its group's consistent region, with all its state.

First the query's znode is set back, with a mark: from then on no segment after the checkpoint is collected, and no run
may begin. Then files of its Spark checkpoint are removed, then the mark is set to done. A run that has read these files
before begins elsewhere than the mark requires, and is refused. A rewind that was interrupted can be repeated.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from coordinator.zk.errors import BadData, StoreError, UsageError
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Check, Create, Node, SetData, Store
from coordinator.zk.update import Change, Failure, retried, update
from coordinator.zk.znodes.names import checked_name
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.segments import Query, Rewind, SegmentsRecord

from .checkpoint_files import CheckpointFiles, NotRewindable
from .cuts import QueryCuts
from .offset import SourceOffset
from .segment_index import SealedSegments

log = logging.getLogger(__name__)

SILENT_AFTER_S = 180.0
"""A running query sends a heartbeat once a minute; after three missed ones it counts as stopped."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """The result of a rewind.

    :ivar batch: the last batch that stays; `newest` the last one before the rewind.
    :ivar files: number of removed files.
    """

    batch: int
    newest: int
    files: int


class Rewinder:
    """Rewinds one query of a group.

    :param location: its `checkpointLocation`.
    :param has_ended: its driver has ended, in spite of a recent heartbeat.
    """

    def __init__(
        self, store: Store, runtime: Runtime, group: str, query: str, location: str, has_ended: bool = False
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._paths = GroupPaths(checked_name("group", group))
        self._query = checked_name("query", query)
        self._files = CheckpointFiles(location)
        self._has_ended = has_ended
        self._run = runtime.random_id()
        self._path = self._paths.query(query)

    def to(self, checkpoint: int, execute: bool = False) -> Rewound:
        """Rewind it, or with `execute` unset only compute the result.

        :raises UsageError: when it runs, or the Spark checkpoint is another query's.
        :raises SegmentError: when the region does not have the checkpoint.
        :raises NotRewindable: when no retained batch ended there, or later segments were collected.
        :raises BadData: when a znode or file cannot be read.
        :raises OSError: when a file cannot be removed: repeat it.
        """
        self._store.sync()
        cut = QueryCuts(self._runtime, self._paths.group).find(self._store, "--to", checkpoint)
        batch, offset = self._batch_before(cut)
        self._checked(offset)
        if self._has_between(offset, cut):
            raise NotRewindable(f"no batch of query {self._query} that Spark retains ended at checkpoint {checkpoint}")
        self._files.check(batch)
        files = self._files.later(batch)
        if execute:
            self._fence(offset)
            self._files.remove(files)
            self._done()
            log.info(
                "query rewound: group=%s query=%s checkpoint=%d batch=%d newest=%d files=%d",
                self._paths.group, self._query, checkpoint, batch, self._files.newest, len(files),
            )  # fmt: skip
        return Rewound(batch, self._files.newest, len(files))

    def _batch_before(self, cut: int) -> tuple[int, SourceOffset]:
        """The last batch without any segment after a cut."""
        for batch in reversed(self._files.finished):
            offset = self._files.offset(batch)
            if offset.query != self._query:
                raise UsageError(f"the Spark checkpoint is of query {offset.query}, and not of {self._query}")
            if offset.czxid < cut:
                return batch, offset
        raise NotRewindable(f"Spark retains no batch of query {self._query} from before the checkpoint")

    def _has_between(self, offset: SourceOffset, cut: int) -> bool:
        """Whether a segment after a batch belongs to a cut too: all later segments still exist."""
        segments = SealedSegments(self._runtime, self._paths)
        segments.refresh(self._store, force=True)
        return bool(segments.between(offset.czxid, cut))

    def _checked(self, offset: SourceOffset) -> tuple[Node, Node | None]:
        """The znodes of the segments and of the query, checked for a rewind."""
        segments, node = self._store.get_many([self._paths.segments, self._path])
        if segments is None or segments.stat.czxid != offset.root:
            raise NotRewindable(
                f"the Spark checkpoint is of another ZooKeeper ensemble, or group {self._paths.group} was removed and "
                "recreated"
            )
        if SegmentsRecord.parse(self._paths.segments, segments.data).collected > offset.czxid:
            raise NotRewindable(f"segments after {offset.segment}, up to which Spark has read there, were collected")
        if node is not None and node.stat.ephemeral_owner:
            raise UsageError(f"query {self._query} of group {self._paths.group} is running")
        query = self._parsed(node)
        silent_s = (self._runtime.wall_ms() - node.stat.mtime_ms) / 1000 if node is not None else SILENT_AFTER_S
        is_repeated = query.rewind is not None and not query.rewind.is_done
        if silent_s < SILENT_AFTER_S and not (query.expired_ms or is_repeated or self._has_ended):
            raise UsageError(
                f"query {self._query} of group {self._paths.group} sent a heartbeat {max(0.0, silent_s):.0f} s ago: "
                "stop it, and confirm with --stopped"
            )
        return segments, node

    def _fence(self, offset: SourceOffset) -> None:
        """Set the query's znode back: it holds back segments after the checkpoint, and no run begins."""
        mark = Rewind(offset.checkpoint, offset.czxid)

        def attempt(before: Failure | None) -> None:
            segments, node = self._checked(offset)
            data = Query(self._run, offset.czxid, self._runtime.wall_ms(), rewind=mark).to_bytes()
            self._store.commit(
                [
                    Check(self._paths.segments, segments.stat.version),
                    SetData(self._paths.queries, b""),
                    SetData(self._path, data, node.stat.version) if node is not None else Create(self._path, data),
                ]
            )

        retried(self._store, attempt, lambda: f"query {self._query} was not rewound: its znodes keep changing")

    def _done(self) -> None:
        """The files are complete: a run may begin there."""

        def done(node: Node | None) -> Change[None]:
            query = self._parsed(node)
            if node is None or query.run != self._run or query.rewind is None:
                raise StoreError(f"query {self._query} was removed, or rewound once more, meanwhile: rewind it again")
            after = replace(query, rewind=query.rewind._replace(is_done=True))
            return Change([SetData(self._path, after.to_bytes(), node.stat.version)], None)

        update(self._store, self._path, done)

    def _parsed(self, node: Node | None) -> Query:
        """The query's znode; an unreadable one belongs to no run."""
        try:
            return Query.parse(self._path, node.data) if node is not None else Query("", 0, 0)
        except BadData:
            return Query("", 0, 0)
