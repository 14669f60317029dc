"""S5, second half: queries deliver what was sealed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.segments import SealedRange

from ..replay.commits import CREATE, Commit
from ..replay.verdict import Event, moment
from ..replay.znode_views import GroupView, QueryView, SegmentView
from .base import Invariant, Rules
from .s5_deliveries import Deliveries, Ends

Rows = dict[tuple[str, str, int], list[tuple[int, int]]]
"""Topic, topic id, partition -> ranges, adjacent ones merged, in order."""

LOST = ("is missing", " bytes, not ", "cannot be read")
"""Texts in a query's error about a missing or damaged file."""

COLLECTED = "collected while query"

GAP = "has lost records"
MISSING = " gone"
GONE = (MISSING, COLLECTED, *LOST)
"""In a query's error about lost records; and what is in those that no offset shows."""


class DataFrames(Rules):
    """The DataFrame of each query: its chain of batches, the newest attempt of each number.

    A run that begins again with an old number replaces later batches. Each batch begins at the previous one's end, and
    delivers exactly the segments between its two offsets, in any run: so a repeated batch is the same, and no record is
    missing or duplicated. Of a range with `missing` offsets all but so many are delivered, whichever these are: no
    znode has that. Batches over manually created or removed segments are not judged. Nor may a query fail because a
    segment that was not collected has lost its file, unless a fault has damaged that; nor because segments were
    collected that its registration holds back, as long as that is neither removed, expired nor replaced. A run that
    another one has replaced writes the query's znode no more. A run with `failOnDataLoss=false` may leave out segments
    that are removed by then or whose files a fault has damaged, and no other. `Deliveries` judges whether the ranges
    continue.
    """

    events = ("batch", "query-failed", "fault")

    def __init__(self, invariant: Invariant, ends: Ends) -> None:
        super().__init__(invariant)
        self.deliveries = Deliveries(invariant, ends)
        self._damaged: set[str] = set()
        self._chains: dict[tuple[str, str], dict[int, Event]] = {}
        self._replaced: dict[tuple[str, str], dict[str, Event]] = {}
        self._registered: dict[tuple[str, str, str], tuple[int, Event]] = {}

    def on_query_failed(self, event: Event) -> None:
        """A query may end with an error about segments collected while it was silent, or about a damaged file; never
        about a lost one."""
        why = str(event.get("why"))
        is_damaged = any(file in why for file in self._damaged)
        if any(text in why for text in LOST) and COLLECTED not in why and not is_damaged:
            self.broken(f"query {event['query']} of group {event['group']} failed: {why}", event)
        self._judge_collected(event, why)
        group = self.world.groups.get(event["group"])
        if group is None or GAP not in why:
            return
        if not any(text in why for text in GONE):
            self.deliveries.on_failed(group, event)
        elif MISSING in why and COLLECTED not in why:
            self.deliveries.on_missing(group, event)

    def on_fault(self, event: Event) -> None:
        """A fault has damaged a file."""
        if "file" in event:
            self._damaged.add(event["file"])

    def on_query(self, group: GroupView, before: QueryView | None, after: QueryView | None, commit: Commit) -> None:
        """A query's znode was written or removed."""
        view = after or before
        if view is None:
            return
        name = view.name
        was, now = before.data if before is not None else None, after.data if after is not None else None
        if now is None or now.expired_ms or (was is not None and was.run != now.run):
            for key in [key for key in self._registered if key[:2] == (group.name, name)]:
                del self._registered[key]
        if now is None or now.expired_ms:
            return
        if not commit.by_hand:
            self.deliveries.on_query(group, name, now, commit)
        replaced = self._replaced.setdefault((group.name, name), {})
        if commit.by_hand or (was is not None and was.run == now.run):
            return
        if now.run in replaced:
            why = f"a run of query {name} of {group} wrote its znode at {commit.moment}, and had been replaced at"
            self.broken_by(commit, f"{why} {moment(replaced[now.run]['at'])}", replaced[now.run])
        if was is not None:
            replaced[was.run] = commit.event
        is_whole = all(each.gone is None for each in group.sealed[_first_after(group, now.finished) :])
        if is_whole or _is_new(group, name, commit):
            self._registered[group.name, name, commit.who] = (now.finished, commit.event)

    def _judge_collected(self, event: Event, why: str) -> None:
        """A query's error about collected segments."""
        known = self._registered.get((event["group"], event["query"], event["who"]))
        if COLLECTED not in why or known is None:
            return
        self.broken(
            f"query {event['query']} of group {event['group']} failed, though its registration after {known[0]} held "
            f"back what it lacks: {why}",
            known[1],
            event,
        )

    def on_batch(self, event: Event) -> None:
        chain = self._chains.setdefault((event["group"], event["query"]), {})
        number = event["batch"]
        for later in [later for later in chain if later >= number]:
            del chain[later]
        before = chain[max(chain)] if chain else None
        chain[number] = event
        if before is not None and before["upto"] != event["after"]:
            self.broken(
                f"batch {number} of query {event['query']} of group {event['group']} begins after {event['after']}, "
                f"and batch {before['batch']} ended at {before['upto']}",
                before,
                event,
            )
        group = self.world.groups.get(event["group"])
        if group is not None:
            segments = self._promised(group, event)
            self._judge(group, event, segments)
            # Without failOnDataLoss it has passed also those that it left out.
            passed = segments if _is_strict(event) else _between(group, event["after"], event["upto"])
            self.deliveries.on_batch(group, event, passed)

    def _promised(self, group: GroupView, event: Event) -> list[SegmentView]:
        """Those that a batch has, and those that it must have."""
        named, segments = set(event["segments"]), _between(group, event["after"], event["upto"])
        return [each for each in segments if each.name in named or self._is_promised(each, event)]

    def _judge(self, group: GroupView, event: Event, segments: list[SegmentView]) -> None:
        if any(segment.is_lost or segment.ranges is None for segment in segments):
            return
        what = f"batch {event['batch']} of query {event['query']} of {group} at {moment(event['at'])}"
        named = event["segments"]
        delivered_names = set(named)
        missing = [segment for segment in segments if segment.name not in delivered_names]
        if missing:
            self.broken(f"{what} leaves out {missing[0].name}", missing[0].made, event)
            return
        if len(named) > len(segments):
            known = {segment.name for segment in segments}
            odd = next((name for name in named if name not in known), named[-1])
            self.broken(f"{what} has {odd} {'twice' if odd in known else 'which is not in it'}", event)
            return
        ranges = event["rows"]
        delivered = rows_of(_range(item) for item in (ranges["ranges"] if isinstance(ranges, Mapping) else ranges))
        expected = rows_of(each for segment in segments for each in _expected(segment, delivered))
        if delivered != expected:
            self._report_difference(what, segments, delivered, expected, event)

    def _is_promised(self, segment: SegmentView, batch: Event) -> bool:
        """Whether the batch must have it: with `failOnDataLoss=false` if it exists; a new query must have the segments
        that existed when its run registered."""
        if not _is_strict(batch):
            return segment.gone is None and not self._is_damaged(segment)
        if batch["batch"] > 0 or segment.gone is None:
            return True
        gone: int = segment.gone["zxid"]
        return gone > self.deliveries.registered(batch)

    def _is_damaged(self, segment: SegmentView) -> bool:
        made = str(segment.made["ops"])
        return any(file in made for file in self._damaged)

    def _report_difference(
        self, what: str, segments: list[SegmentView], delivered: Rows, expected: Rows, event: Event
    ) -> None:
        key = min(key for key in delivered.keys() | expected.keys() if delivered.get(key) != expected.get(key))
        topic, topic_id, number = key
        guilty = [s for s in segments if any(each[:3] == key for each in s.ranges or ())]
        without = sum(s.missing.get(TopicPartition(topic, number), 0) for s in guilty)
        sealed = _shown(rows_of(each for s in guilty for each in s.ranges or ()).get(key, []))
        self.broken(
            f"{what} delivered {_shown(delivered.get(key, []))} of {topic}-{number} (id {topic_id}), and sealed was "
            f"{sealed}{f', {without} of them without a record' if without else ''}",
            *[segment.made for segment in guilty[:3]],
            event,
        )


