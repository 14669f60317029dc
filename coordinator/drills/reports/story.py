"""From a history to the lanes of its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.checker.verdict import Event

from .facts import clock, readable
from .lanes import Story, limited, span
from .partitions import partition_lanes
from .processes import process_lanes, shades


def story(run: Mapping[str, Any], events: Sequence[Any]) -> tuple[Story, list[Event]]:
    """The lanes of a history, and those of its events that can be read; the others are set aside and counted."""
    known, set_aside = readable(events)
    start, end = span(known)
    lanes = [*process_lanes(known, start, end), *partition_lanes(known, start, end)]
    drawn, left_out = limited(lanes)
    told = Story(start, end, clock(run, known), tuple(drawn), tuple(shades(known)), left_out, set_aside)
    return told, known
