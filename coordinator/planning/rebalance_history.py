"""A turn's record in a group's history, for people: one per generation. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..zk.values import first_names
from ..zk.znodes.group_state import EMPTY, STABLE, Ask, Evicted, GroupState, Rebalance
from ..zk.znodes.json_fields import shortened
from .membership import End
from .snapshot import Snapshot

LONGEST_TRIGGER = 1000
"""Bytes of a trigger: many members may have left, or joined, in one turn."""
LONGEST_WHY = 300
MOST_EVICTED = 20


def history_of(
    snapshot: Snapshot,
    state: GroupState,
    is_new: bool,
    stopping: bool,
    trigger: str,
    gone: Iterable[str] = (),
    ends: Sequence[End] = (),
) -> Rebalance | None:
    """The record of the generation of `state`: new, or with the times known now; None to leave it.

    :param gone: members of the target before this turn whose incarnation in it is over.
    :param ends: of this turn.
    """
    before = snapshot.state
    finished_ms = snapshot.coordinator.now_ms if state.state in (STABLE, EMPTY) else None
    standing_since_ms, silent_since_ms = _standing_since(snapshot, gone, stopping)
    if is_new:
        ask = adopted_ask(snapshot, state)
        joined, left = sorted(_lives(state) - _lives(before)), sorted(_lives(before) - _lives(state))
        return Rebalance(
            generation=state.generation,
            epoch=snapshot.coordinator.epoch,
            trigger=shortened(trigger or changes_of(joined, left) or "topics or owners changed", LONGEST_TRIGGER),
            started_ms=snapshot.coordinator.now_ms,
            joined=tuple(joined),
            left=tuple(left),
            moved=_moved(before, state),
            stopped_ms=None if stopping else snapshot.coordinator.now_ms,
            finished_ms=finished_ms,
            standing_since_ms=standing_since_ms,
            silent_since_ms=silent_since_ms,
            assignment_ms=max(0, snapshot.coordinator.now_ms - ask.since_ms) if ask is not None else None,
            attempts=ask.attempt if ask is not None else None,
            evicted=_evicted(state, left, ends),
        )
    record = snapshot.history.last
    if record is None or record.generation != state.generation:
        return None
    if record.finished_ms is not None:
        return _with_return(snapshot, state, record)
    stopped_ms = record.stopped_ms or (None if stopping else snapshot.coordinator.now_ms)
    updated = replace(record, stopped_ms=stopped_ms, finished_ms=finished_ms, standing_since_ms=standing_since_ms)
    if updated == record:
        return None  # another member's last sign is written with the next of these
    since_ms = min((ms for ms in (standing_since_ms, silent_since_ms) if ms is not None), default=None)
    stood_ms = (
        max(0, snapshot.coordinator.now_ms - since_ms) if since_ms is not None and state.state == STABLE else None
    )
    return replace(updated, silent_since_ms=silent_since_ms, standstill_ms=stood_ms)


def _standing_since(snapshot: Snapshot, gone: Iterable[str], are_stopping: bool) -> tuple[int | None, int | None]:
    """`standing_since_ms` and `silent_since_ms` of the rebalance that a turn begins or continues.

    A rebalance that replaces an unfinished one continues its standstill: the partitions still wait.
    """
    record, now_ms = snapshot.history.last, snapshot.coordinator.now_ms
    standing_ms, silent_ms = (
        (record.standing_since_ms, record.silent_since_ms)
        if record is not None and record.finished_ms is None
        else (None, None)
    )
    silences = [snapshot.history.silences[name] for name in gone if name in snapshot.history.silences] + [
        *snapshot.history.returned.values()
    ]
    since = [max(0, now_ms - silence) for silence in silences] + ([silent_ms] if silent_ms is not None else [])
    return standing_ms if standing_ms is not None or not are_stopping else now_ms, min(since, default=None)


def _with_return(snapshot: Snapshot, state: GroupState, record: Rebalance) -> Rebalance | None:
    """A static member that comes back begins no generation: a longer standstill becomes that of the last one."""
    longest_ms = max(snapshot.history.returned.values(), default=0)
    if state.state != STABLE or longest_ms <= (record.standstill_ms or 0):
        return None
    return replace(record, silent_since_ms=max(0, snapshot.coordinator.now_ms - longest_ms), standstill_ms=longest_ms)


def adopted_ask(snapshot: Snapshot, state: GroupState) -> Ask | None:
    """The ask whose answer becomes the target with `state`; None without one."""
    before = snapshot.state.client.ask if snapshot.state.client is not None else ""
    name = state.client.ask if state.client is not None else ""
    return next((view.ask for view in snapshot.requests.asks if name not in ("", before) and view.name == name), None)


def replaced_of(snapshot: Snapshot, generation: int) -> Rebalance | None:
    """The record of the unfinished rebalance that the new `generation` replaces."""
    record = snapshot.history.last
    if record is None or record.finished_ms is not None or record.generation >= generation:
        return None
    return replace(record, replaced_by=generation)


def in_order(records: Sequence[Rebalance]) -> list[Rebalance]:
    """The oldest first; a record that an older release left unfinished names its successor."""
    ordered = sorted(records, key=lambda record: record.generation)
    following: list[int | None] = [record.generation for record in ordered]
    return [
        replace(record, replaced_by=record.replaced_by or (after if record.finished_ms is None else None))
        for record, after in zip(ordered, [*following[1:], None][: len(ordered)], strict=True)
    ]


def _evicted(state: GroupState, left: Sequence[str], ends: Sequence[End]) -> tuple[Evicted, ...]:
    """Why members that left were evicted: in this turn, or since the last generation, by their marks."""
    found: dict[str, tuple[str, int | None]] = {}
    for mark in state.marks:
        if mark.since_ms is not None:  # others may be of members that have left
            found[f"{mark.consumer}/{mark.incarnation[:8]}"] = mark.reason, mark.since_ms
    for end in ends:
        if end.evicted and end.view.channel is not None:
            found[f"{end.view.consumer}/{end.view.channel.incarnation[:8]}"] = end.reason, end.since_ms
    known = [(member, *found[member]) for member in left if member in found]
    return tuple(Evicted(member, shortened(why, LONGEST_WHY), since) for member, why, since in known[:MOST_EVICTED])


def changes_of(joined: Sequence[str], left: Sequence[str], changed: Sequence[str] = (), most: int = sys.maxsize) -> str:
    """The trigger that these members are, in words; of each kind the first `most`."""
    kinds = (("joined", joined), ("left", left), ("changed", changed))
    return "; ".join(f"{what} {first_names(names, most)}" for what, names in kinds if names)


def changes_between(before: Mapping[str, tuple[object, object]], after: Mapping[str, tuple[object, object]]) -> str:
    """The trigger that members differ: of each name its life, and what else it has; empty without a difference."""
    joined = sorted(name for name, (life, _) in after.items() if name not in before or before[name][0] != life)
    left = sorted(before.keys() - after.keys())
    changed = sorted(name for name in after.keys() - joined if after[name] != before[name])
    return changes_of(joined, left, changed, 3)


def _lives(state: GroupState) -> set[str]:
    return {f"{name}/{target.incarnation[:8]}" for name, target in state.target.items()}


def _moved(before: GroupState, after: GroupState) -> int:
    """Partitions that move to another incarnation."""
    old = {part: (name, target.incarnation) for name, target in before.target.items() for part in target.partitions}
    new = {part: (name, target.incarnation) for name, target in after.target.items() for part in target.partitions}
    return sum(1 for part, holder in new.items() if part in old and old[part] != holder)


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
