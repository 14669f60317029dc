"""The fetch intervals of partitions, and client-side assignment (requests, adoptions, failures, the members'
reactions), decided from a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from zk_group.coordinator.zk.znodes.records import ASSIGNMENT_FAILED

from ..checker.replay.replay import Replay, fetch_intervals
from ..checker.replay.verdict import Event
from ..checker.replay.znode_views import THE_ASK
from ..reports import timeline
from ..reports.timeline import FETCH, Bar

PartitionName = tuple[str, int]
"""Topic and number."""

Gaps = Mapping[PartitionName, list[tuple[float, float]]]
"""Partition -> the times without a fetcher."""


@dataclass(frozen=True, slots=True)
class FetchInterval:
    """One consumer's fetching of one partition, under a valid lease.

    :ivar until: its end, infinite while it lasts.
    """

    partition: PartitionName
    who: str
    consumer: str
    begun: float
    until: float


def holds(events: Iterable[Event]) -> list[FetchInterval]:
    """All fetch intervals, by the checker's rules."""
    return [
        FetchInterval((hold.key[1], hold.key[3]), hold.who, hold.consumer, first, last)
        for hold in fetch_intervals(events)
        for first, last in hold.spans()
    ]


def _lanes(intervals: Iterable[FetchInterval]) -> dict[PartitionName, list[Bar]]:
    """Each partition's intervals, ordered by their begin."""
    result: dict[PartitionName, list[Bar]] = {}
    for hold in sorted(intervals, key=lambda each: (each.partition, each.begun)):
        result.setdefault(hold.partition, []).append(Bar(hold.begun, hold.until, FETCH))
    return result


def gaps(intervals: Sequence[FetchInterval], begin: float, end: float) -> Gaps:
    """The times of each partition between `begin` and `end` without a fetcher."""
    result = {}
    for partition, bars in _lanes(intervals).items():
        since = [Bar(begin, begin, FETCH), *(replace(bar, start=max(begin, bar.start)) for bar in bars)]
        found = timeline.gaps([bar for bar in since if bar.start <= end], end)
        result[partition] = [(gap.start, gap.end) for gap in found]
    return result


def doubly_held_s(intervals: Sequence[FetchInterval]) -> float:
    """Seconds with two fetchers of one partition, summed over all partitions."""
    return sum((both.end - both.start for bars in _lanes(intervals).values() for both in timeline.overlaps(bars)), 0.0)


def holders(intervals: Sequence[FetchInterval], at: float) -> dict[PartitionName, str]:
    """Partition -> its fetcher at that time."""
    return {hold.partition: hold.consumer for hold in intervals if hold.begun <= at < hold.until}


def last_holders(intervals: Sequence[FetchInterval], at: float) -> dict[PartitionName, str]:
    """Partition -> its last fetcher until that time, with or without a valid lease."""
    begun = sorted((hold for hold in intervals if hold.begun <= at), key=lambda hold: hold.begun)
    return {hold.partition: hold.consumer for hold in begun}


def read_elsewhere(events: Sequence[Event], consumers: Iterable[str]) -> dict[PartitionName, int]:
    """Partition -> records read and committed by these consumers; the next fetcher continues after them.

    They are not in a DataFrame. Records that no fetcher continued after are not counted.
    """
    intervals: dict[PartitionName, int] = {}
    latest: dict[PartitionName, tuple[str, int]] = {}
    names = set(consumers)
    for event in events:
        if event["event"] != "begin":
            continue
        for topic, numbers in event["partitions"].items():
            for number, first in numbers.items():
                partition = (topic, int(number))
                before, start = latest.get(partition, ("", 0))
                if before in names:
                    intervals[partition] = intervals.get(partition, 0) + first - start
                latest[partition] = (event["consumer"], first)
    return intervals


LATE_S = 0.002
"""Transaction times are in milliseconds; no member applies a command sooner."""


@dataclass(slots=True)
class AskShown:
    """One assignment request.

    :ivar made: its time; `adopted` and `failed` are the times of those changes in `state`.
    :ivar heard: the members that acknowledged its `assignment-failed`.
    """

    name: str
    leader: str
    members: frozenset[str]
    made: float
    adopted: float | None = None
    failed: float | None = None
    heard: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class AskRound:
    """From the first request after an adoption to the next adoption, or to the end of the history."""

    begin: float
    end: float
    is_adopted: bool
    leaders: frozenset[str]


