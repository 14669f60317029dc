"""How large a simulated world is, and what is done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.corpus import Plan, known, load

BESIDE_EVERY, BESIDE_AT = 11, 8
"""Which seeds have the faults of `Profile.beside`: the others tell the story that they told before there were any."""

SCENE_EVERY, SCENE_AT = 5, 3
"""Which seeds have a scene: the others draw what they drew before there were any. (Neither this nor the number of the
aimed scenes has a factor in common with the length of `MIXTURE`, so that each of them comes there, too.)"""


@dataclass(frozen=True, slots=True)
class Beside:
    """Faults that come on top of the others in every eleventh run (`BESIDE_EVERY`), from a stream of their own.

    :ivar weights: as those of a profile.
    :ivar faults: how many, at least and at most.
    """

    stream: str
    weights: Mapping[str, float]
    faults: tuple[int, int]


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
    :ivar channel_retention_ms: how long the channel of one that is gone stays; 0 for the least, two session timeouts.
    :ivar handlers: request handlers of each coordinator.
    :ivar starts: the start positions of applications and of the pool, drawn; members of a group need not agree.
    :ivar led: the share of applications' groups in which members may decide the assignment.
    :ivar leader_weights: as `weights`, of the faults of client-side assignment (`leaders.py`), of which
        `leader_faults` are drawn besides: the others stay as they are.
    :ivar regions: the share of applications' groups that are in a consistent region.
    :ivar region_weights: likewise, of the faults of regions (`regions.py`), of which `region_faults` are drawn besides.
    :ivar liars: the share of runs in which members join that lie (`liars.py`).
    :ivar gaps: the share of runs in which a query may find a gap, or records twice (`gaps.py`); `gap_weights` and
        `gap_faults` likewise.
    :ivar beside: more faults, in some of the runs.
    :ivar kinds: how many kinds of `weights` a run draws its faults from, at least and at most; all without it. Few
        kinds that come often meet where many kinds seldom do (swarm testing, Groce et al. 2012).
    :ivar together: kinds of which two out of three runs with `kinds` draw one tuple, and the others beside it.
    :ivar scenes: worlds that every fifth run takes in turn (`SCENE_EVERY`): the only kinds of its faults, which need
        not be in `weights`, and circumstances that are not drawn.
    :ivar corpus: worlds that reached something new: every other run draws one, and changes it a little.
    :ivar circumstances: name of a field -> its values, of which each run draws one.
    :ivar sweeps: whether anything is read again without a reason: by sweeps of the coordinator, and by whatever else
        looks now and then in case a watch was lost.
    :ivar steps: partitions in one multi of a large command or end; 0 for the product's own numbers.
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
    poll_intervals_ms: tuple[int, ...] = (7500, 9000)
    handlers: int = 2
    starts: tuple[str, ...] = ("committed",)
    led: float = 0.0
    leader_weights: Mapping[str, float] = field(default_factory=dict)
    leader_faults: tuple[int, int] = (0, 0)
    assignment_timeout_ms: int = 4000
    regions: float = 0.0
    region_weights: Mapping[str, float] = field(default_factory=dict)
    region_faults: tuple[int, int] = (0, 0)
    liars: float = 0.0
    gaps: float = 0.0
    gap_weights: Mapping[str, float] = field(default_factory=dict)
    gap_faults: tuple[int, int] = (0, 0)
    beside: tuple[Beside, ...] = ()
    kinds: tuple[int, int] | None = None
    together: tuple[tuple[str, ...], ...] = ()
    scenes: tuple[Plan, ...] = ()
    corpus: tuple[Plan, ...] = ()
    circumstances: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sweeps: bool = True
    steps: int = 0
    latency: str = "even"

    def drawn(self, seed: int) -> Profile:
        """The world of one run: its circumstances, and the kinds of its faults."""
        plan = self.plan(seed)
        fields: dict[str, Any] = {
            name: values[plan.circumstances[name] % len(values)] for name, values in self.circumstances.items()
        }
        if self.kinds is not None:
            fields["weights"] = {kind: self.weights.get(kind, 1.0) for kind in plan.kinds}
        return replace(self, **fields)

    def plan(self, seed: int) -> Plan:
        """What a run draws of the profile: every other one a world of the corpus, mutated."""
        random = Random(f"profile {seed}")
        fresh = Plan(
            {name: random.randrange(len(values)) for name, values in self.circumstances.items()}, self._some(random)
        )
        if self.scenes and seed % SCENE_EVERY == SCENE_AT:
            scene = self.scenes[seed // SCENE_EVERY % len(self.scenes)]
            return Plan({**fresh.circumstances, **scene.circumstances}, scene.kinds)
        if not self.corpus or random.random() < 0.5:
            return fresh
        return random.choice(self.corpus).mutated(random, fresh)

    def _some(self, random: Random) -> tuple[str, ...]:
        if self.kinds is None:
            return ()
        some = list(random.choice(self.together)) if self.together and random.random() < 2 / 3 else []
        others = sorted(self.weights, key=lambda kind: (random.random() ** (1 / self.weights[kind]), kind))
        more = max(0, random.randint(*self.kinds) - len(some))
        return tuple(dict.fromkeys([*some, *others[len(others) - more :]]))

    @property
    def retention_ms(self) -> int:
        """How long the channel of one that is gone stays."""
        return self.channel_retention_ms or 2 * self.session_timeout_ms

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

GAPS = {
    "log-start-moves": 3.0,
    "log-restored": 3.0,
    "later-partition-loses": 3.0,
    "offsets-reset": 6.0,
    "offset-set-by-hand": 1.5,
    "discontinuity-then-end": 5.0,
    "query-dies-at": 2.0,
    "file-replaced": 0.5,
}

HANDS = Beside("hands", {"pause-while-collecting": 2.0, "owners-removed-beside-stop": 3.0}, (1, 4))
LAGGING = Beside("lagging", {"listing-lags": 1.0}, (2, 4))
PAIRS = Beside("pairs", {"reply-then-sync": 2.0, "cooperative-stop-reply": 3.0}, (2, 5))

_LIARS = 0.2
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
    liars=_LIARS,
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
    liars=_LIARS,
    beside=(PAIRS, HANDS),
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
    liars=_LIARS,
    beside=(PAIRS,),
)
SCALE = replace(
    STORM,
    name="scale",
    groups=2,
    consumers=5,
    slots=2,
    topics=4,
    partitions=(8, 16),
    faults=(6, 16),
    records_per_s=0.2,
    circumstances={"partitions": ((8, 16), (8, 16), (8, 16), (60, 100))},
)
"""Tens of partitions, and in every fourth run hundreds."""

SHORT = replace(
    STORM,
    name="short",
    seconds=30.0,
    calm_at=17.0,
    consumers=3,
    slots=0,
    tick_s=0.5,
    records_per_s=4.0,
    sweep_interval_ms=1000,
    channel_retention_ms=0,
    poll_intervals_ms=(3000, 5000),
    preemption=0.02,
    starts=("committed",),
    led=0.0,
    leader_weights={},
    leader_faults=(0, 0),
    regions=0.0,
    region_weights={},
    region_faults=(0, 0),
)
"""What the aimed profiles have in common: short, since they aim; poll intervals within a session, so that a consumer
that hangs is evicted while it lives."""

AIMED = replace(
    SHORT,
    name="aimed",
    weights={
        "expire-session": 1.0,
        "lose-request": 1.0,
        "lose-reply": 2.0,
        "drop-connection": 1.0,
        "slow-connection": 1.0,
        "lose-watches": 1.0,
        "late-watches": 1.0,
        "lag-server": 1.0,
        "cut-server": 2.0,
        "change-leader": 1.0,
        "pause-process": 2.0,
        "crash-process": 2.0,
        "second-process": 2.0,
        "stuck-consumer": 2.0,
        "hanging-fetcher": 1.0,
        "consumer-joins": 2.0,
        "consumer-leaves": 2.0,
        "topic-comes": 1.0,
        "topic-made-anew": 1.0,
        "partitions-added": 1.0,
        "slow-nodes": 2.0,
        "slow-member": 2.0,
        "deaf-node": 1.0,
        "deaf-member": 1.0,
        "many-topics": 1.0,
        "one-topic-again": 1.0,
        "many-members": 2.0,
        "claim-then-expiry": 1.0,
        "claim-then-hand": 1.0,
        "stop-then-silence": 2.0,
        "command-then-join": 2.0,
        "pause-between-reads": 2.0,
        "unheard-command": 2.0,
        "eviction-then-election": 2.0,
        "seal-then-away": 0.5,
        "start-then-crash": 1.0,
        "unheard-election": 2.0,
        "late-commit": 2.0,
        "silence-then-cut": 2.0,
        "epoch-removed-by-hand": 1.0,
        "owner-made-by-hand": 1.0,
        "slow-then-cut": 2.0,
        "static-bounce": 2.0,
        "pause-at": 2.0,
        "failover-in-the-midst": 3.0,
        "partition-then-eviction": 2.0,
        "lost-reply-then-failover": 2.0,
        "long-lag": 1.0,
    },
    faults=(8, 22),
    kinds=(2, 5),
    together=(
        ("unheard-command", "eviction-then-election", "consumer-joins"),
        ("unheard-command", "eviction-then-election", "consumer-joins"),
        ("unheard-command", "consumer-joins"),
        ("unheard-election", "consumer-leaves"),
        ("second-process", "many-members", "slow-nodes"),
        ("second-process", "crash-process", "slow-nodes"),
        ("second-process", "pause-process"),
        ("stop-then-silence", "consumer-joins", "slow-nodes"),
        ("late-commit", "many-members"),
        ("late-commit", "many-members", "partitions-added"),
        ("late-commit", "unheard-election"),
        ("pause-between-reads", "many-members", "slow-member"),
        ("cut-server",),
        ("cut-server", "unheard-command"),
        ("silence-then-cut",),
        ("silence-then-cut", "consumer-joins"),
        ("lose-reply", "unheard-election"),
        ("lose-reply", "change-leader"),
        ("start-then-crash", "consumer-joins", "partitions-added"),
        ("stuck-consumer", "consumer-joins", "consumer-leaves"),
        ("epoch-removed-by-hand", "late-commit", "consumer-joins"),
        ("failover-in-the-midst", "consumer-joins"),
        ("failover-in-the-midst", "lose-reply", "second-process"),
        ("partition-then-eviction", "consumer-joins"),
        ("lost-reply-then-failover", "many-members"),
        ("static-bounce", "slow-nodes"),
        ("pause-at", "many-members"),
        ("slow-then-cut", "consumer-joins"),
        ("owner-made-by-hand", "consumer-joins"),
    ),
    circumstances={
        "poll_intervals_ms": ((2000,), (2000, 5000), (5000,), (60_000,)),
        "tick_s": (0.4, 0.5, 0.9),
        "slots": (0, 0, 0, 2),
        "consumers": (2, 3, 3, 4),
        "groups": (1, 1, 2),
        "handlers": (1, 2),
        "starts": (("committed",), ("committed", "end"), ("end",)),
        "led": (0.0, 0.0, 0.0, 1.0),
        "leader_faults": ((0, 0), (2, 6)),
        "regions": (0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
        "region_faults": ((0, 0), (4, 10)),
        "preemption": (0.0, 0.02, 0.1),
        "latency": ("even", "even", "even", "wide"),
    },
    leader_weights={kind: weight for kind, weight in LEADERS.items() if not kind.endswith("-by-hand")},
    region_weights={kind: weight for kind, weight in REGIONS.items() if not kind.endswith("-by-hand")},
)
"""The faults that aim, and few kinds in each run: they meet."""

SEALING = replace(
    SHORT,
    name="sealing",
    consumers=0,
    slots=2,
    weights={
        "query-comes": 4.0,
        "query-beside-collection": 3.0,
        "query-restarts": 3.0,
        "query-from-old-checkpoint": 1.0,
        "second-query-run": 1.0,
        "slow-nodes": 4.0,
        "slow-member": 1.0,
        "lose-reply": 3.0,
        "full-disk": 2.0,
        "seal-then-away": 0.5,
        "start-then-crash": 1.0,
        "second-process": 1.0,
        "consumer-leaves": 2.0,
        "pause-process": 1.0,
        "drop-connection": 2.0,
        "lag-server": 1.0,
        "crash-process": 1.0,
    },
    faults=(8, 16),
    kinds=(2, 5),
    together=(
        ("query-comes", "query-restarts", "slow-nodes"),
        ("query-comes", "slow-nodes"),
        ("query-beside-collection", "query-restarts"),
        ("lose-reply", "full-disk"),
        ("full-disk", "consumer-leaves", "drop-connection"),
        ("seal-then-away",),
        ("start-then-crash", "crash-process"),
    ),
    circumstances={
        "slots": (2, 3),
        "poll_intervals_ms": ((3000,), (5000,)),
        "starts": (("committed",), ("end",)),
        "sweep_interval_ms": (500, 1000),
    },
    gaps=0.6,
    gap_weights=GAPS,
    gap_faults=(2, 6),
    beside=(PAIRS, LAGGING, HANDS),
)
"""Slots that seal, queries that come and go, and coordinators that collect slowly."""

LARGE = replace(
    SHORT,
    name="large",
    partitions=(3, 8),
    steps=1,
    weights={
        "many-members": 4.0,
        "slow-member": 4.0,
        "slow-nodes": 1.0,
        "crash-process": 2.0,
        "second-process": 2.0,
        "stop-then-silence": 2.0,
        "command-then-join": 2.0,
        "eviction-then-election": 1.0,
        "expire-session": 2.0,
        "pause-process": 2.0,
        "lose-reply": 2.0,
        "late-commit": 1.0,
        "unheard-command": 1.0,
    },
    faults=(8, 16),
    kinds=(2, 5),
    together=(
        ("many-members", "slow-member"),
        ("many-members", "slow-member", "crash-process"),
        ("second-process", "many-members"),
        ("lose-reply", "command-then-join"),
        ("unheard-command", "eviction-then-election"),
        ("expire-session", "second-process"),
    ),
    records_per_s=1.0,
    circumstances={"slots": (0, 0, 1), "poll_intervals_ms": ((3000,), (5000,))},
)
"""Commands and ends that take several multis."""

WATCHFUL = replace(
    SHORT,
    name="watchful",
    weights={
        "many-topics": 2.0,
        "one-topic-again": 2.0,
        "slow-nodes": 4.0,
        "many-members": 2.0,
        "second-process": 2.0,
        "consumer-leaves": 1.0,
        "consumer-joins": 1.0,
        "topic-comes": 2.0,
        "partitions-added": 2.0,
        "topic-made-anew": 1.0,
        "drop-connection": 1.0,
        "change-leader": 0.5,
        "expire-session": 1.0,
        "resubscribes": 1.0,
    },
    faults=(3, 9),
    kinds=(2, 4),
    together=(
        ("many-topics", "slow-nodes"),
        ("one-topic-again", "slow-nodes"),
        ("topic-comes", "partitions-added", "consumer-joins"),
        ("second-process",),
        ("resubscribes",),
    ),
    poll_intervals_ms=(60_000,),
    beside=(),
    sweeps=False,
    circumstances={"groups": (1, 2, 4), "consumers": (2, 3, 4), "led": (0.0, 0.0, 1.0), "tick_s": (0.5, 0.9)},
)
"""No watch is lost, and nothing is read again without one: what a watch should have shown is seen by it or never."""

LED = replace(
    SHORT,
    name="led",
    seconds=40.0,
    calm_at=18.0,
    led=1.0,
    weights={
        **LEADERS,
        "second-process": 1.0,
        "crash-process": 1.0,
        "pause-process": 1.0,
        "expire-session": 1.0,
        "lose-reply": 1.0,
        "slow-nodes": 1.0,
        "consumer-joins": 1.0,
        "consumer-leaves": 1.0,
        "topic-comes": 2.0,
        "topic-goes": 1.0,
        "topic-made-anew": 1.0,
        "partitions-added": 1.0,
        "stuck-consumer": 1.0,
        "coordinator-removed-by-hand": 0.5,
    },
    faults=(6, 14),
    kinds=(2, 4),
    together=(
        ("leader-hangs", "joins-while-asked", "resubscribes"),
        ("leader-hangs", "joins-while-asked", "second-process"),
        ("leader-hangs", "topic-while-asked"),
        ("leader-dies", "coordinator-dies-asking", "joins-while-asked"),
        ("leader-raises", "joins-while-asked"),
        ("leader-lies", "resubscribes"),
        ("leader-hangs", "coordinator-dies-asking", "resubscribes"),
        ("topic-comes", "partitions-added"),
        ("deaf-leader", "topic-comes", "topic-goes"),
        ("expire-session", "topic-comes", "topic-goes"),
        ("resubscribes",),
    ),
    circumstances={
        "poll_intervals_ms": ((3000, 6000), (6000,)),
        "assignment_timeout_ms": (3000, 3000, 8000, 12_000),
        "consumers": (2, 3, 4),
        "groups": (1, 1, 2, 4),
    },
)
"""Nothing but groups that a member assigns, and what may happen to them."""

REGIONAL = replace(
    SHORT,
    name="regional",
    seconds=40.0,
    calm_at=16.0,
    regions=1.0,
    weights={
        **REGIONS,
        "second-process": 1.0,
        "crash-process": 1.0,
        "pause-process": 1.0,
        "stuck-consumer": 1.0,
        "lose-reply": 1.0,
        "slow-nodes": 1.0,
        "slow-member": 1.0,
        "consumer-joins": 1.0,
        "consumer-leaves": 1.0,
        "topic-comes": 1.0,
        "topic-made-anew": 1.0,
        "partitions-added": 1.0,
        "failing-log": 1.0,
        "unheard-election": 1.0,
    },
    faults=(6, 16),
    kinds=(2, 5),
    together=(
        ("checkpoint-wanted", "change-while-draining", "member-dies-in-region"),
        ("checkpoint-wanted", "hangs-draining", "contribution-is-late"),
        ("contribution-is-late", "change-while-draining", "reset-wanted"),
        ("reset-wanted", "checkpoint-wanted"),
        ("checkpoint-wanted", "second-process"),
        ("checkpoint-wanted", "topic-made-anew"),
        ("checkpoint-wanted", "consumer-leaves", "consumer-joins"),
        ("change-while-draining", "second-process", "slow-nodes"),
        ("coordinator-dies-in-region", "checkpoint-wanted", "unheard-election"),
        ("failing-log", "partitions-added", "topic-comes"),
        ("change-while-draining", "stuck-consumer", "slow-member"),
    ),
    circumstances={
        "poll_intervals_ms": ((3000,), (6000,)),
        "starts": (("committed",), ("end",)),
        "consumers": (3, 4),
        "groups": (1, 1, 2),
        "led": (0.0, 0.0, 0.0, 1.0),
    },
)
"""Nothing but groups in one consistent region, and what may happen to it."""

_STANDING = {"tick_s": 2, "latency": 0, "led": 0, "regions": 0, "groups": 0}
"""A session that is longer than most poll intervals, and one group, which the coordinator assigns."""

AIMED = replace(
    AIMED,
    scenes=(
        Plan({}, ("stale-bid", "consumer-joins")),
        Plan({}, ("pause-then-failover",)),
        Plan({"led": 0, "tick_s": 0, "regions": 0, "latency": 0}, ("seat-made-again", "consumer-joins")),
        Plan({**_STANDING, "poll_intervals_ms": 0}, ("stop-then-silence", "consumer-joins")),
        Plan({"led": 0, "regions": 0, "poll_intervals_ms": 3}, ("old-command-by-hand", "many-members")),
        Plan({"latency": 0, "led": 0, "regions": 0}, ("register-then-cut",)),
        Plan({"tick_s": 2, "regions": 0, "led": 0, "latency": 0}, ("publish-then-take-over",)),
        Plan({**_STANDING, "poll_intervals_ms": 3}, ("stop-then-silence", "consumer-joins", "consumer-leaves")),
        Plan({"led": 0, "tick_s": 0, "regions": 0, "latency": 0}, ("seat-made-again",)),
        Plan({"led": 0, "regions": 0, "poll_intervals_ms": 3}, ("old-command-by-hand", "consumer-joins")),
        Plan({"latency": 0, "led": 0, "regions": 0}, ("register-then-cut", "publish-then-take-over")),
    ),
)
SEALING = replace(
    SEALING, scenes=(Plan({}, ("query-registers-late",)), Plan({}, ("query-registers-late", "query-restarts")))
)
LED = replace(LED, scenes=(Plan({}, ("failover-while-asked",)),))
AIMED = replace(AIMED, corpus=tuple(plan for plan in load() if known(plan, AIMED.circumstances, AIMED.weights)))

PROFILES = {
    profile.name: profile for profile in (CALM, STORM, PAUSES, SCALE, LED, REGIONAL, AIMED, SEALING, LARGE, WATCHFUL)
}

_REST = ("storm", "pauses", "calm", "pauses", "storm", "pauses", "scale")
_CYCLE = ["aimed", "sealing", "aimed", "watchful", "led", "aimed", "sealing", "large", "watchful", "regional", "aimed"]
MIXTURE = tuple(name for one in _REST for name in (*_CYCLE, one))
"""What many seeds run, one after the other. The aimed one comes most often: what it draws varies most."""


def profile_of(seed: int) -> Profile:
    """What a seed runs when no profile is named."""
    return PROFILES[MIXTURE[seed % len(MIXTURE)]]
