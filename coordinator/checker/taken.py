"""What stateful applications are, as their events say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .sketches import NOTHING, Key, Sketch, by_partition, by_topic_id
from .texts import Partition
from .verdict import Event


class Application:
    """What one process of a stateful application is, as its events say.

    :ivar given: the `restored` event that made it so.
    :ivar next: partition -> the offset of the next record that it takes in.
    :ivar states: partition -> what it has taken in of it; `member` likewise, what it keeps for itself.
    :ivar restored: `member` as it was given back.
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
    """Put what another member has into `found`."""
    for key, sketch in more.items():
        found[key] = found.get(key, NOTHING).plus(sketch)


def difference(said: Mapping[Any, Sketch], known: Mapping[Any, Sketch]) -> str:
    """In what two states differ, in words; empty when they are equal."""
    for key in sorted(said.keys() | known.keys()):
        mine, other = said.get(key, NOTHING), known.get(key, NOTHING)
        if mine != other:
            return f"{told(mine)} of {'-'.join(map(str, key))}, and it was given and took in {told(other)}"
    return ""


def told(sketch: Sketch) -> str:
    """A sketch in words."""
    return f"{sketch.records} records (offsets add up to {sketch.sum})"
