"""Ways to break the product, each of which the simulation must find.

A mutation patches the product while a run lasts, and re-opens one hole: the twelve of the draft, and those that the
design's fences, and the rules of client-side assignment and of consistent regions close. It names what the checker is
to say, and the profile in which the hole shows soonest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.simulation import fences, holes
from tests.simulation.assignment_rules import RULES
from tests.simulation.fences import NO_SWEEP, RESENT, SMALL_STEPS
from tests.simulation.mutation import Mutation
from tests.simulation.profile import PAUSES, Profile
from tests.simulation.region_rules import REGION_RULES

_FOR_LONG = (60_000,)
"""A max_poll_interval_ms with which no turn comes by itself to heal what was overlooked."""

_SHORT = Profile(
    "short",
    {},
    (6, 12),
    seconds=26.0,
    calm_at=14.0,
    consumers=3,
    slots=0,
    partitions=(1, 4),
    tick_s=0.5,
    poll_intervals_ms=(3000, 5000),
    records_per_s=4.0,
    sweep_interval_ms=1000,
    channel_retention_ms=8000,
)
_CHANGES = replace(
    _SHORT,
    name="changes",
    weights={"many-topics": 2.0, "slow-nodes": 3.0},
    faults=(3, 6),
    groups=4,
    consumers=4,
    poll_intervals_ms=_FOR_LONG,
    seconds=30.0,
)
_GROWING = replace(
    _CHANGES,
    name="growing",
    weights={"one-topic-again": 3.0, "slow-nodes": 3.0},
    faults=(4, 8),
    groups=2,
    consumers=3,
)
_TOPICS = replace(
    _SHORT,
    name="topics",
    weights={"topic-comes": 2.0, "partitions-added": 2.0, "consumer-joins": 1.0},
    faults=(4, 8),
    poll_intervals_ms=_FOR_LONG,
    seconds=30.0,
)
_STUCK = replace(
    _SHORT,
    name="stuck",
    weights={"stuck-consumer": 2.0, "consumer-joins": 2.0, "consumer-leaves": 1.0},
    groups=2,
    consumers=4,
    handlers=1,
    poll_intervals_ms=(12_000,),
    calm_at=20.0,
    seconds=40.0,
)
_DEPOSED = replace(
    _SHORT,
    name="deposed",
    weights={"unheard-election": 3.0, "consumer-joins": 1.0, "consumer-leaves": 2.0},
    faults=(4, 8),
    seconds=22.0,
)
_RESTARTS = replace(
    _SHORT,
    name="restarts",
    weights={"second-process": 3.0, "crash-process": 1.0, "many-members": 2.0, "slow-nodes": 4.0},
    faults=(8, 16),
    seconds=22.0,
)
_TAKEN_OVER = replace(
    _SHORT, name="taken over", weights={"second-process": 1.0}, faults=(2, 5), poll_intervals_ms=_FOR_LONG, seconds=30.0
)
_PAUSED = replace(
    _SHORT,
    name="paused",
    weights={"stop-then-silence": 3.0, "consumer-joins": 3.0, "consumer-leaves": 1.0, "slow-nodes": 2.0},
    faults=(8, 16),
    seconds=22.0,
)
_DEAF = replace(
    _SHORT,
    name="deaf",
    weights={"unheard-command": 3.0, "consumer-joins": 2.0, "consumer-leaves": 1.0},
    faults=(6, 12),
    poll_intervals_ms=(2000,),
    seconds=24.0,
)
_CALLED_BACK = replace(
    _DEAF, name="called back", weights={**_DEAF.weights, "eviction-then-election": 2.0}, faults=(8, 16)
)
_LEFT = replace(
    _SHORT,
    name="left",
    weights={"consumer-leaves": 1.0},
    faults=(1, 2),
    calm_at=8.0,
    seconds=30.0,
    tick_s=0.25,
    channel_retention_ms=4000,
)
_LATE = replace(
    _SHORT,
    name="late",
    weights={"late-commit": 5.0, "many-members": 3.0, "partitions-added": 1.0, "slow-nodes": 1.0},
    faults=(12, 24),
    seconds=22.0,
)
_CLAIMS = replace(
    _SHORT,
    name="claims",
    weights={"many-members": 4.0, "pause-between-reads": 4.0, "slow-nodes": 3.0, "slow-member": 2.0},
    faults=(16, 26),
    seconds=22.0,
)
_PIECES = replace(
    _SHORT,
    name="pieces",
    weights={"many-members": 4.0, "slow-member": 4.0},
    faults=(8, 16),
    partitions=(3, 8),
    seconds=22.0,
)
_CUT = replace(
    _SHORT,
    name="cut",
    weights={"cut-server": 1.0},
    faults=(2, 4),
    poll_intervals_ms=_FOR_LONG,
    records_per_s=0.0,
    seconds=22.0,
)
_CUT_BEHIND = replace(_SHORT, name="cut behind", weights={"silence-then-cut": 1.0}, faults=(4, 8), seconds=22.0)
_SEALS = replace(
    _SHORT,
    name="seals",
    weights={"lose-reply": 4.0, "full-disk": 3.0, "consumer-leaves": 2.0, "drop-connection": 2.0},
    faults=(8, 16),
    consumers=0,
    slots=2,
    seconds=22.0,
)
_SEALED = replace(_SEALS, name="sealed", weights={"seal-then-away": 1.0}, faults=(1, 2), calm_at=28.0, seconds=40.0)
_QUERIES = replace(
    _SHORT,
    name="queries",
    weights={"query-comes": 3.0, "query-restarts": 2.0, "query-from-old-checkpoint": 1.0, "slow-nodes": 2.0},
    faults=(8, 14),
    consumers=0,
    slots=2,
    seconds=22.0,
)
_BEGINS = replace(
    _SHORT,
    name="begins",
    weights={"start-then-crash": 3.0, "consumer-joins": 2.0, "topic-comes": 1.0, "partitions-added": 1.0},
    faults=(8, 16),
    seconds=30.0,
    poll_intervals_ms=_FOR_LONG,
    starts=("end",),
)
_MADE_ANEW = replace(_SHORT, name="made anew", weights={"topic-made-anew": 1.0}, faults=(2, 4), seconds=30.0)


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


_OVERLOOKED = _of("L1", "L2", "S2")

_HOLES = (
    Mutation("a change during a turn is lost", 1, holes.CHANGE_LOST, _OVERLOOKED, _CHANGES, 3, NO_SWEEP),
    Mutation("watches are set after the read", 2, holes.WATCH_AFTER_READ, _OVERLOOKED, _GROWING, 0, NO_SWEEP),
    Mutation("a handler waits for acknowledgements", 3, holes.HANDLER_WAITS, _of("L1", "L3"), _STUCK, 2),
    Mutation("a coordinator writes without looking at the epoch", 4, holes.NO_EPOCH, _of("S4"), _DEPOSED, 0),
    Mutation("stale commands are applied", 5, holes.STALE_APPLIED, _of("S1", "S3", "S6"), _RESTARTS, 6),
    Mutation(
        "stop and start go out together", 6, holes.BACK_TO_BACK, _of("S1"), _PAUSED, 0, fences.NO_OWNERS_IN_THE_WAY
    ),
    Mutation("nobody waits for the lease of the evicted", 7, holes.NO_MARKS, _of("S1"), _DEAF, 0),
    Mutation("the topics of joiners are never added", 8, holes.JOINERS_FORGOTTEN, _OVERLOOKED, _TOPICS, 7, NO_SWEEP),
    Mutation("new partitions are looked for among the children", 9, holes.CHILDREN_ONLY, _OVERLOOKED, _TOPICS, 0),
    Mutation("a member is its name", 10, holes.BY_NAME, _OVERLOOKED, _TAKEN_OVER, 0, NO_SWEEP),
    Mutation("a command is removed before it is obeyed", 11, holes.REMOVED_FIRST, _of("S6"), _PAUSED, 0),
    Mutation("a discarded command looks applied", 11, holes.DISCARDED_AS_APPLIED, _of("S3", "S6"), _RESTARTS, 6),
    Mutation("the channels of the dead are never collected", 12, holes.NEVER_COLLECTED, _of("S7"), _LEFT, 0),
)

_FENCES = (
    Mutation("a multi has no consumer's fence", 0, fences.UNFENCED, _of("S1", "S3", "S5", "S6"), _RESTARTS, 2),
    Mutation(
        "a multi has no state's version",
        0,
        fences.NO_STATE_VERSION,
        _of("S1", "S2", "S3", "S6", "L1", "L2"),
        _LATE,
        104,
        RESENT,
    ),
    Mutation(
        "a channel's data is read before its commands",
        0,
        fences.DATA_FIRST,
        _of("S1"),
        _CLAIMS,
        44,
        (*fences.OWNERS_NOT_ASKED, *fences.NO_OWNERS_IN_THE_WAY),
    ),
    Mutation("the owners of the evicted stay", 0, fences.OWNERS_STAY, _of("S7", "L1", "L3"), _DEAF, 0),
    Mutation(
        "a large command is acknowledged without a look at it",
        0,
        fences.IN_PIECES,
        _of("S1", "S6"),
        _PIECES,
        22,
        SMALL_STEPS,
    ),
    Mutation("a lease is renewed by a read", 0, fences.RENEWED_BY_READ, _of("S1"), _CUT, 10),
    Mutation(
        "a lease is renewed without a look at the fence",
        0,
        fences.RENEWED_BLINDLY,
        _of("S1"),
        _DEAF,
        58,
        (*fences.LOOKS_RARELY, *fences.TOUCHES_LATE),
    ),
    Mutation(
        "a lease counts from a sync that the leader has not heard of",
        0,
        fences.COUNTED_AT_ONCE,
        _of("S1"),
        _CUT_BEHIND,
        51,
    ),
    Mutation("a consumer fetches under a lapsed lease", 0, fences.LEASE_IGNORED, _of("S1"), PAUSES, 0),
    Mutation("poll returns records under a lapsed lease", 0, fences.RETURNED_LATE, _of("S1"), PAUSES, 7),
    Mutation("a commit passes what poll has not returned", 0, fences.FETCHED_COMMITTED, _of("S5"), PAUSES, 0),
    Mutation("a file is deleted after a lost reply", 0, fences.FILE_REMOVED, _of("S5"), _SEALED, 0),
    Mutation("an eviction mark dies with its coordinator", 0, fences.MARKS_DIE, _of("S1"), _CALLED_BACK, 0),
    Mutation("segments are collected while a query registers", 0, fences.COLLECTED_UNCHECKED, _of("S5"), _QUERIES, 33),
    Mutation(
        "stale commands are not withdrawn",
        0,
        fences.NOT_WITHDRAWN,
        _of("S1", "S6", "S7", "L1", "L3", "L4"),
        _RESTARTS,
        0,
    ),
    Mutation("an offset goes past dropped records", 0, fences.PAST_DROPPED, _of("S5"), _SEALS, 0),
    Mutation("start positions are resolved by each owner anew", 0, fences.RESOLVED_ANEW, _of("S5"), _BEGINS, 9),
    Mutation("fetching begins before its start is recorded", 0, fences.NOT_RECORDED, _of("S5"), _BEGINS, 0),
    Mutation("what comes later is begun at its end", 0, fences.LATER_AT_THE_END, _of("S5"), _BEGINS, 0),
    Mutation("a topic made anew is taken for the old one", 9, holes.ONE_TOPIC_FOR_EVER, _OVERLOOKED, _MADE_ANEW, 0),
)

MUTATIONS: Mapping[str, Mutation] = {mutation.name: mutation for mutation in (*_HOLES, *_FENCES, *RULES, *REGION_RULES)}
