"""The lanes of a history, each with its bars and marks: those of the ensemble and the processes, and of each partition.

In the history's time, independent of pixels. Fetchers are determined by the checker's rule, so that the picture and the
verdict agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zk_group.drills.checker.replay.conditions import STUCK_KINDS, Fault
from zk_group.drills.checker.replay.fetch_intervals import FOREVER, Hold, PartitionKey
from zk_group.drills.checker.replay.replay import fetch_intervals
from zk_group.drills.checker.replay.verdict import Event

from .facts import FAR, amount, clock, hit_of, name_of, number, plural, readable, text

ENSEMBLE, NODE, CONSUMER, OTHER, PARTITION = "ensemble", "node", "consumer", "other", "partition"
LIFE, ELECTED, LEASE, PAUSE, FETCH, GAP, OVERLAP, FAULT = (
    "life", "elected", "lease", "pause", "fetch", "gap", "overlap", "fault",
)  # fmt: skip

MOST_PROCESSES = 120
MOST_PARTITIONS = 160


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval.

    :ivar label: its text, if there is room.  :ivar note: further details, in the tooltip.
    :ivar of: the consumer (`group/consumer`) of its colour.
    :ivar is_open: whether it was open at the end of the history.
    """

    start: float
    end: float
    kind: str
    label: str = ""
    note: str = ""
    of: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class LaneMark:
    """An event; `note` is its tooltip."""

    at: float
    kind: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the picture; `of` is the consumer of its colour."""

    kind: str
    name: str
    group: str = ""
    of: str = ""
    bars: tuple[Bar, ...] = ()
    marks: tuple[LaneMark, ...] = ()

    @property
    def unrest(self) -> int:
        """The amount of change: lanes with the least are omitted first."""
        return sum((bar.kind in (GAP, FETCH)) + 1000 * (bar.kind == OVERLAP) for bar in self.bars)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes.

    :ivar zero: the time of the fault, the origin of the times.
    :ivar left_out: the number of omitted lanes, by kind.
    """

    start: float
    end: float
    zero: float
    lanes: tuple[Lane, ...]
    left_out: Mapping[str, int]
    set_aside: int = 0

    @property
    def faults(self) -> Sequence[Bar]:
        """Each fault: a moment, or its duration."""
        return [bar for lane in self.lanes for bar in lane.bars if bar.kind == FAULT]

    @property
    def consumers(self) -> list[str]:
        """The consumers in the order of the lanes; the position determines the colour."""
        lanes = [lane.of for lane in self.lanes if lane.of]
        bars = [bar.of for lane in self.lanes for bar in lane.bars if bar.of]
        return list(dict.fromkeys([*lanes, *bars]))


def span(events: Sequence[Event]) -> tuple[float, float]:
    """From the first event to `end`, or to the last event of an incomplete history."""
    if not events:
        return 0.0, 0.0
    times = [float(event["at"]) for event in events]
    ends = [float(event["at"]) for event in events if event["event"] == "end"]
    return min(times), ends[-1] if ends else max(times)


def limited(lanes: Sequence[Lane]) -> tuple[list[Lane], dict[str, int]]:
    """The lanes up to the maximum number, those with changes first."""
    dropped: list[Lane] = []
    for kinds, most in (((PARTITION,), MOST_PARTITIONS), ((NODE, CONSUMER, OTHER), MOST_PROCESSES)):
        candidates = [lane for lane in lanes if lane.kind in kinds]
        dropped += sorted(candidates, key=lambda lane: -lane.unrest)[most:]
    out = set(map(id, dropped))
    return [lane for lane in lanes if id(lane) not in out], Counter(lane.kind for lane in dropped)


def overlaps(bars: Sequence[Bar]) -> list[Bar]:
    """The intervals with more than one bar."""
    result: list[Bar] = []
    reach, holder = float("-inf"), ""
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
        if bar.start < reach and bar.end > bar.start:
            both = f"{holder} and {bar.label}"
            result.append(Bar(bar.start, min(bar.end, reach), OVERLAP, "two fetchers", both))
        if bar.end > reach:
            reach, holder = bar.end, bar.label
    return result


