"""Back-pressure decisions: pausing fetchers, limiting their seals, and the queries that collection waits for.

Pure. Znode content in, znode content out; `coordinator/retention/segments.py` applies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..zk.znodes.segments import SegmentsRecord

RESUME_SHARE = 0.8
"""Fetchers resume when the backlog is at this share of both bounds: at the bound, each seal would pause again."""

HURRY_SHARE = 0.5
"""Above this share of a bound, finished segments are collected in the next round, not only in the next sweep."""

HURRY_BYTES = 256 << 20
"""With these bytes beyond the retained ones too: files that are removed soon are written into page cache that is
already allocated."""

INTERVAL_STEP_MS = 10
"""Published seal intervals are multiples of this."""

MOST_RETAINED = 1000
"""Finished segments that are retained at most: every query lists all names whenever one is sealed."""

UNKNOWN = -1
"""Progress of a query with an unreadable znode: nothing may be collected before it is repaired."""

Readers = Mapping[str, int]
"""Query -> the czxid up to which it has finished, or `UNKNOWN`; without expired queries."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a group's backlog."""

    segments: int
    size: int


@dataclass(frozen=True, slots=True)
class Retention:
    """Finished segments are retained for `ms` after their seal, while all of them have at most `size` bytes."""

    ms: int
    size: int


class Finished(NamedTuple):
    """A segment that every query has finished; `sealed_ms` is ZooKeeper's time of its seal."""

    czxid: int
    sealed_ms: int
    size: int


class Backlog(NamedTuple):
    """A group's sealed segments that have not been collected, and their bytes.

    :ivar unread: number of segments with unknown size; no pause is lifted before it is known.
    """

    segments: int
    size: int
    unread: int = 0


_FULL = "the backlog is full"
_SEPARATOR = "; "


@dataclass(frozen=True, slots=True)
class PauseCause:
    """The coordinator's own pause of a group's fetchers. Its only memory is the text in `segments`.

    :ivar text: as written.
    :ivar holdup: why the backlog is not collected.
    """

    text: str
    holdup: str

    @classmethod
    def parse(cls, text: str | None) -> PauseCause | None:
        """None without a pause, and for an operator's, which the coordinator does not lift."""
        if text is None or not text.startswith(_FULL):
            return None
        return cls(text, text.rpartition(_SEPARATOR)[2])

    @classmethod
    def of(cls, backlog: Backlog, bounds: Bounds, holdup: str) -> PauseCause:
        """The pause that begins with this backlog."""
        amount = (
            f"{backlog.segments} of at most {bounds.segments} segments, "
            f"{shown_bytes(backlog.size)} of at most {shown_bytes(bounds.size)}"
        )
        return cls(f"{_FULL}: {amount}{_SEPARATOR}{holdup}", holdup)


def is_pressing(record: SegmentsRecord, backlog: Backlog, bounds: Bounds, retention: Retention) -> bool:
    """Whether to collect before the next sweep."""
    retained_bytes = retention.size if retention.ms else 0
    hurry_bytes = min(retained_bytes + HURRY_BYTES, HURRY_SHARE * bounds.size)
    is_large = backlog.segments > HURRY_SHARE * bounds.segments or backlog.size > hurry_bytes
    return record.paused is not None or is_large


def may_hold(backlog: Backlog, bounds: Bounds) -> bool:
    """Whether segments that every query has finished may be retained, for queries that begin later."""
    return backlog.segments <= HURRY_SHARE * bounds.segments and backlog.size <= HURRY_SHARE * bounds.size


def finished_by_all(readers: Readers) -> int | None:
    """The czxid up to which every query has finished; None when nothing may be collected."""
    finished = min(readers.values(), default=UNKNOWN)
    return finished if finished > 0 else None


def collectable(finished: Sequence[Finished], now_ms: int, retention: Retention) -> int:
    """The czxid up to which finished segments may be removed: those after it are retained for queries that begin later.

    :param finished: in the order of their seals.
    :param now_ms: by ZooKeeper's clock.
    :returns: 0 when all of them are retained.
    """
    size = 0
    for count, segment in enumerate(reversed(finished), start=1):
        size += segment.size
        age_ms = max(0, now_ms - segment.sealed_ms)
        if age_ms >= retention.ms or size > retention.size or count > MOST_RETAINED:
            return segment.czxid
    return 0


