"""Segments of a batch read, the start of a new query, and the errors of both for missing segments.

Most cases are the stories of `batch_reads.txt`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.errors import SegmentError
from consumer.spark.source.data_source import records
from consumer.spark.source.planner import MAY_BE_COLLECTED, BatchPlanner
from consumer.spark.source.segment_index import Sealed
from coordinator.zk.store import Store
from tests.support.queries import QueryBench, QueryStory, names
from tests.support.stores import Behind
from tests.support.stories import play, stories

STORIES = Path(__file__).with_name("batch_reads.txt")


@pytest.mark.parametrize("title", stories(STORIES))
def test_read(bench: QueryBench, title: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    play(request, STORIES, title, QueryStory(bench, caplog))


def test_batch_read_finds_a_group_that_a_lagging_server_does_not_know_yet(bench: QueryBench) -> None:
    name = bench.seal()
    planner = bench.batch_planner(front=lambda store: Behind(store, lambda path: path.startswith(bench.paths.segments)))

    assert names(planner.plan_all()) == [name]


def test_segments_collected_while_a_batch_read_is_planned_are_left_out_whole(bench: QueryBench) -> None:
    sealed = [bench.seal(), bench.seal()]

    class CollectedMeanwhile(BatchPlanner):
        """The oldest segment is collected between the first listing and the check of the files."""

        def _listed(self, store: Store) -> list[Sealed]:
            found = super()._listed(store)
            if sealed[0] in bench.left:
                bench.path(sealed[0]).unlink()
                bench.collect(sealed[:1])
            return found

    assert names(bench.batch_planner(CollectedMeanwhile).plan_all()) == sealed[1:]


def test_a_segment_collected_between_planning_and_reading_fails_the_read_by_name(bench: QueryBench) -> None:
    name = bench.seal()
    ((sealed,),) = bench.batch_planner().plan_all()
    bench.path(name).unlink()
    with pytest.raises(SegmentError, match=rf"segment {name} .* is missing; .* may have been collected since"):
        list(records([sealed], False, MAY_BE_COLLECTED))


def test_earliest_of_a_new_query_is_logged_with_what_was_collected(
    bench: QueryBench, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = [bench.seal(), bench.seal()]
    collected = bench.czxid(sealed[0])
    bench.collect(sealed[:1])
    with caplog.at_level("INFO"):
        bench.planner().initial()
    assert f"after=earliest collected_up_to={collected}" in caplog.text
