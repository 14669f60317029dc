"""Batches planned from znodes: they join, replays are equal, and missing segments are never skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumer.errors import SegmentError
from consumer.sealing.segment_files import SegmentFolder
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import Planner, packed
from consumer.spark.source.query_znode import QueryRemoved, QueryTakenOver
from consumer.spark.source.segment_index import Sealed, SourceOffset
from coordinator.retention.segments import SeenQueries, SegmentCollector
from coordinator.zk.errors import BadData, OutcomeUnknown, Refused
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory, open_kazoo
from coordinator.zk.store import Check, Create, Delete, Listing, Node, Operation, SetData, Store, Watch
from coordinator.zk.update import ensure
from coordinator.zk.znodes.partitions import LOST, RESET, Discontinuity, TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import EpochRecord
from coordinator.zk.znodes.segments import QUERY_ABSENCE_S, Query, SealedRange, Segment, SegmentsRecord
from tests.support.memlog import MemoryLog
from tests.support.sealed import a_collector
from tests.support.stores import DeafStore, FrontStore
from tests.support.wait import eventually, within
from tests.support.world import World, a_world
from tests.support.world import expire as end_session

SESSION_MS = 2000


class Clock(ThreadRuntime):
    """Time as a test has it, for what is published now and then."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Bench:
    """A group whose segments are made by hand."""

    def __init__(self, zk: str, folder: Path) -> None:
        self.zk = zk
        self.paths = GroupPaths("g")
        self.folder = SegmentFolder(str(folder))
        self.store: Store = open_kazoo(zk, SESSION_MS)
        self.clock = Clock()
        self._ends: dict[int, int] = {}
        self._number = 0
        self._planners: list[Planner] = []
        ensure(self.store, self.paths.skeleton)

    def seal(
        self, rows: int = 10, partition: int = 0, first: int | None = None, cause: Discontinuity | None = None
    ) -> str:
        """One more segment; its name."""
        self._number += 1
        first = self._ends.get(partition, 0) if first is None else first
        self._ends[partition] = first + rows
        file = f"g/c/abc-{self._number:010d}.arrow"
        size = self.folder.write(file, iter(_batches(partition, first, rows)))
        ranges = (SealedRange("t", "id", partition, first, first + rows),)
        causes = {TopicPartition("t", partition): cause} if cause is not None else {}
        segment = Segment(file, self.folder.url, rows, size, ranges, "c", "abc", 1, discontinuities=causes)
        (path,) = self.store.commit([Create(self.paths.segment_prefix, segment.to_bytes(), sequential=True)])
        return path.rsplit("/", 1)[1]

    def planner(self, query: str = "q", **options: object) -> Planner:
        config = SourceConfig(zk=self.zk, group="g", query=query, **options)  # type: ignore[arg-type]
        planner = Planner(config, kazoo_factory(self.zk, SESSION_MS), self.clock)
        self._planners.append(planner)
        return planner

    def finished(self, query: str = "q") -> int:
        node = self.store.get(self.paths.query(query))
        return Query.parse("query", node.data).finished if node else -1

    def queries(self) -> list[str]:
        listing = self.store.children(self.paths.queries)
        return sorted(listing.names) if listing else []

    def segments(self) -> list[str]:
        listing = self.store.children(self.paths.segments)
        return sorted(listing.names) if listing else []

    def remove(self, name: str) -> None:
        self.store.commit([Delete(self.paths.segment(name))])

    def collect(self, names: list[str], collected: int) -> None:
        record = SegmentsRecord(collected).to_bytes()
        self.store.commit([SetData(self.paths.segments, record), *(Delete(self.paths.segment(name)) for name in names)])

    def close(self) -> None:
        for planner in self._planners:
            planner.close()
        self.store.close()


def _batches(partition: int, first: int, rows: int) -> list[pa.RecordBatch]:
    source = MemoryLog(first + rows)
    found = []
    while first < source.end:
        fetched = source.fetch("t", "id", partition, first, 1 << 20)
        found += fetched.batches
        first = fetched.next_offset
    return found