def gaps(bars: Sequence[Bar], until: float | None) -> list[Bar]:
    """The intervals between the bars without any; after the last one, too, up to `until`, if given."""
    result: list[Bar] = []
    reach: float | None = None
    for bar in sorted(bars, key=lambda bar: bar.start):
        if reach is not None and bar.start > reach:
            result.append(Bar(reach, bar.start, GAP, "no fetcher"))
        reach = bar.end if reach is None else max(reach, bar.end)
    if reach is not None and until is not None and until > reach:
        result.append(Bar(reach, until, GAP, "no fetcher", "until the history ends", is_open=True))
    return result


def extend(spans: list[list[float]], at: float, until: float) -> None:
    """Add the interval of a renewed lease; adjoining ones are one."""
    if spans and at <= spans[-1][1]:
        spans[-1][1] = max(spans[-1][1], until)
    elif until > at:
        spans.append([at, until])


def clipped(intervals: Iterable[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """The parts of the intervals between `start` and `end`."""
    cut = ((max(start, a), min(end, b)) for a, b in intervals)
    return [(a, b) for a, b in cut if b > a]


_COMMAND = re.compile(r"/channel/([^/]+)/command-\d+$")
_KINDS = {"node": NODE, "consumer": CONSUMER, "slot": CONSUMER}
_ORDER = (NODE, CONSUMER, OTHER)
_NOTED = {"registered": "registered", "over": "over", "batch": "batch", "query-failed": "failed"}


@dataclass
class ProcessLife:
    """One process, from its start to its exit."""

    who: str
    start: float
    kind: str = ""
    group: str = ""
    consumer: str = ""
    end: float | None = None
    why: str = ""
    leases: dict[object, list[list[float]]] = field(default_factory=dict)
    elected: list[Bar] = field(default_factory=list)
    marks: list[LaneMark] = field(default_factory=list)


class Processes:
    """All processes, and the ensemble's events."""

    def __init__(self, start: float) -> None:
        self.lives: dict[str, ProcessLife] = {}
        self.marks: list[LaneMark] = []
        self.faults: list[Fault] = []
        self._start = start
        self._sessions: dict[object, str] = {}
        self._elected: tuple[ProcessLife, float, object, int] | None = None

    def life(self, who: str) -> ProcessLife:
        """The life of a process; without a start event it starts with the history."""
        return self.lives.setdefault(who, ProcessLife(who, self._start))

    def feed(self, event: Event) -> None:
        kind, who, at = event["event"], event["who"], float(event["at"])
        if kind == "start":
            group, name = text(event.get("group")), text(event.get("consumer") or event.get("query"))
            self.lives[who] = ProcessLife(who, at, event["kind"], group, name)
        elif kind == "exit":
            life, why = self.life(who), text(event.get("why"))
            life.end, life.why = at, why
            if self._elected is not None and self._elected[0] is life:
                self.resign(at, f"its process ended: {why}" if why else "its process ended")
        elif kind == "session" and isinstance(event.get("session"), str | int):
            self._sessions[event["session"]] = who
        elif kind == "closed":
            self._on_closed(event, at)
        elif kind == "elected":
            self._on_elected(event, at)
        elif kind == "lease":
            extend(self.life(who).leases.setdefault(event.get("session"), []), at, min(event["until"], FAR))
        elif kind == "fault":
            self.faults.append(Fault(event))
        elif kind == "commit":
            self._on_commit(event, at)
        elif kind in _NOTED:
            note = f"batch {text(event.get('batch'))}" if kind == "batch" else text(event.get("why"))
            self.life(who).marks.append(LaneMark(at, _NOTED[kind], note=note))

    def _on_closed(self, event: Event, at: float) -> None:
        session = event["session"]
        whose = name_of(self._sessions.get(session, event["who"]))
        self.marks.append(LaneMark(at, "session", f"session {session} of {whose}: {text(event.get('why'))}"))
        if self._elected is not None and self._elected[2] == session:
            self.resign(at, f"its session was {text(event.get('why'))}")

    def _on_elected(self, event: Event, at: float) -> None:
        self.resign(at, "another was elected")
        life = self.life(event["who"])
        life.kind = life.kind or "node"
        self._elected = (life, at, event["session"], event["epoch"])
        self.marks.append(LaneMark(at, "elected", f"{text(event['who'])} was elected, epoch {event['epoch']}"))

    def resign(self, at: float, why: str, is_open: bool = False) -> None:
        """The end of the coordinator's term."""
        if self._elected is not None:
            life, since, _, epoch = self._elected
            life.elected.append(Bar(since, at, ELECTED, f"coordinator, epoch {epoch}", why, is_open=is_open))
        self._elected = None

    def _on_commit(self, event: Event, at: float) -> None:
        for op in event["ops"]:
            match = _COMMAND.search(op["path"]) if op["op"] == "create" else None
            if match is not None and event["who"] != "hand":
                kind = "stop" if "stop-fetcher" in (op.get("data") or "") else "start"
                note = f"{kind}-fetcher to {text(match[1])}"
                self.life(event["who"]).marks.append(LaneMark(at, kind, note=note))


def process_lanes(events: Sequence[Event], start: float, end: float) -> list[Lane]:
    """Lanes of the faults and of the ensemble, then one per name: nodes, consumers and slots, queries and others."""
    processes = Processes(start)
    for event in events:
        processes.feed(event)
    processes.resign(end, "until the history ends", is_open=True)
    names: dict[str, list[ProcessLife]] = {}
    for life in processes.lives.values():
        if life.who not in ("server", "hand"):
            names.setdefault(name_of(life.who), []).append(life)
    lanes = [_lane(name, lives, processes.faults, end) for name, lives in names.items()]
    lanes.sort(key=lambda lane: (_ORDER.index(lane.kind), lane.group, _natural(lane.name)))
    hit = Lane(FAULT, "Faults", bars=tuple(faults(events)))
    return [hit, Lane(ENSEMBLE, "ZooKeeper", marks=tuple(processes.marks)), *lanes]


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key: `c10` after `c9`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]{1,15})", name)]


