"""Ways to break the product, each of which the simulation must find.

A mutation patches the product while a run lasts, and re-opens one hole: the twelve of the draft, and those that the
design's fences, and the rules of client-side assignment and of consistent regions close. It names what the checker is
to say, and the stock profiles in which the hole shows soonest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.simulation import fences, holes
from tests.simulation.assignment_rules import HALF_TAKEN
from tests.simulation.edits import parsed
from tests.simulation.mutation import Mutation, of
from tests.simulation.slips_remembering import REMEMBERING

_OVERLOOKED = of("L1", "L2", "L5", "S2")

_HOLES = (
    Mutation("watches are set after the read", "hole 2", holes.WATCH_AFTER_READ, _OVERLOOKED, ("watchful",)),
    Mutation("the topics of joiners are never added", "hole 8", holes.JOINERS_FORGOTTEN, _OVERLOOKED, ("watchful",)),
    Mutation(
        "a command is removed before it is obeyed",
        "hole 11, Consumer's life 3",
        holes.REMOVED_FIRST,
        of("S6"),
        ("aimed",),
    ),
)

_FENCES = (
    Mutation(
        "poll returns records under a lapsed lease",
        "Consumer's life 8",
        fences.RETURNED_LATE,
        of("S1"),
        ("pauses", "aimed"),
    ),
    Mutation("an offset goes past dropped records", "Seal 2", fences.PAST_DROPPED, of("S5"), ("sealing",)),
    Mutation(
        "a claim takes an owner that is in the way",
        "Life 4",
        fences.NO_OWNERS_IN_THE_WAY,
        of("S1"),
        ("aimed", "storm"),
    ),
    Mutation("a topic made anew is taken for the old one", "hole 9", holes.ONE_TOPIC_FOR_EVER, _OVERLOOKED, ("aimed",)),
)

HIDING = {
    "a claim goes over owners": fences.NO_OWNERS_IN_THE_WAY,
    "commits are resent": fences.RESENT,
    "contributions are late": fences.LATE_CONTRIBUTIONS,
    "a touch is late": fences.TOUCHES_LATE,
    "looks are rare": fences.LOOKS_RARELY,
    "losses are silent": fences.SILENT_LOSSES,
    "owners are not asked": fences.OWNERS_NOT_ASKED,
    "steps are small": fences.SMALL_STEPS,
    "take-overs are small": fences.SMALL_TAKE_OVERS,
    "there is no sweep": fences.NO_SWEEP,
    "young files go too": fences.YOUNG_FILES_TOO,
}
"""What would hide a mutation, and is no edit: for `also` of the text files."""


def _edits(name: str) -> tuple[Mutation, ...]:
    return parsed((Path(__file__).parent / f"{name}.txt").read_text(), HIDING)


EDITS = (
    "holes", "fences", "election", "rebalance", "eviction", "life", "lies", "seals", "gaps", "assignment", "regions",
)  # fmt: skip
"""The text files, by area."""

HALF = Mutation("half an answer is taken", "Adopt 1", HALF_TAKEN, of("S9"), ("led", "watchful", "aimed"))

_ALL = (
    *_HOLES, *_FENCES, *(each for name in EDITS for each in _edits(name)), *REMEMBERING, HALF
)  # fmt: skip

MUTATIONS: Mapping[str, Mutation] = {each.name: each for each in _ALL}
