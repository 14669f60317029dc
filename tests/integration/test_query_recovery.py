"""Restarts of queries and slots: names are kept, an outage removes no member, decided entries are swept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.config import Subscription
from consumer.sealing.segment_check import ORPHAN_AFTER_S, sweep
from consumer.sealing.segment_files import SegmentFolder
from consumer.spark.fetchers.config import SlotConfig, SlotSpec
from consumer.spark.fetchers.slot import Directions, PoolPost
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import Planner
from consumer.spark.source.segment_index import SourceOffset
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Create, SetData
from coordinator.zk.update import ensure
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel
from coordinator.zk.znodes.segments import Query, SealedRange, Segment
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World

SESSION_MS = 2000
PATHS = GroupPaths("g")


class Clock(ThreadRuntime):
    """Time as a test has it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + round(self.ahead_s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Group:
    """A group whose files and segments are made by hand, for incarnation `abc` of consumer `c`."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = SegmentFolder(str(folder))
        ensure(world.store, PATHS.skeleton)

    def write(self, number: int) -> Segment:
        """A file of ten records of partition 0, and its segment, which no znode names yet."""
        file, first = f"g/c/abc-{number:010d}.arrow", 10 * number
        batches = MemoryLog(first + 10).fetch("t", "id", 0, first, 1 << 20).batches
        size = self.folder.write(file, iter(batches))
        return Segment(file, self.folder.url, 10, size, (SealedRange("t", "id", 0, first, first + 10),), "c", "abc", 1)

    def seal(self, number: int) -> Segment:
        segment = self.write(number)
        self.world.store.commit([Create(PATHS.segment_prefix, segment.to_bytes(), sequential=True)])
        return segment


@pytest.fixture
def group(world: World, tmp_path: Path) -> Group:
    return Group(world, tmp_path)


# ---- a query that is started again


def a_planner(world: World, clock: Clock, query: str = "") -> Planner:
    config = SourceConfig(zk=world.zk, group="g", query=query)
    return Planner(config, kazoo_factory(world.zk, SESSION_MS), clock)


def finished(world: World) -> dict[str, int]:
    """Query -> up to where the coordinator may collect."""
    nodes = {name: world.data(PATHS.query(name)) for name in world.names(PATHS.queries)}
    return {name: Query.parse(name, data).finished for name, data in nodes.items() if data is not None}


@pytest.fixture
def replayed(world: World, group: Group, clock: Clock) -> Iterator[tuple[Planner, SourceOffset]]:
    """A query without a name of its own whose driver died in its first batch, in its second run, and where it is."""
    group.seal(0)
    first = a_planner(world, clock)
    start = first.initial()
    end = first.latest(start)
    first.plan(start, end)
    first.close()
    second = a_planner(world, clock)
    begin = second.initial()  # so does Spark: the offset log has the end of batch 0, and no batch before it
    assert begin.query != end.query, "nothing but the end of the batch names the query"
    assert len(second.plan(begin, end)) == 1
    yield second, end
    second.close()


def test_query_restarted_in_its_first_batch_keeps_the_name_of_its_checkpoint(
    world: World, replayed: tuple[Planner, SourceOffset]
) -> None:
    _, end = replayed

    assert list(finished(world)) == [end.query]


def test_a_query_that_was_started_again_in_its_first_batch_holds_nothing_back(
    world: World, group: Group, clock: Clock, replayed: tuple[Planner, SourceOffset]
) -> None:
    planner, end = replayed

    for number in (1, 2, 3):
        group.seal(number)
        before = end
        end = eventually(lambda before=before: (at := planner.latest(before)) != before and at, 5, "one more")  # type: ignore[misc]
        planner.plan(before, end)
        clock.ahead_s += 2.0
    assert planner.latest(end) == end

    assert finished(world) == {end.query: end.czxid}


def test_restarted_query_keeps_the_generated_name_of_its_previous_run(
    world: World, group: Group, clock: Clock, replayed: tuple[Planner, SourceOffset]
) -> None:
    planner, end = replayed
    planner.close()
    group.seal(1)
    third = a_planner(world, clock)
    try:
        after = third.latest(end)
        third.plan(end, after)
        clock.ahead_s += 2.0
        third.latest(after)

        assert finished(world) == {end.query: after.czxid}
    finally:
        third.close()


# ---- a slot whose driver is away


@pytest.fixture
def post(world: World) -> Iterator[PoolPost]:
    """A driver's."""
    post = PoolPost(kazoo_factory(world.zk, SESSION_MS), ThreadRuntime(), "g", "p", "run-1")
    post.keep(2)
    yield post
    post.close()


@pytest.fixture
def directions(world: World, post: PoolPost, clock: Clock, tmp_path: Path) -> Directions:
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
    world: World, post: PoolPost, directions: Directions, clock: Clock
) -> None:
    clock.ahead_s += 60.0  # without requests; the driver's session expired
    post.close()

    sees_pool(world, directions, there=False)
    clock.ahead_s += 29.0
    sees_pool(world, directions, there=False)
    post.keep(2)
    sees_pool(world, directions, there=True)


def test_driver_absence_is_counted_from_zero_each_time(
    world: World, post: PoolPost, directions: Directions, clock: Clock
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


def test_collected_segment_files_are_swept_while_their_consumer_is_alive(
    world: World, group: Group, clock: Clock
) -> None:
    collected = [group.write(number).file for number in (1, 2, 3)]
    kept = [group.seal(number).file for number in (4, 5)]
    waiting = group.write(6).file  # its multi may be on its way
    other = re.sub("abc", "abd", waiting)
    Path(group.folder.url, other).write_bytes(b"x")
    live = Channel(incarnation="abc", sealed=kept[-1])
    ensure(world.store, [PATHS.channel("c")])
    world.store.commit([SetData(PATHS.channel("c"), live.to_bytes())])
    every = [*collected, *kept, waiting, other]
    assert sweep(world.store, clock, group.folder, "g") == 0, "they are too young"

    clock.ahead_s += ORPHAN_AFTER_S + 60

    assert sweep(world.store, clock, group.folder, "g") == 4
    left = [file for file, size in zip(every, group.folder.sizes(every), strict=True) if size is not None]
    assert left == [*kept, waiting]


def test_no_file_of_a_living_consumer_is_swept_before_it_has_sealed_one(
    world: World, group: Group, clock: Clock
) -> None:
    waiting = group.write(1).file
    ensure(world.store, [PATHS.channel("c")])
    world.store.commit([SetData(PATHS.channel("c"), Channel(incarnation="abc").to_bytes())])
    clock.ahead_s += ORPHAN_AFTER_S + 60

    assert sweep(world.store, clock, group.folder, "g") == 0
    assert group.folder.sizes([waiting]) != [None]


def test_last_sealed_file_is_swept_once_a_coordinator_on_another_node_collected_it(
    world: World, group: Group, clock: Clock
) -> None:
    """A coordinator whose node cannot reach the folder removes the znode only."""
    last = group.seal(1).file
    ensure(world.store, [PATHS.channel("c")])
    world.store.commit([SetData(PATHS.channel("c"), Channel(incarnation="abc", sealed=last).to_bytes())])
    clock.ahead_s += ORPHAN_AFTER_S + 60
    assert sweep(world.store, clock, group.folder, "g") == 0, "a segment names it"

    (name,) = world.names(PATHS.segments)
    world.remove(PATHS.segment(name))

    assert sweep(world.store, clock, group.folder, "g") == 1
