"""The sealed segments of a group as listed in ZooKeeper, and whether those of a batch are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Listing, Store
from zk_group.coordinator.zk.znodes import forms
from zk_group.coordinator.zk.znodes.forms import Record
from zk_group.coordinator.zk.znodes.json_fields import MAX_NUMBER, Fields, by_partition, only
from zk_group.coordinator.zk.znodes.partitions import LOST, RESET, Discontinuity, TopicPartition
from zk_group.coordinator.zk.znodes.paths import SEGMENT_PREFIX, GroupPaths, checked_name, segment_name, sequence
from zk_group.coordinator.zk.znodes.segments import Segment, SegmentsRecord

from ...errors import SegmentError
from ...sealing.segment_files import offsets_text

MAX_OFFSET_BYTES = 16 << 20
"""An offset of 10,000 partitions has some 190 kB."""

Ends = Mapping[TopicPartition, tuple[str, int]]
"""Partition -> topic id and the offset after the last one delivered."""


def _read_ends(value: Any) -> Ends:
    """Of an object topic id -> topic -> partition -> offset."""
    if not isinstance(value, dict):
        raise ValueError
    found = {topic_id: by_partition(topics, _end) for topic_id, topics in value.items()}
    return {part: (topic_id, end) for topic_id, ends in found.items() for part, end in ends.items()}


_end = only(lambda value: type(value) is int and 0 <= value < 2**63)


def _ends_by_id(ends: Ends) -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, partition), (topic_id, end) in sorted(ends.items()):
        found.setdefault(topic_id, {}).setdefault(topic, {})[str(partition)] = end
    return found


_WHAT = "an object topic id -> topic -> partition -> offset"
_ENDS = forms.Form(lambda fields, key, _: fields.value(key, _read_ends, _WHAT) or {}, _ends_by_id)
_QUERY = forms.Form(lambda fields, key, _: checked_name("query", fields.text(key)))


@dataclass(frozen=True, slots=True)
class SourceOffset(Record):
    """All records up to one segment.

    :ivar czxid: the transaction that created the newest segment included; it rises in the order of the seals.
    :ivar root: the czxid of the segments znode, which differs between ensembles and lives of a group.
    :ivar query: the query's name.
    :ivar segment: that segment's name, with a number one below the next one's; empty when none is included.
    :ivar begun: the czxid of the query's initial offset, which is in no checkpoint: where the first batch begins.
    :ivar checkpoint: the checkpoint of the group's region at this offset (`alignCheckpoints`); 0 for none.
    :ivar ends: of each partition that the query has delivered records of.
    :ivar began: the zxid at which the query's first run registered; 0 in offsets of earlier releases.
    :ivar registered: the same of the run that chose this offset.
    :ivar first: the first segment of the batch that ends here, where it is the query's first one.
    """

    czxid: Annotated[int, forms.number()]
    root: Annotated[int, forms.number()]
    query: Annotated[str, _QUERY]
    segment: Annotated[str, forms.text()] = ""
    begun: Annotated[int, forms.number()] = 0
    checkpoint: Annotated[int, forms.number().optional] = 0
    ends: Annotated[Ends, _ENDS.optional] = field(default_factory=dict, repr=False, hash=False)
    began: Annotated[int, forms.number().optional] = field(default=0, compare=False)
    registered: Annotated[int, forms.number().optional] = field(default=0, compare=False)
    first: Annotated[str, forms.text().optional] = field(default="", compare=False)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SourceOffset:
        """
        :raises BadData: when the checkpoint's offset is invalid.
        :raises UsageError: when its query has no name.
        """
        return cls.read(Fields("the checkpoint's offset", values))

    def to_dict(self) -> dict[str, Any]:
        """Spark's form; the same offset always gives the same text."""
        return {"version": 1, **self.to_json()}


LIST_AGAIN_S = 10.0
LISTINGS = 20
MOST_SHOWN = 8
NEVER = MAX_NUMBER
REASONS = {LOST: ", since the log has lost those before", RESET: ", where an operator has set the group's offset"}
"""What a discontinuity adds to the message."""


class Sealed(NamedTuple):
    """One sealed segment; `czxid` orders them."""

    czxid: int
    name: str
    segment: Segment

    def __str__(self) -> str:
        return f"{self.name} ({offsets_text(self.segment.ranges)})"


