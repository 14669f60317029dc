"""Queries of a group in a consistent region: they begin at checkpoints, end there, and hold the same records there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from consumer.errors import SegmentError
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import BatchPlanner, Planner
from consumer.spark.source.segment_index import SourceOffset
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Delete, Listing, Node, SetData, Store, Watch
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.cuts import HandMadeRegion
from tests.support.sealed import SealedGroup
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World

SESSION_MS = 2000


@pytest.fixture
def group(world: World, tmp_path: Path) -> SealedGroup:
    return SealedGroup(world.store, tmp_path)


@pytest.fixture
def region(world: World, group: SealedGroup) -> HandMadeRegion:
    return HandMadeRegion(world.store)


@pytest.fixture
def streaming(world: World) -> Iterator[Callable[..., Planner]]:
    made: list[Planner] = []

    def start(query: str = "q", **options: object) -> Planner:
        config = SourceConfig(zk=world.zk, group="g", query=query, **options)  # type: ignore[arg-type]
        made.append(Planner(config, kazoo_factory(world.zk, SESSION_MS), ThreadRuntime()))
        return made[-1]

    yield start
    for planner in made:
        planner.close()


def batch(world: World, **options: object) -> list[str]:
    config = SourceConfig(zk=world.zk, group="g", **options)  # type: ignore[arg-type]
    planner = BatchPlanner(config, kazoo_factory(world.zk, SESSION_MS), ThreadRuntime())
    try:
        return [sealed.name for run in planner.plan_all() for sealed in run]
    finally:
        planner.close()


def batches(planner: Planner, max_rows: int = 0) -> list[tuple[list[str], SourceOffset]]:
    """Every batch that there is now, with its end."""
    planner.close()  # the next question uses a session that has listed everything
    start, found = planner.initial(), []
    while (end := planner.latest(start, max_rows)) != start:
        found.append(([sealed.name for run in planner.plan(start, end) for sealed in run], end))
        start = end
    return found


def collect(world: World, group: SealedGroup, *names: str) -> None:
    record = SegmentsRecord(collected=group.czxid(names[-1])).to_bytes()
    world.store.commit([SetData(group.paths.segments, record), *(Delete(group.paths.segment(n)) for n in names)])


# ---- batch reads


def test_batch_reads_up_to_and_from_a_checkpoint_are_disjoint_and_complete(
    world: World, group: SealedGroup, region: HandMadeRegion
) -> None:
    before = [group.seal(), group.seal(partition=1)]
    number = region.cut()
    after = [group.seal(), group.seal()]

    assert batch(world, ending_segments=f"checkpoint:{number}") == before
    assert batch(world, starting_segments=f"checkpoint:{number}") == after


def test_batch_read_between_two_checkpoints_has_the_segments_between_them(
    world: World, group: SealedGroup, region: HandMadeRegion
) -> None:
    group.seal()
    first = region.cut()
    between = [group.seal(), group.seal()]
    second = region.cut()
    group.seal()

    assert batch(world, starting_segments=f"checkpoint:{first}", ending_segments=f"checkpoint:{second}") == between
    assert batch(world, starting_segments=f"checkpoint:{second}", ending_segments=f"checkpoint:{second}") == []


# ---- where a query begins


def test_new_queries_that_start_at_a_checkpoint_read_the_same_segments(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    group.seal()
    number = region.cut()
    after = [group.seal(), group.seal()]

    one = batches(streaming("one", starting_segments=f"checkpoint:{number}"))
    other = batches(streaming("other", starting_segments=f"checkpoint:{number}"))

    assert [names for names, _ in one] == [names for names, _ in other] == [after]


def test_a_checkpoint_before_the_first_segment_is_where_everything_begins(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    number = region.cut()
    sealed = [group.seal(), group.seal()]

    assert [names for names, _ in batches(streaming(starting_segments=f"checkpoint:{number}"))] == [sealed]


def test_unkept_checkpoint_is_refused_with_the_kept_ones(
    world: World, group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    for _ in range(3):
        group.seal()
        region.cut()
    region.retire(1)

    with pytest.raises(SegmentError, match="region r has no complete checkpoint 1, any more or yet; there are: 2, 3"):
        batches(streaming(starting_segments="checkpoint:1"))
    with pytest.raises(SegmentError, match="endingSegments: region r has no complete checkpoint 9"):
        batch(world, ending_segments="checkpoint:9")


def test_checkpoint_with_collected_segments_is_refused_listing_complete_ones(
    world: World, group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    first, number = group.seal(), region.cut()
    second, later = group.seal(), region.cut()
    group.seal()
    collect(world, group, first, second)

    gone = rf"segments after checkpoint {number} of group g's region were collected; there are: {later}$"
    with pytest.raises(SegmentError, match=gone):
        batches(streaming(starting_segments=f"checkpoint:{number}"))
    with pytest.raises(SegmentError, match=gone):
        batch(world, starting_segments=f"checkpoint:{number}")


def test_first_batch_is_repeated_after_its_checkpoint_was_retired(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    group.seal()
    one = region.cut()
    after = [group.seal(), group.seal()]
    planner = streaming(starting_segments=f"checkpoint:{one}")
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)  # it is in Spark's checkpoint, and the driver dies
    planner.close()
    region.cut()
    region.retire(one)

    again = streaming(starting_segments=f"checkpoint:{one}")

    assert [sealed.name for run in again.plan(again.initial(), end) for sealed in run] == after
    assert again.latest(end) == end


def test_a_group_that_is_in_no_region_has_no_checkpoints_to_begin_at(
    group: SealedGroup, streaming: Callable[..., Planner]
) -> None:
    group.seal()
    with pytest.raises(SegmentError, match="startingSegments: group g is in no consistent region"):
        batches(streaming(starting_segments="checkpoint:1"))


def test_a_batch_read_that_begins_after_its_end_is_refused(
    world: World, group: SealedGroup, region: HandMadeRegion
) -> None:
    numbers = [region.cut() for _ in range(2) if group.seal()]
    with pytest.raises(SegmentError, match="comes after endingSegments"):
        batch(world, starting_segments=f"checkpoint:{numbers[1]}", ending_segments=f"checkpoint:{numbers[0]}")


# ---- aligned batches


def test_batch_ends_at_every_checkpoint_and_its_offset_names_it(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    first = [group.seal(), group.seal()]
    one = region.cut()
    second = [group.seal()]
    two = region.cut()
    third = [group.seal()]

    found = batches(streaming(align_checkpoints=True))

    assert [(names, end.checkpoint) for names, end in found] == [(first, one), (second, two), (third, 0)]


def test_a_checkpoint_with_nothing_new_is_reached_by_a_batch_without_records(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    sealed = [group.seal()]
    one = region.cut()
    planner = streaming(align_checkpoints=True)
    ((names, end),) = batches(planner)
    region.cut()
    three = region.cut()

    after = eventually(lambda: (now := planner.latest(end)) != end and now, 10, "it has reached the newest checkpoint")

    assert (names, end.checkpoint) == (sealed, one)
    assert (after.checkpoint, after.czxid) == (three, end.czxid) and planner.plan(end, after) == []
    assert planner.latest(after) == after


def test_an_aligned_batch_is_no_longer_than_asked_for_either(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    sealed = [group.seal(rows=10) for _ in range(3)]
    number = region.cut()
    last = group.seal()

    found = batches(streaming(align_checkpoints=True), max_rows=20)

    assert [(names, end.checkpoint) for names, end in found] == [(sealed[:2], 0), (sealed[2:], number), ([last], 0)]


def test_without_alignment_checkpoints_change_nothing(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    first = group.seal()
    region.cut()
    second = group.seal()

    ((names, end),) = batches(streaming())
    assert names == [first, second] and "checkpoint" not in end.to_dict()


def test_a_query_that_begins_before_its_group_is_in_a_region_is_aligned_once_it_is(
    world: World, group: SealedGroup, streaming: Callable[..., Planner]
) -> None:
    sealed = [group.seal()]
    planner = streaming(align_checkpoints=True)
    end = planner.latest(planner.initial())
    number = HandMadeRegion(world.store).cut()

    at = eventually(lambda: (now := planner.latest(end)) != end and now, 10, "it has reached the checkpoint")

    assert (end.segment, end.checkpoint) == (sealed[0], 0)
    assert (at.segment, at.checkpoint) == (sealed[0], number)


def test_available_now_run_ends_while_further_checkpoints_complete(
    group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    group.seal()
    number = region.cut()
    planner = streaming(align_checkpoints=True)
    start = planner.initial()
    planner.prepare_available_now()
    ends = []
    for _ in range(5):
        region.cut()
        planner.close()  # each question uses a new session, which reads everything again
        ends.append(planner.latest(ends[-1] if ends else start))

    assert ends[0].checkpoint == number and set(ends) == {ends[0]}


def test_a_region_that_was_made_again_and_counts_from_1_has_cuts_of_its_own(
    world: World, group: SealedGroup, region: HandMadeRegion, streaming: Callable[..., Planner]
) -> None:
    group.seal()
    region.cut()
    ((_, end),) = batches(streaming("q", align_checkpoints=True))
    region.retire(end.checkpoint)
    region.again()
    first = [group.seal()]
    region.cut()
    group.seal()
    region.cut()

    planner = streaming("q", align_checkpoints=True)
    after = planner.latest(end)

    assert [sealed.name for run in planner.plan(end, after) for sealed in run] == first
    assert after.checkpoint == 1


class Counted(FrontStore):
    """Counts what is asked of ZooKeeper."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked = 0

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        self.asked += len(paths)
        return super().get_many(paths, watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        self.asked += len(paths)
        return super().children_many(paths, watch)


def test_idle_aligned_query_sends_few_requests_for_any_number_of_checkpoints(
    world: World, group: SealedGroup, region: HandMadeRegion
) -> None:
    group.seal()
    for _ in range(10):
        region.abort()
        region.cut()
    opener, stores = kazoo_factory(world.zk, SESSION_MS), []

    def counted() -> Store:
        stores.append(Counted(opener()))
        return stores[-1]

    planner = Planner(SourceConfig(zk=world.zk, group="g", query="q", align_checkpoints=True), counted, ThreadRuntime())
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)
    end = planner.latest(end)
    before = stores[0].asked

    for _ in range(100):
        assert planner.latest(end) == end
    asked = stores[0].asked - before
    planner.close()

    assert asked < 50


