"""The coordinator and the backlog of a group: fetchers pause and resume, finished segments are collected soon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.planning.backpressure import HURRY_BYTES, Bounds, Retention
from coordinator.retention.segments import SegmentCollector
from coordinator.term.term import ServerClock
from coordinator.zk.lease import Lease
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Create, Delete, Operation, SetData, Store
from coordinator.zk.update import ensure
from coordinator.zk.wire import OPEN_ACL
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import EpochRecord, Registration
from coordinator.zk.znodes.segments import QUERY_ABSENCE_S, Query, Segment, SegmentsRecord
from tests.support.cuts import HandMadeRegion
from tests.support.parties import Parties, owned_by
from tests.support.sealed import sweeping
from tests.support.stores import FrontStore
from tests.support.terms import a_term
from tests.support.wait import eventually
from tests.support.world import World

PATHS = GroupPaths("g")
KIB = 1024
YEAR_MS = 365 * 86_400_000
LARGE = Bounds(1000, 1 << 30)
NOT_RETAINED = Retention(0, 0)
AN_HOUR = Retention(3_600_000, 1 << 20)


class Backlog:
    """Segments and queries of a group that are made by hand: tiny files, independent of the sizes in the znodes."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self._number = 0
        ensure(world.store, PATHS.skeleton)

    def seal(self, count: int = 1, size: int = KIB) -> list[str]:
        """So many more segments; their names."""
        names = []
        for _ in range(count):
            self._number += 1
            file = f"g/c/abc-{self._number:010d}.arrow"
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).write_bytes(b"x")
            segment = Segment(file, str(self.folder), 1, size, (), "c", "abc", 1)
            create = Create(PATHS.segment_prefix, segment.to_bytes(), sequential=True)
            names.append(self.world.store.commit([create])[0].rsplit("/", 1)[1])
        return names

    @property
    def files(self) -> int:
        return len(list(self.folder.rglob("*.arrow")))

    def czxid(self, name: str) -> int:
        node = self.world.store.get(PATHS.segment(name))
        assert node is not None
        return node.stat.czxid

    def query(self, name: str, finished: int = 0) -> None:
        """A query that has finished up to there; it registers when it is new."""
        data = Query("run", finished, 0).to_bytes()
        if self.world.store.get(PATHS.query(name)) is None:
            self.world.store.commit([SetData(PATHS.queries, b""), Create(PATHS.query(name), data)])
        else:
            self.world.store.commit([SetData(PATHS.query(name), data)])

    @property
    def record(self) -> SegmentsRecord:
        return SegmentsRecord.parse("segments", self.world.data(PATHS.segments) or b"")

    def paused(self, words: str) -> str:
        """The reason, once it is there with `words`."""
        eventually(lambda: words in (self.record.paused or ""), 10, f"paused with {words!r}")
        return str(self.record.paused)

    def goes_on(self) -> None:
        eventually(lambda: self.record.paused is None, 10, "no longer paused")


@pytest.fixture
def backlog(world: World, tmp_path: Path) -> Backlog:
    return Backlog(world, tmp_path)


def coordinator(world: World, **options: int) -> None:
    defaults = {"backlog_interval_ms": 50, "sweep_interval_ms": 100, "segment_retention_ms": 0}
    world.elected(world.coordinator(**defaults | options))


class Machine(ThreadRuntime):
    """A machine whose wall clock is a year ahead, and whose monotonic clock a test moves on."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + YEAR_MS


def collector_on(
    world: World,
    machine: Machine | None = None,
    clock: ServerClock | None = None,
    bounds: Bounds = LARGE,
    store: Store | None = None,
    sweep_interval_ms: int = 0,
    retention: Retention = NOT_RETAINED,
) -> SegmentCollector:
    """A coordinator's segment collector, for a test to call round by round."""
    if world.store.get(COORDINATOR_EPOCH) is None:
        world.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
    node = world.store.get(COORDINATOR_EPOCH)
    assert node is not None
    machine = machine or Machine()
    term = a_term(
        store or world.store, machine, 1, node.stat.version,
        max_backlog_segments=bounds.segments, max_backlog_bytes=bounds.size,
        segment_retention_ms=retention.ms, segment_retention_bytes=retention.size,
    )  # fmt: skip
    term.lease = Lease(world.store, ThreadRuntime(), lambda: None, "coordinator")
    term.lease.renew()
    term.clock = clock or ServerClock(world.store, machine)
    return sweeping(SegmentCollector(term), sweep_interval_ms / 1000)