class SealedSegments:
    """The segments of one group, each read once. Any listing is a prefix in the order of the czxid.

    :ivar root: the czxid of the segments znode.
    :ivar record: its data.
    :ivar listed: the czxid of the newest segment listed so far.
    """

    def __init__(self, runtime: Runtime, paths: GroupPaths) -> None:
        self._runtime = runtime
        self._paths = paths
        self._known: dict[str, Sealed] = {}
        self._is_dirty = True
        self._listed_at = float("-inf")
        self._store: Store | None = None
        self.root = 0
        self.record = SegmentsRecord()
        self.listed = 0

    def refresh(self, store: Store, force: bool = False) -> None:
        """List again, when the watch has fired, after a while, or with `force`.

        :raises StoreError: when there was no answer.
        :raises SegmentError: when the group has no segments znode.
        :raises BadData: when a segment cannot be read.
        """
        now = self._runtime.monotonic()
        is_old = now - self._listed_at >= LIST_AGAIN_S or store is not self._store
        if not (self._is_dirty or is_old or force):
            return
        self._is_dirty = False
        try:
            store.sync()
            self._list(store)
        except BaseException:
            self._is_dirty = True
            raise
        self._store, self._listed_at = store, now

    def between(self, start: int, end: int | None = None) -> list[Sealed]:
        """Those after `start`, up to and with `end`, in order."""
        return sorted(s for s in self._known.values() if s.czxid > start and (end is None or s.czxid <= end))

    def gaps(self, start: SourceOffset, end: SourceOffset, batch: Sequence[Sealed]) -> list[str]:
        """Missing segments in the batch; `start` has no name when an earlier run planned a first batch."""
        listed = (sealed.name for sealed in self._known.values() if sealed.czxid == start.czxid)
        found = gaps(start.segment or next(listed, ""), batch)
        if end.czxid > start.czxid and (not batch or batch[-1].czxid != end.czxid):
            found.append(f"{end.segment}, the last segment of the batch, is gone")
        if end.first and not start.segment and (not batch or batch[0].name != end.first):
            found.append(f"{end.first}, the first segment of the batch, is gone")
        return found

    def _list(self, store: Store) -> None:
        for _ in range(LISTINGS):
            listing = store.children(self._paths.segments, watch=self._on_change)
            if listing is None:
                raise SegmentError(f"group {self._paths.group} has no segments: {self._paths.segments} was removed")
            if self._take(store, listing):
                break
        node = store.get(self._paths.segments)  # after the listing: a segment missing there counts as collected here
        self.record = SegmentsRecord.parse(self._paths.segments, node.data if node else b"")
        self.listed = max((sealed.czxid for sealed in self._known.values()), default=self.listed)

    def _take(self, store: Store, listing: Listing) -> bool:
        """Read new segments; False when one was removed meanwhile, so that the listing is not of one moment."""
        if listing.stat.czxid != self.root:
            self.root, self.listed = listing.stat.czxid, 0
            self._known.clear()
        names = {name for name in listing.names if is_segment(name)}
        self._known = {name: sealed for name, sealed in self._known.items() if name in names}
        new = sorted(names - set(self._known))
        is_whole = True
        for name, node in zip(new, store.get_many([self._paths.segment(name) for name in new]), strict=True):
            if node is None:
                is_whole = False
                continue
            self._known[name] = Sealed(node.stat.czxid, name, Segment.parse(self._paths.segment(name), node.data))
        return is_whole

    def _on_change(self, path: str) -> None:
        self._is_dirty = True


def is_segment(name: str) -> bool:
    """Whether `name` is valid for a segment's znode."""
    return name.startswith(SEGMENT_PREFIX) and sequence(name) is not None


def gaps(previous: str, batch: Sequence[Sealed]) -> list[str]:
    """Missing segments, by their numbers, which ZooKeeper assigns without gaps.

    :param previous: the name of the segment before the batch, empty when it is not known.
    """
    problems = []
    for sealed in batch:
        before, here = sequence(previous), sequence(sealed.name)
        if before is not None and here is not None and here != _following(before):
            problems.append(f"segments between {previous} and {sealed} are gone")
        previous = sealed.name
    return problems


