"""Since when partitions of a group have had no fetcher, for its history. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..zk.znodes.group_state import Rebalance
from .snapshot import Silence, Snapshot

RENEWAL_SHARE = 1 / 6
"""Of the session timeout: a member that fetches gives ZooKeeper a sign of life this often."""
HEARTBEATS = 3
"""A member that fetches writes its channel so many times per `max_poll_interval_ms`, at least."""
LONGEST_TICK_MS = 3_000
"""Of a ZooKeeper server; its default is 2,000. A session ends up to one and a half ticks after its timeout."""


@dataclass(frozen=True, slots=True)
class LastSign:
    """What a coordinator knows of the end of an incarnation. Times are milliseconds of ZooKeeper's clock.

    :ivar written_ms: the last write of its channel by its own process.
    :ivar session_ms: its session timeout.  :ivar poll_ms: its `max_poll_interval_ms`. Both are 0 when this coordinator
        never saw it live.
    :ivar over_ms: when it was seen to be over; while it lives, now.
    :ivar is_expired: whether its session has ended: then `over_ms` is when that was seen.
    :ivar has_left: whether it has ended itself, with its last write.
    """

    written_ms: int
    session_ms: int = 0
    poll_ms: int = 0
    over_ms: int = 0
    is_expired: bool = False
    has_left: bool = False

    def silence(self, now_ms: int) -> Silence:
        """How long ago it last fetched."""
        first = last = self.written_ms
        if not self.has_left:
            last = self.over_ms
            if self.is_expired and self.session_ms:
                tick_ms = min(LONGEST_TICK_MS, self.session_ms / 2)
                first = max(first, self.over_ms - self.session_ms - round(1.5 * tick_ms))
                renewed_ms = self.over_ms - round(self.session_ms * (1 - RENEWAL_SHARE))
                last = renewed_ms if first <= renewed_ms else last  # a later sign: it was closed, and has not expired
            if self.poll_ms:
                last = min(last, self.written_ms + self.poll_ms // HEARTBEATS)
        return Silence(most_ms=max(0, now_ms - first), least_ms=max(0, now_ms - max(first, last)))


@dataclass(frozen=True, slots=True)
class Standing:
    """Since when partitions have had no fetcher, by the coordinator's wall clock; fields as in `Rebalance`."""

    standing_since_ms: int | None = None
    silent_since_ms: int | None = None
    uncertain_ms: int | None = None

    @property
    def since_ms(self) -> int | None:
        """At the earliest; None when nothing stands still."""
        return min((ms for ms in (self.standing_since_ms, self.silent_since_ms) if ms is not None), default=None)


def standing(snapshot: Snapshot, gone: Iterable[str], are_stopping: bool) -> Standing:
    """Since when partitions stand still for the rebalance that a turn begins or continues.

    A rebalance that replaces an unfinished one continues its standstill: the partitions still wait.

    :param gone: members of the target before this turn whose incarnation in it is over.
    :param are_stopping: whether a member has to stop first.
    """
    record, now_ms = snapshot.rebalance, snapshot.now_ms
    before = standing_of(record) if record is not None and record.finished_ms is None else Standing()
    silences = [snapshot.silences[name] for name in gone if name in snapshot.silences]
    silences += snapshot.returned.values()
    since_silent = [max(0, now_ms - silence.most_ms) for silence in silences]
    known = [before.silent_since_ms] if before.silent_since_ms is not None else []
    found = Standing(
        before.standing_since_ms if before.standing_since_ms is not None else now_ms if are_stopping else None,
        min((*known, *since_silent), default=None),
    )
    if found.since_ms is None:
        return found
    # What was stopped stands still at the latest when all stops are acknowledged.
    latest = [now_ms - silence.least_ms for silence in silences] + ([] if are_stopping else [now_ms])
    if before.since_ms is not None and before.uncertain_ms is not None:
        latest.append(before.since_ms + before.uncertain_ms)
    uncertain_ms = max(0, min(latest) - found.since_ms) if latest else None
    return Standing(found.standing_since_ms, found.silent_since_ms, uncertain_ms)


def standing_of(record: Rebalance) -> Standing:
    """The same of a rebalance in the history."""
    return Standing(record.standing_since_ms, record.silent_since_ms, record.uncertain_ms)