def _lane(name: str, lives: Sequence[ProcessLife], faults: Sequence[Fault], end: float) -> Lane:
    last = lives[-1]
    kind = _KINDS.get(last.kind, OTHER)
    of = f"{last.group}/{last.consumer or name}" if kind == CONSUMER else ""
    bars = [bar for life in lives for bar in _bars(life, kind, faults, end)]
    marks = sorted((mark for life in lives for mark in life.marks), key=lambda mark: mark.at)
    shown = f"{name} ({last.consumer})" if kind == CONSUMER and last.consumer not in ("", name) else name
    return Lane(kind, shown, last.group, of, tuple(bars), tuple(marks))


def _bars(life: ProcessLife, kind: str, faults: Sequence[Fault], end: float) -> list[Bar]:
    until = end if life.end is None else life.end
    ended = "" if life.end is None else f"ended: {life.why}" if life.why else "ended"
    bars = [Bar(life.start, until, LIFE, text(life.who), ended, is_open=life.end is None)]
    bars += life.elected
    for spans in life.leases.values():
        bars += [Bar(a, b, LEASE) for a, b in clipped([(a, b) for a, b in spans], life.start, until)]
    for fault in faults:
        if fault.kind in STUCK_KINDS and fault.hit(life.who) and fault.at < until:
            stop = fault.until if fault.until > fault.at else until
            label = _PAUSED.get(fault.kind, "stuck")
            bars += [Bar(a, b, PAUSE, label) for a, b in clipped([(fault.at, stop)], life.start, until)]
    return bars


RETURNS = "server-returns"
_PAUSED = {"pause": "paused", "hang": "hangs"}


