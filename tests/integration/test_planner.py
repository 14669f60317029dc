"""Batches planned from znodes: they join, replays are equal, and missing segments are never skipped.

Most cases are the stories of `queries.txt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.client_side import Hooked
from tests.support.cuts import HandMadeRegion
from tests.support.queries import SESSION_MS, QueryBench, QueryStory, later, names, restarted
from tests.support.stores import Behind, DeafStore, Reads, lost_reply
from tests.support.stories import play, stories
from tests.support.wait import eventually
from tests.support.world import expire as end_session
from zk_group.consumer.errors import SegmentError
from zk_group.consumer.streaming.source.data_source import records
from zk_group.consumer.streaming.source.planner import MAY_BE_COLLECTED, Planner, packed
from zk_group.consumer.streaming.source.query_znode import QueryRemoved, QueryTakenOver
from zk_group.consumer.streaming.source.segment_index import Sealed, SourceOffset
from zk_group.coordinator.retention.segments import SeenQueries
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, Operation, SetData, Store
from zk_group.coordinator.zk.znodes.partitions import LOST, RESET, Discontinuity, TopicPartition
from zk_group.coordinator.zk.znodes.regions import ABORTED
from zk_group.coordinator.zk.znodes.segments import Segment

STORIES = Path(__file__).with_name("queries.txt")


@pytest.mark.parametrize("title", stories(STORIES))
def test_query(bench: QueryBench, title: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    play(request, STORIES, title, QueryStory(bench, caplog))


@pytest.mark.parametrize(
    ("version", "name", "ephemeral", "lost"),
    [
        (7, "new", [], {"unnamed": 3}),
        (8, "new", [], {}),
        (6, "new", ["new"], {"unnamed": 3}),
        (7, "new", ["new"], {}),
        (6, "known", [], {"unnamed": 3}),
        (7, "known", [], {}),
        (7, "began", [], {"unnamed": 3}),
    ],
)
def test_unnamed_query_outlives_session(version: int, name: str, ephemeral: list[str], lost: dict[str, int]) -> None:
    runs = frozenset({("unnamed", 1, "a"), ("known", 2, "b"), ("began", 3, "d")})
    seen = SeenQueries(5, runs, {"unnamed": 3, "began": 0})

    assert seen.newly_lost([name], version, frozenset({(name, 9, "c")}), ephemeral) == lost | (
        {} if name == "began" or not lost else {"began": 0}
    )


# ---- runs of one query beside each other, and beside others


def registers(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, Create) for each in operations)


def fronted(bench: QueryBench, query: str = "q") -> tuple[Planner, Hooked]:
    """A planner, and its session."""
    session = Hooked(open_kazoo(bench.zk, SESSION_MS))
    return bench.planner(query, lambda store: session), session


@pytest.mark.parametrize("answers", [True, False], ids=["its first batch", "after a lost reply"])
def test_older_run_of_a_new_query_replaces_no_run_that_registered_meanwhile(bench: QueryBench, answers: bool) -> None:
    bench.seal()
    new = bench.planner()
    old, session = fronted(bench)
    if answers:
        start = old.initial()
        end = old.latest(start)
    else:
        bench.planner().initial()
        session.before(registers, lost_reply)
    session.before(registers, new.initial)

    with pytest.raises(QueryTakenOver, match="another run of query q"):
        old.plan(start, end) if answers else old.initial()

    assert len(new.plan(new.initial(), later(new, new.initial()))) == 1


def test_run_that_registers_again_replaces_no_run_that_registered_meanwhile(bench: QueryBench) -> None:
    bench.seal()
    _, _, end = bench.ran()
    old, session = fronted(bench)
    old.latest(end)
    bench.expire()
    session.before(lambda _: True, lambda: bench.planner().latest(end))

    with pytest.raises(QueryTakenOver, match="another run of query q"):
        later(old, end)


def test_query_begins_its_first_batch_though_many_others_register_meanwhile(bench: QueryBench) -> None:
    bench.seal()
    planner, session = fronted(bench)
    others = iter(range(29))

    def another_registers() -> None:
        bench.store.commit([SetData(bench.paths.queries, b"")])
        if next(others, None) is not None:
            session.before(registers, another_registers)

    session.before(registers, another_registers)
    start = planner.initial()

    assert len(planner.plan(start, planner.latest(start))) == 1
    assert next(others, None) is None, "there were 30"


def test_name_that_a_restarted_query_gave_itself_goes_though_others_register(bench: QueryBench) -> None:
    bench.seal()
    planner, start, end = bench.ran("")
    planner.close()
    again, session = fronted(bench, "")
    again.initial()
    session.before(lambda each: any(isinstance(one, Delete) for one in each), bench.planner("other").initial)

    again.plan(start, end)

    assert [*bench.queries] == sorted([end.query, "other"])


def test_progress_of_an_unnamed_query_is_not_written_over_a_newer_run(bench: QueryBench) -> None:
    bench.seal()
    new = bench.planner("")
    old, session = fronted(bench, "")
    start = old.initial()
    end = old.latest(start)
    old.plan(start, end)
    bench.seal()
    bench.clock.ahead_s += 11
    session.before(lambda operations: not registers(operations), lambda: new.plan(start, end))

    with pytest.raises(QueryTakenOver):
        old.plan(end, old.latest(end))

    assert bench.queries[end.query].finished == start.czxid


# ---- a server that lags


def test_a_query_is_not_taken_for_removed_because_a_server_lags(bench: QueryBench) -> None:
    bench.seal()
    planner, _, end = bench.ran(front=Behind)
    bench.clock.ahead_s += 60  # it gives a sign of life, which makes it look

    assert isinstance(planner._sessions.living, Behind)
    planner._sessions.living.lacks = lambda path: "/queries/" in path

    assert planner.latest(end) == end


def test_query_that_plans_a_batch_again_skips_no_segment_because_a_server_lags(bench: QueryBench) -> None:
    sealed = [bench.seal() for _ in range(3)]
    _, start, end = bench.ran()
    newer = {bench.paths.segment(name) for name in sealed[1:]}
    again = bench.planner(front=lambda store: Behind(store, newer.__contains__), fail_on_data_loss=False)

    assert names(again.plan(start, end)) == sealed


@pytest.mark.parametrize("fails", [True, False], ids=["failOnDataLoss", "no failOnDataLoss"])
def test_query_that_is_removed_with_its_segments_fails_as_removed(bench: QueryBench, fails: bool) -> None:
    sealed = [bench.seal(), bench.seal()]
    planner, start, end = bench.ran(front=DeafStore, fail_on_data_loss=fails)
    planner.plan(start, end)
    bench.remove_query()
    bench.collect(sealed)
    planner._segments._on_change("")  # its watch fires before that of the query

    with pytest.raises(QueryRemoved):
        planner.plan(start, end)


# ---- what a query has delivered, over all of its runs and plans


def ends(offsets: dict[int, int]) -> dict[TopicPartition, tuple[str, int]]:
    """Of the partitions of `t`."""
    return {TopicPartition("t", partition): ("id", offset) for partition, offset in offsets.items()}


def one_batch(bench: QueryBench, start: SourceOffset | None = None, **options: object) -> SourceOffset:
    """A run that plans one batch; its end."""
    planner = bench.planner(**options)  # type: ignore[arg-type]
    start = restarted(start) if start is not None else planner.initial()
    end = later(planner, start)
    planner.plan(start, end)
    return end


@pytest.mark.parametrize(("first", "cause"), [(15, None), (5, None), (0, Discontinuity(LOST, 10))])
def test_gap_or_repetition_fails_every_start(bench: QueryBench, first: int, cause: Discontinuity | None) -> None:
    bench.seal(10)
    read = one_batch(bench)
    bench.seal(10, partition=1)
    read = one_batch(bench, read)
    bench.seal(10, first=first, cause=cause)
    for _ in range(2):
        with pytest.raises(SegmentError, match=f"t-0 from offset {first} on.*, and 10 should be next"):
            one_batch(bench, read)

    read = one_batch(bench, read, fail_on_data_loss=False)
    bench.seal(10)
    assert one_batch(bench, read).ends == ends({0: first + 20, 1: 10})


@pytest.mark.parametrize(
    ("before", "is_collected"), [(0, True), (0, False), (1, False)], ids=["collected", "removed", "removed in a batch"]
)
def test_query_goes_on_after_a_run_with_a_missing_segment(bench: QueryBench, before: int, is_collected: bool) -> None:
    bench.seal(10)
    read = one_batch(bench)
    for _ in range(before):
        bench.seal(10)
    gone = bench.seal(10)
    bench.seal(10, partition=1)
    if is_collected:
        bench.collect([gone])
    else:
        bench.remove(gone)
    read = one_batch(bench, read, fail_on_data_loss=False)
    bench.seal(10)
    read = one_batch(bench, read)

    end = 30 + 10 * before
    assert read.ends == ends({0: end, 1: 10})
    bench.seal(10, first=end + 10)
    with pytest.raises(SegmentError, match=f"t-0 from offset {end + 10} on, and {end} should be next"):
        one_batch(bench, read)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (Discontinuity(LOST, 7), "since the log has lost those before, and 7 should be next"),
        (Discontinuity(RESET, 2**60), "where an operator has set the group's offset"),
    ],
)
def test_loss_or_reset_before_the_begin_is_a_gap(bench: QueryBench, begin: str, cause: Discontinuity, why: str) -> None:
    bench.seal(10)
    planner = bench.planner(starting_segments=begin)
    start = planner.initial()
    name = bench.seal(10, partition=1, first=50, cause=cause)
    end = eventually(lambda: found if (found := planner.latest(start)).segment == name else None, 5, "it is listed")
    with pytest.raises(SegmentError, match=f"t-1 from offset 50 on, {why}"):
        planner.plan(start, end)


def test_reset_under_a_run_that_begins_with_an_unfinished_batch_fails_it(bench: QueryBench) -> None:
    bench.seal(10)
    end = one_batch(bench, query="")
    planner = bench.planner("")
    planner.plan(replace(end, czxid=0, segment="", ends={}), end)
    reset = bench.reset()
    assert planner._sessions.living is not None
    end_session(planner._sessions.living)  # it registers again, after the reset
    bench.seal(10, first=0, cause=reset)
    with pytest.raises(SegmentError, match="t-0 from offset 0 on, where an operator"):
        planner.plan(end, later(planner, end))


def test_offset_of_an_earlier_release_is_checked_from_its_next_batch_on(bench: QueryBench) -> None:
    bench.seal(10)
    end = one_batch(bench)
    earlier = replace(end, ends={}, began=0, registered=0, first="")
    assert set(earlier.to_dict()) == {"version", "czxid", "root", "query", "segment", "begun"}
    bench.seal(10)
    read = one_batch(bench, earlier)
    bench.seal(10, first=0)
    with pytest.raises(SegmentError, match="t-0 from offset 0 on, and 20 should be next"):
        one_batch(bench, read)


def test_a_checkpoint_of_another_ensemble_is_refused(bench: QueryBench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    other = SourceOffset(start.czxid, start.root + 1, start.query)
    with pytest.raises(SegmentError, match="another ZooKeeper ensemble"):
        planner.latest(other)


def test_segments_are_packed_in_order_into_runs_of_about_the_same_size() -> None:
    def sealed(number: int, size: int) -> Sealed:
        return Sealed(number, f"segment-{number}", Segment("f", "d", 1, size, (), "c", "i", 1))

    batch = [sealed(number, size) for number, size in enumerate([10, 10, 10, 30, 60])]
    runs = packed(batch, 2)
    assert [[item.czxid for item in run] for run in runs] == [[0, 1, 2, 3], [4]]
    assert packed(batch[:1], 4) == [batch[:1]]
    assert packed([], 2) == []


# ---- batch reads


def test_batch_read_finds_a_group_that_a_lagging_server_does_not_know_yet(bench: QueryBench) -> None:
    name = bench.seal()
    planner = bench.batch_planner(front=lambda store: Behind(store, lambda path: path.startswith(bench.paths.segments)))

    assert names(planner.plan_all()) == [name]


def test_segment_collected_with_its_file_while_a_batch_read_is_planned_is_left_out(bench: QueryBench) -> None:
    sealed = [bench.seal(), bench.seal()]

    def collects() -> None:
        bench.path(sealed[0]).unlink()
        bench.collect(sealed[:1])

    planner = bench.batch_planner(front=lambda store: Reads(store).after(bench.paths.segments, collects, 3))
    assert names(planner.plan_all()) == sealed[1:]


def test_a_segment_collected_between_planning_and_reading_fails_the_read_by_name(bench: QueryBench) -> None:
    name = bench.seal()
    ((sealed,),) = bench.batch_planner().plan_all()
    bench.path(name).unlink()
    with pytest.raises(SegmentError, match=rf"segment {name} .* is missing; .* may have been collected since"):
        list(records([sealed], False, MAY_BE_COLLECTED))


def test_earliest_is_logged_with_what_was_collected(bench: QueryBench, caplog: pytest.LogCaptureFixture) -> None:
    sealed = [bench.seal(), bench.seal()]
    collected = bench.czxid(sealed[0])
    bench.collect(sealed[:1])
    with caplog.at_level("INFO"):
        bench.planner().initial()
    assert f"after=earliest collected_up_to={collected}" in caplog.text


# ---- in a consistent region


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
