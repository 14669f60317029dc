"""What kind of change asked for a rebalance: few words, for metrics, from the sentences that people read. Pure."""

from __future__ import annotations

ELECTED, JOINED, LEFT, CHANGED = "elected", "joined", "left", "changed"
TOPIC, PARTITIONS, SWEEP, ASKED, OTHER = "topic", "partitions", "sweep", "asked", "other"
TRIGGERS = (ELECTED, JOINED, LEFT, CHANGED, TOPIC, PARTITIONS, SWEEP, ASKED, OTHER)
_BY_FIRST_WORD = {"coordinator": ELECTED, **{kind: kind for kind in (JOINED, LEFT, CHANGED, SWEEP, ASKED)}}


def trigger_kind(trigger: str) -> str:
    """One of `TRIGGERS`: the first change that a trigger names, as the listeners word them.

    A group that was only just found (`members read; joined c1`) has not changed by that.
    """
    kinds = (_kind(reason.split()) for reason in trigger.split(";"))
    return next((kind for kind in kinds if kind != OTHER), OTHER)


def _kind(words: list[str]) -> str:
    if words[:1] == ["topic"] and len(words) >= 3:
        return PARTITIONS if words[2] == "has" else TOPIC
    return _BY_FIRST_WORD.get(words[0], OTHER) if words else OTHER
