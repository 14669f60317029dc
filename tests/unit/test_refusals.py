"""Kafka's errors for a refused consumer: the error, the call that raises it, and the consumer afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.property.group_world import PATHS, GroupWorld
from tests.support.memlog import MemoryLog
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from zk_group.consumer.errors import (
    ChannelGone,
    CommitFailed,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    UnknownMemberId,
    refusal_in,
)
from zk_group.coordinator.assignors import RangeAssignor
from zk_group.coordinator.zk.errors import IncarnationOver
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.records import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    UNKNOWN_MEMBER_ID,
    Channel,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CLASSES: dict[str, type[IncarnationOver]] = {
    UNKNOWN_MEMBER_ID: UnknownMemberId,
    FENCED_INSTANCE_ID: FencedInstanceId,
    INCONSISTENT_GROUP_PROTOCOL: InconsistentGroupProtocol,
    GROUP_MAX_SIZE_REACHED: GroupMaxSizeReached,
}
TURNED_AWAY = [INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED]


class App(Callbacks):
    """A consumer of the group, on a tree; it records its notifications."""

    def __init__(self, world: GroupWorld, name: str = "a") -> None:
        self.world = world
        self.name = name
        self.notified: list[str] = []
        config = ConsumerConfig(zk="tree", group="g", consumer=name, max_poll_interval_ms=4000)
        self.consumer = Consumer(
            config, Subscription({"t": 1}), self,
            source=MemoryLog(end=10), open_store=world.session, runtime=world.runtime,
        )  # fmt: skip

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self.notified.append(f"assigned as {self.incarnation}")

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self.notified.append("revoked")

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self.notified.append(f"lost {sorted(partitions)} before {self.incarnation} is followed")

    @property
    def incarnation(self) -> str:
        return self.world.channels()[self.name].incarnation

    @property
    def channel(self) -> Channel:
        return self.world.channels()[self.name]

    def poll(self) -> None:
        """A poll after the watches have fired."""
        self.consumer.member.wake.set()
        self.consumer.poll(0)

    def settle(self) -> None:
        for _ in range(5):
            self.poll()
            self.world.turn()

    def is_ended(self, word: str, why: str) -> None:
        """Another client ends it: the fence moves."""
        self.world.tree.put(PATHS.channel(self.name), replace(self.channel, ended=why, error=word).to_bytes())

    def look(self) -> None:
        """The periodic work of its keeper: reading the fence."""
        fenced = self.consumer.member._registrar.fenced
        assert fenced is not None
        with suppress(IncarnationOver):
            fenced.check()


@pytest.fixture
def app() -> App:
    world = GroupWorld(RangeAssignor())
    world.topic("t", 2)
    app = App(world)
    app.settle()
    assert app.consumer.assignment() == {T0, T1}
    return app


# ---- commit


def evicted(app: App) -> None:
    app.is_ended(UNKNOWN_MEMBER_ID, "evicted")
    app.look()


def without_a_session(app: App) -> None:
    store = app.consumer.member.store
    assert store is not None
    store.close()


def not_polled(app: App) -> None:
    app.world.runtime.spawned[-1]()  # the keeper, without polls


OVER: dict[str, tuple[Callable[[App], None], str, type[Exception]]] = {
    **{
        f"it was ended with {word or 'no error'}": (
            lambda app, word=word: app.is_ended(word, "the reason"),  # type: ignore[misc]
            f"{error.__name__}: the reason; the offsets were not committed$",
            error,
        )
        for word, error in (CLASSES | {"": UnknownMemberId, "OfAnotherRelease": UnknownMemberId}).items()
    },
    "a newer process took the name": (
        lambda app: App(app.world).poll(), "FencedInstanceId: another process has registered as a;", FencedInstanceId,
    ),
    "its session is over, and the outcome unknown": (
        without_a_session, "UnknownMemberId: .*not known$", UnknownMemberId,
    ),
    "its channel is destroyed": (
        lambda app: app.world.tree.put(PATHS.channel("a"), b"nonsense"), "ChannelGone: ", ChannelGone,
    ),
    "it was not polled, with both remedies": (
        not_polled,
        "UnknownMemberId: left by itself: poll was not called.*raise max_poll_interval_ms, or lower max_poll_records",
        UnknownMemberId,
    ),
}  # fmt: skip
"""What happens to a consumer, and how a commit fails then: its words, and its cause."""


@pytest.mark.parametrize(("happens", "words", "cause"), OVER.values(), ids=OVER)
def test_commit_of_a_consumer_that_is_over_fails_with_its_error_and_reason(
    app: App, happens: Callable[[App], None], words: str, cause: type[Exception]
) -> None:
    happens(app)

    with pytest.raises(CommitFailed, match=f"^{words}") as failed:
        app.consumer.commit()

    assert type(failed.value.__cause__) is cause
    assert cause is ChannelGone or cause.__name__ in CLASSES
    channel = app.world.channels().get("a")
    assert channel is None or not any(channel.running.values())


def test_commit_of_a_lost_partition_moves_no_offset_and_the_others_continue(app: App) -> None:
    life = app.incarnation
    fenced = app.consumer.member._registrar.fenced
    assert fenced is not None
    fenced.commit(fenced.channel.without([T0]))  # the generation has moved on, and the fetcher does not know yet

    with pytest.raises(CommitFailed, match=r"^IllegalGeneration: t-0 is no longer this consumer's") as failed:
        app.consumer.commit()

    assert type(failed.value.__cause__) is IllegalGeneration
    assert set(app.channel.running) == {T1}
    app.poll()
    app.consumer.commit()
    assert (app.incarnation, app.channel.running) == (life, {T1: 10})
    assert app.notified[-1].startswith("lost [TopicPartition(topic='t', partition=0)]")


# ---- poll


@pytest.mark.parametrize("happens", [evicted, without_a_session, not_polled])
def test_lost_partitions_are_reported_before_the_consumer_rejoins(app: App, happens: Callable[[App], None]) -> None:
    first = app.incarnation
    happens(app)

    for _ in range(3):
        app.settle()
        app.world.tick(10.0)

    second = app.incarnation
    assert second != first
    both = "[TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1)]"
    assert app.notified == [f"assigned as {first}", f"lost {both} before {first} is followed", f"assigned as {second}"]
    assert app.consumer.assignment() == {T0, T1}


@pytest.mark.parametrize("word", TURNED_AWAY)
def test_refused_consumer_gets_the_error_from_poll_and_retries_after_a_backoff(app: App, word: str) -> None:
    runtime, waits = app.world.runtime, []
    for _ in range(8):
        refused, since = app.incarnation, runtime.now
        app.is_ended(word, "there is no room")
        app.look()

        with pytest.raises(CLASSES[word], match=r"^there is no room$"):
            app.poll()
        while app.incarnation == refused:
            runtime.now += 0.05
            app.poll()
        waits.append(round(runtime.now - since, 1))

    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert app.notified[1].startswith("lost")
    app.settle()
    assert app.consumer.assignment() == {T0, T1}, "there is room by now"
    app.is_ended(word, "there is no room")
    app.look()
    with pytest.raises(CLASSES[word]):
        app.poll()
    runtime.now += 0.25
    app.poll()
    assert app.channel.is_live, "an earlier member begins with a short wait"


def test_consumer_taken_over_in_steps_is_fenced_once_the_other_has_the_name() -> None:
    world = GroupWorld(RangeAssignor())
    world.topic("t", 300)
    first = App(world)
    for _ in range(3):
        first.settle()
    assert len(first.channel.running) == 300
    seen: list[Channel] = []
    world.meddle = lambda world: seen.append(world.channels()["a"])

    App(world).poll()

    steps = [channel for channel in seen if channel.ended]
    assert len(steps) > 1
    assert {type(refusal_in(channel)) for channel in steps} == {UnknownMemberId}, "the other may die before that"
    first.look()
    with pytest.raises(FencedInstanceId):
        first.poll()
