"""A group over several Spark applications, each a driver process of its own: each record comes once, whoever ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import GroupPaths
from tests.support.applications import Application, application, delivered_exactly, total
from tests.support.spark import Records, produce
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = pytest.mark.timeout(1700)

LOOK_S = 0.3
"""How often is looked for what was delivered: all of it is read."""

POOL = ("--topic", "t", "--slots", "2", "--pool")


def held_by(world: World, pool: str) -> set[TopicPartition]:
    """What the slots of a pool run."""
    names = [name for name in world.names(GroupPaths("g").channels) if name.startswith(f"{pool}-slot-")]
    return {partition for name in names for partition in world.channel("g", name).running}


def flows_on(folder: Path) -> None:
    so_far = total(folder)
    eventually(lambda: total(folder) > so_far, 90, "records flow on", pause_s=LOOK_S)


def test_a_pool_in_one_application_and_a_query_in_another(world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    with (
        application(world, "g", tmp_path, *POOL, "one") as pool,
        application(world, "g", tmp_path, "--query", "q") as query,
    ):
        produce(world, tmp_path / "log", "t", 500)
        eventually(lambda: total(tmp_path) == 4 * 500, 300, "the other query delivers", pause_s=LOOK_S)
        produce(world, tmp_path / "log", "t", 500)
        eventually(lambda: total(tmp_path) == 4 * 1000, 60, "and goes on", pause_s=LOOK_S)
        assert query.end() == 0, query.log.read_text()[-2000:]
        produce(world, tmp_path / "log", "t", 500)
        everything = {TopicPartition("t", number): 1500 for number in range(4)}
        eventually(lambda: world.offsets("g") == everything, 60, "the pool seals on without the query")
        assert pool.end() == 0, pool.log.read_text()[-2000:]
    with application(world, "g", tmp_path, "--query", "q"):  # and without the pool that sealed it
        eventually(lambda: total(tmp_path) == 4 * 1500, 300, "what was sealed comes", pause_s=LOOK_S)
    delivered_exactly(tmp_path, 4, 1500)


def test_the_second_of_two_pools_takes_partitions_and_gives_them_back_when_it_ends_and_when_it_is_killed(
    world: World, tmp_path: Path
) -> None:
    world.coordinator()
    world.topic("t", 4)
    everything = {TopicPartition("t", number) for number in range(4)}
    with (
        application(world, "g", tmp_path, *POOL, "one", "--query", "q") as first,
        Records.produced(world, tmp_path / "log") as records,
    ):
        before = world.stable("g", 2, timeout_s=300)
        assert held_by(world, "one") == everything
        flows_on(tmp_path)
        for leave in (Application.end, Application.kill):
            with application(world, "g", tmp_path, *POOL, "two") as second:
                joined = world.stable("g", 4, timeout_s=300, above=before.generation)
                assert len(held_by(world, "one")) == len(held_by(world, "two")) == 2
                flows_on(tmp_path)
                leave(second)
                before = world.stable("g", 2, timeout_s=60, above=joined.generation)
                assert held_by(world, "one") == everything
            flows_on(tmp_path)
        records.stop()
        eventually(lambda: total(tmp_path) >= 4 * records.count, 90, "everything came", pause_s=LOOK_S)
        assert first.is_running, first.log.read_text()[-2000:]
    delivered_exactly(tmp_path, 4, records.count)
