"""States of stateful applications, by their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fast_json import Partition
from .sketches import NOTHING, Key, Sketch, by_partition, by_topic_id
from .verdict import Event


class ApplicationView:
    """The state of one process of a stateful application, by its events.

    :ivar given: its last `restored` event.
    :ivar next: partition -> the offset of the next record to process.
    :ivar states: partition -> sketch of its processed records; `member` likewise, of the member's own state.
    :ivar restored: `member` as restored.
    """

    __slots__ = ("checkpoint", "given", "incarnation", "member", "next", "reset", "restored", "saved", "states")

    def __init__(self, event: Event) -> None:
        self.given = event
        self.incarnation: str = event["incarnation"]
        self.reset: int = event["reset"]
        self.checkpoint: int = event["checkpoint"]
        self.states = by_partition(event["states"])
        self.member = by_topic_id(event["member"])
        self.restored = dict(self.member)
        self.next: dict[Partition, int | None] = dict.fromkeys(self.states)
        self.saved: dict[int, tuple[dict[Partition, int | None], Mapping[Key, Sketch]]] = {}


def add(found: dict[Key, Sketch], more: Mapping[Key, Sketch]) -> None:
    """Add another member's sketches to `found`."""
    for key, sketch in more.items():
        found[key] = found.get(key, NOTHING).plus(sketch)


def difference(reported: Mapping[Any, Sketch], known: Mapping[Any, Sketch]) -> str:
    """The difference of two states, in words; empty when they are equal."""
    for key in sorted(reported.keys() | known.keys()):
        own, other = reported.get(key, NOTHING), known.get(key, NOTHING)
        if own != other:
            return f"{sketch_text(own)} of {'-'.join(map(str, key))}, and it was given and took in {sketch_text(other)}"
    return ""


def sketch_text(sketch: Sketch) -> str:
    """A sketch in words."""
    return f"{sketch.records} records (offsets add up to {sketch.sum})"
