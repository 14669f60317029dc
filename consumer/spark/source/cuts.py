"""The checkpoints of a group's consistent region, for a query: where it may begin, and where batches end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Store
from coordinator.zk.znodes.cuts import Cut, GroupCuts

from ...errors import SegmentError
from .offset import SourceOffset
from .segment_index import Sealed, SealedSegments

LOOK_S = 0.2
"""Interval of checks for a completed checkpoint without new segments: Spark asks continuously."""


class QueryCuts:
    """Reads the cuts for one query of a group.

    :ivar last: the czxid of the last one that belongs to the run; None when the run has no end.
    """

    def __init__(self, runtime: Runtime, group: str) -> None:
        self._runtime = runtime
        self._group = group
        self._cuts = GroupCuts(runtime, group)
        self._read_at = float("-inf")
        self._store: Store | None = None
        self._listed: tuple[Cut, ...] = ()
        self._newest: tuple[Cut, ...] = ()
        self._newest_of = 0
        """The newest segment listed when `_newest` was read."""
        self.last: int | None = None

    def around(self, store: Store, segments: SealedSegments) -> tuple[Sequence[Cut], Sequence[Cut]]:
        """List the segments; the cuts up to which all of them are listed, and those that may lie between them.

        A group without a region has none.
        """
        now = self._runtime.monotonic()
        is_due = now - self._read_at >= LOOK_S or store is not self._store
        if is_due:
            listed = self._read(store)
            segments.refresh(store, force=listed != self._listed)
            self._listed, self._read_at = listed, now
        else:
            segments.refresh(store)
        if is_due or segments.listed != self._newest_of:  # others list them, too
            self._newest, self._newest_of = self._read(store), segments.listed
        known = [cut for cut in self._listed if self.last is None or cut.czxid <= self.last]
        return known, self._newest

    def end(self, store: Store) -> None:
        """Exclude checkpoints that complete later from this run."""
        self.last = max((cut.czxid for cut in self._read(store)), default=0)

    def find(self, store: Store, option: str, checkpoint: int) -> int:
        """The czxid of a checkpoint.

        :raises SegmentError: when there is none with this number.
        """
        store.sync()
        checkpoints = {cut.sequence: cut.czxid for cut in self._read(store)}
        if not self._cuts.region:
            known = f"group {self._group} is in no consistent region: give its FetcherPool region=NAME"
            raise SegmentError(f"{option}: {known}")
        if checkpoint not in checkpoints:
            known = f"region {self._cuts.region} has no complete checkpoint {checkpoint}, any more or yet"
            raise SegmentError(f"{option}: {known}; {_there(list(checkpoints))}")
        return checkpoints[checkpoint]

    def check(self, store: Store, option: str, checkpoint: int, czxid: int, collected: int) -> None:
        """Check that every segment next to a checkpoint still exists.

        :param collected: the czxid up to which segments were collected, as read with the segments.
        :raises SegmentError: when one does not.
        """
        if collected > czxid:
            usable = [cut.sequence for cut in self._read(store) if cut.czxid >= collected]
            gone = f"segments after checkpoint {checkpoint} of group {self._group}'s region were collected"
            raise SegmentError(f"{option}: {gone}; {_there(usable)}")

    def _read(self, store: Store) -> tuple[Cut, ...]:
        is_new = store is not self._store
        if is_new:
            store.sync()
        cuts = self._cuts.read(store, is_asked=is_new or not self._cuts.region)
        self._store = store
        return cuts


def _there(sequences: Sequence[int]) -> str:
    return f"there are: {', '.join(map(str, sequences))}" if sequences else "there is none"


def batch_end(
    start: SourceOffset, segments: Sequence[Sealed], cuts: Sequence[Cut], max_rows: int, target: int | None = None
) -> SourceOffset:
    """Where the batch after `start` ends: at a segment's end, on one side of every cut.

    :param segments: the segments after `start`, in order.  :param cuts: those that may lie between them, in order.
    :param max_rows: it ends before the segment that would exceed this, but has at least one; 0 for no limit.
    :param target: the czxid of the last segment that belongs to the run; None when the run has no end.
    """
    first = segments[0].czxid if segments else None  # a checkpoint with unread segments below it is of another run
    at = [cut.czxid for cut in cuts if cut.sequence == start.checkpoint and (first is None or cut.czxid < first)]
    passed = max([start.czxid, *at])
    until = next((cut.czxid for cut in cuts if cut.czxid > passed), None)
    end, rows = start, 0
    for sealed in segments:
        rows += sealed.segment.rows
        is_full = max_rows and rows > max_rows and end is not start
        is_beyond = any(bound is not None and sealed.czxid > bound for bound in (until, target))
        if is_full or is_beyond:
            break
        end = SourceOffset(sealed.czxid, start.root, start.query, sealed.name, start.begun)
    return end


def at_cut(
    end: SourceOffset, start: SourceOffset, segments: Sequence[Sealed], known: Sequence[Cut], cuts: Sequence[Cut]
) -> SourceOffset:
    """`end` with the newest checkpoint at it: no segment is between them.

    :param segments: the segments after `start`, in order: all below the last of them.
    :param known: the cuts up to which all segments are among them.  :param cuts: those, and newer ones.
    """
    following = next((sealed.czxid for sealed in segments if sealed.czxid > end.czxid), None)
    if following is None:
        at = [cut.sequence for cut in known if cut.czxid > end.czxid]
    else:
        at = [cut.sequence for cut in cuts if end.czxid < cut.czxid < following]
    unchanged = start.checkpoint if end.czxid == start.czxid else 0
    return replace(end, checkpoint=at[-1] if at else unchanged)
