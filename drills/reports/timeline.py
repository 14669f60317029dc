"""Maps a history to the lanes of its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drills.checker.replay.verdict import Event

from .facts import clock, readable
from .lanes import Timeline, limited, span
from .partitions import partition_lanes
from .processes import process_lanes


def timeline_of(run: Mapping[str, Any], events: Sequence[Any]) -> tuple[Timeline, list[Event]]:
    """The lanes of a history, and its readable events; the others are ignored and counted."""
    known, set_aside = readable(events)
    start, end = span(known)
    lanes = [*process_lanes(known, start, end), *partition_lanes(known, end)]
    drawn, left_out = limited(lanes)
    timeline = Timeline(start, end, clock(run, known), tuple(drawn), left_out, set_aside)
    return timeline, known
