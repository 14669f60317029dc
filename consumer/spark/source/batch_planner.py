"""The driver's part of a batch read, `spark.read.format("zk_group")`: it reads the segments sealed so far.

It registers no query, so it holds back no segments: the coordinator may collect them. Segments collected between the
listing and the check of the files are planned again; a later collection fails the task that misses the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.zk.process.config import require
from coordinator.zk.store import Store
from coordinator.zk.znodes.cuts import checkpoint_named

from ...errors import SegmentError
from .options import EARLIEST, LATEST, SourceConfig
from .segment_index import Sealed, gaps, is_segment, joined
from .stream_planner import Planner, packed

PLANS = 5
NO_CUTS: Mapping[str, int] = {}

MAY_BE_COLLECTED = (
    "it was there when this read was planned; a batch read registers no query, so it may have been collected since: "
    "read again, or let a streaming query hold the segments back"
)


class BatchPlanner(Planner):
    """Plans one batch read. It uses the session, the listing and the checks of `Planner`."""

    def plan_all(self) -> list[list[Sealed]]:
        """The segments of the read, packed for the readers: each gets consecutive ones.

        :raises SegmentError: when the group does not exist, a segment named by an option does not exist, one in the
            middle is gone, or a file is missing or of another size.
        """
        return self._patiently(self._plan_all)

    def _plan_all(self, store: Store) -> list[list[Sealed]]:
        for _ in range(PLANS):
            batch = self._listed(store)
            files = self._file_problems(batch)
            unjoined, _ = joined({}, batch)
            problems = [*gaps("", batch), *unjoined, *files.values()]
            if not files or not self._is_collected(store, batch):
                break
        self._refuse(store, problems)
        return packed([sealed for sealed in batch if sealed.name not in files], self._config.readers)

    def _listed(self, store: Store) -> list[Sealed]:
        store.sync()  # a server that lags may not know the group yet
        if store.get(self._paths.segments) is None:
            raise SegmentError(f"there is no group {self._config.group} at {self._config.zk}: nothing was ever sealed")
        options = ("startingSegments", self._config.starting_segments), ("endingSegments", self._config.ending_segments)
        named = [(option, name, number) for option, name in options if (number := checkpoint_named(name))]
        cuts = {name: self._cuts.find(store, option, number) for option, name, number in named}
        self._segments.refresh(store, force=True)
        for option, name, number in named:
            self._cuts.check(store, option, number, cuts[name], self._segments.record.collected)
        segments = bounded(
            self._segments.between(0), self._config.starting_segments, self._config.ending_segments, cuts
        )
        self._report_removed("batch")
        return segments

    def _is_collected(self, store: Store, batch: Sequence[Sealed]) -> bool:
        """Whether some of `batch` were collected, with their files, since they were listed."""
        self._segments.refresh(store, force=True)
        still = {sealed.name for sealed in self._segments.between(0)}
        return any(sealed.name not in still for sealed in batch)


def bounded(segments: Sequence[Sealed], starting: str, ending: str, cuts: Mapping[str, int] = NO_CUTS) -> list[Sealed]:
    """Those of `segments` from `starting` to `ending`, both included; for a checkpoint after it, and up to it.

    :param cuts: the name of a checkpoint -> its czxid, which no segment has.
    :raises SegmentError: when a named one does not exist.
    """
    by_name = {**{sealed.name: sealed.czxid for sealed in segments}, **cuts}
    for option, name in (("startingSegments", starting), ("endingSegments", ending)):
        if is_segment(name) and name not in by_name:
            there = f"{segments[0].name} to {segments[-1].name} are there" if segments else "none is there"
            raise SegmentError(f"{option}: {name} was collected, or was never sealed; {there}")
    first = by_name.get(starting, 0)
    last = by_name.get(ending, segments[-1].czxid if segments else 0)
    if cuts and starting in by_name and ending in by_name and first > last:
        raise SegmentError(
            f"startingSegments ({starting}) comes after endingSegments ({ending}): there is nothing between"
        )
    return [sealed for sealed in segments if first <= sealed.czxid <= last]


def check_batch(config: SourceConfig) -> SourceConfig:
    """
    :raises UsageError: when an option makes no sense for a batch read.
    """
    require(
        config.starting_segments != LATEST,
        "startingSegments=latest makes no sense for a batch read, which would always be empty: "
        "use earliest or a segment's name",
    )
    require(
        config.ending_segments != EARLIEST,
        "endingSegments=earliest makes no sense for a batch read, which would always be empty: "
        "use latest or a segment's name",
    )
    require(not config.align_checkpoints, "alignCheckpoints is for streams: use endingSegments=checkpoint:NUMBER")
    return config


def check_stream(config: SourceConfig) -> SourceConfig:
    """
    :raises UsageError: when an option makes no sense for a stream.
    """
    require(
        not is_segment(config.starting_segments),
        "startingSegments must be earliest, latest or checkpoint:NUMBER for a streaming query",
    )
    require(
        config.ending_segments == LATEST,
        "endingSegments is for batch reads (spark.read): a streaming query ends with trigger(availableNow=True)",
    )
    return config