def _following(number: int) -> int:
    return number + 1 if number < 2**31 - 1 else -(2**31)


def _before(number: int) -> int:
    return number - 1 if number > -(2**31) else 2**31 - 1


def gone_text(previous: str, left: Sequence[Sealed], ends: Ends) -> str:
    """The segments and offsets that were collected after segment `previous`, as far as known.

    :param previous: the name of the last segment that was read, empty when there was none.
    :param left: all existing segments after it, in order.
    :param ends: the reader's offsets, as far as they are known.
    """
    before, after = sequence(previous), sequence(left[0].name) if left else None
    first = segment_name(_following(before)) if before is not None else "the first"
    if after is None:
        return f"segments from {first} on are gone, and no segment is left"
    last = segment_name(_before(after))
    names = f"segment {last} is" if first == last else f"segments from {first} to {last} are"
    return f"{names} gone, with {_offsets_before(left, ends) or 'unknown offsets'}"


def _offsets_before(left: Sequence[Sealed], ends: Ends) -> str:
    """The offsets between `ends` and the existing segments, by partition."""
    begins: dict[tuple[TopicPartition, str], int] = {}
    for item in (item for sealed in left for item in sealed.segment.ranges):
        begins.setdefault((TopicPartition(item.topic, item.partition), item.topic_id), item.first)
    ranges = []
    for (key, topic_id), begin in sorted(begins.items()):
        known, end = ends.get(key, ("", 0))
        start = f"{end} to" if known == topic_id else "up to"
        if begin > (end if known == topic_id else 0):
            ranges.append(f"{key} offsets {start} {begin - 1}")
    more = f" and {len(ranges) - MOST_SHOWN} more partitions" if len(ranges) > MOST_SHOWN else ""
    return ", ".join(ranges[:MOST_SHOWN]) + more


def joined(ends: Ends, batch: Iterable[Sealed], began: int = NEVER, registered: int = 0) -> tuple[list[str], Ends]:
    """Gaps and repetitions in the partitions' offsets, and the ends after the batch. Pure.

    A partition whose end is unknown continues what was sealed before the query began, or begins where its group does.

    :param ends: what has been delivered before it.
    :param began: the zxid at which the reader began: losses before that are not its own.
    :param registered: the zxid at which its run registered: an operator's reset before that is intended.
    """
    problems: list[str] = []
    after = dict(ends)
    for sealed in batch:
        for item in sealed.segment.ranges:
            key = TopicPartition(item.topic, item.partition)
            topic_id, known = after.get(key, ("", -1))
            after[key] = item.topic_id, item.next
            end = known if topic_id == item.topic_id else None
            cause = sealed.segment.discontinuities.get(key)
            if item.first != end and not _is_intended(cause, end, sealed.czxid > began, registered):
                problems.append(f"{sealed.name} has {key} from offset {item.first} on{_why(cause, end)}")
    return problems, after


def delivered(
    start: SourceOffset, end: SourceOffset, batch: Sequence[Sealed], registered: int, collected: int = 0
) -> SourceOffset:
    """`end` with the ends of the batch after `start`; where a segment is missing, only of what follows it. Pure."""
    if not batch:
        return end
    names = [start.segment, *(sealed.name for sealed in batch)]
    missing = [index for index, sealed in enumerate(batch) if gaps(names[index], [sealed])]
    is_whole = not missing and collected <= start.czxid
    _, ends = joined(start.ends if is_whole else {}, batch[max(missing, default=0) :])
    first = batch[0].name if start.czxid == start.begun else ""
    return replace(end, ends=ends, began=start.began, registered=registered, first=first)


def _why(cause: Discontinuity | None, end: int | None) -> str:
    if end is None and cause is not None and cause.cause == LOST:
        end = cause.number
    why = REASONS.get(cause.cause, "") if cause is not None else ""
    return f"{why}, and {end} should be next" if end is not None else why


def _is_intended(cause: Discontinuity | None, end: int | None, is_later: bool, registered: int) -> bool:
    """Whether a range may begin elsewhere than at its partition's end.

    :param is_later: whether it was sealed after the query began.
    """
    if cause is not None and cause.cause == RESET and cause.number < registered:
        return True
    return end is None and (cause is None or not is_later)
