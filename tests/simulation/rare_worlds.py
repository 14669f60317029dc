"""Worlds for mutations that no stock profile finds within 300 seeds, one each."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation import profile
from tests.simulation.profile import LEADERS, SEALING

SEEDS = 400
"""So many at most, the one that found it when this was written first."""

SHORT = replace(
    profile.SHORT,
    faults=(6, 12),
    seconds=26.0,
    calm_at=14.0,
    channel_retention_ms=8000,
    liars=0.0,
    kinds=None,
    beside=(),
)
DEAF = replace(
    SHORT,
    name="deaf",
    weights={"unheard-command": 3.0, "consumer-joins": 2.0, "consumer-leaves": 1.0},
    poll_intervals_ms=(2000,),
    seconds=24.0,
)
LED = replace(
    SHORT,
    name="led world",
    seconds=40.0,
    calm_at=18.0,
    poll_intervals_ms=(6000,),
    records_per_s=2.0,
    led=1.0,
    leader_faults=(6, 12),
    assignment_timeout_ms=3000,
)
DEAF_LEADERS = replace(
    LED,
    name="deaf leaders",
    leader_weights={"deaf-leader": LEADERS["deaf-leader"]},
    weights={"topic-comes": 3.0, "topic-goes": 1.0},
)
BOUNCED_LEADERS = replace(
    LED,
    name="bounced leaders",
    weights={"expire-session": 4.0, "topic-comes": 3.0, "topic-goes": 2.0},
    faults=(8, 16),
    groups=4,
    consumers=4,
)
CUT_BEHIND = replace(
    SHORT,
    name="cut behind",
    weights={"silence-then-cut": 1.0},
    faults=(8, 14),
    seconds=45.0,
    calm_at=34.0,
    tick_s=0.9,
    poll_intervals_ms=(60_000,),
    channel_retention_ms=0,
)
EPOCH_REMOVED = replace(
    SHORT,
    name="epoch removed",
    weights={"epoch-removed-by-hand": 2.0, "consumer-joins": 1.0},
    faults=(8, 16),
    seconds=22.0,
)
REPLACED_QUERIES = replace(
    SEALING,
    name="replaced queries",
    weights={"query-comes": 3.0, "registration-reply": 6.0, "query-restarts": 2.0},
    faults=(10, 16),
    together=(),
    beside=(),
)
WORLDS = {
    "a new epoch znode stays at version 0": (EPOCH_REMOVED, 0),
    "a lease counts from the renewal before only": (CUT_BEHIND, 156),
    "a lease is renewed without a look at the fence": (DEAF, 58),
    "a leader looks at topics only when a watch tells": (DEAF_LEADERS, 7),
    "a bounced static leader watches no topics": (BOUNCED_LEADERS, 29),
    "a registration without a reply replaces a newer run": (REPLACED_QUERIES, 0),
}
"""Mutation -> the world, and the first seed that found it."""
