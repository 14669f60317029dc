"""Nodes and consumers as processes: what SIGTERM, SIGKILL, SIGSTOP and a ZooKeeper that goes away do to them."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from consumer.logs.embedded.producer import Producer
from coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GROUPS, GroupPaths
from coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord
from tests.support.cli import run_json, run_ok
from tests.support.clients import fresh_chroot
from tests.support.hand import ManualStage
from tests.support.memlog import MemoryLog
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import Waiting, eventually, within
from tests.support.world import World, a_world, parts

pytestmark = pytest.mark.real_zookeeper("processes")

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)


def elected(world: World, epoch: int, timeout_s: float = 20.0, wait: Waiting = eventually) -> str:
    """The node that is elected in `epoch`, once one is."""

    def look() -> str | None:
        data = world.data(COORDINATOR)
        record = CoordinatorRecord.parse(COORDINATOR, data) if data else None
        return record.node if record and record.epoch == epoch else None

    return wait(look, timeout_s, f"a node is elected in epoch {epoch}") or ""


def three_nodes(world: World, processes: ExitStack, folder: Path) -> dict[str, ProjectProcess]:
    return {name: processes.enter_context(node_process(folder, world.zk, name)) for name in ("a", "b", "c")}


@pytest.mark.full("processes, beside the same in virtual time")
def test_next_of_three_nodes_is_elected_after_sigterm_and_sigkill(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
    nodes = three_nodes(world, processes, tmp_path)
    first = elected(world, 1)
    world.topic("t", 4)
    log = MemoryLog(end=100)
    consumer = world.consumer("g", "c1", {"t": 1}, log=log)
    before = world.stable("g", 1)

    nodes[first].signal(signal.SIGTERM)
    second = elected(world, 2, timeout_s=5, wait=within)
    assert nodes[first].ends() == 0, nodes[first].said()
    nodes[second].kill()
    third = elected(world, 3, timeout_s=5, wait=within)

    assert {first, second, third} == {"a", "b", "c"}
    world.more_partitions("t", 5)
    after = world.stable("g", 1, above=before.generation)
    assert (after.epoch, after.generation) == (3, before.generation + 1), "a failover alone is no reason to rebalance"
    eventually(lambda: len(consumer.records) == 500, 10, "all is read")
    world.delivered_once("t", 5, 100)
    for process in nodes.values():
        assert "Traceback" not in process.said()


def test_status_shows_the_nodes_on_standby_as_long_as_they_run(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
    nodes = three_nodes(world, processes, tmp_path)
    first = elected(world, 1)

    def standby() -> list[str]:
        return [node["node"] for node in run_json(world.zk, "status")["standby"]]

    others = sorted({"a", "b", "c"} - {first})
    eventually(lambda: standby() == others, 10, "both are listed")
    assert re.search(rf"^STANDBY +{others[0]} \(\S+\), {others[1]} \(\S+\)$", run_ok(world.zk, "status").stdout, re.M)
    nodes[others[0]].signal(signal.SIGTERM)
    eventually(lambda: standby() == others[1:], 10, "a node that has ended is listed no more")
    nodes[first].kill()
    assert elected(world, 2) == others[1]
    eventually(lambda: standby() == [], 20, "neither the elected node nor the killed one is on standby")


@pytest.mark.full("processes, beside the same in virtual time")
def test_node_beside_hostile_patterns_ends_on_sigterm_and_serves_other_groups(
    world: World, stage: ManualStage, processes: ExitStack, tmp_path: Path
) -> None:
    """Python's `re` took minutes for one name, or gigabytes, and the process ignored signals meanwhile."""
    hostile = ["(?#[)(.+)+1(?#])", "(?x)(.+#)\n)+1", "(){1000000000}t", "(a?){500}a{400}", "((a?){30}){30}b", "(a+)+b"]
    world.topic("t", 4)
    for number in range(50):
        world.topic(f"{'a' * 240}-{number}", 1)
    for number, pattern in enumerate(hostile):
        stage.puppet("hostile", f"m{number}", {pattern: 1}, "white_list")

    node = processes.enter_context(node_process(tmp_path, world.zk, "a"))
    elected(world, 1)
    good = world.consumer("g", "c1", {"t": 1}, log=MemoryLog(end=100))
    world.stable("g", 1)
    eventually(lambda: {"m0", "m1"} <= world.state("hostile").left_out.keys(), 10, "a turn has met all of them")

    eventually(lambda: len(good.records) == 400, 10, "the other group reads")
    node.signal(signal.SIGTERM)
    assert node.ends(10) == 0, node.said()


