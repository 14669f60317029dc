"""The history of a group's rebalances: their order and their triggers. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..zk.values import first_names
from ..zk.znodes.group_state import Rebalance


def in_order(records: Sequence[Rebalance]) -> list[Rebalance]:
    """The oldest first; a record that an older release left unfinished names its successor."""
    ordered = sorted(records, key=lambda record: record.generation)
    following: list[int | None] = [record.generation for record in ordered]
    return [
        replace(record, replaced_by=record.replaced_by or (after if record.finished_ms is None else None))
        for record, after in zip(ordered, [*following[1:], None][: len(ordered)], strict=True)
    ]


def changes_of(joined: Sequence[str], left: Sequence[str], changed: Sequence[str] = (), most: int = sys.maxsize) -> str:
    """The trigger of these member changes, as text; the first `most` of each kind."""
    kinds = (("joined", joined), ("left", left), ("changed", changed))
    return "; ".join(f"{what} {first_names(names, most)}" for what, names in kinds if names)


def changes_between(before: Mapping[str, tuple[object, object]], after: Mapping[str, tuple[object, object]]) -> str:
    """The trigger of a change of members, each with its incarnation and other data; empty without a change."""
    joined = sorted(name for name, (life, _) in after.items() if name not in before or before[name][0] != life)
    left = sorted(before.keys() - after.keys())
    changed = sorted(name for name in after.keys() - joined if after[name] != before[name])
    return changes_of(joined, left, changed, 3)


ELECTED, JOINED, LEFT, CHANGED = "elected", "joined", "left", "changed"
TOPIC, PARTITIONS, SWEEP, OTHER = "topic", "partitions", "sweep", "other"
REQUESTED, RESUMED = "requested", "resumed"
TRIGGERS = (ELECTED, JOINED, LEFT, CHANGED, TOPIC, PARTITIONS, SWEEP, REQUESTED, RESUMED, OTHER)
_BY_FIRST_WORD = {"coordinator": ELECTED, **{kind: kind for kind in (JOINED, LEFT, CHANGED, SWEEP, REQUESTED, RESUMED)}}


def trigger_kind(trigger: str) -> str:
    """One of `TRIGGERS`: the first change in a trigger's text, in the listeners' words.

    A group that was first read now (`members read; joined c1`) has not changed by that.
    """
    kinds = (_kind(reason.split()) for reason in trigger.split(";"))
    return next((kind for kind in kinds if kind != OTHER), OTHER)


def kind_of(rebalance: Rebalance) -> str:
    """The trigger's kind; where the trigger has none, the kind of the turn's member changes."""
    kind = trigger_kind(rebalance.trigger)
    if kind == OTHER and (rebalance.joined or rebalance.left):
        return JOINED if rebalance.joined else LEFT
    return kind


def _kind(words: list[str]) -> str:
    if words and words[0].endswith(":"):  # the leader that made a `sync_request`
        words = words[1:]
    if words[:1] == ["topic"] and len(words) >= 3:
        return PARTITIONS if words[2] == "has" and "partitions" in words[3:] else TOPIC
    return _BY_FIRST_WORD.get(words[0], OTHER) if words else OTHER