@dataclass(frozen=True, slots=True)
class AskSummary:
    """The assignment requests of a history since a fault.

    :ivar asks: number of requests.  :ivar adopted: number of adoptions.  :ivar failed: number of failed leaders.
    :ivar longest_s: the longest time from a request to its adoption or that of a later leader's; a lower bound
       without a further adoption, None without a request.
    :ivar unheard: members of failed requests without an acknowledgement; None without a failed one.
    :ivar revoked: partitions revoked by members during a request; None without a request.
    :ivar silent_s: the longest time without a record of a partition fetched by no leader, during a request.
    """

    asks: int = 0
    adopted: int = 0
    failed: int = 0
    longest_s: float | None = None
    unheard: int | None = None
    revoked: int | None = None
    silent_s: float | None = None

    @property
    def repeated(self) -> int:
        """Requests without an adoption."""
        return self.asks - self.adopted

    def to_json(self) -> dict[str, Any]:
        """`numbers.asks` in run.json."""
        return {name: round(n, 3) if isinstance(n, float) else n for name, n in asdict(self).items()}


def asked(events: Sequence[Event], intervals: Sequence[FetchInterval], fault_at: float) -> AskSummary:
    """The assignment requests of a whole history since `fault_at`.

    :param intervals: its fetch intervals.
    """
    end = float(events[-1]["at"])
    asks = [ask for ask in asks_of(events) if ask.made >= fault_at]
    rounds = list(_rounds(asks, end))
    failed = [ask for ask in asks if ask.failed is not None]
    return AskSummary(
        len(asks),
        sum(ask.adopted is not None for ask in asks),
        len(failed),
        max((each.end - each.begin for each in rounds), default=None),
        sum(len(ask.members - ask.heard) for ask in failed) if failed else None,
        sum(_revoked(events, each) for each in rounds) if rounds else None,
        max((_silent_s(events, intervals, each) for each in rounds), default=None),
    )


def asks_of(events: Iterable[Event]) -> list[AskShown]:
    """Every assignment request, in order, with its outcome."""
    asks: dict[str, AskShown] = {}
    world = Replay()
    for commit in [world.commit(event) for event in events if event["event"] == "commit"]:
        for asked_for in commit.asks:
            name, ask = asked_for.view.name, asked_for.view.ask
            if asked_for.what == THE_ASK and asked_for.is_new and ask is not None:
                asks[name] = AskShown(name, ask.leader, frozenset(ask.members), commit.at)
        for channel, command in commit.gone:
            failed = command.data if command.data is not None and command.data.option == ASSIGNMENT_FAILED else None
            if failed is not None and failed.ask in asks and commit.who.startswith(f"{channel.consumer}#"):
                asks[failed.ask].heard.add(channel.consumer)
        for state in commit.states:
            client = state.after.data.client if state.after is not None and state.after.data is not None else None
            if client is not None and client.ask in asks:
                asks[client.ask].adopted = asks[client.ask].adopted or commit.at
            if client is not None and client.failed_ask in asks:
                asks[client.failed_ask].failed = asks[client.failed_ask].failed or commit.at
    return list(asks.values())


def _rounds(asks: Sequence[AskShown], end: float) -> Iterator[AskRound]:
    asked_since: list[AskShown] = []
    for ask in asks:
        asked_since.append(ask)
        if ask.adopted is not None or ask is asks[-1]:
            until = ask.adopted if ask.adopted is not None else end
            leaders = frozenset(each.leader for each in asked_since)
            yield AskRound(asked_since[0].made, until, ask.adopted is not None, leaders)
            asked_since = []


def _revoked(events: Iterable[Event], one: AskRound) -> int:
    until = one.end - LATE_S if one.is_adopted else one.end
    return sum(
        len(numbers)
        for event in events
        if event["event"] == "halt" and one.begin <= event["at"] < until
        for numbers in event["partitions"].values()
    )


def _silent_s(events: Iterable[Event], intervals: Sequence[FetchInterval], one: AskRound) -> float:
    others = {part for part, consumer in holders(intervals, one.begin).items() if consumer not in one.leaders}
    last: dict[PartitionName, float] = dict.fromkeys(others, one.begin)
    longest = 0.0
    for event in events:
        if event["event"] != "fetch" or not one.begin <= event["at"] <= one.end:
            continue
        for part in ((item["topic"], item["partition"]) for item in event["ranges"]):
            if part in last:
                longest = max(longest, event["at"] - last[part])
                last[part] = float(event["at"])
    return max([longest, *(one.end - at for at in last.values())])
