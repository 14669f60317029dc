"""Nodes and consumers as processes: what signals do to them, what one still does whose name was taken, and refusals."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.cli import run_json, run_ok
from tests.support.hand_polled import Polling
from tests.support.memlog import MemoryLog
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from tests.support.world import World, parts
from tests.unit.test_zk_paths import section
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.errors import CommitFailed, FencedInstanceId, GroupMaxSizeReached
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

PATHS = GroupPaths("g")


@pytest.mark.real_zookeeper("processes")
def test_status_shows_nodes_on_standby_as_long_as_they_run(world: World, processes: ExitStack, tmp_path: Path) -> None:
    nodes = {name: processes.enter_context(node_process(tmp_path, world.zk, name)) for name in ("a", "b", "c")}
    first = world.elected_node(1)

    def standby() -> list[str]:
        return [node["node"] for node in run_json(world.zk, "status")["standby"]]

    others = sorted({"a", "b", "c"} - {first})
    eventually(lambda: standby() == others, 10, "both are listed")
    assert re.search(rf"^STANDBY +{others[0]} \(\S+\), {others[1]} \(\S+\)$", run_ok(world.zk, "status").stdout, re.M)
    nodes[others[0]].signal(signal.SIGTERM)
    eventually(lambda: standby() == others[1:], 10, "a node that has ended is listed no more")
    nodes[first].kill()
    assert world.elected_node(2) == others[1]
    eventually(lambda: standby() == [], 20, "neither the elected node nor the killed one is on standby")


# ---- consumers


def write(world: World, log_dir: Path, records: int) -> None:
    """`records` more records into each partition of topic t."""
    with Producer.for_store(world.store, log_dir, world.brokers) as producer:
        for partition in range(4):
            producer.send_batch("t", partition, [b"x"] * records)


def offsets(*consumers: ProjectProcess) -> Counter[tuple[int, int]]:
    """(partition, offset) of every record that these have printed, and how often."""
    return Counter((line["partition"], line["offset"]) for consumer in consumers for line in consumer.printed())


def all_printed(end: int, *consumers: ProjectProcess) -> None:
    wanted = {(partition, offset) for partition in range(4) for offset in range(end)}
    eventually(lambda: set(offsets(*consumers)) == wanted, 20, f"all records up to {end} are printed")


@pytest.mark.real_zookeeper("processes")
def test_consumers_that_are_terminated_killed_paused_and_fenced_lose_nothing(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
    log_dir = tmp_path / "log"
    world.coordinator()
    world.topic("t", 4)
    write(world, log_dir, 50)

    def start(name: str, as_file: str = "") -> ProjectProcess:
        return processes.enter_context(consumer_process(tmp_path, world.zk, "g", name, log_dir, as_file=as_file))

    leaves, dies = start("c1"), start("c2")
    everybody = [leaves, dies]
    generation = world.stable("g", 2).generation
    all_printed(50, *everybody)

    leaves.signal(signal.SIGTERM)
    assert leaves.ends() == 0, leaves.said()
    generation = world.stable("g", 1, above=generation).generation
    assert world.channel("g", "c1").ended == "left"

    sleeps = start("c3")
    everybody.append(sleeps)
    generation = world.stable("g", 2, above=generation).generation
    write(world, log_dir, 50)
    all_printed(100, *everybody)
    eventually(lambda: sum(world.offsets("g").values()) == 400, 10, "all is committed")
    dies.kill()
    generation = world.stable("g", 1, above=generation).generation

    stays = start("c4")
    everybody.append(stays)
    generation = world.stable("g", 2, above=generation).generation
    sleeps.pause()
    generation = world.stable("g", 1, above=generation).generation
    write(world, log_dir, 50)
    all_printed(150, *everybody)
    eventually(lambda: sum(world.offsets("g").values()) == 600, 10, "all is committed")
    sleeps.resume()
    generation = world.stable("g", 2, above=generation).generation

    newest = start("c3", as_file="c3-again")
    everybody.append(newest)
    assert sleeps.ends() == 1
    assert sleeps.said().splitlines()[-1] == "error: FencedInstanceId: another process has registered as c3"
    world.stable("g", 2, above=generation)
    write(world, log_dir, 50)
    all_printed(200, *everybody)

    assert [item for item, times in offsets(*everybody).items() if times > 1] == []
    assert all("Traceback" not in consumer.said() for consumer in everybody)


@pytest.mark.real_zookeeper("processes")
def test_consumer_ends_after_records_or_so_long_without_one(world: World, processes: ExitStack, tmp_path: Path) -> None:
    processes.enter_context(node_process(tmp_path, world.zk, "a"))
    world.elected_node(1)
    topic = world.topic("t", 2)
    with Producer(tmp_path / "log", {"t": topic}) as producer:
        for number in range(10):
            producer.send("t", b"%d" % number, partition=number % 2)

    idle = consumer_process(tmp_path, world.zk, "g", "idle", tmp_path / "log", "--timeout-ms", "3000")
    with idle:
        assert idle.ends(60) == 0, idle.said()
    lines = idle.out.read_text().splitlines()
    assert sorted(int(json.loads(line)["value"]) for line in lines) == list(range(10))
    assert "\nno record came for 3000 ms: 10 records in all\n" in idle.said()
    assert sum(world.offsets("g").values()) == 10, "all are committed"

    some = consumer_process(tmp_path, world.zk, "h", "some", tmp_path / "log", "--max-records", "3")
    with some:
        assert some.ends(60) == 0, some.said()
    assert len(some.out.read_text().splitlines()) == 3 == sum(world.offsets("h").values())


# ---- names that are taken over, refusals, and what no consumer reads


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
        first = world.store.get(PATHS.owner("t", 0))
        zookeeper_proxy.hold()

        new = world.consumer("g", "c1", {"t": 1}, log=log)
        eventually(lambda: new.held == parts("t", 0, 1) and new.records, 5, "the new process fetches them")
        later = world.store.get(PATHS.owner("t", 0))
        assert first and later and later.stat.czxid > first.stat.czxid, "the later owner has the higher one"
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
    assert "does not read this znode, and continues to fetch while the group is paused" in section("segments")
    world.coordinator()
    world.topic("t", 2)
    log = MemoryLog(end=100)
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)
    eventually(lambda: len(consumer.records) == 200, 10, "it fetches")

    world.put(PATHS.segments, SegmentsRecord(paused="by hand").to_bytes())
    log.end = 200

    eventually(lambda: len(consumer.records) == 400, 10, "it fetches on")
    assert SegmentsRecord.parse("segments", world.data(PATHS.segments) or b"").paused == "by hand"


def test_consumer_over_group_max_size_is_accepted_after_another_member_left(world: World, polled: Polling) -> None:
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
