"""Nodes and consumers as processes: what SIGTERM, SIGKILL and SIGSTOP do to them."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from consumer.logs.embedded.producer import Producer
from tests.support.cli import run_json, run_ok
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = pytest.mark.real_zookeeper("processes")


def test_status_shows_the_nodes_on_standby_as_long_as_they_run(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
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


def test_a_consumer_ends_by_itself_after_so_many_records_or_so_long_without_one(
    world: World, processes: ExitStack, tmp_path: Path
) -> None:
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
