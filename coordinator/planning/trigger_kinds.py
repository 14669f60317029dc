"""The kind of a rebalance's trigger: few values, for metrics, from the sentences for people. Pure."""

from __future__ import annotations

from ..zk.znodes.group_state import Rebalance

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