def faults(events: Sequence[Event]) -> list[Bar]:
    """Each fault with its duration; a server's until it is back."""
    found = [event for event in events if event["event"] == "fault"]
    result = []
    for event in found:
        if event["kind"] == RETURNS:
            continue
        until = number(event.get("until"))
        if until is None and "server" in event:
            later = [each for each in found if each["kind"] == RETURNS and each["at"] > event["at"]]
            until = next((float(each["at"]) for each in later if each.get("server") == event["server"]), None)
        end = until if until is not None and event["at"] < until < FAR else event["at"]
        label = " ".join((text(event["kind"]), hit_of(event))).strip()
        result.append(Bar(float(event["at"]), float(end), FAULT, label))
    return result


Place = tuple[str, str, int]
"""Group, topic, partition."""


def partition_lanes(events: Sequence[Event], end: float) -> list[Lane]:
    """A lane for each fetched partition of each group, ordered by group, topic and number."""
    holds: dict[Place, list[Hold]] = {}
    for hold in fetch_intervals(events):
        holds.setdefault((hold.key[0], hold.key[1], hold.key[3]), []).append(hold)
    fetched: dict[int, list[int]] = {}
    for event in events:
        for item in event["ranges"] if event["event"] == "fetch" else ():
            place = event["group"], item["topic"], item["partition"]
            life = event["who"], event["incarnation"], item["topic_id"]
            its = [hold for hold in holds.setdefault(place, []) if (hold.who, hold.incarnation, hold.key[2]) == life]
            for hold in [hold for hold in its if hold.begun["at"] <= event["at"]][-1:]:
                fetched.setdefault(hold.number, []).append(max(0, item["next"] - item["first"]))
    ended = {event["who"] for event in events if event["event"] == "exit"}
    awaited = {event.get("group") for event in events if event["event"] == "start" and event["who"] not in ended}
    return [_partition_lane(place, holds[place], fetched, end, place[0] in awaited) for place in sorted(holds)]


def _partition_lane(
    place: Place, holds: Sequence[Hold], fetched: Mapping[int, list[int]], end: float, is_awaited: bool
) -> Lane:
    group, topic, number = place
    of_topics: dict[PartitionKey, list[Bar]] = {}
    for hold in holds:
        of_topics.setdefault(hold.key, []).extend(_fetch_bars(hold, fetched.get(hold.number, []), end))
    bars = [bar for each in of_topics.values() for bar in each]
    twice = [bar for each in of_topics.values() for bar in overlaps(each)]  # a recreated topic is another one
    idle = gaps(bars, end if is_awaited else None)
    bars.sort(key=lambda bar: bar.end)
    everything = sorted((*bars, *idle, *twice), key=lambda bar: bar.start)
    return Lane(PARTITION, f"{text(topic)}-{number}", text(group), bars=tuple(everything))


def _fetch_bars(hold: Hold, fetched: Sequence[int], end: float) -> list[Bar]:
    """An interval, without the times after the lease's expiry; `fetched` are the records of each of its fetches."""
    note = (
        f"by {text(hold.who)}, incarnation {text(hold.incarnation)[:8]}, "
        f"{amount(sum(fetched))} records in {plural(len(fetched), 'fetch').replace('fetchs', 'fetches')}"
    )
    if hold.is_suspended:
        note += "; not judged: its znodes were edited manually"
    of = f"{text(hold.key[0])}/{text(hold.consumer)}"
    return [
        Bar(first, last, FETCH, text(hold.consumer), note, of, is_open=hold.until == FOREVER and last == end)
        for first, last in clipped(hold.spans(), -FOREVER, end)
    ]


def timeline_of(run: Mapping[str, Any], events: Sequence[Any]) -> tuple[Timeline, list[Event]]:
    """The lanes of a history, and its readable events; the others are ignored and counted."""
    known, set_aside = readable(events)
    start, end = span(known)
    lanes = [*process_lanes(known, start, end), *partition_lanes(known, end)]
    drawn, left_out = limited(lanes)
    return Timeline(start, end, clock(run, known), tuple(drawn), left_out, set_aside), known
