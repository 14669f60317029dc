"""Segments of a batch read, the start of a new query, and the errors of both for missing segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.errors import SegmentError
from consumer.spark.source.data_source import records
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import MAY_BE_COLLECTED, BatchPlanner
from consumer.spark.source.segment_index import SourceOffset
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Node, Store
from coordinator.zk.znodes.segments import Segment
from tests.integration.test_planner import Behind, Bench, later, names

SESSION_MS = 2000


@pytest.fixture
def bench(zk: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(zk, tmp_path)
    yield bench
    bench.close()


def planned(bench: Bench, **options: object) -> list[str]:
    planner = BatchPlanner(config(bench, **options), kazoo_factory(bench.zk, SESSION_MS), ThreadRuntime())
    try:
        return names(planner.plan_all())
    finally:
        planner.close()


def config(bench: Bench, **options: object) -> SourceConfig:
    return SourceConfig(**({"zk": bench.zk, "group": "g"} | options))  # type: ignore[arg-type]


def node_of(bench: Bench, name: str) -> Node:
    node = bench.store.get(bench.paths.segment(name))
    assert node is not None
    return node


def unlink(bench: Bench, name: str) -> None:
    segment = Segment.parse(name, node_of(bench, name).data)
    Path(bench.folder.path(segment.file)).unlink()


# ---- a batch read


def test_a_batch_read_takes_everything_that_is_sealed_and_registers_no_query(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal(partition=1), bench.seal()]
    assert planned(bench) == sealed
    listing = bench.store.children(bench.paths.queries)
    assert listing is not None and list(listing.names) == []


def test_batch_read_of_a_group_without_segments_is_empty(bench: Bench) -> None:
    assert planned(bench) == []


def test_batch_read_of_a_missing_group_is_refused(bench: Bench) -> None:
    with pytest.raises(SegmentError, match="there is no group other at"):
        planned(bench, group="other")


def test_a_batch_read_may_begin_and_end_at_segments_that_are_named(bench: Bench) -> None:
    sealed = [bench.seal() for _ in range(4)]
    assert planned(bench, starting_segments=sealed[1]) == sealed[1:]
    assert planned(bench, ending_segments=sealed[2]) == sealed[:3]
    assert planned(bench, starting_segments=sealed[1], ending_segments=sealed[2]) == sealed[1:3]
    assert planned(bench, starting_segments=sealed[2], ending_segments=sealed[1]) == []


def test_missing_named_segment_is_refused_with_the_existing_ones(bench: Bench) -> None:
    first, second = bench.seal(), bench.seal()
    bench.collect([first], node_of(bench, first).stat.czxid)
    for option in ("starting_segments", "ending_segments"):
        with pytest.raises(SegmentError, match=f"{first} was collected, or was never sealed; {second} to {second} are"):
            planned(bench, **{option: first})


def test_segments_collected_before_a_batch_read_are_no_data_loss_but_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = [bench.seal(), bench.seal(), bench.seal()]
    assert planned(bench) == sealed
    assert "already removed" not in caplog.text
    bench.collect(sealed[:1], node_of(bench, sealed[0]).stat.czxid)

    assert planned(bench) == sealed[1:]
    assert f"reader=batch gone=segments from the first to {sealed[0]} are gone, with t-0 offsets up to 9" in caplog.text
    assert "reason=no query held them back any more, and they were no longer retained" in caplog.text
    assert planned(bench, starting_segments=sealed[1]) == sealed[1:]
    assert caplog.text.count("already removed") == 1, "a read from a named segment needs no earlier one"


def test_batch_read_without_any_segment_left_logs_why_it_is_empty(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.collect([name := bench.seal()], node_of(bench, name).stat.czxid)

    assert planned(bench) == []
    assert "reader=batch gone=segments from the first on are gone, and no segment is left" in caplog.text


def test_missing_segment_between_others_fails_a_batch_read(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal(), bench.seal()]
    bench.remove(sealed[1])
    with pytest.raises(SegmentError, match=f"segments between {sealed[0]} and {sealed[2]} .* are gone"):
        planned(bench)
    assert planned(bench, fail_on_data_loss=False) == [sealed[0], sealed[2]]


def test_a_missing_file_fails_a_batch_read_with_its_segment_and_offsets(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal()]
    unlink(bench, sealed[0])
    with pytest.raises(SegmentError, match=f"the file of {sealed[0]} .t-0 offsets 0 to 9. is missing"):
        planned(bench)
    assert planned(bench, fail_on_data_loss=False) == sealed[1:]


def test_batch_read_finds_a_group_that_a_lagging_server_does_not_know_yet(bench: Bench) -> None:
    name = bench.seal()
    opener = kazoo_factory(bench.zk, SESSION_MS)
    lacks = lambda path: path.startswith(bench.paths.segments)  # noqa: E731

    planner = BatchPlanner(config(bench), lambda: Behind(opener(), lacks), ThreadRuntime())

    assert names(planner.plan_all()) == [name]
    planner.close()


class CollectedMeanwhile(BatchPlanner):
    """The oldest segment is collected between the first listing and the check of the files."""

    bench: Bench
    is_done = False

    def _listed(self, store: Store) -> list:  # type: ignore[type-arg]
        found = super()._listed(store)
        if not self.is_done:
            self.is_done = True
            unlink(self.bench, found[0].name)
            self.bench.collect([found[0].name], found[0].czxid)
        return found


def test_segments_collected_while_a_batch_read_is_planned_are_left_out_whole(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal()]
    planner = CollectedMeanwhile(config(bench), kazoo_factory(bench.zk, SESSION_MS), ThreadRuntime())
    planner.bench = bench
    assert names(planner.plan_all()) == sealed[1:]
    planner.close()


def test_a_segment_collected_between_planning_and_reading_fails_the_read_by_name(bench: Bench) -> None:
    name = bench.seal()
    planner = BatchPlanner(config(bench), kazoo_factory(bench.zk, SESSION_MS), ThreadRuntime())
    ((sealed,),) = planner.plan_all()
    planner.close()
    unlink(bench, name)
    with pytest.raises(SegmentError, match=rf"segment {name} .* is missing; .* may have been collected since"):
        list(records([sealed], False, MAY_BE_COLLECTED))


# ---- where a new query begins


def test_new_query_from_latest_reads_only_later_segments(bench: Bench) -> None:
    bench.seal()
    newest = bench.seal()
    planner = bench.planner(starting_segments="latest")
    start = planner.initial()
    assert (start.segment, planner.latest(start)) == (newest, start)
    more = bench.seal()
    assert names(planner.plan(start, later(planner, start))) == [more]


def test_new_query_starting_at_latest_blocks_collection_until_its_first_batch(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner(starting_segments="latest")
    start = planner.initial()
    planner.latest(start)
    node = bench.store.get(bench.paths.query("q"))
    assert node is not None and node.stat.ephemeral_owner and bench.finished() == 0
    planner.plan(start, start)
    node = bench.store.get(bench.paths.query("q"))
    assert node is not None and not node.stat.ephemeral_owner and bench.finished() == start.czxid


def test_segment_sealed_between_first_offset_and_first_batch_is_not_skipped(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner(starting_segments="latest")
    start = planner.initial()
    sealed = [bench.seal()]
    end = planner.latest(start)
    sealed.append(bench.seal())
    again = planner.initial()  # as Spark does for the first batch
    delivered = names(planner.plan(again, end))
    assert bench.finished() <= end.czxid, "what is not delivered yet is held back"
    delivered += names(planner.plan(end, later(planner, end)))
    assert delivered == sealed


def test_first_batch_planned_again_by_another_run_retains_later_segments(bench: Bench) -> None:
    bench.seal()
    first = bench.planner(starting_segments="latest")
    start = first.initial()
    sealed = [bench.seal()]
    end = first.latest(start)
    delivered = names(first.plan(start, end))  # and then the driver dies
    first.close()
    sealed.append(bench.seal())
    second = bench.planner(starting_segments="latest")
    assert names(second.plan(second.initial(), end)) == delivered
    assert bench.finished() <= end.czxid
    assert delivered + names(second.plan(end, later(second, end))) == sealed


def test_first_batch_replanned_by_another_run_fails_when_a_segment_was_collected(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal(), bench.seal()]
    first = bench.planner()
    start = first.initial()
    end = first.latest(start)
    first.plan(start, end)
    first.close()
    bench.collect(sealed[:2], node_of(bench, sealed[1]).stat.czxid)
    second = bench.planner()
    with pytest.raises(SegmentError, match=r"gone, with t-0 offsets up to 19: .* query q was silent"):
        second.plan(second.initial(), end)


def test_latest_with_nothing_sealed_is_the_beginning(bench: Bench) -> None:
    planner = bench.planner(starting_segments="latest")
    start = planner.initial()
    assert start.segment == ""
    sealed = bench.seal()
    assert names(planner.plan(start, later(planner, start))) == [sealed]


def test_earliest_is_the_first_segment_that_is_still_there(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sealed = [bench.seal(), bench.seal()]
    collected = node_of(bench, sealed[0]).stat.czxid
    bench.collect(sealed[:1], collected)
    planner = bench.planner()
    with caplog.at_level("INFO"):
        start = planner.initial()
    assert f"after=earliest collected_up_to={collected}" in caplog.text
    assert names(planner.plan(start, later(planner, start))) == sealed[1:]
    assert f"group=g reader=query {start.query} gone=segments from the first to {sealed[0]} are gone" in caplog.text
    later(planner, start)
    assert caplog.text.count("already removed") == 1


def test_query_that_resumes_from_its_checkpoint_reports_no_removed_segments(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = [bench.seal(), bench.seal()]
    first = bench.planner()
    end = later(first, first.initial())
    bench.collect(sealed, node_of(bench, sealed[1]).stat.czxid)
    second = bench.planner()
    second.initial()  # Spark asks for it, and continues at the checkpoint

    assert second.latest(end) == end
    assert "already removed" not in caplog.text


def test_query_resumes_at_its_checkpoint_regardless_of_starting_segments(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal()]
    first = bench.planner()
    start = first.initial()
    end = SourceOffset(node_of(bench, sealed[0]).stat.czxid, start.root, "q", sealed[0])
    first.plan(start, end)
    first.close()
    again = bench.planner(starting_segments="latest")
    again.initial()  # Spark asks for it, and uses its checkpoint's
    again.plan(start, end)
    assert names(again.plan(end, later(again, end))) == sealed[1:]