class SealsMeanwhile(FrontStore):
    """Something happens between two reads of what a query asks for.

    :param nth: the listing of `path` after which it does.
    """

    def __init__(self, store: Store, path: str, happens: Callable[[], object], nth: int = 1) -> None:
        super().__init__(store)
        self._path = path
        self._happens = happens
        self._left = nth

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        listings = super().children_many(paths, watch)
        self._left -= self._path in paths
        if self._path in paths and self._left == 0:
            self._happens()
        return listings


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_batch_read_between_checkpoints_loses_no_segment_collected_meanwhile(
    world: World, group: SealedGroup, region: HandMadeRegion, nth: int
) -> None:
    gone = [group.seal()]
    first = region.cut()
    between = [group.seal(), group.seal()]
    second = region.cut()
    options = {"starting_segments": f"checkpoint:{first}", "ending_segments": f"checkpoint:{second}"}
    config = SourceConfig(zk=world.zk, group="g", **options)  # type: ignore[arg-type]
    opener = kazoo_factory(world.zk, SESSION_MS)

    def happens() -> None:
        collect(world, group, *gone, between[0])

    planner = BatchPlanner(
        config, lambda: SealsMeanwhile(opener(), group.paths.segments, happens, nth), ThreadRuntime()
    )
    try:
        assert [sealed.name for run in planner.plan_all() for sealed in run] == between
    except SegmentError as error:
        assert "were collected" in str(error)
    finally:
        planner.close()