def expired(world: World, query: str) -> bool:
    return Query.parse("query", world.data(PATHS.query(query)) or b"").expired_ms > 0


def test_too_many_segments_pause_fetchers_until_a_query_has_finished_enough(world: World, backlog: Backlog) -> None:
    coordinator(world, max_backlog_segments=10, sweep_interval_ms=600_000)  # a sweep that no test lives to see
    names = backlog.seal(11)

    reason = backlog.paused("no query reads the group")
    assert reason.startswith("the backlog is full: 11 of at most 10 segments, 11.0 KiB of at most 4.0 GiB")
    backlog.query("slow")
    backlog.paused("query slow has not finished them")
    backlog.query("slow", backlog.czxid(names[1]))
    eventually(lambda: world.names(PATHS.segments) == names[2:], 10, "what it has finished is collected")
    assert backlog.record.paused, "nine of ten are too many to resume"
    backlog.query("slow", backlog.czxid(names[2]))
    backlog.goes_on()
    assert world.names(PATHS.segments) == names[3:]
    assert backlog.files == 8


def test_a_small_backlog_is_collected_with_the_next_sweep_only(world: World, backlog: Backlog) -> None:
    """A query that begins soon after another has ended finds what that one has read."""
    machine = Machine()
    names = backlog.seal(50)
    backlog.query("q", backlog.czxid(names[-1]))
    collector = collector_on(world, machine, bounds=Bounds(100, 1 << 30), sweep_interval_ms=10_000)

    collector.collect(["g"])
    assert len(world.names(PATHS.segments)) == 50
    machine.ahead_s += 10
    collector.collect(["g"])
    assert world.names(PATHS.segments) == []

    names = backlog.seal(51)
    backlog.query("q", backlog.czxid(names[-1]))
    collector.collect(["g"])
    assert world.names(PATHS.segments) == [], "over half of the bound it does not wait"


