"""A consumer that its group refuses: the coordinator's reason reaches its `poll` and the operator."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import CommitFailed, GroupMaxSizeReached, InconsistentGroupProtocol, UnknownMemberId
from coordinator.zk.errors import IncarnationOver
from coordinator.zk.store import Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID, Channel
from tests.support.memlog import MemoryLog
from tests.support.processes import consumer_process
from tests.support.wait import eventually
from tests.support.world import World, parts

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1)
T0 = TopicPartition("t", 0)
REFUSALS: dict[str, tuple[type[IncarnationOver], dict[str, Any], tuple[str, ...]]] = {
    "too many": (GroupMaxSizeReached, {"group_max_size": 1}, ("range",)),
    "no strategy in common": (InconsistentGroupProtocol, {}, ("its-own",)),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refused_consumer_gets_the_error_from_every_poll_and_stops_no_member(world: World, kind: str) -> None:
    error, options, protocols = REFUSALS[kind]
    world.coordinator(**options)
    world.topic("t", 2)
    member = world.consumer("g", "c1", {"t": 1}, protocols=("range",))
    before = world.stable("g", 1)
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c2", protocols=protocols, session_timeout_ms=2000)
    with Consumer(config, Subscription({"t": 1}), source=MemoryLog(end=10)) as refused:
        for _ in range(2):
            with pytest.raises(error, match=r"^refused: "):
                for _ in range(200):
                    refused.poll(50)
        assert (world.channel("g", "c2").error, world.data(PATHS.id("c2"))) == (error.__name__, None)
        assert (world.state("g").generation, member.held) == (before.generation, ALL), "no member stopped for it"


def test_consumer_over_group_max_size_is_accepted_after_another_member_left(world: World) -> None:
    world.coordinator(group_max_size=1)
    world.topic("t", 2)
    member = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c2", session_timeout_ms=2000)
    with Consumer(config, Subscription({"t": 1}), source=MemoryLog(end=10)) as refused:
        with pytest.raises(GroupMaxSizeReached):
            for _ in range(200):
                refused.poll(50)

        member.close()

        def takes_over() -> bool:
            refused.poll(50)
            return refused.assignment() == ALL

        eventually(takes_over, 10, "there is room for it", ignoring=(GroupMaxSizeReached,))


@pytest.mark.real_zookeeper("processes")
@pytest.mark.parametrize("kind", REFUSALS)
def test_refused_consumer_process_exits_with_1_one_error_line_and_shutdown_event(
    world: World, tmp_path: Path, kind: str
) -> None:
    error, options, protocols = REFUSALS[kind]
    world.coordinator(**options)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1}, protocols=("range",))
    world.stable("g", 1)
    with ExitStack() as stack:
        arguments = ("--events", "--protocols", *protocols, "--log-level", "error")
        refused = stack.enter_context(consumer_process(tmp_path, world.zk, "g", "c2", tmp_path / "log", *arguments))

        assert refused.ends() == 1
        (line,) = refused.said().splitlines()

    assert line.startswith(f"error: {error.__name__}: refused: ")
    assert [event["name"] for event in refused.printed()] == ["startup_complete", "shutdown_complete"]
    assert world.channel("g", "c2").error == error.__name__


def test_removed_consumer_fails_to_commit_as_unknown_member_and_rejoins(world: World) -> None:
    world.coordinator()
    world.topic("t", 2)
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c1", session_timeout_ms=2000)
    with Consumer(config, Subscription({"t": 1}), source=MemoryLog(end=10)) as consumer:
        eventually(lambda: consumer.poll(50) and consumer.assignment() == ALL, 10, "it has everything")
        node = world.store.get(PATHS.channel("c1"))
        assert node is not None
        channel = Channel.parse("", node.data)
        removed = Channel(channel.incarnation, ended="removed: by ann", error=UNKNOWN_MEMBER_ID)
        world.store.commit(
            [
                SetData(PATHS.channel("c1"), removed.to_bytes(), node.stat.version),
                Delete(PATHS.id("c1")),
                *(Delete(PATHS.owner(*partition)) for partition in sorted(channel.running)),
            ]
        )

        with pytest.raises(CommitFailed, match=r"^UnknownMemberId: removed: by ann; ") as failed:
            consumer.commit()

        assert type(failed.value.__cause__) is UnknownMemberId
        eventually(lambda: consumer.poll(50), 10, "it is back and has the records again")
        eventually(lambda: not consumer.poll(50) and consumer.position(T0) == 10, 10, "it has read both")
        consumer.commit()
        assert (world.channel("g", "c1").running[T0], consumer.member.registrations) == (10, 2)
