"""A group over several Spark applications, each with a driver process: records are delivered once, also after kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.applications import SparkApplication, application, delivered_exactly, total
from tests.support.spark import ContinuousRecords
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(1700)]

LOOK_S = 0.3
"""How often is looked for what was delivered: all of it is read."""

POOL = ("--topic", "t", "--slots", "2", "--pool")


def held_by(world: World, pool: str) -> set[TopicPartition]:
    """The running partitions of a pool's slots."""
    names = [name for name in world.names(GroupPaths("g").channels) if name.startswith(f"{pool}-slot-")]
    return {partition for name in names for partition in world.channel("g", name).running}


def flows_on(folder: Path) -> None:
    so_far = total(folder)
    eventually(lambda: total(folder) > so_far, 90, "records flow on", pause_s=LOOK_S)


def test_pools_and_a_query_in_applications_that_start_end_and_are_killed(world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 4)
    everything = {TopicPartition("t", number) for number in range(4)}
    with (
        application(world, "g", tmp_path, *POOL, "one") as first,
        application(world, "g", tmp_path, "--query", "q") as query,
        ContinuousRecords.produced(world, tmp_path / "log") as records,
    ):
        before = world.stable("g", 2, timeout_s=300)
        assert held_by(world, "one") == everything
        flows_on(tmp_path)
        for leave in (SparkApplication.end, SparkApplication.kill):
            with application(world, "g", tmp_path, *POOL, "two") as second:  # which takes partitions
                joined = world.stable("g", 4, timeout_s=300, above=before.generation)
                assert len(held_by(world, "one")) == len(held_by(world, "two")) == 2
                flows_on(tmp_path)
                leave(second)  # and gives them back
                before = world.stable("g", 2, timeout_s=60, above=joined.generation)
                assert held_by(world, "one") == everything
            flows_on(tmp_path)
        assert query.end() == 0, query.log.read_text()[-2000:]
        records.stop()
        sealed = dict.fromkeys(everything, records.count)
        eventually(lambda: world.offsets("g") == sealed, 60, "the pool seals on without the query")
        assert first.end() == 0, first.log.read_text()[-2000:]
        assert world.names(GroupPaths("g").ids) == []
    with application(world, "g", tmp_path, "--query", "q"):  # and without the pool that sealed it
        eventually(lambda: total(tmp_path) >= 4 * records.count, 300, "sealed records are delivered", pause_s=LOOK_S)
    delivered_exactly(tmp_path, 4, records.count)
