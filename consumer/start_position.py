"""Where a consumer starts of whose partitions the group has no offset yet: seed 002's startPosition. Pure.

`start_position` is `beginning`, `end`, `committed` or a point in time. It says where the group begins with what was
there when it began, and nothing else: an offset that the group has goes first, and what comes up later (a partition
that is added, a topic that is made or made anew) is read from its beginning, so that no record of it is lost.
`committed`, the default, leaves the decision to `auto_offset_reset`, Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.zk.config import require
from coordinator.zk.errors import UsageError
from coordinator.zk.names import shown
from coordinator.zk.times import as_text, epoch_ms

BEGINNING, END, COMMITTED = "beginning", "end", "committed"
EARLIEST, LATEST, NONE = "earliest", "latest", "none"
RESETS = (EARLIEST, LATEST, NONE)

HOW_TO_SAY = (
    "start_position must be beginning, end, committed, or a time: 2026-11-21T10:00:00.000Z, or milliseconds since 1970"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a partition: its beginning, its end, or the first record of a time or later.

    :ivar timestamp_ms: of such a record, since the epoch; None with the other two.
    """

    name: str
    timestamp_ms: int | None = None

    @property
    def text(self) -> str:
        """As it is recorded and logged: `beginning`, `end`, or the time in UTC."""
        return self.name if self.timestamp_ms is None else as_text(self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class StartRule:
    """What the configuration says of starts.

    :ivar position: None for `committed`.
    :ivar reset: what `auto_offset_reset` says: `earliest`, `latest` or `none`.
    """

    position: Place | None
    reset: str

    @classmethod
    def parse(cls, start_position: str | int, auto_offset_reset: str) -> StartRule:
        """
        A whole number is milliseconds since the epoch, whatever it looks like. A time without a zone is UTC, as in
        `groups reset-offsets --to-datetime`: executors in several zones must not start at several places.

        :raises UsageError: when one of them is none of those above.
        """
        require(
            auto_offset_reset in RESETS,
            f"auto_offset_reset must be one of {', '.join(RESETS)}, not {shown(auto_offset_reset)}",
        )
        return cls(_parsed(str(start_position).strip()), auto_offset_reset)

    def place(self, came_later: bool) -> Place | None:
        """Where to start; None when only an error is left: `committed`, no offset, and `none`.

        :param came_later: whether the partition came up after the group had begun.
        """
        if self.position is None and self.reset == NONE:
            return None
        if came_later:
            return Place(BEGINNING)
        return self.position or Place(END if self.reset == LATEST else BEGINNING)


def _parsed(text: str) -> Place | None:
    if text in (BEGINNING, END):
        return Place(text)
    if text == COMMITTED:
        return None
    try:
        if text.isascii() and text.isdecimal() and len(text) <= 15:
            return Place("timestamp", int(text))
        time_ms = epoch_ms(text)
    except ValueError as error:
        raise UsageError(f"{HOW_TO_SAY}; not {shown(text)}") from error
    require(time_ms >= 0, f"{HOW_TO_SAY}; {shown(text)} is before 1970")
    return Place("timestamp", time_ms)
