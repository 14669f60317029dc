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
from tests.simulation.fences import RESENT
from tests.simulation.mutation import Mutation, of
from tests.simulation.slips_remembering import REMEMBERING

_OVERLOOKED = of("L1", "L2", "L5", "S2")

_HOLES = (
    Mutation("a change during a turn is lost", "hole 1", holes.CHANGE_LOST, _OVERLOOKED, ("watchful",)),
    Mutation("watches are set after the read", "hole 2", holes.WATCH_AFTER_READ, _OVERLOOKED, ("watchful",)),
    Mutation("a handler waits for acknowledgements", "hole 3", holes.HANDLER_WAITS, of("L1", "L3"), ("aimed",)),
    Mutation(
        "a coordinator writes without looking at the epoch", "hole 4, Election 7", holes.NO_EPOCH, of("S4"), ("aimed",)
    ),
    Mutation(
        "stale commands are applied",
        "hole 5, Consumer's life 2",
        holes.STALE_APPLIED,
        of("S1", "S3", "S6"),
        ("aimed", "large"),
    ),
    Mutation(
        "stop and start go out together",
        "hole 6, Rebalance 5",
        holes.BACK_TO_BACK,
        of("S1"),
        ("aimed", "large"),
        fences.NO_OWNERS_IN_THE_WAY,
        "a claim is refused by an owner in the way",
    ),
    Mutation("nobody waits for the lease of the evicted", "hole 7, Eviction 2", holes.NO_MARKS, of("S1"), ("aimed",)),
    Mutation("the topics of joiners are never added", "hole 8", holes.JOINERS_FORGOTTEN, _OVERLOOKED, ("watchful",)),
    Mutation(
        "new partitions are looked for among the children",
        "hole 9",
        holes.CHILDREN_ONLY,
        _OVERLOOKED,
        ("watchful", "aimed"),
    ),
    Mutation("a member is its name", "hole 10", holes.BY_NAME, _OVERLOOKED, ("watchful",)),
    Mutation(
        "a command is removed before it is obeyed",
        "hole 11, Consumer's life 3",
        holes.REMOVED_FIRST,
        of("S6"),
        ("aimed",),
    ),
    Mutation(
        "a discarded command looks applied",
        "hole 11, Consumer's life 2",
        holes.DISCARDED_AS_APPLIED,
        of("S3", "S6"),
        ("aimed", "large"),
    ),
    Mutation(
        "the channels of the dead are never collected", "hole 12", holes.NEVER_COLLECTED, of("S7"), ("calm", "storm")
    ),
)

_FENCES = (
    Mutation(
        "a multi has no consumer's fence",
        "Consumer's life 6",
        fences.UNFENCED,
        of("S1", "S3", "S5", "S6"),
        ("aimed", "sealing"),
    ),
    Mutation(
        "a multi has no state's version",
        "Rebalance 7",
        fences.NO_STATE_VERSION,
        of("S1", "S2", "S3", "S6", "L1", "L2"),
        ("aimed", "large"),
        RESENT,
        "a session applies its commits in order",
    ),
    Mutation(
        "a channel's data is read before its commands",
        "Rebalance 1",
        fences.DATA_FIRST,
        of("S1"),
        ("aimed",),
        (*fences.OWNERS_NOT_ASKED, *fences.NO_OWNERS_IN_THE_WAY),
        "owners are read, and refuse a claim",
    ),
    Mutation("the owners of the evicted stay", "Eviction 2", fences.OWNERS_STAY, of("S7", "L1", "L3"), ("aimed",)),
    Mutation(
        "a large command is acknowledged without a look at it",
        "Consumer's life 5",
        fences.IN_PIECES,
        of("S1", "S6"),
        ("large",),
    ),
    Mutation(
        "a lease is renewed by a read", "Consumer's life 8", fences.RENEWED_BY_READ, of("S1"), ("pauses", "aimed")
    ),
    Mutation(
        "a lease is renewed without a look at the fence",
        "Consumer's life 8",
        fences.RENEWED_BLINDLY,
        of("S1"),
        ("aimed",),
        (*fences.LOOKS_RARELY, *fences.TOUCHES_LATE),
        "every commit looks at the fence",
    ),
    Mutation(
        "a lease counts from a sync that the leader has not heard of",
        "Consumer's life 8",
        fences.COUNTED_AT_ONCE,
        of("S1"),
        ("aimed",),
    ),
    Mutation(
        "a lease counts from the renewal before only",
        "Consumer's life 8",
        fences.COUNTED_ONCE,
        of("S1"),
        ("aimed",),
    ),
    Mutation(
        "a consumer fetches under a lapsed lease", "Consumer's life 8", fences.LEASE_IGNORED, of("S1"), ("aimed",)
    ),
    Mutation(
        "poll returns records under a lapsed lease",
        "Consumer's life 8",
        fences.RETURNED_LATE,
        of("S1"),
        ("pauses", "aimed"),
    ),
    Mutation(
        "a commit passes what poll has not returned",
        "design: Consumer's life",
        fences.FETCHED_COMMITTED,
        of("S5"),
        ("aimed",),
    ),
    Mutation("a file is deleted after a lost reply", "Seal 3", fences.FILE_REMOVED, of("S5"), ("sealing",)),
    Mutation("an eviction mark dies with its coordinator", "Failover 4", fences.MARKS_DIE, of("S1"), ("aimed",)),
    Mutation(
        "segments are collected while a query registers", "Query 4", fences.COLLECTED_UNCHECKED, of("S5"), ("sealing",)
    ),
    Mutation(
        "stale commands are not withdrawn",
        "Rebalance 4",
        fences.NOT_WITHDRAWN,
        of("S1", "S6", "S7", "L1", "L3", "L4"),
        ("aimed",),
    ),
    Mutation("an offset goes past dropped records", "Seal 2", fences.PAST_DROPPED, of("S5"), ("sealing",)),
    Mutation(
        "start positions are resolved by each owner anew",
        "Consumer's life 4",
        fences.RESOLVED_ANEW,
        of("S5"),
        ("aimed", "sealing"),
    ),
    Mutation(
        "fetching begins before its start is recorded", "Consumer's life 4", fences.NOT_RECORDED, of("S5"), ("aimed",)
    ),
    Mutation(
        "what comes later is begun at its end", "Consumer's life 4", fences.LATER_AT_THE_END, of("S5"), ("aimed",)
    ),
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


EDITS = ("election", "rebalance", "eviction", "life", "lies", "seals", "gaps", "assignment", "regions")
"""The text files, by area."""

HALF = Mutation("half an answer is taken", "Adopt 1", HALF_TAKEN, of("S9"), ("led", "watchful", "aimed"))

_ALL = (
    *_HOLES, *_FENCES, *(each for name in EDITS for each in _edits(name)), *REMEMBERING, HALF
)  # fmt: skip

MUTATIONS: Mapping[str, Mutation] = {each.name: each for each in _ALL}
