"""What somebody else changes between any two requests of a query, or of a collection, loses no segment of any query.

Beside a rewind it leaves the query where it was, or at the checkpoint, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.cuts import HandMadeRegion
from tests.support.points import (
    Point,
    at_points,
    nothing,
    outcome,
    reply_is_lost,
    reply_to_a_commit_is_lost,
    session_ends,
)
from tests.support.ran_query import Ran
from tests.support.sealed import SealedGroup, a_collector
from tests.support.wait import Ahead, within
from tests.support.world import World, a_world
from zk_group.consumer.errors import SegmentError
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import BatchPlanner, Planner
from zk_group.consumer.streaming.source.query_znode import PUBLISH_S, QueryRemoved, QueryRewound, QueryTakenOver
from zk_group.consumer.streaming.source.rewind import CheckpointFiles, NotRewindable
from zk_group.consumer.streaming.source.segment_index import LIST_AGAIN_S, SourceOffset
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, SetData, Store
from zk_group.coordinator.zk.update import READ_AGAIN_S
from zk_group.coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from zk_group.coordinator.zk.znodes.records import EpochRecord
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

SESSION_MS = 4000
LONG_S = 8 * 86_400.0
"""A query that is silent for so long expires."""


class Scene:
    """Group `g` with three segments, the first of which every query has finished; query `fast` has finished all."""

    def __init__(self, zk: str, folder: Path, point: Point) -> None:
        self._zk = zk
        self.point = point
        self.clock = Ahead()
        self._opened: list[Store] = []
        self._planners: list[Planner] = []
        self.store = self.open()
        self.group = SealedGroup(self.store, folder)
        self.store.commit([Create(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())])
        self.sealed = [self.group.seal() for _ in range(3)]
        self.group.query("fast", self.sealed[-1])
        self.late: tuple[Planner, SourceOffset] | None = None
        self.unfinished: list[str] = []

    def open(self) -> Store:
        self._opened.append(open_kazoo(self._zk, SESSION_MS))
        return self._opened[-1]

    def open_pointed(self) -> Store:
        """A session of the sequence."""
        return self.point.wrap(self.open())

    def planner(self, query: str = "q", align_checkpoints: bool = False) -> Planner:
        config = SourceConfig(zk=self._zk, group="g", query=query, align_checkpoints=align_checkpoints)
        self._planners.append(Planner(config, self.open_pointed, self.clock))
        return self._planners[-1]

    def batch_planner(self) -> BatchPlanner:
        return BatchPlanner(SourceConfig(zk=self._zk, group="g"), self.open_pointed, ThreadRuntime())

    def seals(self) -> str:
        self.sealed.append(self.group.seal())
        return self.sealed[-1]

    @property
    def left(self) -> list[str]:
        return self.group.left

    @property
    def queries(self) -> set[str]:
        return {*self.group.queries}

    @property
    def collected(self) -> int:
        node = self.store.get(self.group.paths.segments)
        return SegmentsRecord.parse("segments", node.data if node else b"").collected

    def close(self) -> None:
        for planner in self._planners:
            planner.close()
        for store in self._opened:
            store.close()

    def coordinator_collects(self) -> None:
        """Two rounds: the second knows what the first has listed."""
        collector = a_collector(self.open())
        for _ in range(2):
            collector.collect(["g"])
        self.seals()

    def coordinator_collects_after_a_seal(self) -> None:
        """All of it: the first segment after it is not in the listing before."""
        self.seals()
        self.group.remove_query("fast")
        self.group.query("fast", self.sealed[-1])
        self.coordinator_collects()

    def query_registers(self) -> None:
        planner = self.planner("late")
        self.late = planner, planner.initial()
        self.unfinished = self.left

    def query_registers_and_reads(self) -> None:
        """It has finished all that there was."""
        self.query_registers()
        assert self.late is not None
        planner, start = self.late
        _, end = read_on(planner, start)
        self.clock.ahead_s += 2
        planner.latest(end)
        self.seals()
        self.late, self.unfinished = (planner, end), self.sealed[-1:]

    def pause_by_hand(self) -> None:
        """As an operator: with what has been collected."""
        record = SegmentsRecord(self.collected, paused="by hand")
        self.store.commit([SetData(self.group.paths.segments, record.to_bytes())])


@contextmanager
def a_scene(zk: str, point: Point) -> Iterator[Scene]:
    with TemporaryDirectory() as folder, closing(Scene(zk, Path(folder), point)) as scene:
        yield scene


def read_on(planner: Planner, start: SourceOffset) -> tuple[list[str], SourceOffset]:
    """What there is after `start`."""
    end = planner.latest(start)
    return [sealed.name for run in planner.plan(start, end) for sealed in run], end


def read_by_watch(planner: Planner, start: SourceOffset, last: str) -> tuple[list[str], SourceOffset]:
    """What there is after `start`, up to `last` at least; a lost watch would be noticed after ten seconds."""
    found: list[str] = []
    end = start

    def has_last() -> bool:
        nonlocal end
        some, end = read_on(planner, end)
        found.extend(some)
        return last in found

    within(has_last, LIST_AGAIN_S / 2, f"{last} is read")
    return found, end


# ---- what others do


Changes = dict[str, Callable[[Scene], object]]
CHANGES: Changes = {
    "a segment is sealed": Scene.seals,
    "the coordinator collects": Scene.coordinator_collects,
    "the coordinator collects after a seal": Scene.coordinator_collects_after_a_seal,
    "its session ends": session_ends,
    "a reply is lost": reply_is_lost,
}


@pytest.mark.parametrize("change", CHANGES)
@at_points(over=8)
def test_new_query_reads_all_segments_since_its_registration(zk: str, point: Point, change: str) -> None:
    with a_scene(zk, point) as scene:
        before: list[str] = []

        def happens() -> None:
            before.extend(scene.left if "q" in scene.queries else [])
            CHANGES[change](scene)
            before.extend(scene.left)

        planner = scene.planner()
        with point.sequence(happens):
            names, end = read_on(planner, planner.initial())
        scene.seals()
        more, _ = read_by_watch(planner, end, scene.sealed[-1])
        assert names + more == sorted({*before, scene.sealed[-1]}), (names, more)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_restarted", [False, True])
@at_points(over=4)
def test_query_reads_on_without_a_hole(zk: str, point: Point, change: str, is_restarted: bool) -> None:
    with a_scene(zk, point) as scene:
        planner = scene.planner()
        names, end = read_on(planner, planner.initial())
        scene.seals()
        if is_restarted:
            planner.close()
            planner = scene.planner()
        with point.sequence(lambda: CHANGES[change](scene)):
            some, end = read_by_watch(planner, end, scene.sealed[-1])
        scene.seals()
        more, _ = read_by_watch(planner, end, scene.sealed[-1])
        assert names + some + more == scene.sealed


def goes_on(planner: Planner, end: SourceOffset) -> bool:
    """Whether it plans further batches, once its watches have fired."""
    planner.close()
    try:
        read_on(planner, end)
    except QueryTakenOver:
        return False
    return True


@pytest.mark.parametrize("is_new", [True, False])
@at_points(over=4)
def test_of_two_runs_of_a_query_the_newer_alone_goes_on(zk: str, point: Point, is_new: bool) -> None:
    with a_scene(zk, point) as scene:
        planner, ends, others = scene.planner(), list[SourceOffset](), list[Planner]()
        if not is_new:
            ends.append(read_on(planner, planner.initial())[1])
            scene.seals()
            scene.clock.ahead_s += 2  # it has something to publish

        def happens() -> None:
            other = scene.planner()
            others.append(other)
            read_on(other, ends[-1] if ends else other.initial())

        end = None
        try:
            with point.sequence(happens):
                _, end = read_on(planner, ends[-1] if ends else planner.initial())
        except QueryTakenOver:
            assert others
        (other,) = others
        scene.seals()
        went_on = [each for each in (planner, other) if end is not None and goes_on(each, end)]
        assert len(went_on) == (end is not None)
        assert is_new or planner not in went_on


@at_points(over=1)
def test_replaced_run_whose_segments_are_collected_ends_as_replaced(zk: str, point: Point) -> None:
    with a_scene(zk, point) as scene:
        planner = scene.planner()
        _, start = read_on(planner, planner.initial())
        scene.seals()
        end = planner.latest(start)
        scene.seals()

        def happens() -> None:
            other = scene.planner()
            _, after = read_on(other, start)
            scene.clock.ahead_s += 2  # it has something to publish
            other.latest(after)
            scene.coordinator_collects_after_a_seal()
            assert scene.collected > end.czxid

        with point.sequence(happens), suppress(QueryTakenOver):
            planner.plan(start, end)
        with pytest.raises(QueryTakenOver):
            planner.latest(end)


def is_removed(planner: Planner, end: SourceOffset) -> bool:
    try:
        planner.latest(end)
    except QueryRemoved:
        return True
    return False


@at_points(over=0)
def test_query_removed_between_any_two_requests_does_not_register_again(zk: str, point: Point) -> None:
    with a_scene(zk, point) as scene:
        planner = scene.planner()
        _, end = read_on(planner, planner.initial())
        scene.seals()
        with suppress(QueryRemoved):
            with point.sequence(scene.group.remove_query):
                read_on(planner, end)
            within(lambda: is_removed(planner, end), READ_AGAIN_S / 2, "the watch has fired")
        assert scene.queries == {"fast"}


@pytest.mark.parametrize("change", CHANGES)
@at_points(over=3)
def test_batch_read_is_planned_without_a_hole(zk: str, point: Point, change: str) -> None:
    with a_scene(zk, point) as scene:
        planner = scene.batch_planner()
        before = scene.left
        with point.sequence(lambda: CHANGES[change](scene)):
            found = [sealed.name for run in planner.plan_all() for sealed in run]
        planner.close()
        all_now = scene.sealed
        assert found == [name for name in all_now if name in found], "one prefix, without a hole"
        assert set(before) <= set(found) or not set(before) & set(scene.left), found
        assert found and all_now.index(found[-1]) - all_now.index(found[0]) == len(found) - 1


# ---- batches that end at checkpoints


class Region(Scene):
    """Its group is in a consistent region.

    :ivar czxids: of each segment that there has been.  :ivar cuts: the retained checkpoints, with their czxids.
    """

    def __init__(self, zk: str, folder: Path, point: Point) -> None:
        super().__init__(zk, folder, point)
        self.region = HandMadeRegion(self.store)
        self.czxids = {name: self.group.czxid(name) for name in self.sealed}
        self.cuts: dict[int, int] = {}

    def seals(self) -> str:
        name = super().seals()
        self.czxids[name] = self.group.czxid(name)
        return name

    def completes(self) -> None:
        number = self.region.cut()
        self.cuts[number] = self.region.czxid(number)

    def completes_beside_seals(self) -> None:
        """Fetchers seal before it and, at once, after it."""
        self.seals()
        self.completes()
        self.seals()

    def retires(self) -> None:
        self.completes_beside_seals()
        oldest = min(self.cuts)
        del self.cuts[oldest]
        self.region.retire(oldest)


CUTS: dict[str, Callable[[Region], object]] = {
    "a checkpoint completes alone": Region.completes,
    "a checkpoint completes": Region.completes_beside_seals,
    "a checkpoint is retired": Region.retires,
    "its session ends": session_ends,
    "a reply is lost": reply_is_lost,
}


@pytest.mark.parametrize("change", CUTS)
@at_points(over=5)
def test_aligned_batches_end_at_every_checkpoint(zk: str, point: Point, change: str) -> None:
    with TemporaryDirectory() as folder, closing(Region(zk, Path(folder), point)) as scene:
        scene.completes_beside_seals()
        planner = scene.planner(align_checkpoints=True)
        ends, found = [planner.initial()], list[list[str]]()

        def has_all() -> bool:
            names, end = read_on(planner, ends[-1])
            found.append(names)
            ends.append(end)
            return end.segment == scene.sealed[-1]

        with point.sequence(lambda: CUTS[change](scene)):
            within(has_all, LIST_AGAIN_S / 2, "all is read")
        scene.seals()
        scene.completes()
        within(lambda: has_all() and ends[-1].checkpoint == max(scene.cuts), LIST_AGAIN_S / 2, "the end is reached")
        assert [name for names in found for name in names] == scene.sealed
        at = {end.checkpoint: end.czxid for end in ends if end.checkpoint}
        for number, cut in scene.cuts.items():
            last = max(czxid for czxid in scene.czxids.values() if czxid < cut)
            assert last in at.values(), f"a batch ends at checkpoint {number}"
            assert at.get(number, last) == last, "no segment is between a batch's end and its checkpoint"
            sides = [{scene.czxids[name] < cut for name in names} for names in found]
            assert {True, False} not in sides, f"a batch is on both sides of checkpoint {number}"


# ---- a collection


BESIDE_A_COLLECTION: Changes = {
    "a query registers": Scene.query_registers,
    "a query registers and reads": Scene.query_registers_and_reads,
    "a pause by hand": Scene.pause_by_hand,
    "a segment is sealed": Scene.seals,
    "the coordinator collects": Scene.coordinator_collects,
}


@pytest.mark.parametrize("change", BESIDE_A_COLLECTION)
@at_points(over=5)
def test_collection_leaves_what_a_query_has_not_finished(zk: str, point: Point, change: str) -> None:
    with a_scene(zk, point) as scene:
        collector = a_collector(scene.open_pointed())
        names = list(scene.sealed)
        with point.sequence(lambda: BESIDE_A_COLLECTION[change](scene)):
            for _ in range(2):
                collector.collect(["g"])
        collector.collect(["g"])
        if scene.late is not None:
            assert set(scene.unfinished) <= set(scene.left), "what it has not finished stays"
            scene.seals()
            planner, start = scene.late
            assert read_by_watch(planner, start, scene.sealed[-1])[0] == [*scene.unfinished, scene.sealed[-1]]
        else:
            assert scene.left == [name for name in scene.sealed if name not in names]
        first = scene.group.czxid(scene.left[0]) if scene.left else 1 << 62
        assert scene.collected < first
        assert bool(scene.collected) == (len(scene.left) < len(scene.sealed))
        folder = Path(scene.group.folder.path("x")).parent
        files = {path.name for path in folder.rglob("*.arrow")}
        assert {scene.group.path(name).name for name in scene.left} <= files
        if change == "a pause by hand":
            node = scene.store.get(scene.group.paths.segments)
            assert node is not None and b"by hand" in node.data


# ---- an expiry


@pytest.mark.parametrize("is_restarted", [False, True])
@at_points(over=5)
def test_query_that_is_back_beside_its_expiry_reads_on_or_says_so(zk: str, point: Point, is_restarted: bool) -> None:
    with a_scene(zk, point) as scene:
        silent = scene.planner()
        _, read = read_on(silent, silent.initial())
        unread = [scene.seals() for _ in range(2)]
        collector = a_collector(scene.open_pointed(), scene.clock)
        collector.collect(["g"])
        scene.clock.ahead_s += LONG_S
        scene.group.query("alive", unread[-1])
        found: list[str] | None = None

        def is_back() -> None:
            nonlocal found, silent
            silent = scene.planner() if is_restarted else silent
            with suppress(SegmentError):
                found, end = read_on(silent, read)
                scene.late = silent, end

        with point.sequence(is_back):
            for _ in range(2):
                collector.collect(["g"])
        assert (found or []) == (unread if scene.late else [])
        collector.collect(["g"])
        assert scene.late is None or set(unread) <= set(scene.left), "what it has not finished stays"
        assert scene.late is not None or not set(unread) & set(scene.left), "it may read what is there"


# ---- a rewind: wherever the next run begins, it reads every segment from there on


class Rewinding(Ran):
    """The query has read all that was sealed for three checkpoints, and its driver has ended."""

    def __init__(self, world: World, point: Point, folder: Path) -> None:
        group = SealedGroup(world.store, folder / "segments")
        super().__init__(world, group, HandMadeRegion(world.store), folder / "spark")
        self.point = point
        world.store.commit([Create(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())])
        ThreadRuntime().sleep(PUBLISH_S)
        self.planner.latest(self.ends[-1])

    def runs(self) -> list[str]:
        """The next run begins with the files of now, and reads to the end."""
        files, planner = CheckpointFiles(str(self.folder)), self.planned()
        end, found = files.offset(files.finished[-1]), list[str]()
        while self.names[-1] != end.segment:
            start, end = end, planner.latest(end)
            found += [sealed.name for run in planner.plan(start, end) for sealed in run]
        return found

    def seals(self) -> None:
        self.names.append(self.group.seal())

    def run_begins(self) -> None:
        """And has something to read."""
        self.seals()
        with suppress(QueryRewound):
            self.runs()

    def segments_are_collected(self) -> None:
        """Those of the checkpoint are protected no longer."""
        self.region.retire(1)
        collector = a_collector(self.world.store)
        for _ in range(2):
            collector.collect(["g"])

    def another_rewinds(self) -> None:
        with suppress(NotRewindable):
            self.rewinder().to(2, execute=True)


Rewinds = dict[str, Callable[[Rewinding], object]]
MUST_SUCCEED: Rewinds = {
    "nothing": nothing,
    "a reply is lost": reply_to_a_commit_is_lost,
    "a segment is sealed": Rewinding.seals,
}
BESIDE_A_REWIND: Rewinds = {
    **MUST_SUCCEED,
    "a run begins": Rewinding.run_begins,
    "segments are collected": Rewinding.segments_are_collected,
    "the query is removed": lambda scene: scene.group.remove_query(),
    "another rewinds": Rewinding.another_rewinds,
    "its session ends": session_ends,
}


@pytest.mark.parametrize("change", BESIDE_A_REWIND)
@at_points(over=8)
def test_rewind_beside_a_change_ends_at_the_checkpoint_or_says_so(zk: str, point: Point, change: str) -> None:
    with (
        a_world(zk) as world,
        TemporaryDirectory() as folder,
        closing(open_kazoo(zk, 2000)) as session,
        closing(Rewinding(world, point, Path(folder))) as scene,
    ):
        with point.sequence(lambda: BESIDE_A_REWIND[change](scene)):
            failed = outcome(lambda: scene.rewinder(store=point.wrap(session)).to(1, execute=True))
        assert failed is None or change not in MUST_SUCCEED
        try:
            found = scene.runs()
        except QueryRewound:
            assert failed is not None or change == "a run begins"
            scene.rewinder().to(1, execute=True)
            found, failed = scene.runs(), None
        assert found in [scene.names[end:] for end in ([2] if failed is None else [2, 4, 6])]