def test_many_bytes_that_every_query_has_finished_do_not_wait_for_the_sweep(world: World, backlog: Backlog) -> None:
    names = backlog.seal(2, size=HURRY_BYTES // 2)
    backlog.query("q", backlog.czxid(names[-1]))
    collector = collector_on(world, bounds=Bounds(20_000, 4 << 30), sweep_interval_ms=600_000)

    collector.collect(["g"])
    assert world.names(PATHS.segments) == names, "so many may wait"
    names += backlog.seal(1, size=KIB)
    collector.collect(["g"])
    assert world.names(PATHS.segments) == names[2:]
    assert backlog.files == 1


def test_finished_segments_stay_until_their_retention_since_the_seal_is_over(world: World, backlog: Backlog) -> None:
    machine = Machine()
    names = backlog.seal(3)
    backlog.query("q", backlog.czxid(names[-1]))
    collector = collector_on(world, machine, retention=AN_HOUR)
    collector.collect(["g"])

    machine.ahead_s += 3500
    collector.collect(["g"])
    assert world.names(PATHS.segments) == names
    assert backlog.record.collected == 0

    machine.ahead_s += 200
    collector.collect(["g"])
    assert world.names(PATHS.segments) == []
    assert backlog.files == 0


def test_retained_segments_over_the_bound_in_bytes_go_with_the_oldest_first(world: World, backlog: Backlog) -> None:
    names = backlog.seal(5, size=300 * KIB)
    backlog.query("q", backlog.czxid(names[3]))
    collector = collector_on(world, retention=AN_HOUR)

    collector.collect(["g"])

    assert world.names(PATHS.segments) == names[1:], "900 of at most 1024 KiB are retained, and one is unfinished"
    assert backlog.record.collected > 0 and backlog.record.paused is None


def test_retention_ends_when_segments_are_over_half_of_a_bound(world: World, backlog: Backlog) -> None:
    names = backlog.seal(5)
    backlog.query("q", backlog.czxid(names[-1]))
    collector = collector_on(world, bounds=Bounds(10, 1 << 30), retention=AN_HOUR)
    collector.collect(["g"])
    assert world.names(PATHS.segments) == names

    names += backlog.seal(1)
    collector.collect(["g"])

    assert world.names(PATHS.segments) == names[5:], "what is finished makes room for what is not"


def test_query_that_begins_after_another_finished_reads_the_retained_segments(world: World, backlog: Backlog) -> None:
    names = backlog.seal(3)
    backlog.query("first", backlog.czxid(names[-1]))
    machine = Machine()
    collector = collector_on(world, machine, retention=AN_HOUR)
    collector.collect(["g"])

    backlog.query("second", 0)
    machine.ahead_s += 7200
    collector.collect(["g"])

    assert world.names(PATHS.segments) == names, "the second one holds them back, however old they are"


def test_segments_after_the_oldest_checkpoint_that_is_kept_stay_until_it_is_retired(
    world: World, backlog: Backlog
) -> None:
    before = backlog.seal(2)
    region = HandMadeRegion(world.store)
    oldest = region.cut()
    after = backlog.seal(2)
    region.cut()
    after += backlog.seal(1)
    backlog.query("q", backlog.czxid(after[-1]))
    collector = collector_on(world)

    collector.collect(["g"])
    assert world.names(PATHS.segments) == after, "those before it are collected"
    assert before and backlog.files == 3
    region.retire(oldest)
    collector.collect(["g"])

    assert world.names(PATHS.segments) == after[2:]


def test_backlog_bound_collects_segments_of_the_oldest_checkpoints_and_logs_each(
    world: World, backlog: Backlog, caplog: pytest.LogCaptureFixture
) -> None:
    region, names = HandMadeRegion(world.store), []
    for _ in range(4):  # checkpoints 1 to 4, with three segments after each
        region.cut()
        names += backlog.seal(3)
    backlog.query("q", backlog.czxid(names[-1]))
    collector = collector_on(world, bounds=Bounds(15, 1 << 30))

    collector.collect(["g"])

    assert world.names(PATHS.segments) == names[6:], "half of the bound is for checkpoints: of 3 and 4 all is there"
    said = [record.getMessage() for record in caplog.records if "checkpoint segments removed" in record.getMessage()]
    assert said == [
        "checkpoint segments removed: group=g checkpoint=1 segments=3 reason=backlog",
        "checkpoint segments removed: group=g checkpoint=2 segments=3 reason=backlog",
    ]


@pytest.mark.parametrize(
    "state", [b"no state", b'{"version":1,"region":{"name":".."}}', b'{"version":1,"region":{"name":"../x"}}']
)
def test_nothing_is_collected_of_a_group_whose_state_cannot_be_read(
    world: World, backlog: Backlog, state: bytes
) -> None:
    names = backlog.seal(2)
    world.put(PATHS.state, state)
    backlog.query("q", backlog.czxid(names[-1]))

    collector_on(world).collect(["g"])

    assert world.names(PATHS.segments) == names


def test_too_many_bytes_pause_the_fetchers(world: World, backlog: Backlog) -> None:
    coordinator(world, max_backlog_bytes=10 * KIB)
    backlog.query("q")
    names = backlog.seal(2, size=5 * KIB)
    eventually(lambda: not backlog.record.paused, 5, "as many as may be")
    names += backlog.seal(1, size=1)

    assert "10.0 KiB of at most 10.0 KiB; query q" in backlog.paused("the backlog is full")

    backlog.query("q", backlog.czxid(names[0]))
    backlog.goes_on()


def test_group_without_a_queries_znode_is_paused_too(world: World, backlog: Backlog) -> None:
    world.remove(PATHS.queries)
    coordinator(world, max_backlog_segments=1)
    backlog.seal(2)

    backlog.paused("no query reads the group")


def test_next_coordinator_continues_from_the_recorded_collection(world: World, backlog: Backlog) -> None:
    first = world.coordinator(backlog_interval_ms=50, max_backlog_segments=10)
    names = backlog.seal(11)
    backlog.query("q")
    reason = backlog.paused("query q")
    world.stop_coordinator(first)
    backlog.query("q", backlog.czxid(names[1]))

    coordinator(world, max_backlog_segments=10)

    eventually(lambda: world.names(PATHS.segments) == names[2:], 10, "collection continues")
    assert backlog.record.paused == reason
    backlog.query("q", backlog.czxid(names[-1]))
    backlog.goes_on()


def test_pause_and_collection_keep_each_others_record(world: World, backlog: Backlog) -> None:
    coordinator(world, max_backlog_segments=10)
    names = backlog.seal(13)
    backlog.query("q")
    backlog.paused("query q")
    collected = backlog.czxid(names[0])

    backlog.query("q", collected)

    eventually(lambda: backlog.record.collected == collected, 10, "one is collected")
    assert backlog.record.paused
    backlog.query("q", last := backlog.czxid(names[-1]))
    backlog.goes_on()
    assert backlog.record.collected == last


def test_pause_by_hand_stays_until_it_is_removed_by_hand(world: World, backlog: Backlog) -> None:
    coordinator(world)
    names = backlog.seal(2)
    world.put(PATHS.segments, SegmentsRecord(paused="moving the storage").to_bytes())

    backlog.query("q", backlog.czxid(names[0]))

    eventually(lambda: world.names(PATHS.segments) == names[1:], 10, "collection continues")
    assert backlog.record.paused == "moving the storage"


class Before(FrontStore):
    """A store before whose next commit something else happens."""

    def __init__(self, store: Store, happens: Callable[[], None]) -> None:
        super().__init__(store)
        self._happens: Callable[[], None] | None = happens

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        happens, self._happens = self._happens, None
        if happens:
            happens()
        return super().commit(operations)


def test_a_query_that_registers_before_a_collection_was_sent_keeps_its_segments(world: World, backlog: Backlog) -> None:
    """The set of queries moves with each registration, and what was decided before is refused."""
    names = backlog.seal(3)
    backlog.query("fast", backlog.czxid(names[-1]))
    collector = collector_on(world, store=Before(world.store, lambda: backlog.query("late", 0)))

    for _ in range(3):
        collector.collect(["g"])

    assert world.names(PATHS.segments) == names
    assert backlog.record.collected == 0


def test_query_heartbeat_before_its_expiry_is_written_prevents_the_expiry(world: World, backlog: Backlog) -> None:
    machine = Machine()
    backlog.seal(1)
    backlog.query("q")
    collector = collector_on(world, machine, store=Before(world.store, lambda: backlog.query("q", 0)))
    collector.collect(["g"])
    machine.ahead_s += 8 * 86_400

    collector.collect(["g"])

    assert not expired(world, "q")


def test_concurrent_change_of_the_segments_znode_is_not_overwritten(world: World, backlog: Backlog) -> None:
    names = backlog.seal(3)
    backlog.query("q")
    newer = SegmentsRecord(backlog.czxid(names[0]), paused="moving the storage")
    collector = collector_on(
        world,
        bounds=Bounds(2, 1 << 30),
        store=Before(world.store, lambda: world.put(PATHS.segments, newer.to_bytes())),
    )

    for _ in range(3):
        collector.collect(["g"])

    assert backlog.record == newer


def test_many_segments_are_collected_in_several_multis(world: World, backlog: Backlog) -> None:
    names = backlog.seal(650)
    backlog.query("q", backlog.czxid(names[-2]))
    coordinator(world)

    eventually(lambda: world.names(PATHS.segments) == names[-1:], 20, "all but one are collected")
    eventually(lambda: backlog.files == 1, 10, "their files too")


def test_a_backlog_that_one_round_cannot_read_is_read_over_several(
    world: World, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.retention.segments.READ_A_ROUND", 10)
    monkeypatch.setattr("coordinator.retention.segments.MULTIS_A_ROUND", 1)
    monkeypatch.setattr("coordinator.retention.segments.SEGMENTS_A_MULTI", 3)
    names = backlog.seal(25)
    collector = collector_on(world, bounds=Bounds(25, 25 * KIB - 1))

    found = []
    for _ in range(3):
        collector.collect(["g"])
        found.append(backlog.record.paused is not None)
    assert found == [False, False, True], "the bytes are over their bound once all are read"
    backlog.query("q", backlog.czxid(names[-2]))
    left = []
    while len(world.names(PATHS.segments)) > 1:
        collector.collect(["g"])
        left.append(len(world.names(PATHS.segments)))
    assert left == [22, 19, 16, 13, 10, 7, 4, 1]


def test_unreadable_segment_and_query_znodes_are_reported_and_block_nothing_else(
    world: World, backlog: Backlog
) -> None:
    service = world.coordinator(backlog_interval_ms=50, max_backlog_segments=3)
    backlog.seal(3)
    bad_segment = world.store.commit([Create(PATHS.segment_prefix, b"garbage", sequential=True)])[0]
    world.put(PATHS.query("bad"), b"garbage")

    backlog.paused("the znode of query bad cannot be read")
    found = eventually(lambda: service.problems.current(), 5, "both are reported")
    assert {bad_segment, PATHS.query("bad")} <= set(found)
    assert service.problems.count == 2
    world.store.commit([Delete(bad_segment)])
    eventually(lambda: set(service.problems.current()) == {PATHS.query("bad")}, 5, "the other is no problem any more")


def test_segment_znode_that_replaces_an_unreadable_one_by_hand_is_no_problem(world: World, backlog: Backlog) -> None:
    (name,) = backlog.seal()
    data, path, collector = world.data(PATHS.segment(name)) or b"", PATHS.segment(name), collector_on(world)
    found = []
    for change in ([SetData(path, b"garbage")], [Delete(path)], [Create(path, data)]):
        world.store.commit(change)
        collector.collect(["g"])
        found.append(set(collector._term.problems.current()))
    assert found == [{path}, set(), set()]


def test_segments_files_that_this_node_cannot_reach_are_left_to_the_pools_sweep(world: World, backlog: Backlog) -> None:
    names = backlog.seal(1)
    elsewhere = Segment("g/c/abc-0000000009.arrow", "/nowhere/on/this/host", 1, 1, (), "c", "abc", 1)
    world.store.commit([Create(PATHS.segment_prefix, elsewhere.to_bytes(), sequential=True)])
    backlog.query("q", 2**60)

    coordinator(world)

    eventually(lambda: world.names(PATHS.segments) == [], 10, f"both are collected, {names} too")


def test_segment_files_that_this_node_may_not_remove_are_left_to_the_pools_sweep(
    world: World, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(root: Path, parts: Sequence[str]) -> None:
        tried.append(parts[-1])
        raise PermissionError(13, "Permission denied")  # the node's user is not in the group of the folder

    tried: list[str] = []
    monkeypatch.setattr("coordinator.zk.below.unlink", forbidden)
    backlog.seal(2)
    backlog.query("q", 2**60)

    coordinator(world)

    eventually(lambda: world.names(PATHS.segments) == [] and len(tried) == 2, 10, "both are collected")
    assert "segment file removal failed" not in caplog.text


# ---- how often to seal


def members(world: World, intervals: list[int], group: str = "g") -> None:
    """Registered fetchers that seal so often by themselves."""
    paths = GroupPaths(group)
    for number, interval in enumerate(intervals):
        record = Registration(f"i{number}", {"t": 1}, seal_interval_ms=interval)
        world.store.commit([Create(paths.id(f"m{number}"), record.to_bytes(), ephemeral=True)])


def test_a_longer_seal_interval_is_published_while_it_is_needed(world: World, backlog: Backlog) -> None:
    backlog.seal(1)
    coordinator(world, max_seals_per_s=10)
    members(world, [200, 200, 200, 5000])

    eventually(lambda: backlog.record.seal_interval_ms == 310, 10, "3 of them share 9.8 seals a second")

    for number in (1, 2):
        world.store.commit([Delete(PATHS.id(f"m{number}"))])
    eventually(lambda: backlog.record.seal_interval_ms is None, 10, "the rest may seal as they like")


def test_seals_are_counted_over_all_groups_that_seal_and_no_others(world: World, backlog: Backlog) -> None:
    other, plain = GroupPaths("other"), GroupPaths("plain")
    for paths in (other, plain):
        ensure(world.store, paths.skeleton)
    segment = Segment("other/c/abc-0000000001.arrow", "/nowhere", 1, 1, (), "c", "abc", 1)
    world.store.commit([Create(other.segment_prefix, segment.to_bytes(), sequential=True)])
    backlog.seal(1)
    coordinator(world, max_seals_per_s=10)
    members(world, [200, 200], "plain")

    members(world, [200])
    members(world, [200, 1000], "other")

    def published(paths: GroupPaths) -> int | None:
        return SegmentsRecord.parse("segments", world.data(paths.segments) or b"").seal_interval_ms

    eventually(lambda: (published(PATHS), published(other)) == (None, 250), 10, "10 seals a second of three")
    assert published(plain) is None


# ---- expiry


class WrongClock(ServerClock):
    """As if the server that wrote the epoch had been a year ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + YEAR_MS


def test_coordinator_with_a_wrong_wall_clock_expires_no_live_query(world: World, backlog: Backlog) -> None:
    machine = Machine()
    world.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
    clock = ServerClock(world.store, machine)
    backlog.seal(1)
    backlog.query("q")
    collector = collector_on(world, machine, clock)
    collector.collect(["g"])

    machine.ahead_s += 3600  # so long it has seen nothing of the query, which is still far from seven days
    collector.collect(["g"])
    assert not expired(world, "q")

    machine.ahead_s += 7 * 86_400
    collector.collect(["g"])
    assert expired(world, "q")


def test_no_clock_lets_a_query_expire_that_gives_its_signs_of_life(world: World, backlog: Backlog) -> None:
    machine = Machine()
    backlog.seal(1)
    backlog.query("lively")
    backlog.query("silent")
    world.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
    collector = collector_on(world, machine, WrongClock(world.store, machine))

    for _ in range(5):
        collector.collect(["g"])
        machine.ahead_s += 60
        backlog.query("lively", 0)

    assert expired(world, "silent"), "after a year by ZooKeeper's clock, and three minutes of silence"
    assert not expired(world, "lively")


def test_a_silent_query_expires_and_holds_nothing_back(world: World, backlog: Backlog) -> None:
    names = backlog.seal(2)
    backlog.query("silent")
    backlog.query("lively", backlog.czxid(names[0]))
    before = world.store.get(PATHS.queries)

    def is_expired() -> bool:
        backlog.query("lively", backlog.czxid(names[0]) if names[0] in world.names(PATHS.segments) else collected)
        return Query.parse("query", world.data(PATHS.query("silent")) or b"").expired_ms > 0

    collected = backlog.czxid(names[0])
    coordinator(world, query_retention_ms=1000)
    eventually(is_expired, 10, "it is marked", pause_s=0.1)

    eventually(lambda: world.names(PATHS.segments) == names[1:], 10, "what the other has finished is collected")
    after = world.store.get(PATHS.queries)
    assert before is not None and after is not None
    assert after.stat.version == before.stat.version + 1, "a reader of the set of queries sees a new version"


def test_the_znode_of_an_expired_query_is_removed_after_as_long_again(world: World, backlog: Backlog) -> None:
    backlog.seal(1)
    backlog.query("silent")
    coordinator(world, query_retention_ms=1000)

    eventually(lambda: world.names(PATHS.queries) == [], 15, "it is removed")


def test_a_query_that_waits_for_its_first_batch_does_not_expire(world: World, backlog: Backlog) -> None:
    backlog.seal(1)
    data = Query("run", 0, 0).to_bytes()
    world.store.commit([SetData(PATHS.queries, b""), Create(PATHS.query("new"), data, ephemeral=True)])
    backlog.query("silent")
    coordinator(world, query_retention_ms=1000)

    eventually(lambda: world.names(PATHS.queries) == ["new"], 15, "the silent one is gone")
    assert world.data(PATHS.query("new")) == data


def ephemeral(backlog: Backlog, name: str) -> None:
    """A query without a name, or before its first batch."""
    create = Create(PATHS.query(name), Query("run", 0, 0).to_bytes(), ephemeral=True)
    backlog.world.store.commit([SetData(PATHS.queries, b""), create])


def test_removed_query_without_a_name_holds_nothing_back_at_once(world: World, backlog: Backlog) -> None:
    names = backlog.seal(2)
    ephemeral(backlog, "unnamed")
    backlog.query("q", backlog.czxid(names[1]))
    collector = collector_on(world)
    collector.collect(["g"])
    assert world.names(PATHS.segments) == names

    world.store.commit([SetData(PATHS.queries, b""), Delete(PATHS.query("unnamed"))])
    collector.collect(["g"])

    assert world.names(PATHS.segments) == []


def test_query_whose_session_ends_while_another_registers_is_not_taken_for_removed(
    world: World, backlog: Backlog
) -> None:
    names = backlog.seal(2)
    ephemeral(backlog, "unnamed")
    backlog.query("q", backlog.czxid(names[1]))
    collector = collector_on(world)
    collector.collect(["g"])

    world.store.commit([Delete(PATHS.query("unnamed"))])  # as the end of its session does
    backlog.query("other", backlog.czxid(names[1]))
    collector.collect(["g"])

    assert world.names(PATHS.segments) == names


def test_query_whose_session_ended_releases_what_it_had_finished(world: World, backlog: Backlog) -> None:
    machine = Machine()
    names = backlog.seal(3)
    ephemeral(backlog, "unnamed")
    backlog.query("q", backlog.czxid(names[2]))
    collector = collector_on(world, machine)
    backlog.query("unnamed", backlog.czxid(names[0]))
    collector.collect(["g"])

    world.store.commit([Delete(PATHS.query("unnamed"))])
    for _ in range(3):
        collector.collect(["g"])
        machine.ahead_s += QUERY_ABSENCE_S / 3
    assert world.names(PATHS.segments) == names[1:]
    collector.collect(["g"])

    assert world.names(PATHS.segments) == []


@pytest.mark.parametrize("bad", [b"paused", b'{"collected":-1}'])
def test_pause_beside_unreadable_data_keeps_the_recorded_collection(world: World, backlog: Backlog, bad: bytes) -> None:
    """With `collected` at 0 a returning query would miss the collected segments without an error."""
    names = backlog.seal(6)
    backlog.query("q", backlog.czxid(names[1]))
    collector = collector_on(world, bounds=Bounds(3, 1 << 30))
    collector.collect(["g"])
    collected = backlog.record.collected
    assert collected > 0
    world.put(PATHS.segments, bad)

    collector.collect(["g"])

    assert backlog.record.paused
    assert backlog.record.collected == collected


def test_unread_collection_record_is_written_only_with_a_collection(world: World, backlog: Backlog) -> None:
    names = backlog.seal(6)
    backlog.query("q")
    world.put(PATHS.segments, b"no json")
    collector = collector_on(world, bounds=Bounds(3, 1 << 30))

    collector.collect(["g"])
    unread = world.data(PATHS.segments)
    czxid = backlog.czxid(names[1])
    backlog.query("q", czxid)
    collector.collect(["g"])

    assert unread == b"no json"
    assert backlog.record.collected == czxid and backlog.record.paused


def test_segment_that_was_closed_and_is_open_again_is_collected(world: World, tmp_path: Path) -> None:
    backlog = Backlog(world, tmp_path)
    names = backlog.seal(3)
    path = PATHS.segment(names[1])
    collector = collector_on(world)
    backlog.query("q", 0)
    with closing(Parties(world.zk, tmp_path).session("mallory")) as mallory:
        mallory.set_acl(path, owned_by("mallory"))
        collector.collect(["g"])
        assert path in collector._term.problems.current()
        mallory.set_acl(path, OPEN_ACL)

    backlog.query("q", backlog.czxid(names[2]))
    for _ in range(3):
        collector.collect(["g"])

    listing = world.store.children(PATHS.segments)
    assert listing is not None and not listing.names
    assert path not in collector._term.problems.current()
