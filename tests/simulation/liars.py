"""Members that lie, as a stranger's consumer may (`drills/workloads/lying_member.py`): drawn in every profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tests.simulation.actors import Actor
from tests.simulation.faults import FAULTS
from tests.simulation.watching import Fault, World
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.znodes.paths import GROUPS
from zk_group.drills.base.settings import LIES
from zk_group.drills.workloads.lying_member import LyingMember, lie_until

COMES_BACK_S = 1.0
STUCK_S = 0.5
STAY = 0.5
"""At the calm so many stay, with their sessions, and hang or go on lying: they have to be evicted. Others crash."""
IDLE = ("acknowledges-only", "removes-only", "keeps-what-was-stopped")
"""Lies that carry out no command: half of all. They go on, so that only the clock of commands ends them."""

HANDS = tuple(sorted(kind for kind in FAULTS if kind.endswith("-by-hand")))


@dataclass
class Liar(Actor):
    """A process with a member that lies; evicted, it comes back a few times.

    :ivar lies: one for each of its lives.
    :ivar on_lie: called with each kind of lie, once the member has registered.
    """

    group: str
    consumer: str
    topics: Mapping[str, int]
    lies: tuple[str, ...]
    poll_interval_ms: int
    on_lie: Callable[[str], None]
    kind: str = "liar"
    is_stuck: bool = False
    _is_ending: bool = False
    _goes_on: bool = False

    def names(self) -> dict[str, str]:
        return {"group": self.group, "consumer": self.consumer}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        why = "stopped"
        for lie in self.lies:
            self._goes_on = lie in IDLE
            store = open_store()
            member = LyingMember(store, runtime, self.group, self.consumer, self.topics, lie, self.poll_interval_ms)
            with suppress(CoordinatorError):
                member.register()
                self.on_lie(lie)
                why = lie_until(lambda: self._is_over(runtime), member, runtime)
                store.close()
            if not self.is_stuck:
                runtime.sleep(COMES_BACK_S)
            if self._is_ending or self.is_stuck:  # after the calm none comes back
                break
        return why

    def _is_over(self, runtime: Runtime) -> bool:
        while self.is_stuck and not self._goes_on:
            runtime.sleep(STUCK_S)
        return self._is_ending

    def stop(self) -> None:
        self._is_ending = True


def draw_liars(world: World) -> list[tuple[float, Fault]]:
    """When which members join that lie, and which hands scribble beside them, from a stream of their own."""
    lies = Random(f"lies {world.seed}")
    if lies.random() >= world.profile.liars:
        return []
    last = world.profile.calm_at - 2.0
    hands = [(lies.uniform(4.0, last), FAULTS[lies.choice(HANDS)]) for _ in range(lies.randint(0, 2))]
    joins = [(lies.uniform(4.0, last), _joins(f"liar{n}", lies.getrandbits(32))) for n in range(lies.randint(1, 2))]
    return sorted([*joins, *hands], key=lambda each: each[0])


def _joins(name: str, seed: int) -> Fault:
    def join(world: World) -> bool:
        lies = Random(seed)
        groups = sorted(world.children(GROUPS))
        if not groups or not world.topics:
            return False
        group = lies.choice(groups)
        topics = lies.sample(sorted(world.topics), lies.randint(1, len(world.topics)))
        chosen = tuple(lies.choice(lies.choice((IDLE, sorted(LIES)))) for _ in range(lies.randint(1, 3)))
        polls = lies.choice(world.profile.poll_intervals_ms)
        world.note("member-lies", group=group, consumer=name, lies=list(chosen))
        actor = Liar(group, name, dict.fromkeys(topics, 1), chosen, polls, lambda lie: world.fire(f"lie-{lie}"))
        stays = lies.random() < STAY
        life = world.start(actor, name)

        def at_the_calm() -> None:
            actor.is_stuck = stays
            if not stays:
                world.crash(life)

        world.scheduler.after(world.profile.calm_at - world.scheduler.now, at_the_calm)
        return False

    return join
