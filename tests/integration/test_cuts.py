"""Queries of a group in a consistent region: they begin at checkpoints, end there, and hold the same records there.

Most cases are the stories of `cuts.txt`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.errors import SegmentError
from coordinator.zk.store import Store
from coordinator.zk.znodes.regions import ABORTED
from tests.support.cuts import HandMadeRegion
from tests.support.queries import QueryBench, QueryStory, names
from tests.support.stores import Reads
from tests.support.stories import play, stories

STORIES = Path(__file__).with_name("cuts.txt")


@pytest.mark.parametrize("title", stories(STORIES))
def test_cuts(bench: QueryBench, title: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    play(request, STORIES, title, QueryStory(bench, caplog))


def test_idle_aligned_query_sends_few_requests_for_any_number_of_checkpoints(bench: QueryBench) -> None:
    bench.seal()
    region = HandMadeRegion(bench.store)
    for _ in range(10):
        region.cut(ABORTED)
        region.cut()
    stores: list[Reads] = []
    planner, _, end = bench.ran(align_checkpoints=True, front=lambda store: stores.append(Reads(store)) or stores[-1])
    end = planner.latest(end)
    before = len(stores[0].paths)

    for _ in range(100):
        assert planner.latest(end) == end

    assert len(stores[0].paths) - before < 50


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_batch_read_between_checkpoints_loses_no_segment_collected_meanwhile(bench: QueryBench, nth: int) -> None:
    sealed, region = [bench.seal()], HandMadeRegion(bench.store)
    region.cut()
    sealed += [bench.seal(), bench.seal()]
    region.cut()

    def collecting(store: Store) -> Store:
        return Reads(store).after(bench.paths.segments, lambda: bench.collect(sealed[:2]), nth)

    options = {"starting_segments": "checkpoint:1", "ending_segments": "checkpoint:2"}
    try:
        assert names(bench.batch_planner(front=collecting, **options).plan_all()) == sealed[1:]
    except SegmentError as error:
        assert "were collected" in str(error)