def directions(
    before: SegmentsRecord, backlog: Backlog, bounds: Bounds, readers: Readers, seal_interval_ms: int | None
) -> SegmentsRecord:
    """The next data of `segments`; the same record when nothing changes.

    A pause by an operator is left alone.
    """
    after = replace(before, seal_interval_ms=seal_interval_ms)
    cause = PauseCause.parse(before.paused)
    if before.paused is not None and cause is None:
        return after
    cause = _cause(cause, backlog, bounds, readers)
    return replace(after, paused=cause.text if cause is not None else None)


def _cause(before: PauseCause | None, backlog: Backlog, bounds: Bounds, readers: Readers) -> PauseCause | None:
    """The reason of a pause of fetchers. Its text stays while the hold-up does: a new text wakes every fetcher."""
    share = RESUME_SHARE if before is not None else 1.0
    if backlog.segments <= share * bounds.segments and backlog.size <= share * bounds.size:
        return before if backlog.unread else None
    holdup = _holdup(readers)
    return before if before is not None and before.holdup == holdup else PauseCause.of(backlog, bounds, holdup)


def _holdup(readers: Readers) -> str:
    if not readers:
        return "no query reads the group, and nothing is collected without one"
    slowest = min(readers, key=lambda name: (readers[name], name))
    if readers[slowest] == UNKNOWN:
        return f"the znode of query {slowest} cannot be read, so nothing is collected"
    return f"query {slowest} has not finished them"


def shown_bytes(size: int) -> str:
    """Bytes as text: `512 bytes`, `3.1 GiB`."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{size} bytes" if units[0] == "bytes" else f"{value:.1f} {units[0]}"


def shortest_intervals_ms(own: Mapping[str, Sequence[int]], max_seals_per_s: int) -> dict[str, int]:
    """The minimum seal interval of each group at which all groups together stay below `max_seals_per_s`.

    A group that seals less than its share keeps its fetchers' own intervals, and leaves the others more (max-min fair
    shares): no group's fetchers, however many are registered, make another group wait for more than its share.

    :param own: group -> the interval of each live fetcher, in milliseconds.
    :returns: group -> milliseconds; 0 when every fetcher of it may keep its own.
    """
    rates = {group: sum(1000 / interval for interval in intervals) for group, intervals in own.items()}
    left, found = float(max_seals_per_s), {}
    for count, group in enumerate(sorted(rates, key=lambda group: (rates[group], group))):
        share = left / (len(rates) - count)
        found[group] = shortest_interval_ms(own[group], share)
        left -= min(rates[group], share)
    return found


def shortest_interval_ms(own: Sequence[int], max_seals_per_s: float) -> int:
    """The minimum seal interval at which these fetchers together stay below `max_seals_per_s`.

    Fetchers with a longer interval of their own keep it, which leaves the others more.

    :param own: the interval of each live fetcher, in milliseconds.
    :returns: milliseconds; 0 when every fetcher may keep its own.
    """
    ordered = sorted(own)
    rest = sum(1000 / interval for interval in ordered)
    if rest <= max_seals_per_s:
        return 0
    interval_ms = 0.0
    for count, interval in enumerate(ordered, start=1):
        rest -= 1000 / interval
        if rest >= max_seals_per_s:
            continue
        interval_ms = 1000 * count / (max_seals_per_s - rest)
        if count == len(ordered) or interval_ms <= ordered[count]:
            break
    return INTERVAL_STEP_MS * math.ceil(round(interval_ms / INTERVAL_STEP_MS, 6))


def published_interval_ms(own: Sequence[int], shortest_ms: int) -> int | None:
    """The group's published interval: `shortest_ms` when one of its fetchers would seal more often, else None."""
    return shortest_ms if any(interval < shortest_ms for interval in own) else None
