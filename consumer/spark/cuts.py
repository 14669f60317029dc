"""The checkpoints of a group's consistent region, as a query reads them: where it may begin, and where batches end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinator.zk.cuts import Cut, Cuts, region_of
from coordinator.zk.store import Store

from ..errors import SegmentError
from .offset import SourceOffset
from .sealed_segments import Sealed


class QueryCuts:
    """Reads the cuts for one query of a group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._cuts: Cuts | None = None
        self._listed: tuple[Cut, ...] = ()

    def around(self, store: Store, refresh: Callable[[bool], None]) -> tuple[Sequence[Cut], Sequence[Cut]]:
        """List the segments; the cuts up to which all of them are listed, and those that may lie between them.

        :param refresh: lists them, anew when it is given True.
        :raises SegmentError: when the group is in no region.
        """
        cuts = self._region(store, "alignCheckpoints")
        before = cuts.read(store)
        refresh(before != self._listed)
        self._listed = before
        return before, cuts.read(store)

    def find(self, store: Store, option: str, checkpoint: int, refresh: Callable[[], int]) -> int:
        """The czxid of a checkpoint next to which every segment is still there.

        :param refresh: lists the segments, after the checkpoint was read, so that all that belong to it are listed;
            gives the czxid up to which segments were collected.
        :raises SegmentError: when there is none.
        """
        cuts = self._region(store, option)
        found = {cut.sequence: cut.czxid for cut in cuts.read(store)}
        czxid, collected = found.get(checkpoint, 0), refresh()
        usable = [str(sequence) for sequence, at in sorted(found.items()) if at > collected]
        there = f"there are: {', '.join(usable)}" if usable else "there is none"
        if not czxid:
            known = f"region {cuts.region} has no complete checkpoint {checkpoint}, any more or yet"
            raise SegmentError(f"{option}: {known}; {there}")
        if collected > czxid:
            gone = f"segments after checkpoint {checkpoint} of region {cuts.region} were collected"
            raise SegmentError(f"{option}: {gone}; {there}")
        return czxid

    def _region(self, store: Store, option: str) -> Cuts:
        if self._cuts is None:
            region = region_of(store, self._group)
            if not region:
                raise SegmentError(
                    f"{option}: group {self._group} is in no consistent region: give its FetcherPool region=NAME"
                )
            self._cuts = Cuts(region)
        return self._cuts


def batch_end(
    start: SourceOffset, found: Sequence[Sealed], cuts: Sequence[Cut], max_rows: int, target: int | None = None
) -> SourceOffset:
    """Where the batch after `start` ends: at a segment's end, with nothing from both sides of a cut.

    :param found: the segments after `start`, in order.  :param cuts: those that may lie between them, in order.
    :param max_rows: it ends before the segment that would pass this, but has one at least; 0 for no limit.
    :param target: the czxid of the last segment that belongs to the run; None where it goes on.
    """
    passed = max([start.czxid, *(cut.czxid for cut in cuts if cut.sequence == start.checkpoint)])
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
