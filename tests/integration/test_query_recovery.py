"""Restarts of queries and slots: names are kept, an outage removes no member, decided entries are swept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.config import Subscription
from consumer.sealing.segment_check import ORPHAN_AFTER_S, sweep
from consumer.spark.fetchers.config import SlotConfig, SlotSpec
from consumer.spark.fetchers.slot import Directions, PoolPost
from consumer.spark.source.planner import Planner
from consumer.spark.source.segment_index import SourceOffset
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.znodes.records import Channel
from tests.support.clock import Ahead
from tests.support.queries import SESSION_MS, QueryBench, later
from tests.support.sealed import SealedGroup
from tests.support.wait import eventually
from tests.support.world import World


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


# ---- a query that is started again


def finished(bench: QueryBench) -> dict[str, int]:
    """Query -> up to where the coordinator may collect."""
    return {name: query.finished for name, query in bench.queries.items()}


@pytest.fixture
def replayed(bench: QueryBench) -> tuple[Planner, SourceOffset]:
    """A query without a name of its own whose driver died in its first batch, in its second run, and where it is."""
    bench.seal()
    first, _, end = bench.ran("")
    first.close()
    second = bench.planner("")
    begin = second.initial()  # so does Spark: the offset log has the end of batch 0, and no batch before it
    assert begin.query != end.query, "nothing but the end of the batch names the query"
    assert len(second.plan(begin, end)) == 1
    return second, end


def test_query_restarted_in_its_first_batch_keeps_the_name_of_its_checkpoint(
    bench: QueryBench, replayed: tuple[Planner, SourceOffset]
) -> None:
    _, end = replayed

    assert list(finished(bench)) == [end.query]


def test_a_query_that_was_started_again_in_its_first_batch_holds_nothing_back(
    bench: QueryBench, replayed: tuple[Planner, SourceOffset]
) -> None:
    planner, end = replayed

    for _ in range(3):
        bench.seal()
        before, end = end, later(planner, end)
        planner.plan(before, end)
        bench.clock.ahead_s += 2.0
    assert planner.latest(end) == end

    assert finished(bench) == {end.query: end.czxid}


def test_restarted_query_keeps_the_generated_name_of_its_previous_run(
    bench: QueryBench, replayed: tuple[Planner, SourceOffset]
) -> None:
    planner, end = replayed
    planner.close()
    bench.seal()
    third = bench.planner("")
    after = third.latest(end)
    third.plan(end, after)
    bench.clock.ahead_s += 2.0
    third.latest(after)

    assert finished(bench) == {end.query: after.czxid}


# ---- a slot whose driver is away


@pytest.fixture
def post(world: World) -> Iterator[PoolPost]:
    """A driver's."""
    post = PoolPost(kazoo_factory(world.zk, SESSION_MS), ThreadRuntime(), "g", "p", "run-1")
    post.keep(2)
    yield post
    post.close()


@pytest.fixture
def directions(world: World, post: PoolPost, clock: Ahead, tmp_path: Path) -> Directions:
    """A slot's, whose driver may be gone for 30 s; it has read them."""
    config = SlotConfig(
        zk=world.zk, group="g", pool="p", log_dir="m", segments_dir=str(tmp_path), driver_gone_ms=30_000
    )
    directions = Directions(SlotSpec(config, Subscription({"t": 1}), 0, "run-1", "0"), clock)
    assert directions.read(world.store) is None
    return directions


def sees_pool(world: World, directions: Directions, *, there: bool) -> None:
    """Read until the pool's znode was seen to be there, or not to."""

    def is_seen() -> bool:
        assert directions.read(world.store) is None, "no reason to leave"
        return (directions._pool.node is not None) == there

    eventually(is_seen, 5, f"the slot sees that the pool's znode is {'there' if there else 'gone'}")


def test_slot_stays_when_its_driver_returns_after_a_long_zookeeper_outage(
    world: World, post: PoolPost, directions: Directions, clock: Ahead
) -> None:
    clock.ahead_s += 60.0  # without requests; the driver's session expired
    post.close()

    sees_pool(world, directions, there=False)
    clock.ahead_s += 29.0
    sees_pool(world, directions, there=False)
    post.keep(2)
    sees_pool(world, directions, there=True)


def test_driver_absence_is_counted_from_zero_each_time(
    world: World, post: PoolPost, directions: Directions, clock: Ahead
) -> None:
    for _ in range(3):
        post.close()
        sees_pool(world, directions, there=False)
        clock.ahead_s += 20.0
        post.keep(2)
        sees_pool(world, directions, there=True)
    post.close()
    sees_pool(world, directions, there=False)

    clock.ahead_s += 31.0

    assert directions.read(world.store) == "its driver is gone"


# ---- files without a segment znode


@pytest.fixture
def group(world: World, tmp_path: Path) -> SealedGroup:
    return SealedGroup(world.store, tmp_path)


def test_collected_segment_files_are_swept_while_their_consumer_is_alive(
    world: World, group: SealedGroup, clock: Ahead
) -> None:
    collected = [group.write().file for _ in range(3)]
    kept = [group.segment(group.seal()).file for _ in range(2)]
    waiting = group.write().file  # its multi may be on its way
    other = re.sub("abc", "abd", waiting)
    Path(group.folder.url, other).write_bytes(b"x")
    group.channel(Channel(incarnation="abc", sealed=kept[-1]))
    every = [*collected, *kept, waiting, other]
    assert sweep(world.store, clock, group.folder, "g") == 0, "they are too young"

    clock.ahead_s += ORPHAN_AFTER_S + 60

    assert sweep(world.store, clock, group.folder, "g") == 4
    left = [file for file, size in zip(every, group.folder.sizes(every), strict=True) if size is not None]
    assert left == [*kept, waiting]


def test_no_file_of_a_living_consumer_is_swept_before_it_has_sealed_one(
    world: World, group: SealedGroup, clock: Ahead
) -> None:
    waiting = group.write().file
    clock.ahead_s += ORPHAN_AFTER_S + 60

    assert sweep(world.store, clock, group.folder, "g") == 0
    assert group.folder.sizes([waiting]) != [None]


def test_last_sealed_file_is_swept_once_a_coordinator_on_another_node_collected_it(
    world: World, group: SealedGroup, clock: Ahead
) -> None:
    """A coordinator whose node cannot reach the folder removes the znode only."""
    name = group.seal()
    group.channel(Channel(incarnation="abc", sealed=group.segment(name).file))
    clock.ahead_s += ORPHAN_AFTER_S + 60
    assert sweep(world.store, clock, group.folder, "g") == 0, "a segment names it"

    group.remove(name)

    assert sweep(world.store, clock, group.folder, "g") == 1
