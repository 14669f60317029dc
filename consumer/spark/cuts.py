"""The checkpoints of a group's consistent region, as a query reads them: where it may begin, and where batches end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.zk.cuts import Cut, GroupCuts
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Store

from ..errors import SegmentError
from .offset import SourceOffset
from .sealed_segments import Sealed, SealedSegments

LOOK_S = 0.2
"""How often it is looked whether a checkpoint has completed though nothing new is sealed: Spark asks all the time."""


class QueryCuts:
    """Reads the cuts for one query of a group.

    :ivar last: the czxid of the last one that belongs to the run; None where it goes on.
    """

    def __init__(self, runtime: Runtime, group: str) -> None:
        self._runtime = runtime
        self._group = group
        self._cuts = GroupCuts(runtime, group)
        self._read_at = float("-inf")
        self._store: Store | None = None
        self._listed: tuple[Cut, ...] = ()
        self._newest: tuple[Cut, ...] = ()
        self.last: int | None = None

    def around(self, store: Store, segments: SealedSegments) -> tuple[Sequence[Cut], Sequence[Cut]]:
        """List the segments; the cuts up to which all of them are listed, and those that may lie between them.

        Of a group that is in no region yet there are none.
        """
        now, before = self._runtime.monotonic(), segments.listed
        is_due = now - self._read_at >= LOOK_S or store is not self._store
        if is_due:
            listed = self._read(store)
            segments.refresh(store, force=listed != self._listed)
            self._listed, self._read_at = listed, now
        else:
            segments.refresh(store)
        if is_due or segments.listed != before:
            self._newest = self._read(store)
        known = [cut for cut in self._listed if self.last is None or cut.czxid <= self.last]
        return known, self._newest

    def end(self, store: Store) -> None:
        """From now on, no checkpoint that completes later belongs to this run."""
        self.last = max((cut.czxid for cut in self._read(store)), default=0)

    def find(self, store: Store, option: str, checkpoint: int) -> int:
        """The czxid of a checkpoint.

        :raises SegmentError: when there is none of this number.
        """
        store.sync()
        found = {cut.sequence: cut.czxid for cut in self._read(store)}
        if not self._cuts.region:
            known = f"group {self._group} is in no consistent region: give its FetcherPool region=NAME"
            raise SegmentError(f"{option}: {known}")
        if checkpoint not in found:
            known = f"region {self._cuts.region} has no complete checkpoint {checkpoint}, any more or yet"
            raise SegmentError(f"{option}: {known}; {_there(list(found))}")
        return found[checkpoint]

    def check(self, store: Store, option: str, checkpoint: int, czxid: int, collected: int) -> None:
        """Whether every segment next to a checkpoint is still there.

        :param collected: the czxid up to which segments were collected, as read with the segments.
        :raises SegmentError: when one is not.
        """
        if collected > czxid:
            usable = [cut.sequence for cut in self._read(store) if cut.czxid >= collected]
            gone = f"segments after checkpoint {checkpoint} of group {self._group}'s region were collected"
            raise SegmentError(f"{option}: {gone}; {_there(usable)}")

    def _read(self, store: Store) -> tuple[Cut, ...]:
        is_new = store is not self._store
        if is_new:
            store.sync()
        found = self._cuts.read(store, is_asked=is_new or not self._cuts.region)
        self._store = store
        return found


def _there(sequences: Sequence[int]) -> str:
    return f"there are: {', '.join(map(str, sequences))}" if sequences else "there is none"


def batch_end(
    start: SourceOffset, found: Sequence[Sealed], cuts: Sequence[Cut], max_rows: int, target: int | None = None
) -> SourceOffset:
    """Where the batch after `start` ends: at a segment's end, with nothing from both sides of a cut.

    :param found: the segments after `start`, in order.  :param cuts: those that may lie between them, in order.
    :param max_rows: it ends before the segment that would pass this, but has one at least; 0 for no limit.
    :param target: the czxid of the last segment that belongs to the run; None where it goes on.
    """
    first = found[0].czxid if found else None  # a checkpoint below which something is unread is another life's
    at = [cut.czxid for cut in cuts if cut.sequence == start.checkpoint and (first is None or cut.czxid < first)]
    passed = max([start.czxid, *at])
    until = next((cut.czxid for cut in cuts if cut.czxid > passed), None)
    end, rows = start, 0
    for sealed in found:
        rows += sealed.segment.rows
        is_full = max_rows and rows > max_rows and end is not start
        is_beyond = any(bound is not None and sealed.czxid > bound for bound in (until, target))
        if is_full or is_beyond:
            break
        end = SourceOffset(sealed.czxid, start.root, start.query, sealed.name, start.begun)
    return end


def at_cut(
    end: SourceOffset, start: SourceOffset, found: Sequence[Sealed], known: Sequence[Cut], cuts: Sequence[Cut]
) -> SourceOffset:
    """`end` with the newest checkpoint that it is at: no segment is between them.

    :param found: the segments after `start`, in order: all below the last of them.
    :param known: the cuts up to which all segments are among them.  :param cuts: those, and newer ones.
    """
    following = next((sealed.czxid for sealed in found if sealed.czxid > end.czxid), None)
    if following is None:
        at = [cut.sequence for cut in known if cut.czxid > end.czxid]
    else:
        at = [cut.sequence for cut in cuts if end.czxid < cut.czxid < following]
    unchanged = start.checkpoint if end.czxid == start.czxid else 0
    return replace(end, checkpoint=at[-1] if at else unchanged)
