"""How large a simulated world is, and what is done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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
    :ivar latency: how long packets take: `even`, or `wide`, as slow as is drawn for each connection (`links.py`).
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


def _tables() -> dict[str, list[list[str]]]:
    """Title -> the words of each of its lines."""
    blocks = map(str.splitlines, Path(__file__).with_name("weights.txt").read_text().split("\n\n"))
    return {title: [line.split() for line in lines] for title, *lines in blocks}


_TABLES = _tables()


def _weights(title: str) -> dict[str, float]:
    """Kind of fault -> how often it is drawn, beside the others."""
    words = (word.partition(":") for line in _TABLES[title] for word in line)
    return {kind: float(weight or 1) for kind, _, weight in words}


def _together(profile: str) -> tuple[tuple[str, ...], ...]:
    """Kinds that belong together."""
    return tuple(map(tuple, _TABLES[f"{profile} together"]))


LEADERS = _weights("storm leaders")
REGIONS = _weights("storm regions")
HANDS = Beside("hands", {"pause-while-collecting": 2.0, "owners-removed-beside-stop": 3.0}, (1, 4))
LAGGING = Beside("lagging", {"listing-lags": 1.0}, (2, 4))
PAIRS = Beside("pairs", {"reply-then-sync": 2.0, "cooperative-stop-reply": 3.0}, (2, 5))

STORM = Profile(
    "storm",
    _weights("storm"),
    (10, 30),
    preemption=0.05,
    starts=("committed", "end"),
    led=0.5,
    leader_weights=LEADERS,
    leader_faults=(2, 8),
    regions=0.15,
    region_weights=REGIONS,
    region_faults=(4, 10),
    liars=0.2,
    beside=(PAIRS, HANDS),
)
CALM = replace(
    STORM,
    name="calm",
    weights=_weights("calm"),
    faults=(0, 4),
    preemption=0.01,
    starts=("committed",),
    leader_weights=_weights("calm leaders"),
    leader_faults=(0, 3),
    region_weights=_weights("calm regions"),
    region_faults=(0, 3),
    beside=(),
)
PAUSES = replace(
    STORM,
    name="pauses",
    weights=_weights("pauses"),
    faults=(4, 14),
    preemption=0.02,
    leader_weights=_weights("pauses leaders"),
    leader_faults=(2, 6),
    region_weights=_weights("pauses regions"),
    region_faults=(3, 8),
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

SHORT = Profile(
    "short",
    {},
    (8, 16),
    seconds=30.0,
    calm_at=17.0,
    consumers=3,
    slots=0,
    tick_s=0.5,
    records_per_s=4.0,
    sweep_interval_ms=1000,
    channel_retention_ms=0,
    poll_intervals_ms=(3000, 5000),
    liars=0.2,
    kinds=(2, 5),
    beside=(PAIRS, HANDS),
)
"""What the aimed profiles have in common: short, since they aim; poll intervals within a session, so that a consumer
that hangs is evicted while it lives."""

_STANDING = {"tick_s": 2, "latency": 0, "led": 0, "regions": 0, "groups": 0}
"""A session that is longer than most poll intervals, and one group, which the coordinator assigns."""

AIMED = replace(
    SHORT,
    name="aimed",
    weights=_weights("aimed"),
    faults=(8, 22),
    together=_together("aimed"),
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
"""The faults that aim, and few kinds in each run: they meet."""
AIMED = replace(AIMED, corpus=tuple(plan for plan in load() if known(plan, AIMED.circumstances, AIMED.weights)))

SEALING = replace(
    SHORT,
    name="sealing",
    consumers=0,
    slots=2,
    weights=_weights("sealing"),
    together=_together("sealing"),
    circumstances={
        "slots": (2, 3),
        "poll_intervals_ms": ((3000,), (5000,)),
        "starts": (("committed",), ("end",)),
        "sweep_interval_ms": (500, 1000),
    },
    gaps=0.6,
    gap_weights=_weights("sealing gaps"),
    gap_faults=(2, 6),
    scenes=(Plan({}, ("query-registers-late",)), Plan({}, ("query-registers-late", "query-restarts"))),
    beside=(PAIRS, LAGGING, HANDS),
)
"""Slots that seal, queries that come and go, and coordinators that collect slowly."""

LARGE = replace(
    SHORT,
    name="large",
    partitions=(3, 8),
    steps=1,
    weights=_weights("large"),
    together=_together("large"),
    records_per_s=1.0,
    circumstances={"slots": (0, 0, 1), "poll_intervals_ms": ((3000,), (5000,))},
)
"""Commands and ends that take several multis."""

WATCHFUL = replace(
    SHORT,
    name="watchful",
    weights=_weights("watchful"),
    faults=(3, 9),
    kinds=(2, 4),
    together=_together("watchful"),
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
    weights={**LEADERS, **_weights("led")},
    faults=(6, 14),
    kinds=(2, 4),
    together=_together("led"),
    scenes=(Plan({}, ("failover-while-asked",)),),
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
    weights={**REGIONS, **_weights("regional")},
    faults=(6, 16),
    together=_together("regional"),
    circumstances={
        "poll_intervals_ms": ((3000,), (6000,)),
        "starts": (("committed",), ("end",)),
        "consumers": (3, 4),
        "groups": (1, 1, 2),
        "led": (0.0, 0.0, 0.0, 1.0),
    },
)
"""Nothing but groups in one consistent region, and what may happen to it."""

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
