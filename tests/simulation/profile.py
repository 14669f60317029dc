"""How large a simulated world is, and what is done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Profile:
    """
    :ivar seconds: virtual time of a run.
    :ivar calm_at: no fault begins after this, and all that last end here.
    :ivar faults: how many are drawn, at least and at most.
    :ivar weights: kind of fault -> how often it is drawn, beside the others.
    :ivar nodes: coordinators.  :ivar consumers: applications, in groups of their own.  :ivar slots: of one pool.
    :ivar tick_s: ZooKeeper's tick; the session timeout is eight of them.
    :ivar poll_intervals_ms: the max_poll_interval_ms of applications, drawn; slots have the longest. Longer
        than the session timeout, as everywhere: else the dead are evicted before they expire, and a lease waited for.
    :ivar handlers: request handlers of each coordinator.
    :ivar starts: the start positions of applications and of the pool, drawn; members of a group need not agree.
    :ivar led: the share of applications' groups in which members may decide the assignment.
    :ivar leader_weights: as `weights`, of the faults of client-side assignment (`leaders.py`), of which
        `leader_faults` are drawn besides: the others stay as they are.
    :ivar regions: the share of applications' groups that are in a consistent region.
    :ivar region_weights: likewise, of the faults of regions (`regions.py`), of which `region_faults` are drawn besides.
    :ivar latency: how long packets take: `even`, or `wide`, as slow as is drawn for each connection (`latency.py`).
    """

    name: str
    weights: Mapping[str, float]
    faults: tuple[int, int]
    seconds: float = 60.0
    calm_at: float = 38.0
    nodes: int = 2
    groups: int = 1
    consumers: int = 2
    slots: int = 2
    topics: int = 3
    partitions: tuple[int, int] = (1, 4)
    servers: int = 3
    tick_s: float = 0.6
    records_per_s: float = 2.0
    preemption: float = 0.02
    sweep_interval_ms: int = 4000
    channel_retention_ms: int = 10_000
    poll_intervals_ms: tuple[int, ...] = (7000, 9000)
    handlers: int = 2
    starts: tuple[str, ...] = ("committed",)
    led: float = 0.0
    leader_weights: Mapping[str, float] = field(default_factory=dict)
    leader_faults: tuple[int, int] = (0, 0)
    assignment_timeout_ms: int = 4000
    regions: float = 0.0
    region_weights: Mapping[str, float] = field(default_factory=dict)
    region_faults: tuple[int, int] = (0, 0)
    latency: str = "even"

    @property
    def session_timeout_ms(self) -> int:
        """What every client asks for, and is granted."""
        return round(8000 * self.tick_s)


EVERYTHING = {
    "expire-session": 2.0,
    "lose-request": 3.0,
    "lose-reply": 4.0,
    "drop-connection": 2.0,
    "slow-connection": 2.0,
    "lose-watches": 2.0,
    "late-watches": 2.0,
    "lag-server": 2.0,
    "cut-server": 1.5,
    "stop-server": 1.5,
    "change-leader": 1.0,
    "zookeeper-away": 0.7,
    "pause-process": 3.0,
    "crash-process": 4.0,
    "second-process": 2.0,
    "stuck-consumer": 1.5,
    "hanging-fetcher": 1.5,
    "consumer-joins": 2.0,
    "consumer-leaves": 2.0,
    "group-comes": 0.7,
    "topic-comes": 1.5,
    "topic-goes": 1.0,
    "topic-made-anew": 1.5,
    "partitions-added": 1.5,
    "owner-removed-by-hand": 0.5,
    "ids-removed-by-hand": 0.5,
    "command-removed-by-hand": 0.5,
    "command-by-hand": 0.5,
    "channel-removed-by-hand": 0.4,
    "channel-scribbled-by-hand": 0.4,
    "state-scribbled-by-hand": 0.4,
    "coordinator-removed-by-hand": 0.5,
    "segments-scribbled-by-hand": 0.3,
    "failing-log": 1.0,
    "slow-log": 1.0,
    "full-disk": 1.0,
    "query-restarts": 1.5,
    "query-from-old-checkpoint": 1.0,
    "second-query-run": 1.0,
    "query-comes": 1.0,
    "group-paused": 0.7,
    "turn-requested": 0.7,
}

_CALM = ("consumer-joins", "consumer-leaves", "topic-comes", "partitions-added", "query-restarts", "crash-process")
_PAUSES = {
    "pause-process": 8.0,
    "expire-session": 3.0,
    "cut-server": 2.0,
    "lag-server": 2.0,
    "stuck-consumer": 3.0,
    "hanging-fetcher": 3.0,
    "second-process": 2.0,
    "lose-reply": 3.0,
    "lose-watches": 2.0,
    "slow-connection": 3.0,
}

LEADERS = {
    "leader-hangs": 3.0,
    "leader-raises": 2.0,
    "leader-lies": 3.0,
    "leader-dies": 3.0,
    "deaf-leader": 1.5,
    "coordinator-dies-asking": 3.0,
    "resubscribes": 3.0,
    "topic-while-asked": 3.0,
    "joins-while-asked": 2.0,
    "group-changes-side": 1.5,
    "ask-scribbled-by-hand": 1.0,
    "sync-removed-by-hand": 0.5,
    "state-removed-by-hand": 0.4,
    "sync-requested-by-hand": 0.5,
}
_LED = 0.5
_CALM_LEADERS = ("resubscribes", "topic-while-asked", "joins-while-asked", "group-changes-side", "leader-dies")
_PAUSING_LEADERS = {
    "leader-hangs": 4.0,
    "leader-raises": 2.0,
    "leader-dies": 2.0,
    "deaf-leader": 2.0,
    "resubscribes": 1.0,
    "joins-while-asked": 2.0,
    "topic-while-asked": 2.0,
}

REGIONS = {
    "checkpoint-wanted": 3.0,
    "reset-wanted": 2.0,
    "member-dies-in-region": 4.0,
    "coordinator-dies-in-region": 3.0,
    "contribution-is-late": 1.5,
    "contribution-is-lost": 2.5,
    "hangs-draining": 1.0,
    "change-while-draining": 3.0,
    "region-scribbled-by-hand": 2.5,
}
_REGIONS = 0.15
_CALM_REGIONS = ("checkpoint-wanted", "reset-wanted", "member-dies-in-region", "change-while-draining")
_PAUSING_REGIONS = {
    "checkpoint-wanted": 2.0,
    "member-dies-in-region": 2.0,
    "contribution-is-late": 2.0,
    "contribution-is-lost": 3.0,
    "hangs-draining": 2.0,
    "change-while-draining": 2.0,
}

CALM = Profile(
    "calm",
    {kind: 1.0 for kind in _CALM},
    (0, 4),
    preemption=0.01,
    led=_LED,
    leader_weights=dict.fromkeys(_CALM_LEADERS, 1.0),
    leader_faults=(0, 3),
    regions=_REGIONS,
    region_weights=dict.fromkeys(_CALM_REGIONS, 1.0),
    region_faults=(0, 3),
)
_STARTS = ("committed", "end")
STORM = Profile(
    "storm",
    EVERYTHING,
    (10, 30),
    preemption=0.05,
    starts=_STARTS,
    led=_LED,
    leader_weights=LEADERS,
    leader_faults=(2, 8),
    regions=_REGIONS,
    region_weights=REGIONS,
    region_faults=(4, 10),
)
PAUSES = Profile(
    "pauses",
    _PAUSES,
    (4, 14),
    starts=_STARTS,
    led=_LED,
    leader_weights=_PAUSING_LEADERS,
    leader_faults=(2, 6),
    regions=_REGIONS,
    region_weights=_PAUSING_REGIONS,
    region_faults=(3, 8),
)
SCALE = replace(
    STORM, name="scale", groups=2, consumers=5, slots=2, topics=4, partitions=(8, 16), faults=(6, 16), records_per_s=0.2
)

LED = replace(
    STORM,
    name="led",
    slots=0,
    consumers=3,
    groups=2,
    led=1.0,
    leader_faults=(8, 16),
    faults=(3, 12),
    seconds=90.0,
)
"""Nothing but groups that a member assigns, and more of what may happen to them. So long, since a group whose state was
lost has 40 s more."""

REGIONAL = replace(
    STORM,
    name="regional",
    slots=0,
    consumers=4,
    groups=2,
    regions=1.0,
    region_faults=(8, 18),
    faults=(3, 12),
    seconds=90.0,
)
"""Nothing but groups that are in one consistent region, and more of what may happen to it."""

PROFILES = {profile.name: profile for profile in (CALM, STORM, PAUSES, SCALE, LED, REGIONAL)}

MIXTURE = ("storm", "pauses", "calm", "storm", "pauses", "storm", "pauses", "storm", "pauses", "scale")
"""What many seeds run, one after the other: a run of the large world takes as long as several of the others."""


def profile_of(seed: int) -> Profile:
    """What a seed runs when no profile is named."""
    return PROFILES[MIXTURE[seed % len(MIXTURE)]]
