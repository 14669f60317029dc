"""Client-side assignment in a simulated world: which groups use it, and a test assignor that gives trouble."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from zk_group.consumer.assignment.adapter import CoordinatorStrategy
from zk_group.consumer.assignment.base import Assignment, ClientAssignor, Cluster
from zk_group.consumer.assignment.lag import LagAssignor
from zk_group.consumer.assignment.rack import RackAssignor
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

COORDINATOR, CLIENT, BOTH, BOTH_THERE = "coordinator", "client", "client,coordinator", "coordinator,client"
SIDES = (CLIENT, BOTH, BOTH_THERE, COORDINATOR)
"""In the order of a rolling change: neighbours can be in one group."""

MIXED = "mixed"
TAKES_TIME = 0.3
RAISED_S, LIED_S = 2.5, 2.5
"""For how long a failed answer may be felt: the longest backoff, and then some."""


class MadeUpFailure(Exception):
    """What a test assignor raises."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a group assigns.

    :ivar side: one of `SIDES`, or `MIXED`: each member draws one of `among`.
    :ivar common: the protocol that all its members know.
    """

    side: str
    common: str
    among: tuple[str, ...] = ()


def drawn_manner(random: Random, share: float, names: Sequence[str]) -> Manner:
    """How a new group assigns."""
    if random.random() >= share:
        return Manner(COORDINATOR, "")
    side = random.choices((CLIENT, BOTH, BOTH_THERE, MIXED), (5.0, 1.5, 1.0, 2.5))[0]
    return Manner(side, random.choice(names), (BOTH, BOTH_THERE, random.choice((CLIENT, COORDINATOR))))


@dataclass
class Troubles:
    """What the assignors of one process are about to do, besides what they should.

    :ivar hangs: for so many seconds each; one for each call.
    :ivar raises: how many calls still fail.  :ivar lies: what is done to the next answers.
    :ivar is_broken: it fails for good.
    """

    hangs: deque[float] = field(default_factory=deque)
    raises: int = 0
    lies: deque[str] = field(default_factory=deque)
    is_broken: bool = False

    def be_calm(self) -> None:
        """Nothing of what has not happened yet will."""
        self.hangs.clear()
        self.lies.clear()
        self.raises = 0


class Troubled(ClientAssignor):
    """Does what another assignor does; takes its time, and gives trouble when a fault says so.

    :param state: what it tells members besides; empty for nothing.
    """

    def __init__(
        self, world: SimulatedWorld, group: str, consumer: str, troubles: Troubles, inner: ClientAssignor
    ) -> None:
        self.name = inner.name
        self.is_cooperative = inner.is_cooperative
        self._world = world
        self._group = group
        self._consumer = consumer
        self._troubles = troubles
        self._inner = inner
        self.state = b""

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Mapping[str, Assignment]:
        """See `ClientAssignor.assign`."""
        world, troubles = self._world, self._troubles
        scheduler = world.scheduler
        if troubles.hangs:
            until = self._note("hang", troubles.hangs.popleft())
            world.fire("leader-hangs")
            scheduler.seam()
            scheduler.park("an assignor", max(0.0, until - scheduler.now))
        elif scheduler.random.random() < TAKES_TIME:
            scheduler.seam()
            scheduler.park("an assignor", 0.5 * scheduler.random.random() ** 2)
        if troubles.raises or troubles.is_broken:
            troubles.raises = max(0, troubles.raises - 1)
            self._note("leader-raises", RAISED_S)
            world.fire("leader-raises")
            raise MadeUpFailure("the assignor has no data today")
        found = dict(self._inner.assign(cluster, metadata))
        if self.state:
            found = {name: replace(one, member_state=self.state + name.encode()) for name, one in found.items()}
        if troubles.lies:
            kind = troubles.lies.popleft()
            self._note("leader-lies", LIED_S, lie=kind)
            world.liars.add(scheduler.current.process.life)
            found = LIES[kind](found, world.sides)
            world.fire("leader-lies")
        return found

    def _note(self, kind: str, seconds: float, **more: str) -> float:
        world = self._world
        until = min(world.scheduler.now + seconds, max(world.profile.calm_at, world.scheduler.now))
        who = world.scheduler.current.process.life
        fields = {"kind": kind, "until": round(until, 6), "process": who, "consumer": self._consumer, **more}
        if not world.is_calm:
            world.record("server", "fault", fields)
        return until


# ---- what a leader may make up

Answer = dict[str, Assignment]


def _twice(found: Answer, random: Random) -> Answer:
    """A partition is given to two."""
    every = sorted((name, thread, p) for name, one in found.items() for thread, ps in one.threads.items() for p in ps)
    if len(found) < 2 or not every:
        return _no_thread(found, random)
    name, _, part = random.choice(every)
    other = random.choice(sorted(found.keys() - {name}))
    return _with(found, other, f"{other}-0", frozenset({part}))


def _stranger(found: Answer, random: Random) -> Answer:
    """Somebody gets something who is no member."""
    return found | {"nobody": Assignment({})}


def _no_thread(found: Answer, random: Random) -> Answer:
    """A thread is none of its member."""
    name = random.choice(sorted(found)) if found else "nobody"
    return _with(found, name, random.choice((f"{name}", f"{name}-x", f"{name}-999999", "nobody-0")), frozenset())


def _unknown_topic(found: Answer, random: Random) -> Answer:
    """Partitions of a topic that does not exist, or one too many."""
    name = random.choice(sorted(found)) if found else "nobody"
    topics = sorted({part.topic for one in found.values() for part in one.partitions})
    topic = random.choice(["no-such-topic", *topics])
    return _with(found, name, f"{name}-0", frozenset({TopicPartition(topic, 900)}))


def _omits_members(found: Answer, random: Random) -> Answer:
    """Some members get nothing, and are not named. That is no lie: the leader may."""
    return {name: one for name, one in sorted(found.items()) if random.random() < 0.5}


def _omits_partitions(found: Answer, random: Random) -> Answer:
    """Some partitions go to nobody. That is no lie either."""
    return {
        name: replace(
            one,
            threads={
                thread: frozenset(part for part in sorted(parts) if random.random() < 0.6)
                for thread, parts in sorted(one.threads.items())
            },
        )
        for name, one in sorted(found.items())
    }


def _with(found: Answer, name: str, thread: str, more: PartitionSet) -> Answer:
    one = found.get(name, Assignment({}))
    parts = one.threads.get(thread, frozenset()) | more
    some = parts or frozenset(sorted(one.partitions)[:1])
    threads = {other: ps - (some - more) for other, ps in one.threads.items() if other != thread}
    return found | {name: replace(one, threads={**threads, thread: some or frozenset({TopicPartition("t0", 0)})})}


LIES: Mapping[str, Callable[[Answer, Random], Answer]] = {
    "twice": _twice,
    "stranger": _stranger,
    "no thread": _no_thread,
    "unknown topic": _unknown_topic,
    "omits members": _omits_members,
    "omits partitions": _omits_partitions,
}


def installed(strategies: Mapping[str, Assignor]) -> Mapping[str, ClientAssignor]:
    """Name -> every client assignor of the simulation."""
    some: list[ClientAssignor] = [*map(CoordinatorStrategy, strategies.values()), LagAssignor(), RackAssignor()]
    return {each.name: each for each in some}
