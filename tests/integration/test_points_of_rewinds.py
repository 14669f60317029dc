"""What happens between any two requests of a rewind leaves the query where it was, or at the checkpoint, or refused.

Wherever its next run begins, it reads every segment from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from consumer.spark.source.query_znode import PUBLISH_S, QueryRewound
from consumer.spark.source.rewind import CheckpointFiles, NotRewindable
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from coordinator.zk.znodes.records import EpochRecord
from tests.support.cuts import HandMadeRegion
from tests.support.points import (
    Point,
    at_every_point,
    in_virtual_time,
    nothing,
    reply_to_a_commit_is_lost,
    session_ends,
)
from tests.support.ran_query import SESSION_MS, Ran
from tests.support.sealed import SealedGroup, a_collector
from tests.support.world import World, a_world


class Scene(Ran):
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


def run_begins(scene: Scene) -> None:
    """And has something to read."""
    segment_is_sealed(scene)
    with suppress(QueryRewound):
        scene.runs()


def segments_are_collected(scene: Scene) -> None:
    """Those of the checkpoint are protected no longer."""
    scene.region.retire(1)
    collector = a_collector(scene.world.store)
    for _ in range(2):
        collector.collect(["g"])


def segment_is_sealed(scene: Scene) -> None:
    scene.names.append(scene.group.seal())


def query_is_removed(scene: Scene) -> None:
    scene.group.remove_query()


def another_rewinds(scene: Scene) -> None:
    with suppress(NotRewindable):
        scene.rewinder().to(2, execute=True)


CHANGES = [
    nothing,
    run_begins,
    segments_are_collected,
    segment_is_sealed,
    query_is_removed,
    another_rewinds,
    session_ends,
    reply_to_a_commit_is_lost,
]


@pytest.mark.parametrize("change", CHANGES)
def test_rewind_beside_a_change_ends_at_the_checkpoint_or_says_so(change: Callable[[Scene], None]) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, TemporaryDirectory() as folder:
            session = open_kazoo(zk, SESSION_MS)
            with closing(session), closing(Scene(world, point, Path(folder))) as scene:
                failed: CoordinatorError | None = None
                with point.sequence(lambda: change(scene)):
                    try:
                        scene.rewinder(store=point.wrap(session)).to(1, execute=True)
                    except CoordinatorError as error:
                        failed = error
                judge(scene, change, failed)

    assert at_every_point(in_virtual_time(play)) > 8


def judge(scene: Scene, change: Callable[[Scene], None], failed: CoordinatorError | None) -> None:
    if change in (nothing, reply_to_a_commit_is_lost, segment_is_sealed):
        assert failed is None
    try:
        found = scene.runs()
    except QueryRewound:
        assert failed is not None or change is run_begins
        scene.rewinder().to(1, execute=True)
        found, failed = scene.runs(), None
    ends = [2] if failed is None else [2, 4, 6]
    assert found in [scene.names[end:] for end in ends]
