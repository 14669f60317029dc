"""The lanes of the partitions: their fetchers, by the checker's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drills.checker.replay.fetch_intervals import FOREVER, Hold, PartitionKey
from drills.checker.replay.replay import fetch_intervals
from drills.checker.replay.verdict import Event

from .facts import amount, plural, text
from .lanes import FETCH, PARTITION, Bar, Lane, clipped, gaps, overlaps

Place = tuple[str, str, int]
"""Group, topic, partition."""
Counts = list[int]
"""Fetches, records."""


def partition_lanes(events: Sequence[Event], end: float) -> list[Lane]:
    """A lane for each fetched partition of each group, ordered by group, topic and number."""
    holds: dict[Place, list[Hold]] = {}
    for hold in fetch_intervals(events):
        holds.setdefault((hold.key[0], hold.key[1], hold.key[3]), []).append(hold)
    fetched: dict[int, Counts] = {}
    for event in events:
        for item in event["ranges"] if event["event"] == "fetch" else ():
            place = event["group"], item["topic"], item["partition"]
            for hold in _of(event, item["topic_id"], holds.setdefault(place, []))[-1:]:
                counts = fetched.setdefault(hold.number, [0, 0])
                counts[0] += 1
                counts[1] += max(0, item["next"] - item["first"])
    ended = {event["who"] for event in events if event["event"] == "exit"}
    awaited = {event.get("group") for event in events if event["event"] == "start" and event["who"] not in ended}
    return [_lane(place, holds[place], fetched, end, place[0] in awaited) for place in sorted(holds)]


def _of(event: Event, topic_id: str, holds: Sequence[Hold]) -> list[Hold]:
    """The intervals of a fetch's incarnation that had begun."""
    life = event["who"], event["incarnation"], topic_id
    return [
        hold for hold in holds if (hold.who, hold.incarnation, hold.key[2]) == life and hold.begun["at"] <= event["at"]
    ]


def _lane(place: Place, holds: Sequence[Hold], fetched: Mapping[int, Counts], end: float, is_awaited: bool) -> Lane:
    group, topic, number = place
    of_topics: dict[PartitionKey, list[Bar]] = {}
    for hold in holds:
        of_topics.setdefault(hold.key, []).extend(_bars(hold, fetched.get(hold.number, [0, 0]), end))
    bars = [bar for each in of_topics.values() for bar in each]
    twice = [bar for each in of_topics.values() for bar in overlaps(each)]  # one created again is another topic
    idle = gaps(bars, end if is_awaited else None)
    bars.sort(key=lambda bar: bar.end)
    everything = sorted((*bars, *idle, *twice), key=lambda bar: bar.start)
    return Lane(PARTITION, f"{text(topic)}-{number}", text(group), bars=tuple(everything))


def _bars(hold: Hold, fetched: Counts, end: float) -> list[Bar]:
    """An interval, without the times after the lease's expiry."""
    fetches, records = fetched
    note = (
        f"by {text(hold.who)}, incarnation {text(hold.incarnation)[:8]}, "
        f"{amount(records)} records in {plural(fetches, 'fetch').replace('fetchs', 'fetches')}"
    )
    if hold.is_suspended:
        note += "; not judged: its znodes were edited manually"
    of = f"{text(hold.key[0])}/{text(hold.consumer)}"
    return [
        Bar(first, last, FETCH, text(hold.consumer), note, of, is_open=hold.until == FOREVER and last == end)
        for first, last in clipped(hold.spans(), -FOREVER, end)
    ]
