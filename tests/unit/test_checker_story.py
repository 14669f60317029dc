"""The story in which everything holds."""

from __future__ import annotations

from drills.checker import HELD, check
from tests.support.made_story import story


def test_every_invariant_holds_in_a_history_without_faults() -> None:
    verdicts = check(story())

    assert {name: verdict.outcome for name, verdict in verdicts.verdicts.items()} == dict.fromkeys(
        ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "L1", "L2", "L3", "L4", "L5", "L6"),
        HELD,
    ), verdicts.text()
