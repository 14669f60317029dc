"""What kind of change asked for a rebalance: few words, for metrics, from the sentences that people read. Pure."""

from __future__ import annotations

ELECTED, JOINED, LEFT, CHANGED = "elected", "joined", "left", "changed"
TOPIC, PARTITIONS, SWEEP, ASKED, OTHER = "topic", "partitions", "sweep", "asked", "other"
TRIGGERS = (ELECTED, JOINED, LEFT, CHANGED, TOPIC, PARTITIONS, SWEEP, ASKED, OTHER)
_BY_FIRST_WORD = {"coordinator": ELECTED, **{kind: kind for kind in (JOINED, LEFT, CHANGED, SWEEP, ASKED)}}


def trigger_kind(trigger: str) -> str:
    """One of `TRIGGERS`: the first of the changes that a trigger names, as the listeners word them."""
    words = trigger.partition(";")[0].split()
    if words[:1] == ["topic"] and len(words) >= 3:
        return PARTITIONS if words[2] == "has" else TOPIC
    return _BY_FIRST_WORD.get(words[0], OTHER) if words else OTHER
