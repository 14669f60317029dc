"""S5, third part: where each range begins, sealed or delivered; all runs of a query together continue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.segments import Query, SealedRange

from ..replay.commits import Commit
from ..replay.verdict import Event, moment
from ..replay.znode_views import GroupView, SegmentView
from .base import Invariant, Rules

Key = tuple[str, str, str, int]
"""Group, topic, topic id, partition."""

Place = tuple[str, str, int]
"""Topic, topic id, partition."""

Reached = dict[Place, tuple[int, SegmentView]]
"""The offset after the last one delivered, and the segment with that one."""

NEVER = 1 << 63


class Ends(Rules):
    """The end offset of each partition, and the event that set it.

    A partition under a new id may begin at the earliest record: 0 unless an `earliest` event has another. After a
    manual edit the end is unknown until the next write.
    """

    events = ("earliest", "jump")

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._ends: dict[Key, tuple[int, Event]] = {}
        self._earliest: dict[tuple[str, str, int], set[int]] = {}
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
        """Whether one has reported that it resumes at `after`."""
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
    """What a batch is judged by.

    :ivar began: zxid at which the query's first run registered; `NEVER` when unknown.
    :ivar registered: zxid of the registration of the run that planned the batch; `NEVER` when unknown.
    :ivar is_failing: whether a later reset, or a log that was put back to 0, is a reason to fail also where nothing of
        the partition was delivered.
    """

    began: int
    registered: int
    is_failing: bool = False


class Problem(NamedTuple):
    """A range that does not continue what was delivered before; `witness` are the events that prove it."""

    why: str
    witness: tuple[Event, ...]


@dataclass(slots=True)
class _Chain:
    """The batches that a query's sink holds: what each of them has reached; `began` as of `Run`.

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
        """A query's znode was written: a run registers once, however often it does so again on other sessions. A new
        query begins after what was collected before."""
        key = (group.name, query, commit.who)
        if key not in self._runs or self._runs[key][0] != now.run:
            begun = next((each.czxid for each in reversed(group.sealed) if each.gone is not None), 0)
            self._runs[key] = (now.run, commit.zxid, begun)
            self._chains.setdefault((group.name, query), _Chain(begun, commit.zxid))

    def on_batch(self, group: GroupView, event: Event, segments: Sequence[SegmentView]) -> None:
        """A query has finished a batch of these segments."""
        chain = self._chains.setdefault((group.name, event["query"]), _Chain(NEVER))
        number = event["batch"]
        for later in [later for later in chain.reached if later >= number]:
            del chain.reached[later]
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
            if event.get("fail_on_data_loss", True):
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
        at_last = [each for each in resets if each[1] == resets[-1][1]]  # an earlier one to elsewhere asks for nothing
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
        """Whether a partition that is new to a query may begin at `first` in `segment`."""
        partition = TopicPartition(key[1], key[3])
        if segment.czxid < run.began or self._ends.was_edited(group.name, partition):
            return True
        if self._ends.has_jumped_to(key, first):
            return first == 0 and not run.is_failing
        if first == 0 or self._first_sealed.get(key, 0) < run.began:
            return True
        begun = group.begun.get(key[1])
        return begun is not None and not begun.came_later(key[2], key[3])