def _is_strict(batch: Event) -> bool:
    return bool(batch.get("fail_on_data_loss", True))


def _between(group: GroupView, after: int, upto: int) -> list[SegmentView]:
    """The segments sealed after `after`, up to `upto`."""
    sealed = group.sealed
    first = _first_after(group, after)
    return sealed[first : bisect_right(sealed, upto, key=lambda segment: segment.czxid)]


def _is_new(group: GroupView, name: str, commit: Commit) -> bool:
    """Whether a query registers that has had no batch yet: what was collected before is none of its own."""
    path = GroupPaths(group.name).query(name)
    return any(op["op"] == CREATE and op["path"] == path and op.get("ephemeral") for op in commit.event["ops"])


def _first_after(group: GroupView, czxid: int) -> int:
    """Index of the first segment sealed after `czxid`."""
    return bisect_right(group.sealed, czxid, key=lambda segment: segment.czxid)


def _expected(segment: SegmentView, delivered: Rows) -> list[SealedRange]:
    """The rows that a batch must deliver of a segment: its ranges; for one with `missing` offsets the delivered rows,
    if as many as expected; else so many from its beginning, which then differ."""
    found: list[SealedRange] = []
    for topic, topic_id, number, first, following in segment.ranges or ():
        missing = segment.missing.get(TopicPartition(topic, number), 0)
        pieces = [(first, following - missing)]
        if missing:
            inside = [(max(a, first), min(b, following)) for a, b in delivered.get((topic, topic_id, number), [])]
            inside = [(a, b) for a, b in inside if a < b]
            is_once = all(one[1] <= other[0] for one, other in pairwise(inside))
            if is_once and sum(b - a for a, b in inside) == following - first - missing:
                pieces = inside
        found += [SealedRange(topic, topic_id, number, a, b) for a, b in pieces if a < b]
    return found


def _range(item: Mapping[str, Any]) -> tuple[str, str, int, int, int]:
    return item["topic"], item["topic_id"], item["partition"], item["first"], item["next"]


def rows_of(ranges: Iterable[tuple[str, str, int, int, int]]) -> Rows:
    """The offsets of each partition, the same wherever the ranges were cut; what is there twice is in two of them."""
    found: Rows = {}
    for topic, topic_id, number, first, following in ranges:
        found.setdefault((topic, topic_id, number), []).append((first, following))
    return {key: _merged(ranges) for key, ranges in found.items()}


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order: those offsets that are there once, twice and so on, each as few ranges as possible."""
    more: Counter[int] = Counter()
    for first, following in ranges:
        if first < following:
            more[first] += 1
            more[following] -= 1
    found, begun = [], list[int]()
    for offset in sorted(more):
        begun += [offset] * more[offset]
        found += [(begun.pop(), offset) for _ in range(-more[offset])]
    return sorted(found)


def _shown(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(f"{first} to {following}" for first, following in ranges) or "nothing"
