"""The session's end alone ends a membership; and how a group starts."""

from __future__ import annotations

from consumer.config import ConsumerConfig
from consumer.membership.channel import FencedChannel
from consumer.membership.command_drain import CommandDrain
from consumer.membership.context import MemberContext
from consumer.membership.offsets import CommittedOffsets
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.batching import ensure
from coordinator.zk.errors import Refused
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Create
from coordinator.zk.znodes.error_codes import UNKNOWN_MEMBER_ID
from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel, Registration
from tests.support.starts import from_the_beginning
from tests.support.wait import eventually
from tests.support.world import World, parts

PATHS = GroupPaths("g")
LONG_MS = 60_000
"""Neither this session timeout nor this poll interval is over before the test is."""


def test_session_expiry_ends_the_membership_regardless_of_the_poll_interval(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    dies = world.consumer("g", "c1", {"t": 1}, session_timeout_ms=1500, max_poll_interval_ms=LONG_MS)
    world.stable("g", 1)

    dies.vanish()

    eventually(lambda: world.channel("g", "c1").ended, 10, "its incarnation is ended")
    channel = world.channel("g", "c1")
    assert (channel.ended, channel.error) == ("its session ended", UNKNOWN_MEMBER_ID)
    assert world.state("g").marks == ()


def test_a_hundred_consumers_that_start_together_cost_three_generations_at_most(world: World) -> None:
    delay_ms = CoordinatorConfig(zk=world.zk).group_initial_rebalance_delay_ms
    world.coordinator(group_initial_rebalance_delay_ms=delay_ms)
    world.topic("t", 100)
    runtime, store = ThreadRuntime(), world.store
    ensure(store, PATHS.skeleton)
    members, multis = [], []
    for number in range(100):
        name = f"c{number:03}"
        registration = Registration(runtime.random_id(), {"t": 1}, lease_ms=1000)
        channel = Channel(registration.incarnation)
        multis.append(
            [
                Create(PATHS.channel(name), channel.to_bytes()),
                Create(PATHS.id(name), registration.to_bytes(), ephemeral=True),
            ]
        )
        fenced = FencedChannel(store, runtime, PATHS, name, channel, 0)
        config = ConsumerConfig(zk="none", group=PATHS.group, consumer=name)
        offsets = CommittedOffsets(runtime, PATHS, from_the_beginning)
        members.append((fenced, CommandDrain(MemberContext(config, runtime), offsets)))
    for (
        multi
    ) in multis:  # what each does that comes anew; a hundred sessions would take the machine longer than a second
        store.commit(multi)

    def obeyed() -> bool:
        for fenced, drain in members:
            drain.drain(store, fenced, lambda partitions: None)
        return world.state("g").state == STABLE

    eventually(obeyed, 60, "everybody has its partition", ignoring=(Refused,))

    state = world.state("g")
    assert len(state.target) == 100
    assert state.generation <= 3
    running = frozenset().union(*(fenced.channel.running for fenced, _ in members))
    assert running == parts("t", *range(100))
