"""One written history for each critical fence: the product passes it, and fails it without the fence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.aimed import eviction_then_election, unheard_command, unheard_election
from tests.simulation.mutations import MUTATIONS
from tests.simulation.profile import Profile
from tests.simulation.run import simulate
from tests.simulation.servers import SimulatedServer
from tests.simulation.test_scenarios import APPLICATIONS, at_a_follower, life_of, passed
from tests.simulation.world import SimulatedWorld

SEEDS = range(6)
AT_S = 14.0

Script = Callable[[SimulatedWorld], None]


def deposed_unheard(world: SimulatedWorld) -> None:
    """The coordinator's znode is removed, of which it does not hear; a consumer joins, of which it does."""
    for number in range(4):
        world.scheduler.after(AT_S + 4 * number, lambda: unheard_election(world) and None)


def name_taken_beside_commits(world: SimulatedWorld) -> None:
    """Another process registers under a consumer's name while commits of the first one are on their way."""

    def take() -> None:
        life = life_of(world, "g0-c0")
        for store in world.stores_of(life.process):
            store.slow(1.0, world.scheduler.now + 4.0)
        world.scheduler.after(0.3, lambda: world.start_application("g0", "c0") and None)

    for number in range(4):
        world.scheduler.after(AT_S + 5 * number, take)


def evicted_then_elected(world: SimulatedWorld) -> None:
    """A consumer is evicted that has not noticed, and the coordinator that did it is deposed."""

    def aim() -> None:
        eviction_then_election(world)
        unheard_command(world)
        world.scheduler.after(0.5, lambda: world.start_application("g0", "c7") and None)

    for number in range(4):
        world.scheduler.after(AT_S + 4 * number, aim)


def cut_off_from_the_leader(world: SimulatedWorld) -> None:
    """A consumer's server goes on answering reads, and the leader ends the session."""

    def cut(_: object, server: SimulatedServer) -> None:
        world.ensemble.cut(server)
        world.scheduler.after(2 * world.profile.session_timeout_ms / 1000, lambda: world.ensemble.heal(server))

    world.scheduler.after(AT_S, lambda: at_a_follower(world, "g0-c0", cut))


def somebody_joins(world: SimulatedWorld) -> None:
    """Partitions move from one consumer to another."""
    world.scheduler.after(AT_S, lambda: world.start_application("g0", "c7") and None)


SHORT_POLLS = replace(APPLICATIONS, name="short polls", poll_intervals_ms=(2000,))

FENCES: dict[str, tuple[Script, Profile]] = {
    "a coordinator writes without looking at the epoch": (deposed_unheard, APPLICATIONS),
    "a multi has no consumer's fence": (name_taken_beside_commits, APPLICATIONS),
    "an eviction mark dies with its coordinator": (evicted_then_elected, SHORT_POLLS),
    "nobody waits for the lease of the evicted": (evicted_then_elected, SHORT_POLLS),
    "a lease is renewed by a read": (cut_off_from_the_leader, APPLICATIONS),
    "stop and start go out together": (somebody_joins, APPLICATIONS),
}
"""Mutation -> the history that shows it."""


@pytest.mark.parametrize("name", FENCES)
def test_a_written_history_passes_and_fails_without_its_fence(name: str) -> None:
    script, profile = FENCES[name]
    mutation = MUTATIONS[name]
    for seed in SEEDS:
        assert passed(simulate(seed, profile, script=script)), seed

    with mutation.applied():
        broken = [simulate(seed, profile, script=script).broken for seed in SEEDS]

    assert any(each & mutation.breaks for each in broken), broken
