"""S5, second half: queries deliver the sealed records, and all runs of a query together continue."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import Query, SealedRange

from ..replay.commits import CREATE, Commit
from ..replay.verdict import Event, moment
from ..replay.znode_views import GroupView, QueryView, SegmentView
from .base import Invariant, Rules

Key = tuple[str, str, str, int]
"""Group, topic, topic id, partition."""

Place = tuple[str, str, int]
"""Topic, topic id, partition."""

Reached = dict[Place, tuple[int, SegmentView]]
"""The offset after the last delivered one, and its segment."""

NEVER = 1 << 63

Rows = dict[Place, list[tuple[int, int]]]
"""Topic, topic id, partition -> ranges, adjacent ones merged, in order."""

LOST = ("is missing", " bytes, not ", "cannot be read")
"""Texts in a query's error about a missing or damaged file."""

COLLECTED = "collected while query"

GAP = "has lost records"
MISSING = " gone"
GONE = (MISSING, COLLECTED, *LOST)
"""Text in a query's error about lost records; and in errors without an offset."""


class Ends(Rules):
    """The end offset of each partition, and the event that set it.

    A partition under a new id may begin at the earliest record: 0 unless an `earliest` event has another. After a
    manual edit the end is unknown until the next write.
    """

    events = ("earliest", "jump")

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._ends: dict[Key, tuple[int, Event]] = {}
        self._earliest: dict[Place, set[int]] = {}
        self._jumps: dict[Key, set[tuple[int, int]]] = {}
        self._unknown: set[tuple[str, TopicPartition]] = set()

    def on_earliest(self, event: Event) -> None:
        key = (event["topic"], event["topic_id"], event["partition"])
        self._earliest.setdefault(key, set()).add(event["offset"])

    def on_jump(self, event: Event) -> None:
        key = (event["group"], event["topic"], event["topic_id"], event["partition"])
        self._jumps.setdefault(key, set()).add((event["before"], event["after"]))

    def has_jumped(self, key: Key, before: int, after: int) -> bool:
        """Whether a consumer has reported that it resumes at `after`, because the log lacks `before`."""
        return (before, after) in self._jumps.get(key, ())

    def has_jumped_to(self, key: Key, after: int) -> bool:
        """Whether a consumer has reported that it resumes at `after`."""
        return any(each[1] == after for each in self._jumps.get(key, ()))

    def was_edited(self, group: str, partition: TopicPartition) -> bool:
        """Whether a partition was ever edited manually."""
        return (group, partition) in self._unknown

    def get(self, key: Key) -> tuple[int, Event] | None:
        return self._ends.get(key)

    def joins(self, key: Key, first: int) -> bool:
        """Whether a range that begins at `first` is adjacent to the previous one."""
        known = self._ends.get(key)
        if known is not None:
            return known[0] == first or self.has_jumped(key, known[0], first)
        if (key[0], (key[1], key[3])) in self._unknown:
            return True
        return first in self._earliest.get(key[1:], (0,))

    def move(self, key: Key, end: int, event: Event) -> None:
        self._ends[key] = (end, event)

    def forget(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions after a manual edit."""
        edited = set(partitions)
        self._unknown |= {(group, partition) for partition in edited}
        for key in [key for key in self._ends if key[0] == group and (key[1], key[3]) in edited]:
            del self._ends[key]


class Run(NamedTuple):
    """The criteria of a batch.

    :ivar began: zxid at which the query's first run registered; `NEVER` when unknown.
    :ivar registered: zxid of the registration of the run that planned the batch; `NEVER` when unknown.
    :ivar is_failing: whether a later reset, or a log that was put back to 0, is a reason to fail also where nothing of
        the partition was delivered.
    """

    began: int
    registered: int
    is_failing: bool = False


class Problem(NamedTuple):
    """A range that does not continue the delivered ones; `witness` are the events that prove it."""

    why: str
    witness: tuple[Event, ...]


@dataclass(slots=True)
class _Chain:
    """The batches in a query's sink, with the ends reached by each; `began` as of `Run`.

    :ivar begun: czxid after which the query reads; `NEVER` when unknown.
    """

    begun: int
    began: int = NEVER
    reached: dict[int, tuple[Reached, Event]] = field(default_factory=dict)


class Deliveries(Rules):
    """Over all runs of a query, each range of a partition begins where the last one ended.

    Or at the place of the last of an operator's resets between the two seals, if it came before the run that planned
    the batch had registered. A partition that is new to the query begins where that has set it, or anywhere if the
    group began with it, unless the log had lost what was before, or at 0; anywhere too, in a segment sealed before the
    query's first run registered. A run with `failOnDataLoss=false` may deliver any. No query fails because of lost
    records while all ranges continue, those sealed before it began included; nor because of removed segments while none
    is.
    """

    def __init__(self, invariant: Invariant, ends: Ends) -> None:
        super().__init__(invariant)
        self._ends = ends
        self._chains: dict[tuple[str, str], _Chain] = {}
        self._resets: dict[Key, list[tuple[int, int, Event]]] = {}
        self._runs: dict[tuple[str, str, str], tuple[str, int, int]] = {}
        self._first_sealed: dict[Key, int] = {}

    def on_reset(self, key: Key, offset: int, commit: Commit) -> None:
        """An operator has set an offset."""
        self._resets.setdefault(key, []).append((commit.zxid, offset, commit.event))

    def on_sealed(self, segments: Iterable[SegmentView]) -> None:
        """Segments were created."""
        for segment in segments:
            for item in segment.ranges or ():
                self._first_sealed.setdefault((segment.group.name, *item[:3]), segment.czxid)

    def on_query(self, group: GroupView, query: str, now: Query, commit: Commit) -> None:
        """A query's znode was written: a run registers once, repetitions on other sessions not counted. A new
        query begins after the segments collected before."""
        key = (group.name, query, commit.who)
        if key not in self._runs or self._runs[key][0] != now.run:
            begun = next((each.czxid for each in reversed(group.sealed) if each.gone is not None), 0)
            self._runs[key] = (now.run, commit.zxid, begun)
            self._chains.setdefault((group.name, query), _Chain(begun, commit.zxid))

    def before(self, event: Event) -> Event | None:
        """The predecessor of a finished batch: batches with its number or a later one are replaced."""
        chain = self._chains.setdefault((event["group"], event["query"]), _Chain(NEVER))
        chain.reached = {number: known for number, known in chain.reached.items() if number < event["batch"]}
        return chain.reached[max(chain.reached)][1] if chain.reached else None

    def on_batch(self, group: GroupView, event: Event, segments: Sequence[SegmentView]) -> None:
        """A query has finished a batch of these segments, after `before`."""
        chain, number = self._chains[group.name, event["query"]], event["batch"]
        if number == 0 or not chain.reached:
            chain.begun = max(event["after"], self._run(event)[2]) if number == 0 else NEVER
            chain.began = self.registered(event) if number == 0 else NEVER
        before, last = chain.reached[max(chain.reached)] if chain.reached else ({}, None)
        reached = dict(before)
        if (last is not None and last["upto"] != event["after"]) or any(
            segment.is_lost or segment.ranges is None for segment in segments
        ):
            reached, chain.begun, chain.began = {}, NEVER, NEVER
        what = f"batch {number} of query {event['query']} of {group} at {moment(event['at'])}"
        for problem in self._problems(group, segments, reached, Run(chain.began, self.registered(event))):
            if _is_strict(event):
                self.broken(f"{what} {problem.why}", *problem.witness, event)
        chain.reached[number] = (reached, event)

    def on_failed(self, group: GroupView, event: Event) -> None:
        """A query failed because of lost records, none of which was in a file or collected."""
        chain = self._chains.get((group.name, event["query"]))
        if chain is None:
            return
        number = event.get("batch", max(chain.reached, default=-1) + 1)
        reached, last = chain.reached.get(number - 1, ({}, None))
        upto = last["upto"] if last is not None else chain.begun
        older = [each for each in group.sealed if each.czxid <= min(chain.begun, upto)]
        segments = [each for each in group.sealed if each.czxid > upto]
        known = {item[:3]: (item[4], each) for each in older for item in each.ranges or ()}
        if any(each.is_lost or self._is_edited(each) for each in segments):
            return
        run = Run(chain.began, self.registered(event), is_failing=True)
        if not any(self._problems(group, segments, {**known, **reached}, run)):
            what = f"query {event['query']} of {group} failed, and nothing is missing or sealed twice"
            self.broken(f"{what}: {event.get('why')}", last, event)

    def on_missing(self, group: GroupView, event: Event) -> None:
        """A query failed because segments between its finished batch and the end of the next one were removed."""
        chain = self._chains.get((group.name, event["query"]))
        if chain is None or "batch" not in event:
            return
        _, last = chain.reached.get(event["batch"] - 1, ({}, None))
        upto = last["upto"] if last is not None else 0
        if all(each.gone is None for each in group.sealed if each.czxid > upto):
            what = f"query {event['query']} of {group} failed, and no segment after {upto} was removed"
            self.broken(f"{what}: {event.get('why')}", last, event)

    def _is_edited(self, segment: SegmentView) -> bool:
        """Whether positions before it may have been edited manually, or it cannot be read."""
        ranges, group = segment.ranges, segment.group.name
        return ranges is None or any(
            self._ends.was_edited(group, TopicPartition(each.topic, each.partition)) for each in ranges
        )

    def registered(self, event: Event) -> int:
        """The zxid at which the run registered that planned a batch; `NEVER` when unknown."""
        return self._run(event)[1]

    def _run(self, event: Event) -> tuple[str, int, int]:
        planner = event.get("planned", event["who"])
        return self._runs.get((event["group"], event["query"], planner), ("", NEVER, 0))

    def _problems(
        self, group: GroupView, segments: Sequence[SegmentView], reached: Reached, run: Run
    ) -> Iterator[Problem]:
        """Those of segments in order; `reached` moves on."""
        for segment in segments:
            for item in segment.ranges or ():
                problem = self._problem(group, item, segment, reached, run)
                reached[item[:3]] = (item[4], segment)
                if problem is not None:
                    yield problem

    def _problem(
        self, group: GroupView, item: SealedRange, segment: SegmentView, reached: Reached, run: Run
    ) -> Problem | None:
        topic, topic_id, number, first, _ = item
        key = (group.name, topic, topic_id, number)
        end, before = reached.get(item[:3], (None, None))
        since = before.czxid if before is not None else 0
        resets = [each for each in self._resets.get(key, ()) if since < each[0] < segment.czxid]
        limit = run.registered if before is not None or run.is_failing else NEVER
        at_last = [each for each in resets if each[1] == resets[-1][1]]  # an earlier one to elsewhere requires nothing
        if end == first or any(zxid < limit and place == first for zxid, place, _ in at_last):
            return None
        late = [made for _, place, made in at_last if place == first]
        if before is None and not late and self._may_begin(group, key, first, segment, run):
            return None
        should = f"{end} should be next" if before is not None else "it does not begin there"
        more = f"; a reset to {first} came after its run had registered" if late else ""
        why = f"has {topic}-{number} (id {topic_id}) from {first} on in {segment.name}, and {should}{more}"
        return Problem(why, (*([before.made] if before is not None else []), *late[-1:], segment.made))

    def _may_begin(self, group: GroupView, key: Key, first: int, segment: SegmentView, run: Run) -> bool:
        """Whether a partition new to a query may begin at `first` in `segment`."""
        partition = TopicPartition(key[1], key[3])
        if segment.czxid < run.began or self._ends.was_edited(group.name, partition):
            return True
        if self._ends.has_jumped_to(key, first):
            return first == 0 and not run.is_failing
        if first == 0 or self._first_sealed.get(key, 0) < run.began:
            return True
        begun = group.begun.get(key[1])
        return begun is not None and not begun.came_later(key[2], key[3])


class DataFrames(Rules):
    """The DataFrame of each query: its chain of batches, the newest attempt of each number.

    A run that begins again with an old number replaces later batches. Each batch begins at the previous one's end, and
    delivers exactly the segments between its two offsets, in any run: so a repeated batch is the same, and no record is
    missing or duplicated. Of a range with `missing` offsets all but that number are delivered: no znode has which.
    Batches over manually created or removed segments are not judged. Nor may a query fail because a segment that was
    not collected has lost its file, unless a fault has damaged that; nor because segments were collected that its
    registration holds back, as long as that is neither removed, expired nor replaced. A replaced run no longer writes
    the query's znode. A run with `failOnDataLoss=false` may leave out only segments removed by then or with files
    damaged by a fault. `Deliveries` judges whether the ranges continue.
    """

    events = ("batch", "query-failed", "fault")

    def __init__(self, invariant: Invariant, ends: Ends) -> None:
        super().__init__(invariant)
        self.deliveries = Deliveries(invariant, ends)
        self._damaged: set[str] = set()
        self._replaced: dict[tuple[str, str], dict[str, Event]] = {}
        self._registered: dict[tuple[str, str, str], tuple[int, Event]] = {}

    def on_query_failed(self, event: Event) -> None:
        """A query may end with an error about segments collected while it was silent, or about a damaged file; never
        about a lost one."""
        why = str(event.get("why"))
        is_damaged = any(file in why for file in self._damaged)
        if any(text in why for text in LOST) and COLLECTED not in why and not is_damaged:
            self.broken(f"query {event['query']} of group {event['group']} failed: {why}", event)
        known = self._registered.get((event["group"], event["query"], event["who"]))
        if COLLECTED in why and known is not None:
            what = f"query {event['query']} of group {event['group']} failed, though its registration after {known[0]}"
            self.broken(f"{what} held back what it lacks: {why}", known[1], event)
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

    def on_batch(self, event: Event) -> None:
        before = self.deliveries.before(event)
        if before is not None and before["upto"] != event["after"]:
            what = f"batch {event['batch']} of query {event['query']} of group {event['group']} begins after"
            why = f"{what} {event['after']}, and batch {before['batch']} ended at {before['upto']}"
            self.broken(why, before, event)
        group = self.world.groups.get(event["group"])
        if group is not None:
            segments = self._promised(group, event)
            self._judge(group, event, segments)
            # Without failOnDataLoss it has also passed the omitted ones.
            passed = segments if _is_strict(event) else _between(group, event["after"], event["upto"])
            self.deliveries.on_batch(group, event, passed)

    def _promised(self, group: GroupView, event: Event) -> list[SegmentView]:
        """A batch's actual segments, and its required ones."""
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
        why = f"{what} delivered {_shown(delivered.get(key, []))} of {topic}-{number} (id {topic_id})"
        missing = f", {without} of them without a record" if without else ""
        self.broken(f"{why}, and sealed was {sealed}{missing}", *[segment.made for segment in guilty[:3]], event)


def _is_strict(batch: Event) -> bool:
    return bool(batch.get("fail_on_data_loss", True))


def _between(group: GroupView, after: int, upto: int) -> list[SegmentView]:
    """The segments sealed after `after`, up to `upto`."""
    sealed = group.sealed
    first = _first_after(group, after)
    return sealed[first : bisect_right(sealed, upto, key=lambda segment: segment.czxid)]


def _is_new(group: GroupView, name: str, commit: Commit) -> bool:
    """Whether a query without a batch registers: segments collected before are not its own."""
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
    """The offsets of each partition, regardless of the ranges' cuts; a duplicate offset is in two of them."""
    found: Rows = {}
    for topic, topic_id, number, first, following in ranges:
        found.setdefault((topic, topic_id, number), []).append((first, following))
    return {key: _merged(ranges) for key, ranges in found.items()}


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order: the offsets that occur once, twice and so on, each as few ranges as possible."""
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
