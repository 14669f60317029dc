"""S8: assignors are pure, deterministic, blind to input order."""

from __future__ import annotations

from tests.support.made_story import StoryHistory
from tests.support.spoilt import breaks, holds


def computed(history: StoryHistory, group: str, strategy: str, text: object, share: str) -> None:
    target = {"s0": {"s0-0": {"flights": share}}}
    history.event("assignment", "b#1", group=group, strategy=strategy, input=text, target=target)


@breaks(
    "S8", "strategy range gave s0 another share in group h at", at="joined", witness="b#1 assignment, b#1 assignment"
)
def test_different_target_for_the_same_input_in_any_group_breaks_it(history: StoryHistory) -> None:
    computed(history, "g", "range", "the same", "0-1")
    history.pass_(3)
    computed(history, "h", "range", "the same", "0")


@breaks("S8", at="joined")
def test_non_text_inputs_are_equal_in_any_key_order(history: StoryHistory) -> None:
    computed(history, "g", "range", {"members": ["s0"], "topics": {"a": 1, "b": 2}}, "0-1")
    computed(history, "g", "range", {"topics": {"b": 2, "a": 1}, "members": ["s0"]}, "0")


@holds(at="joined", goes_on=True)
def test_other_inputs_and_other_strategies_may_give_other_targets(history: StoryHistory) -> None:
    computed(history, "g", "range", "one", "0-1")
    computed(history, "g", "range", "another", "0")
    computed(history, "g", "sticky", "one", "0")
    computed(history, "g", "range", "one", "0-1")
