"""The driver's part of the source: the end of a batch, and the files to read. Independent of Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from zk_group.coordinator.zk.errors import AuthenticationFailed, Retryable, SessionLost, ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Sessions, Store, StoreFactory
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.values import require
from zk_group.coordinator.zk.znodes.cuts import Cut, GroupCuts, checkpoint_named
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import QUERY_ABSENCE_S

from ...errors import SegmentError
from ...sealing.segment_files import SegmentFolder
from .options import EARLIEST, LATEST, SourceConfig, is_reader_of
from .query_znode import QueryPost
from .segment_index import Sealed, SealedSegments, SourceOffset, delivered, gaps, gone_text, is_segment, joined

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_PROBLEMS = 5
TRY_AGAIN_S = 0.1
PLANS = 5

SILENT = "was silent for longer than query_retention_ms"
ABSENT = (
    f"was without a session for {QUERY_ABSENCE_S / 60:.0f} minutes, or when another coordinator was elected "
    "(without option query it holds segments back no longer)"
)
OR_REMOVED = (
    "or it was removed, or its checkpoint is older than what it had finished. Start it with a new checkpoint and "
    "another name (option query); with option startingSegments it begins at the earliest existing segment or at the "
    "next one"
)

MAY_BE_COLLECTED = (
    "it was there when this read was planned; a batch read registers no query, so it may have been collected since: "
    "read again, or let a streaming query hold the segments back"
)

NOT_HELD_BACK = (
    "no query held them back any more, and they were no longer retained (segment_retention_ms, "
    "segment_retention_bytes of the nodes); to read them again, use another group, or reset this group's offsets "
    "(zk-coordinator groups reset-offsets)"
)


class Planner:
    """Plans the batches of one run of a query, over all its ZooKeeper sessions.

    :param open_folder: opens the folder that a segment names.
    :param name: of a new query in ZooKeeper; empty for that of option query.
    """

    def __init__(
        self,
        config: SourceConfig,
        open_store: StoreFactory,
        runtime: Runtime,
        open_folder: Callable[[str], SegmentFolder] = SegmentFolder,
        name: str = "",
    ) -> None:
        self._config = config
        self._name = name or config.query
        self._sessions = Sessions(open_store)
        self._runtime = runtime
        self._paths = GroupPaths(config.group)
        self._has_opened = False
        self._post: QueryPost | None = None
        self._segments = SealedSegments(runtime, self._paths)
        self._target: int | None = None
        self._initial_offset: SourceOffset | None = None
        self._has_begun = False
        self._cuts = QueryCuts(runtime, config.group)
        self._refused: SegmentError | None = None
        self._open_folder = cache(open_folder)

    def initial(self) -> SourceOffset:
        """Where a new query begins: at the earliest existing segment, or after the newest.

        Segments that were collected before are no data loss.
        """
        return self._patiently(self._initial)

    def _initial(self, store: Store) -> SourceOffset:
        if self._initial_offset is not None:
            return self._initial_offset  # Spark calls again when it plans the first batch, with more segments sealed
        name = self._post.query if self._post else self._name or f"query-{self._runtime.random_id()[:12]}"
        began = self._begin(store, name, None, is_new=True).registered(store)
        self._segments.refresh(store, force=True)
        collected, root = self._segments.record.collected, self._segments.root
        newest = self._segments.between(0)[-1:] if self._config.starting_segments == LATEST else []
        czxid, segment = (newest[0].czxid, newest[0].name) if newest else (collected, "")
        if checkpoint := checkpoint_named(self._config.starting_segments):
            try:
                czxid, segment = self._starting_cut(store, checkpoint)
            except SegmentError as error:  # no reason to refuse a query whose Spark checkpoint has its start
                self._refused, checkpoint = error, 0
        offset = SourceOffset(czxid, root, name, segment, czxid, checkpoint, began=began)
        log.info(
            "query started: group=%s query=%s after=%s collected_up_to=%d",
            self._config.group, name,
            f"checkpoint {checkpoint}" if checkpoint else offset.segment or "earliest", collected,
        )  # fmt: skip
        self._initial_offset = offset
        return offset

    def _starting_cut(self, store: Store, checkpoint: int) -> tuple[int, str]:
        """The czxid of a checkpoint, and the last segment that belongs to it, if that still exists."""
        czxid = self._cuts.find(store, "startingSegments", checkpoint)
        self._segments.refresh(store, force=True)
        self._cuts.check(store, "startingSegments", checkpoint, czxid, self._segments.record.collected)
        return czxid, "".join(sealed.name for sealed in self._segments.between(0, czxid)[-1:])

    def prepare_available_now(self) -> None:
        """Exclude segments that are sealed later from this run."""
        self._patiently(self._list_all)
        self._target = self._segments.listed

    def _list_all(self, store: Store) -> None:
        ensure(store, self._paths.skeleton)
        self._segments.refresh(store, force=True)
        if self._config.align_checkpoints:
            self._cuts.end(store)

    def latest(self, start: SourceOffset, max_rows: int = 0) -> SourceOffset:
        """The end of the next batch: only at segment ends, with at least one segment if there is one.

        :param start: the end of the last batch that is finished.
        :raises QueryTakenOver: when a newer run of the query has begun.
        :raises QueryRemoved: when the query was removed while it ran.
        :raises SegmentError: when the checkpoint is of another ensemble, or later segments were collected.
        """
        return self._patiently(lambda store: self._latest(store, start, max_rows))

    def _latest(self, store: Store, start: SourceOffset, max_rows: int) -> SourceOffset:
        is_new = not start.segment or start == self._initial_offset
        if self._refused is not None and start == self._initial_offset:
            raise self._refused
        post = self._begin(store, start.query, start, is_new)
        post.publish(store, start.czxid)
        known: Sequence[Cut] = ()  # up to these all segments are listed; `cuts` may lie between them
        cuts: Sequence[Cut] = ()
        if self._config.align_checkpoints:
            known, cuts = self._cuts.around(store, self._segments)
        else:
            self._segments.refresh(store)
        self._check_root(start)
        if start == self._initial_offset and not self._has_begun:
            self._has_begun = True
            self._report_removed(f"query {start.query}")
        segments = self._segments.between(start.czxid)
        end = at_cut(batch_end(start, segments, cuts, max_rows, self._target), start, segments, known, cuts)
        batch = [sealed for sealed in segments if sealed.czxid <= end.czxid]
        return delivered(start, end, batch, post.registered(store), self._segments.record.collected)

    @property
    def newest(self) -> SourceOffset | None:
        """The newest segment seen, for progress reports."""
        segments = self._segments.between(0)
        if not segments or self._post is None:
            return None
        return SourceOffset(segments[-1].czxid, self._segments.root, self._post.query, segments[-1].name)

    def plan(self, start: SourceOffset, end: SourceOffset) -> list[list[Sealed]]:
        """The segments after `start` up to `end`, packed for the readers: each gets consecutive ones.

        :raises QueryTakenOver: when a newer run of the query has begun.
        :raises SegmentError: when a segment was collected or is gone, or a file is missing or of another size.
        """
        return self._patiently(lambda store: self._plan(store, start, end))

    def _plan(self, store: Store, start: SourceOffset, end: SourceOffset) -> list[list[Sealed]]:
        if start.begun != end.begun:  # the first batch, planned by an earlier run: its end contains its begin
            start = replace(end, czxid=end.begun, segment="", ends={})
        self._begin(store, end.query, start, is_new=False)
        self._segments.refresh(store, force=self._segments.listed < end.czxid)
        self._check_root(start)
        self._check_root(end)
        batch = self._segments.between(start.czxid, end.czxid)
        unjoined, _ = joined(start.ends, batch, end.began, end.registered)
        problems = [*self._collected(start, end.query), *self._segments.gaps(start, end, batch), *unjoined]
        files = self._file_problems(batch)
        self._refuse(store, [*problems, *files.values()])
        return packed([sealed for sealed in batch if sealed.name not in files], self._config.readers)

    def close(self) -> None:
        """End the session."""
        self._sessions.close()

    # ---- checks

    def _check_root(self, offset: SourceOffset) -> None:
        if offset.root != self._segments.root:
            raise SegmentError(
                f"the checkpoint of query {offset.query} is of another ZooKeeper ensemble, or group "
                f"{self._config.group} was removed and recreated: start the query with a new checkpoint"
            )

    def _collected(self, start: SourceOffset, query: str) -> list[str]:
        """The problem when segments were collected before the query has read them."""
        if self._segments.record.collected <= start.czxid:
            return []
        gone = gone_text(start.segment, self._segments.between(start.czxid), start.ends)
        return [f"{gone}: collected while query {query} {SILENT if self._config.query else ABSENT}, {OR_REMOVED}"]

    def _report_removed(self, reader: str) -> None:
        """Warn that a reader which begins at the earliest segment does not get the ones removed before."""
        if not self._segments.record.collected or self._config.starting_segments != EARLIEST:
            return
        log.warning(
            "earlier segments already removed: group=%s reader=%s gone=%s reason=%s",
            self._config.group, reader, gone_text("", self._segments.between(0), {}), NOT_HELD_BACK,
        )  # fmt: skip

    def _file_problems(self, batch: Sequence[Sealed]) -> dict[str, str]:
        """Segment name -> the problem of its file."""
        problems: dict[str, str] = {}
        by_folder: dict[str, list[Sealed]] = {}
        for sealed in batch:
            by_folder.setdefault(sealed.segment.segments_dir, []).append(sealed)
        for url, segments in by_folder.items():
            folder = self._open_folder(url)
            sizes = folder.sizes([sealed.segment.file for sealed in segments])
            for sealed, size in zip(segments, sizes, strict=True):
                path = folder.path(sealed.segment.file)
                if size is None:
                    problems[sealed.name] = f"the file of {sealed} is missing: {path}"
                elif size != sealed.segment.size:
                    problems[sealed.name] = f"the file of {sealed} has {size} bytes, not {sealed.segment.size}: {path}"
        return problems

    def _refuse(self, store: Store, problems: Sequence[str]) -> None:
        if not problems:
            return
        if self._post is not None:
            self._post.check_newest(store)
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        lost = f"{'; '.join(problems[:MOST_PROBLEMS])}{more}"
        what = f"query {self._post.query} of " if self._post else ""
        if self._config.fail_on_data_loss:
            text = f"{what}group {self._config.group} has lost records: {lost}"
            raise SegmentError(f"{text} (failOnDataLoss=false delivers the remaining records)")
        log.warning("records lost: group=%s reason=%s", self._config.group, lost)

    # ---- the session

    def _begin(self, store: Store, query: str, start: SourceOffset | None, is_new: bool) -> QueryPost:
        """Register once; a query that returns too late does not, since it would hold back the remaining segments."""
        if self._config.query and not is_reader_of(query, self._config.query):
            raise SegmentError(
                f"the checkpoint is of query {query}, and option query is {self._config.query}: "
                "leave the option out, or start with a new checkpoint"
            )
        if self._post is not None and self._post.query != query:
            # Spark requests an initial offset also when a checkpoint already names the query: that name applies.
            self._post.withdraw(store)
            self._post = None
        if self._post is None:
            self._post = QueryPost(self._runtime, self._paths, query, is_named=bool(self._config.query))
        if not self._post.is_registered(store, is_new):
            if start is not None:
                ensure(store, self._paths.skeleton)
                self._segments.refresh(store, force=True)
                self._check_root(start)
                self._refuse(store, self._collected(start, query))
            self._post.begin(store, start, is_new)
        if start is not None and self._post.check_start(start):
            self._post.publish(store, start.czxid)
        return self._post

    def _patiently(self, action: Callable[[Store], T]) -> T:
        """Call `action` until ZooKeeper answers, on a new session when the last has ended.

        Credentials that are refused after a first session are waited for, too: servers may know new ones only soon.
        """
        deadline = self._runtime.monotonic() + self._config.zk_wait_ms / 1000
        while True:
            try:
                store = self._sessions.store()
                self._has_opened = True
                return action(store)
            except (Retryable, SessionLost, ZooKeeperUnreachable, AuthenticationFailed) as error:
                is_refused = isinstance(error, AuthenticationFailed) and not self._has_opened
                if is_refused or self._runtime.monotonic() >= deadline:
                    raise
                log.debug("request failed, retrying: group=%s reason=%s", self._config.group, error)
            self._runtime.sleep(TRY_AGAIN_S)


def packed(batch: Sequence[Sealed], readers: int) -> list[list[Sealed]]:
    """`batch` in at most `readers` slices of about the same bytes, in order."""
    total = sum(sealed.segment.size for sealed in batch)
    slices: list[list[Sealed]] = [[] for _ in range(readers)]
    before = 0
    for sealed in batch:
        middle = before + sealed.segment.size / 2
        slices[min(readers - 1, int(middle * readers / total)) if total else 0].append(sealed)
        before += sealed.segment.size
    return [run for run in slices if run]


class BatchPlanner(Planner):
    """Plans one batch read, `spark.read.format("zk_group")`, of the segments sealed so far.

    It registers no query, so it holds back no segments: the coordinator may collect them. Segments collected between
    the listing and the check of the files are planned again; a later collection fails the task that misses the file.
    """

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
            if not files:
                break
            self._segments.refresh(store, force=True)
            if {sealed.name for sealed in batch} <= {sealed.name for sealed in self._segments.between(0)}:
                break  # none was collected, with its file, since they were listed
        self._refuse(store, problems)
        return packed([sealed for sealed in batch if sealed.name not in files], self._config.readers)

    def _listed(self, store: Store) -> list[Sealed]:
        store.sync()  # a server that lags may not know the group yet
        if store.get(self._paths.segments) is None:
            raise SegmentError(f"there is no group {self._config.group} at {self._config.zk}: nothing was ever sealed")
        starting, ending = self._config.starting_segments, self._config.ending_segments
        options = ("startingSegments", starting), ("endingSegments", ending)
        named = [(option, name, number) for option, name in options if (number := checkpoint_named(name))]
        cuts = {name: self._cuts.find(store, option, number) for option, name, number in named}
        self._segments.refresh(store, force=True)
        for option, name, number in named:
            self._cuts.check(store, option, number, cuts[name], self._segments.record.collected)
        segments = bounded(self._segments.between(0), starting, ending, cuts)
        self._report_removed("batch")
        return segments


def bounded(segments: Sequence[Sealed], starting: str, ending: str, cuts: Mapping[str, int]) -> list[Sealed]:
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