def mzxid(world: World, path: str) -> int:
    node = world.store.get(path)
    assert node is not None
    return node.stat.mzxid


def written_by_epoch(world: World, path: str, epoch: int) -> Iterator[tuple[str, int]]:
    """Every znode from `path` down that carries `epoch`, but for channels, which their consumers write: its mzxid."""
    node = world.store.get(path)
    if node is not None and f'"epoch":{epoch},'.encode() in node.data and "/channel/" not in path.rpartition("/")[0]:
        yield path, node.stat.mzxid
    if node is not None and f'"epoch":{epoch},'.encode() in node.data and "/command-" in path:
        yield path, node.stat.mzxid
    for name in world.names(path):
        yield from written_by_epoch(world, f"{path}/{name}", epoch)


@pytest.mark.full("processes, beside the same in virtual time")
def test_paused_coordinator_writes_nothing_after_the_next_one_is_elected(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
    options = ("--sweep-interval-ms", "100")
    first = processes.enter_context(node_process(tmp_path, world.zk, "first", 1000, *options))
    assert elected(world, 1) == "first"
    world.topic("t", 4)
    log = MemoryLog(end=100)
    consumers = [world.consumer("g", name, {"t": 1}, log=log) for name in ("c1", "c2")]
    before = world.stable("g", 2)
    processes.enter_context(node_process(tmp_path, world.zk, "second", 1000))

    first.pause()
    consumers.append(world.consumer("g", "c3", {"t": 1}, log=log))  # work for it, as soon as it wakes up
    elected(world, 2)
    bumped_at = mzxid(world, COORDINATOR_EPOCH)
    first.resume()
    eventually(lambda: "resigned" in first.said(), 10, "the first one has noticed")
    after = world.stable("g", 3, above=before.generation)

    late = [(path, at) for path, at in written_by_epoch(world, GROUPS, 1) if at > bumped_at]
    assert late == []
    assert [path for path, at in written_by_epoch(world, GROUPS, 1)] != [], "the first one's history is still there"
    assert after.epoch == 2
    log.end = 200
    eventually(lambda: sum(len(c.records) for c in consumers) == 800, 10, "all is read")
    world.delivered_once("t", 4, 200)
    assert EpochRecord.parse("", world.data(COORDINATOR_EPOCH) or b"").epoch == 2
    assert elected(world, 2) == "second"


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


# ---- ZooKeeper itself


@pytest.mark.full("processes, beside the same in virtual time")
def test_consumers_pause_while_zookeeper_is_unavailable_and_resume_afterwards(
    tmp_path: Path,
) -> None:
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False)
    with Ensemble(tmp_path / "zookeeper", config) as ensemble, a_world(fresh_chroot(ensemble.hosts)) as world:
        service = world.coordinator(session_timeout_ms=6000)
        world.topic("t", 4)
        log = MemoryLog(end=100)
        consumers = [world.consumer("g", name, {"t": 1}, log=log, session_timeout_ms=3000) for name in ("c1", "c2")]
        world.stable("g", 2)
        eventually(lambda: sum(len(c.records) for c in consumers) == 400, 10, "all is read")
        (server,) = ensemble.servers

        server.kill()
        eventually(lambda: not any(c.consumer.member.may_fetch for c in consumers), 5, "their leases lapse")
        log.end = 200
        read_while_away = sum(len(c.polled) for c in consumers)
        server.start()
        ensemble.wait_healthy()

        eventually(lambda: sum(len(c.records) for c in consumers) == 800, 20, "all is read")
        assert read_while_away == 400, "nothing is read without a lease"
        world.stable("g", 2)
        world.delivered_once("t", 4, 200)
        assert [c.error for c in consumers] == [None, None]
        assert service.term is not None


def test_a_consumer_ends_by_itself_after_so_many_records_or_so_long_without_one(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
    processes.enter_context(node_process(tmp_path, world.zk, "a"))
    elected(world, 1)
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
