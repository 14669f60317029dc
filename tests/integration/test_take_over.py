"""What a process still does whose name another one has taken, how a refusal reaches one, and what no consumer reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import CommitFailed, FencedInstanceId, GroupMaxSizeReached
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.hand_polled import HandPolled
from tests.support.memlog import MemoryLog
from tests.support.processes import consumer_process
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from tests.support.world import World, parts
from tests.unit.test_zk_paths import section

PATHS = GroupPaths("g")


def owner_czxid(world: World) -> int:
    node = world.store.get(PATHS.owner("t", 0))
    assert node is not None
    return node.stat.czxid


def test_process_whose_name_was_taken_delivers_until_its_lease_ends(zookeeper_proxy: Proxy, world: World) -> None:
    assert "**Until then it may still deliver**" in section("Take-over of a name")
    world.coordinator()
    world.topic("t", 2)
    log = MemoryLog(end=1_000_000)
    through = f"{zookeeper_proxy.hosts}/{world.zk.split('/')[1]}"
    config = ConsumerConfig(through, "g", "c1", session_timeout_ms=9000, max_poll_records=1)
    old = Consumer(config, Subscription({"t": 1}), source=log)
    try:
        eventually(lambda: old.poll(50) and old.assignment() == parts("t", 0, 1), 10, "the old process has both")
        eventually(lambda: old.poll(50) and not old.member.wake.is_set(), 10, "it waits for no answer of ZooKeeper")
        first = owner_czxid(world)
        zookeeper_proxy.hold()

        new = world.consumer("g", "c1", {"t": 1}, log=log)
        eventually(lambda: new.held == parts("t", 0, 1) and new.records, 5, "the new process fetches them")
        assert owner_czxid(world) > first, "the later owner has the higher one"
        assert old.member.lease_left_s > 0
        assert old.poll(0), "and the old one still delivers"

        eventually(lambda: not old.member.lease_left_s, 10, "its lease ends")
        assert not old.poll(0)
        zookeeper_proxy.resume()
        with pytest.raises((CommitFailed, FencedInstanceId)):
            old.commit()
        with pytest.raises(FencedInstanceId):
            eventually(lambda: old.poll(50) is None, 10, "it is fenced")
    finally:
        zookeeper_proxy.resume()
        old.close()


def test_a_consumer_that_commits_fetches_on_while_its_group_is_paused(world: World) -> None:
    assert "reads nothing here, and fetches on while the group is paused" in section("segments")
    world.coordinator()
    world.topic("t", 2)
    log = MemoryLog(end=100)
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)
    eventually(lambda: len(consumer.records) == 200, 10, "it fetches")

    world.put(PATHS.segments, SegmentsRecord(paused="by hand").to_bytes())
    log.end = 200

    eventually(lambda: len(consumer.records) == 400, 10, "it fetches on")
    assert SegmentsRecord.parse("segments", world.data(PATHS.segments) or b"").paused == "by hand"


def test_consumer_over_group_max_size_is_accepted_after_another_member_left(
    world: World, polled: Callable[..., HandPolled]
) -> None:
    world.coordinator(group_max_size=1)
    world.topic("t", 2)
    member = world.consumer("g", "c1", {"t": 1})
    before = world.stable("g", 1)
    refused = polled("c2", MemoryLog(end=10), session_timeout_ms=2000)
    with pytest.raises(GroupMaxSizeReached, match=r"^refused: "):
        eventually(refused.poll, 10, "it is refused")
    assert (world.state("g"), member.held) == (before, parts("t", 0, 1)), "no member stopped for it"

    member.close()

    eventually(refused.poll, 10, "there is room for it", ignoring=(GroupMaxSizeReached,))


@pytest.mark.real_zookeeper("processes")
@pytest.mark.parametrize(
    ("error", "options", "protocol"),
    [("GroupMaxSizeReached", {"group_max_size": 1}, "range"), ("InconsistentGroupProtocol", {}, "its-own")],
)
def test_refused_consumer_process_exits_with_1_one_error_line_and_shutdown_event(
    world: World, tmp_path: Path, error: str, options: dict[str, int], protocol: str
) -> None:
    world.coordinator(**options)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1}, protocols=("range",))
    world.stable("g", 1)
    arguments = ("--events", "--protocols", protocol, "--log-level", "error")
    with consumer_process(tmp_path, world.zk, "g", "c2", tmp_path / "log", *arguments) as refused:
        assert refused.ends() == 1
        (line,) = refused.said().splitlines()

    assert line.startswith(f"error: {error}: refused: ")
    assert [event["name"] for event in refused.printed()] == ["startup_complete", "shutdown_complete"]
    assert (world.channel("g", "c2").error, world.data(PATHS.id("c2"))) == (error, None)