@pytest.fixture
def bench(zk: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(zk, tmp_path)
    yield bench
    bench.close()


def names(runs: list[list[Sealed]]) -> list[str]:
    return [sealed.name for run in runs for sealed in run]


def czxid_of(bench: Bench, name: str) -> int:
    """The czxid of a segment."""
    node = bench.store.get(bench.paths.segment(name))
    assert node is not None
    return node.stat.czxid


def later(planner: Planner, start: SourceOffset) -> SourceOffset:
    """The end of a batch after `start`, once there is one."""
    eventually(lambda: planner.latest(start) != start, 5, "something more is sealed")
    return planner.latest(start)


def test_a_new_query_begins_at_the_earliest_segment_and_reads_to_the_newest(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal()]
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    assert names(planner.plan(start, end)) == sealed
    assert planner.latest(end) == end
    assert planner.plan(end, end) == []


def test_later_segments_are_seen_without_a_read_for_each_trigger(bench: Bench) -> None:
    planner = bench.planner()
    start = planner.initial()
    assert planner.latest(start) == start
    name = bench.seal()
    end = within(lambda: (found := planner.latest(start)) != start and found, 5, "the watch fired")
    assert isinstance(end, SourceOffset)
    assert end.segment == name


def test_a_batch_ends_at_a_segments_end_before_the_limit_but_has_one_at_least(bench: Bench) -> None:
    sealed = [bench.seal(10), bench.seal(10), bench.seal(50), bench.seal(1)]
    planner = bench.planner()
    start = planner.initial()
    batches = []
    while (end := planner.latest(start, max_rows=25)) != start:
        batches.append(names(planner.plan(start, end)))
        start = end
    assert batches == [sealed[:2], sealed[2:3], sealed[3:]]


def test_available_now_stops_at_the_last_segment_of_its_start(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal()]
    planner = bench.planner()
    planner.prepare_available_now()
    bench.seal()
    start = planner.initial()
    end = planner.latest(start)
    assert names(planner.plan(start, end)) == sealed
    assert planner.latest(end) == end


def test_available_now_of_an_unstarted_group_is_empty(zk: str) -> None:
    planner = Planner(SourceConfig(zk=zk, group="new"), kazoo_factory(zk, SESSION_MS), ThreadRuntime())
    planner.prepare_available_now()
    start = planner.initial()
    assert planner.latest(start) == start
    planner.close()


def test_a_restarted_query_replays_the_same_segments(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal(partition=1)]
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    bench.seal()
    again = bench.planner()
    assert names(again.plan(start, end)) == sealed
    assert again.latest(end).czxid > end.czxid


def test_unnamed_query_gets_a_name_that_its_offsets_carry(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner(query="")
    start = planner.initial()
    assert start.query.startswith("query-")
    assert planner.latest(start).query == start.query


def test_query_that_ended_before_its_first_batch_retains_no_segments(bench: Bench) -> None:
    planner = bench.planner(query="")
    start = planner.initial()
    assert bench.store.get(bench.paths.query(start.query)) is not None
    planner.close()
    eventually(lambda: bench.store.get(bench.paths.query(start.query)) is None, 5, "its znode is gone")


def test_a_query_that_has_planned_a_batch_holds_back_the_collection_after_its_end(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    planner.plan(start, planner.latest(start))
    planner.close()
    node = bench.store.get(bench.paths.query("q"))
    assert node is not None and node.stat.ephemeral_owner == 0
    assert bench.finished() == 0


# ---- without a name of its own


def ran_unnamed(bench: Bench) -> tuple[Planner, SourceOffset, SourceOffset]:
    """An unnamed query that has planned its first batch, with this batch's start and end."""
    bench.seal()
    planner = bench.planner(query="")
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    return planner, start, end


def test_unnamed_query_holds_back_only_what_it_has_not_finished(bench: Bench) -> None:
    planner, _, end = ran_unnamed(bench)
    assert bench.finished(end.query) == 0
    bench.clock.ahead += 2

    planner.latest(end)

    assert bench.finished(end.query) == end.czxid


def test_znode_of_an_unnamed_query_goes_with_its_driver(bench: Bench) -> None:
    planner, _, _ = ran_unnamed(bench)
    assert len(bench.queries()) == 1

    planner.close()

    eventually(lambda: bench.queries() == [], 5, "it is gone with its session")


def test_unnamed_query_resumes_from_its_checkpoint_and_goes_again_with_its_driver(bench: Bench) -> None:
    planner, start, end = ran_unnamed(bench)
    planner.close()
    more = bench.seal()
    again = bench.planner(query="")
    again.initial()  # Spark asks for it though a checkpoint has the name

    assert names(again.plan(start, end)) == ["segment-0000000000"]
    assert names(again.plan(end, later(again, end))) == [more]
    assert bench.queries() == [end.query]
    again.close()
    eventually(lambda: bench.queries() == [], 5, "it is gone with its session")


def test_unnamed_query_registers_again_in_its_next_session(bench: Bench) -> None:
    planner, _, end = ran_unnamed(bench)
    more = bench.seal()
    assert planner._sessions.living is not None
    planner._sessions.living.close()

    assert names(planner.plan(end, later(planner, end))) == [more]
    assert bench.queries() == [end.query]


@pytest.fixture
def paused(bench: Bench) -> tuple[Planner, SourceOffset, SegmentCollector]:
    """An unnamed query with an unread segment whose session has ended, and a collector that has seen both.

    Another query has finished everything, and nothing is retained.
    """
    planner, _, end = ran_unnamed(bench)
    last = bench.seal()
    data = Query("run", czxid_of(bench, last), 0).to_bytes()
    bench.store.commit([SetData(bench.paths.queries, b""), Create(bench.paths.query("named"), data)])
    bench.clock.ahead += 2
    planner.latest(end)
    collector = collector_of(bench)
    collector.collect(["g"])
    assert planner._sessions.living is not None
    end_session(planner._sessions.living)
    eventually(lambda: bench.queries() == ["named"], 5, "the session has ended")
    collector.collect(["g"])
    return planner, end, collector


def collector_of(bench: Bench) -> SegmentCollector:
    """A coordinator's collector, for a test to call round by round, that sweeps in each and retains nothing."""
    bench.store.commit([Create(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())])
    return a_collector(bench.store, bench.clock)


@pytest.mark.real_zookeeper("it is about the end of a session")
def test_unnamed_query_whose_session_expired_reads_on_what_others_have_finished(
    bench: Bench, paused: tuple[Planner, SourceOffset, SegmentCollector]
) -> None:
    planner, end, collector = paused
    bench.clock.ahead += QUERY_ABSENCE_S - 60
    collector.collect(["g"])

    newest = later(planner, end)
    assert names(planner.plan(end, newest)) == ["segment-0000000001"]
    bench.clock.ahead += QUERY_ABSENCE_S
    collector.collect(["g"])
    assert bench.segments() == ["segment-0000000001"], "it holds it back again until it has finished"
    planner.latest(newest)
    collector.collect(["g"])
    assert bench.segments() == []


@pytest.mark.real_zookeeper("it is about the end of a session")
def test_unnamed_query_whose_session_expired_long_ago_holds_nothing_back(
    bench: Bench, paused: tuple[Planner, SourceOffset, SegmentCollector]
) -> None:
    _, _, collector = paused
    assert bench.segments() == ["segment-0000000001"]
    bench.clock.ahead += QUERY_ABSENCE_S

    collector.collect(["g"])

    assert bench.segments() == []


def test_unnamed_query_that_returns_too_late_fails_and_is_told_to_have_a_name(bench: Bench) -> None:
    planner, _, end = ran_unnamed(bench)
    planner.close()
    late = bench.seal()
    bench.collect([late], czxid_of(bench, late))

    wanted = (
        rf"gone.*: collected while query {end.query} was without a session for 10 minutes, or when another coordinator "
        r"was elected \(without option query it holds segments back no longer\), or it was removed"
    )
    with pytest.raises(SegmentError, match=wanted):
        bench.planner(query="").latest(end)
    assert bench.queries() == []


def test_newer_run_of_an_unnamed_query_fences_the_older(bench: Bench) -> None:
    old, start, end = ran_unnamed(bench)
    new = bench.planner(query="")
    new.plan(start, end)
    bench.clock.ahead += 2

    with pytest.raises(QueryTakenOver, match=f"another run of query {end.query}"):
        old.latest(end)
    assert new.latest(end) == end


def test_registration_changes_the_version_of_the_set_of_queries(bench: Bench) -> None:
    def version() -> int:
        node = bench.store.get(bench.paths.queries)
        assert node is not None
        return node.stat.version

    before = version()
    bench.planner().initial()
    assert version() == before + 1


def test_progress_is_published_with_the_next_batch_at_most_once_a_second(bench: Bench) -> None:
    planner = bench.planner()
    start = planner.initial()
    ends = []
    for ahead in (10.0, 0.0, 2.0):
        bench.clock.ahead += ahead
        bench.seal()
        end = later(planner, start)
        planner.plan(start, end)
        ends.append((bench.finished(), start.czxid))
        start = end
    assert [finished for finished, _ in ends][:2] == [0, 0]
    assert ends[2][0] == ends[2][1] > 0


def test_an_idle_query_gives_a_sign_of_life_every_minute(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    bench.clock.ahead += 2
    planner.latest(end)

    def written() -> int:
        node = bench.store.get(bench.paths.query("q"))
        assert node is not None
        return node.stat.mzxid

    before = written()
    bench.clock.ahead += 50
    planner.latest(end)
    assert written() == before
    bench.clock.ahead += 11
    planner.latest(end)
    assert written() > before


def test_a_newer_run_of_a_query_fences_the_older(bench: Bench) -> None:
    bench.seal()
    old = bench.planner()
    start = old.initial()
    end = old.latest(start)
    old.plan(start, end)
    new = bench.planner()
    new.plan(start, end)
    bench.clock.ahead += 2
    with pytest.raises(QueryTakenOver, match="another run of query q"):
        old.latest(end)
    assert new.latest(end) == end


def test_of_two_new_queries_of_one_name_only_the_newer_plans_a_batch(bench: Bench) -> None:
    bench.seal()
    old, new = bench.planner(), bench.planner()
    start = old.initial()
    new.initial()
    with pytest.raises(QueryTakenOver):
        old.plan(start, old.latest(start))
    assert len(new.plan(start, new.latest(start))) == 1


class NoReply(FrontStore):
    """A session whose next commit is applied, and answered only after `meanwhile` by a lost connection."""

    def __init__(self, store: Store, meanwhile: Callable[[], object]) -> None:
        super().__init__(store)
        self.meanwhile: Callable[[], object] | None = meanwhile

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        done = super().commit(operations)
        if not any(isinstance(each, SetData) for each in operations) or self.meanwhile is None:
            return done
        meanwhile, self.meanwhile = self.meanwhile, None
        meanwhile()
        raise OutcomeUnknown("connection lost")


def test_registration_without_a_reply_replaces_no_run_that_registered_after_it(bench: Bench) -> None:
    bench.seal()
    end = one_batch(bench)
    new = bench.planner()
    opener = kazoo_factory(bench.zk, SESSION_MS)
    config = SourceConfig(zk=bench.zk, group="g", query="q")
    old = Planner(config, lambda: NoReply(opener(), lambda: new.latest(end)), bench.clock)

    with pytest.raises(QueryTakenOver, match="another run of query q"):
        old.latest(end)

    bench.seal()
    assert later(new, end) != end
    old.close()


class Before(FrontStore):
    """A session before whose next commit, by `is_it`, something happens; without an answer it is not sent at all."""

    def __init__(self, store: Store, is_it: Callable[[Sequence[Operation]], bool], answers: bool = True) -> None:
        super().__init__(store)
        self._is_it, self._answers = is_it, answers
        self.meanwhile: Callable[[], object] | None = None

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if self.meanwhile is not None and self._is_it(operations):
            if not self._answers:
                self._answers = True
                raise OutcomeUnknown("connection lost")
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().commit(operations)


def meets(bench: Bench, query: str, is_it: Callable[[Sequence[Operation]], bool], answers: bool = True) -> Any:
    """A planner, and its session."""
    session = Before(open_kazoo(bench.zk, SESSION_MS), is_it, answers)
    config = SourceConfig(zk=bench.zk, group="g", query=query)
    return Planner(config, lambda: session, bench.clock), session


def registers(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, Create) for each in operations)


@pytest.mark.parametrize("answers", [True, False], ids=["its first batch", "after a lost reply"])
def test_older_run_of_a_new_query_replaces_no_run_that_registered_meanwhile(bench: Bench, answers: bool) -> None:
    bench.seal()
    new = bench.planner()
    old, session = meets(bench, "q", registers, answers)
    if answers:
        start = old.initial()
        end = old.latest(start)
    else:
        bench.planner().initial()
    session.meanwhile = new.initial

    with pytest.raises(QueryTakenOver, match="another run of query q"):
        old.plan(start, end) if answers else old.initial()

    assert len(new.plan(new.initial(), later(new, new.initial()))) == 1
    old.close()


class Crowded(FrontStore):
    """A session before each of whose first commits the set of queries changes."""

    others = 30

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if self.others and registers(operations):
            self.others -= 1
            super().commit([SetData(GroupPaths("g").queries, b"")])
        return super().commit(operations)


def test_query_begins_its_first_batch_though_many_others_register_meanwhile(bench: Bench) -> None:
    bench.seal()
    opener, config = kazoo_factory(bench.zk, SESSION_MS), SourceConfig(zk=bench.zk, group="g", query="q")
    planner = Planner(config, lambda: Crowded(opener()), bench.clock)
    start = planner.initial()

    assert len(planner.plan(start, planner.latest(start))) == 1
    planner.close()


def test_name_that_a_restarted_query_gave_itself_goes_though_others_register(bench: Bench) -> None:
    planner, start, end = ran_unnamed(bench)
    planner.close()
    again, session = meets(bench, "", lambda operations: any(isinstance(each, Delete) for each in operations))
    again.initial()
    session.meanwhile = bench.planner("other").initial

    again.plan(start, end)

    assert session.meanwhile is None
    assert bench.queries() == sorted([end.query, "other"])
    again.close()


def test_progress_of_an_unnamed_query_is_not_written_over_a_newer_run(bench: Bench) -> None:
    bench.seal()
    new = bench.planner("")
    old, session = meets(bench, "", lambda operations: not registers(operations))
    start = old.initial()
    end = old.latest(start)
    old.plan(start, end)
    bench.seal()
    bench.clock.ahead += 11
    session.meanwhile = lambda: new.plan(start, end)

    with pytest.raises(QueryTakenOver):
        old.plan(end, old.latest(end))

    assert bench.finished(end.query) == start.czxid
    old.close()


def removed(bench: Bench, query: str = "q") -> None:
    """As `zk-coordinator queries remove` does it."""
    bench.store.commit([SetData(bench.paths.queries, b""), Delete(bench.paths.query(query))])


def test_query_removed_while_running_fails_its_next_batch_and_does_not_reregister(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    removed(bench)

    def refuses() -> bool:
        with pytest.raises(QueryRemoved, match="query q of group g was removed while it ran"):
            planner.latest(end)
        return True

    within(refuses, 5, "the watch fired", ignoring=(pytest.fail.Exception,))
    with pytest.raises(QueryRemoved):
        planner.plan(start, end)
    assert bench.store.get(bench.paths.query("q")) is None


def test_query_removed_before_its_first_batch_does_not_come_back(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    removed(bench)
    bench.clock.ahead += 11

    with pytest.raises(QueryRemoved, match="query q of group g was removed while it ran"):
        planner.plan(start, end)
    assert bench.store.get(bench.paths.query("q")) is None


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
def test_unnamed_query_counts_after_its_session_unless_one_may_have_been_removed(
    version: int, name: str, ephemeral: list[str], lost: dict[str, int]
) -> None:
    runs = frozenset({("unnamed", 1, "a"), ("known", 2, "b"), ("began", 3, "d")})
    seen = SeenQueries(5, runs, {"unnamed": 3, "began": 0})

    assert seen.newly_lost([name], version, frozenset({(name, 9, "c")}), ephemeral) == lost | (
        {} if name == "began" or not lost else {"began": 0}
    )


class Behind(FrontStore):
    """A session with a server that lags: before a `sync` it knows nothing of what `lacks` names."""

    def __init__(self, store: Store, lacks: Callable[[str], bool] = lambda path: False) -> None:
        super().__init__(store)
        self.lacks = lacks

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        found = super().get_many(paths, watch)
        return [None if self.lacks(path) else node for path, node in zip(paths, found, strict=True)]

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        found = super().children_many(paths, watch)
        return [self._older(path, listing) for path, listing in zip(paths, found, strict=True)]

    def _older(self, parent: str, listing: Listing | None) -> Listing | None:
        if listing is None or self.lacks(parent):
            return None
        return replace(listing, found=[name for name in listing.names if not self.lacks(f"{parent}/{name}")])

    def sync(self) -> None:
        super().sync()
        self.lacks = lambda path: False


def test_a_query_is_not_taken_for_removed_because_a_server_lags(bench: Bench) -> None:
    bench.seal()
    opener = kazoo_factory(bench.zk, SESSION_MS)
    config = SourceConfig(zk=bench.zk, group="g", query="q")
    planner = Planner(config, lambda: Behind(opener()), bench.clock)
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    bench.clock.ahead += 60  # it gives a sign of life, which makes it look

    assert isinstance(planner._sessions.living, Behind)
    planner._sessions.living.lacks = lambda path: "/queries/" in path

    assert planner.latest(end) == end
    planner.close()


@pytest.mark.parametrize("fails", [True, False], ids=["failOnDataLoss", "no failOnDataLoss"])
def test_query_that_plans_a_batch_again_skips_no_segment_because_a_server_lags(bench: Bench, fails: bool) -> None:
    sealed = [bench.seal() for _ in range(3)]
    planner = bench.planner(fail_on_data_loss=fails)
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    planner.close()
    opener = kazoo_factory(bench.zk, SESSION_MS)
    config = SourceConfig(zk=bench.zk, group="g", query="q", fail_on_data_loss=fails)
    newer = {bench.paths.segment(name) for name in sealed[1:]}

    again = Planner(config, lambda: Behind(opener(), newer.__contains__), bench.clock)

    assert names(again.plan(start, end)) == sealed
    again.close()


@pytest.mark.parametrize("fails", [True, False], ids=["failOnDataLoss", "no failOnDataLoss"])
def test_query_that_is_removed_with_its_segments_fails_as_removed(bench: Bench, fails: bool) -> None:
    sealed = [bench.seal(), bench.seal()]
    config = SourceConfig(zk=bench.zk, group="g", query="q", fail_on_data_loss=fails)
    opener = kazoo_factory(bench.zk, SESSION_MS)
    planner = Planner(config, lambda: DeafStore(opener()), bench.clock)
    start = planner.initial()
    end = planner.latest(start)
    for _ in range(2):
        planner.plan(start, end)
    removed(bench)
    bench.collect(sealed, end.czxid)
    planner._segments._on_change("")  # its watch fires before that of the query

    with pytest.raises(QueryRemoved):
        planner.plan(start, end)
    planner.close()


def test_removed_query_resumes_from_its_checkpoint_while_no_segment_was_collected(bench: Bench) -> None:
    sealed = [bench.seal(), bench.seal()]
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start, max_rows=10)
    planner.plan(start, end)
    planner.close()
    removed(bench)

    again = bench.planner()

    assert names(again.plan(end, again.latest(end))) == sealed[1:]
    assert bench.finished() == end.czxid


def expire(bench: Bench, query: str = "q") -> None:
    """As the coordinator marks a query that was silent for too long."""
    node = bench.store.get(bench.paths.query(query))
    assert node is not None
    marked = replace(Query.parse("query", node.data), expired_ms=1)
    bench.store.commit([SetData(bench.paths.queries, b""), SetData(bench.paths.query(query), marked.to_bytes())])


def expired(bench: Bench, query: str = "q") -> bool:
    node = bench.store.get(bench.paths.query(query))
    assert node is not None
    return Query.parse("query", node.data).expired_ms > 0


def test_running_query_that_expired_registers_again_when_no_record_is_lost(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    expire(bench)
    before = bench.store.get(bench.paths.queries)

    eventually(lambda: planner.latest(end) == end and not expired(bench), 5, "it counts again")

    after = bench.store.get(bench.paths.queries)
    assert before is not None and after is not None and after.stat.version > before.stat.version


def test_an_expired_query_that_returns_too_late_fails_and_holds_nothing_back(bench: Bench) -> None:
    sealed = [bench.seal() for _ in range(4)]
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start, max_rows=10)
    planner.plan(start, end)
    planner.close()
    expire(bench)
    third = bench.store.get(bench.paths.segment(sealed[2]))
    assert third is not None
    bench.collect(sealed[:3], third.stat.czxid)

    again = bench.planner()

    wanted = (
        r"query q of group g has lost records: segments from segment-0000000001 to segment-0000000002 are gone, "
        r"with t-0 offsets 10 to 29: collected while query q was silent.*new checkpoint and another name.*"
        r"startingSegments"
    )
    with pytest.raises(SegmentError, match=wanted):
        again.latest(end)
    assert expired(bench), "it has not registered again, and would hold back what is left"
    with pytest.raises(SegmentError, match=wanted):
        again.plan(end, replace(end, czxid=end.czxid + 100))
    assert expired(bench)


def test_expired_query_continues_with_the_remaining_segments_if_configured(bench: Bench) -> None:
    sealed = [bench.seal() for _ in range(3)]
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start, max_rows=10)
    planner.plan(start, end)
    second = bench.store.get(bench.paths.segment(sealed[1]))
    assert second is not None
    bench.collect(sealed[:2], second.stat.czxid)
    expire(bench)

    again = bench.planner(fail_on_data_loss=False)

    assert names(again.plan(end, again.latest(end))) == sealed[2:]
    assert not expired(bench)


def test_running_query_that_loses_records_reports_the_lost_offsets(bench: Bench) -> None:
    sealed = [bench.seal() for _ in range(3)]
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start, max_rows=10)
    planner.plan(start, end)
    newest = planner.latest(end)
    expire(bench)
    second = bench.store.get(bench.paths.segment(sealed[1]))
    assert second is not None
    bench.collect(sealed[:2], second.stat.czxid)

    # A plan before that would succeed, and be the last one that it knows the offsets of.
    eventually(lambda: planner._segments._is_dirty, 5, "it has heard")
    with pytest.raises(SegmentError, match="segment segment-0000000001 is gone, with t-0 offsets 10 to 19"):
        planner.plan(end, newest)


def test_new_session_continues_at_the_last_offset(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    assert planner._sessions.living is not None
    planner._sessions.living.close()
    end = planner.latest(start)
    assert len(planner.plan(start, end)) == 1


# ---- never fewer records silently


def a_batch(bench: Bench, meanwhile: Callable[[list[str]], object], **options: object) -> list[str]:
    """Three segments are sealed and offered, then `meanwhile` happens, then a restarted query plans them."""
    sealed = [bench.seal(), bench.seal(), bench.seal()]
    planner = bench.planner()
    start = planner.initial()
    first = planner.latest(start, max_rows=10)
    planner.plan(start, first)
    end = planner.latest(first)
    meanwhile(sealed)
    return names(bench.planner(**options).plan(first, end))


def test_batch_whose_segments_were_collected_fails_with_the_reason(bench: Bench) -> None:
    with pytest.raises(SegmentError, match=r"segment segment-0000000001 is gone, with t-0 offsets 10 to 19: collected"):
        a_batch(bench, lambda sealed: bench.collect(sealed[:2], 1 << 40))


@pytest.mark.parametrize("gone", [1, 2])
def test_a_batch_with_a_segment_that_vanished_fails_and_names_it(bench: Bench, gone: int) -> None:
    with pytest.raises(SegmentError, match=r"segment-000000000[12]"):
        a_batch(bench, lambda sealed: bench.remove(sealed[gone]))


def test_a_batch_with_a_missing_file_fails_and_names_segment_and_offsets(bench: Bench) -> None:
    with pytest.raises(SegmentError, match=r"segment-0000000002 \(t-0 offsets 20 to 29\) is missing"):
        a_batch(bench, lambda sealed: bench.folder.remove("g/c/abc-0000000003.arrow"))


def test_a_batch_with_a_file_of_another_size_fails_and_names_it(bench: Bench) -> None:
    path = Path(bench.folder.url, "g/c/abc-0000000002.arrow")
    with pytest.raises(SegmentError, match=r"segment-0000000001 \(t-0 offsets 10 to 19\) has 7 bytes"):
        a_batch(bench, lambda sealed: path.write_bytes(b"damaged"))


def test_allowed_data_loss_delivers_the_remaining_segments(bench: Bench) -> None:
    left = a_batch(bench, lambda _: bench.folder.remove("g/c/abc-0000000003.arrow"), fail_on_data_loss=False)
    assert left == ["segment-0000000001"]


def test_offsets_that_do_not_join_fail_the_batch(bench: Bench) -> None:
    bench.seal(10)
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    bench.seal(10, first=15)
    with pytest.raises(SegmentError, match="t-0 from offset 15 on, and 10 should be next"):
        planner.plan(end, later(planner, end))


# ---- what a query has delivered, over all of its runs and plans


def ends(offsets: dict[int, int]) -> dict[TopicPartition, tuple[str, int]]:
    """Of the partitions of `t`."""
    return {TopicPartition("t", partition): ("id", offset) for partition, offset in offsets.items()}


def restarted(offset: SourceOffset) -> SourceOffset:
    """As Spark's checkpoint returns it."""
    return SourceOffset.of(json.loads(json.dumps(offset.to_dict())))


def one_batch(bench: Bench, start: SourceOffset | None = None, **options: object) -> SourceOffset:
    """A run that plans one batch; its end."""
    planner = bench.planner(**options)  # type: ignore[arg-type]
    start = restarted(start) if start is not None else planner.initial()
    end = later(planner, start)
    planner.plan(start, end)
    return end


@pytest.mark.parametrize(("first", "cause"), [(15, None), (5, None), (0, Discontinuity(LOST, 10))])
def test_gap_or_repetition_fails_every_start_until_data_loss_is_allowed(
    bench: Bench, first: int, cause: Discontinuity | None
) -> None:
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
def test_query_goes_on_with_the_default_after_a_run_that_bore_a_missing_segment(
    bench: Bench, before: int, is_collected: bool
) -> None:
    bench.seal(10)
    read = one_batch(bench)
    for _ in range(before):
        bench.seal(10)
    gone = bench.seal(10)
    bench.seal(10, partition=1)
    if is_collected:
        bench.collect([gone], czxid_of(bench, gone))
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


def test_segment_that_vanished_before_the_first_batch_fails_every_run_that_plans_it(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner(starting_segments="latest")
    start = planner.initial()
    gone, _ = bench.seal(), bench.seal()
    end = later(planner, start)
    bench.remove(gone)
    for _ in range(2):
        with pytest.raises(SegmentError, match=r"between segment-0000000000 and segment-0000000002 .* are gone"):
            planner.plan(start, restarted(end))
        planner = bench.planner(starting_segments="latest")
        start = planner.initial()
    bench.collect(["segment-0000000000"], end.begun)
    bench.clock.ahead += 11
    with pytest.raises(SegmentError, match=f"{gone}, the first segment of the batch, is gone"):
        bench.planner(starting_segments="latest").plan(start, restarted(end))


def test_first_segment_that_vanished_before_the_first_batch_fails_every_run(bench: Bench) -> None:
    gone, _ = bench.seal(), bench.seal()
    planner = bench.planner()
    start = planner.initial()
    end = later(planner, start)
    bench.remove(gone)
    for _ in range(2):
        bench.clock.ahead += 11
        with pytest.raises(SegmentError, match=f"{gone}, the first segment of the batch, is gone"):
            planner.plan(start, restarted(end))
        planner = bench.planner()
        start = planner.initial()


def test_each_plan_of_a_batch_fails_at_the_same_gap(bench: Bench) -> None:
    bench.seal(50)
    bench.seal(10, partition=1)
    planner = bench.planner()
    start = planner.initial()
    first, second = planner.latest(start, 50), planner.latest(start)
    bench.seal(20, first=80)
    third = later(planner, second)
    for before, after in ((start, first), (first, second)) * 2:
        planner.plan(before, after)
    for _ in range(3):
        with pytest.raises(SegmentError, match="t-0 from offset 80 on, and 50 should be next"):
            planner.plan(second, third)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (Discontinuity(LOST, 7), "since the log has lost those before, and 7 should be next"),
        (Discontinuity(RESET, 2**60), "where an operator has set the group's offset"),
    ],
)
def test_loss_or_reset_before_a_running_querys_first_records_is_a_gap(
    bench: Bench, begin: str, cause: Discontinuity, why: str
) -> None:
    bench.seal(10)
    planner = bench.planner(starting_segments=begin)
    start = planner.initial()
    name = bench.seal(10, partition=1, first=50, cause=cause)
    end = eventually(lambda: found if (found := planner.latest(start)).segment == name else None, 5, "it is listed")
    with pytest.raises(SegmentError, match=f"t-1 from offset 50 on, {why}"):
        planner.plan(start, end)


def test_new_query_begins_where_what_was_sealed_before_it_begins(
    bench: Bench,
) -> None:
    bench.seal(10, first=700)
    bench.seal(10, partition=1, first=30, cause=Discontinuity(RESET, 2**60))
    bench.seal(10, partition=2, first=50, cause=Discontinuity(LOST, 0))
    planner = bench.planner()
    start = planner.initial()
    end = planner.latest(start)
    for _ in range(2):  # also when the first batch is planned once more, by another run
        planner.plan(start, end)
        planner = bench.planner()
        start, end = planner.initial(), restarted(end)
    assert end.ends == ends({0: 710, 1: 40, 2: 60})


def test_resets_are_followed_by_a_query_that_was_stopped_and_fail_one_that_ran(bench: Bench) -> None:
    bench.seal(100)
    read = one_batch(bench)
    running = bench.planner("running")
    start = running.initial()
    middle = running.latest(start)
    bench.store.commit([SetData(bench.paths.segments, b"")])  # a transaction after both have registered
    node = bench.store.get(bench.paths.segments)
    assert node is not None
    reset = Discontinuity(RESET, node.stat.mzxid)
    bench.seal(10, first=0, cause=reset)
    bench.seal(10, first=500, cause=reset)
    assert one_batch(bench, read).ends == ends({0: 510})

    end = later(running, middle)
    for planner in (running, bench.planner("running")):
        with pytest.raises(SegmentError, match=r"t-0 from offset 0 on, where an operator.*, and 100 should be next"):
            planner.plan(restarted(middle), restarted(end))


def test_reset_under_a_run_that_begins_with_an_unfinished_batch_fails_it(bench: Bench) -> None:
    bench.seal(10)
    end = one_batch(bench, query="")
    planner = bench.planner("")
    planner.plan(replace(end, czxid=0, segment="", ends={}), end)
    bench.store.commit([SetData(bench.paths.segments, b"")])
    node = bench.store.get(bench.paths.segments)
    assert node is not None and planner._sessions.living is not None
    end_session(planner._sessions.living)  # it registers again, after the reset
    bench.seal(10, first=0, cause=Discontinuity(RESET, node.stat.mzxid))
    with pytest.raises(SegmentError, match="t-0 from offset 0 on, where an operator"):
        planner.plan(end, later(planner, end))


def test_offset_of_an_earlier_release_is_checked_from_its_next_batch_on(bench: Bench) -> None:
    bench.seal(10)
    end = one_batch(bench)
    earlier = replace(end, ends={}, began=0, registered=0, first="")
    assert set(earlier.to_dict()) == {"version", "czxid", "root", "query", "segment", "begun"}
    bench.seal(10)
    read = one_batch(bench, earlier)
    bench.seal(10, first=0)
    with pytest.raises(SegmentError, match="t-0 from offset 0 on, and 20 should be next"):
        one_batch(bench, read)


def test_a_checkpoint_of_another_ensemble_is_refused(bench: Bench) -> None:
    bench.seal()
    planner = bench.planner()
    start = planner.initial()
    other = SourceOffset(start.czxid, start.root + 1, start.query)
    with pytest.raises(SegmentError, match="another ZooKeeper ensemble"):
        planner.latest(other)


def test_a_checkpoint_of_another_query_is_refused(bench: Bench) -> None:
    start = bench.planner(query="one").initial()
    with pytest.raises(SegmentError, match="the checkpoint is of query one"):
        bench.planner(query="two").latest(start)


def test_a_segment_that_cannot_be_understood_is_not_skipped(bench: Bench) -> None:
    planner = bench.planner()
    start = planner.initial()
    bench.store.commit([Create(bench.paths.segment_prefix, b"garbage", sequential=True)])
    with pytest.raises(BadData, match="segment-0000000000"):
        eventually(lambda: planner.latest(start) != start, 5, "it fails")


def test_a_refused_seal_takes_no_number_that_would_look_like_a_missing_segment(bench: Bench) -> None:
    bench.seal()
    refused = [Create(bench.paths.segment_prefix, b"", sequential=True), Check(bench.paths.segments, 77)]
    with pytest.raises(Refused):
        bench.store.commit(refused)
    assert bench.seal() == "segment-0000000001"


def test_segments_are_packed_in_order_into_runs_of_about_the_same_size() -> None:
    def sealed(number: int, size: int) -> Sealed:
        return Sealed(number, f"segment-{number}", Segment("f", "d", 1, size, (), "c", "i", 1))

    batch = [sealed(number, size) for number, size in enumerate([10, 10, 10, 30, 60])]
    runs = packed(batch, 2)
    assert [[item.czxid for item in run] for run in runs] == [[0, 1, 2, 3], [4]]
    assert packed(batch[:1], 4) == [batch[:1]]
    assert packed([], 2) == []


# ---- with the coordinator


def test_coordinator_collects_only_segments_finished_by_every_query(bench: Bench, zk: str) -> None:
    with a_world(zk) as world:
        sealed = [bench.seal(), bench.seal(), bench.seal()]
        slow, fast = bench.planner(query="slow"), bench.planner(query="fast")
        at = {planner: planner.initial() for planner in (slow, fast)}
        for planner, rows in ((slow, 10), (fast, 0)):
            end = planner.latest(at[planner], max_rows=rows)
            planner.plan(at[planner], end)
            bench.clock.ahead += 2
            planner.latest(end)
            at[planner] = end
        _consumer_of(world)
        world.coordinator(sweep_interval_ms=200, segment_retention_ms=0)
        eventually(lambda: bench.store.get(bench.paths.segment(sealed[0])) is None, 10, "the first is collected")
        assert all(bench.store.get(bench.paths.segment(name)) for name in sealed[1:])
        assert names(slow.plan(at[slow], slow.latest(at[slow]))) == sealed[1:]
        late = bench.planner(query="late")
        start = late.initial()
        assert names(late.plan(start, late.latest(start))) == sealed[1:]


def _consumer_of(world: World) -> None:
    world.topic("t", 1)
    world.consumer("g", "c1", {"t": 1})