@pytest.mark.parametrize("place", ["checkpoints", "segments"])
def test_batch_never_spans_a_checkpoint_that_completes_while_a_query_plans(
    world: World, group: SealedGroup, region: HandMadeRegion, place: str
) -> None:
    sealed = [group.seal()]

    def happens() -> None:
        sealed.append(group.seal())
        region.cut()
        sealed.append(group.seal())

    path = {"checkpoints": "/consumers/regions/r/checkpoints", "segments": group.paths.segments}[place]
    config = SourceConfig(zk=world.zk, group="g", query="q", align_checkpoints=True)
    opener = kazoo_factory(world.zk, SESSION_MS)
    planner = Planner(config, lambda: opener(), ThreadRuntime())
    start = planner.initial()
    planner.close()
    planner = Planner(config, lambda: SealsMeanwhile(opener(), path, happens), ThreadRuntime())
    found = []
    for _ in range(6):
        end = planner.latest(start)
        found.append(({s.name for run in planner.plan(start, end) for s in run}, end.checkpoint))
        start = end
    planner.close()

    assert not any({sealed[1], sealed[2]} <= names for names, _ in found), "no batch has both"
    assert set().union(*(names for names, _ in found)) == set(sealed)
    at_cut = [number for number, (_, checkpoint) in enumerate(found) if checkpoint == 1]
    held = set().union(*(names for names, _ in found[: at_cut[0] + 1]))
    assert held == set(sealed[:2]), "what it holds at the checkpoint is what belongs to that"


def test_an_offset_keeps_its_checkpoint() -> None:
    offset = SourceOffset(7, 1, "q", "segment-0000000003", 2, 42)
    assert SourceOffset.of(offset.to_dict()) == offset
