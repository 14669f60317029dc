"""Fetching from a log that is slow, hangs, or has a partition that cannot be read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from consumer.fetching.polling import LONGEST_WAIT_S, LOOK_FOR_DATA_S, PENDING_S, Fetcher, Looks
from consumer.logs.base import Fetch, Fetched, FetchLimits, Jump, LogError, OffsetOutOfRange, Position, PullSource
from consumer.logs.embedded.log import EmbeddedLog, topic_folder
from consumer.logs.embedded.producer import Appender, stored_batches
from consumer.membership.offsets import SLOW_RETRY_S, CommittedOffsets
from consumer.membership.start_position import OffsetSpec, StartOffset
from consumer.metrics import ConsumerMetrics
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel
from tests.property.tree import MemoryTree
from tests.support.timedlog import TimedLog
from tests.unit.manual import ManualRuntime

BROKEN, WHOLE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("look_s", "is_pending", "wait_s"),
    [(0.0, False, LOOK_FOR_DATA_S), (0.01, False, 0.09), (60.0, False, LONGEST_WAIT_S), (0.05, True, PENDING_S)],
    ids=["quick", "slow", "hung", "unconfirmed records"],
)
def test_empty_log_is_fetched_again_soon_despite_a_slow_fetch(look_s: float, is_pending: bool, wait_s: float) -> None:
    runtime = ManualRuntime()
    looks = Looks(runtime)
    began = runtime.monotonic()
    runtime.now += look_s
    looks.note(began, is_empty=True, is_pending=is_pending)
    assert looks.wait_s == pytest.approx(wait_s)


def test_unlistable_partition_folder_is_reported_and_blocks_no_other_partition(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, "t", "id")
    folder.mkdir(parents=True)
    (folder / "0").write_text("a file where the partition's folder should be")
    Appender(tmp_path, "t", "id", 1).append(stored_batches([b"1", b"2"]))
    fetcher = Fetcher(EmbeddedLog(tmp_path))
    fetcher.begin({BROKEN: Position("id", 0), WHOLE: Position("id", 0)})

    assert [(fetch.partition, fetch.rows) for fetch in fetcher.fetch(1 << 20)] == [(WHOLE, 2)]
    assert "Not a directory" in fetcher.complaints[BROKEN]


def test_partition_without_a_known_first_offset_delays_no_other_partition(caplog: pytest.LogCaptureFixture) -> None:
    def find(partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
        if partition == BROKEN:
            raise PermissionError("no access")
        return StartOffset(7, OffsetSpec("beginning"))

    offsets = CommittedOffsets(ManualRuntime(), GroupPaths("g"), find)
    running = Channel("abc", running={BROKEN: None, WHOLE: None}, topics={"t": "id"})

    read = offsets.read(MemoryTree().open(), running, running.running, lambda operations: None)

    assert read.running == {BROKEN: None, WHOLE: 7}
    assert caplog.messages == ["partition offset unavailable: partition=t-0 problem=no access"]


def test_unavailable_log_is_not_waited_for_at_each_partition() -> None:
    runtime, asked = ManualRuntime(), []

    def find(partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
        asked.append(partition)
        runtime.now += 0.6
        raise LogError("no answer")

    offsets = CommittedOffsets(runtime, GroupPaths("g"), find)
    running = Channel("abc", running={TopicPartition("t", n): None for n in range(100)}, topics={"t": "id"})

    offsets.read(MemoryTree().open(), running, running.running, lambda operations: None)
    first = len(asked)
    offsets.read(MemoryTree().open(), running, running.running, lambda operations: None)

    assert (first, asked) == (2, [TopicPartition("t", n) for n in range(4)]), "and the next time others have their turn"


def test_lookups_that_take_long_and_fail_are_last_and_pause_together() -> None:
    """A broker that hangs leads one partition of each topic."""
    runtime, asked = ManualRuntime(), []

    def find(partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
        asked.append(partition)
        if partition.partition == 0:
            runtime.now += 3.5
            raise LogError("no answer")
        return StartOffset(7, OffsetSpec("end"))

    offsets = CommittedOffsets(runtime, GroupPaths("g"), find)
    sick = [TopicPartition(topic, 0) for topic in "abc"]
    well = [TopicPartition(topic, 1) for topic in "abc"]
    channel = Channel("abc", running=dict.fromkeys([*sick, *well]), topics=dict.fromkeys("abc", "id"))
    store, before = MemoryTree().open(), 0

    def read() -> list[TopicPartition]:
        nonlocal channel, before
        missing = [part for part, offset in channel.running.items() if offset is None]
        channel = offsets.read(store, channel, missing, lambda operations: None)
        found, before = asked[before:], len(asked)
        return found

    assert [read() for _ in range(3)] == [sick[:1], [well[0], sick[1]], [well[1], sick[2]]]
    assert read() == [well[2]], "the others pause for the time in which these are fetched"
    runtime.now += SLOW_RETRY_S - 0.1
    assert read() == []
    runtime.now += 0.1
    assert read() == sick[:1]


def test_slow_start_lookups_are_split_into_steps_between_which_the_consumer_runs() -> None:
    runtime = ManualRuntime()

    def find(partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
        runtime.now += 0.3
        return StartOffset(7, OffsetSpec("end"))

    offsets = CommittedOffsets(runtime, GroupPaths("g"), find)
    running = Channel("abc", running={TopicPartition("t", n): None for n in range(10)}, topics={"t": "id"})

    read = offsets.read(MemoryTree().open(), running, running.running, lambda operations: None)

    assert [n for (_, n), offset in read.running.items() if offset == 7] == [0, 1, 2, 3], "recorded after a second"


class LogThatBreaks(TimedLog):
    """Its partition 2 raises an unexpected error."""

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        if partition == 2:
            raise RuntimeError("unexpected")
        return super().fetch(topic, topic_id, partition, offset, max_bytes)


def test_records_fetched_before_an_unexpected_error_are_fetched_again() -> None:
    fetcher = Fetcher(LogThatBreaks(end=50))
    fetcher.begin({WHOLE: Position("id", 30), TopicPartition("t", 2): Position("id", 40)})

    with pytest.raises(RuntimeError):
        fetcher.fetch(1 << 20)

    assert [at.offset for _, at in sorted(fetcher.positions.items())] == [30, 40]
    found = fetcher.fetch(1 << 20, [WHOLE])
    assert [(fetch.partition, fetch.first, fetch.next) for fetch in found] == [(WHOLE, 30, 50)]


@pytest.mark.parametrize("first", [29, 31], ids=["duplicates", "a gap"])
def test_fetch_that_does_not_begin_at_the_position_is_discarded_and_repeated(first: int) -> None:
    class OutOfPlace(PullSource):
        def poll(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
            return [replace(fetch, first=first) if not repeated else fetch for fetch in super().poll(max_bytes, wanted)]

    repeated: list[bool] = []
    log = TimedLog(end=50)
    fetcher = Fetcher(log, source=OutOfPlace(log, FetchLimits()))
    fetcher.begin({WHOLE: Position("id", 30)})

    assert fetcher.fetch(1 << 20) == []
    repeated.append(True)
    assert [(fetch.first, fetch.next) for fetch in fetcher.fetch(1 << 20)] == [(30, 50)]


# ---- offsets that the log does not have


@pytest.mark.parametrize(("reset", "after"), [("earliest", 30), ("latest", 50)])
@pytest.mark.parametrize("before", [10, 60], ids=["removed", "not there any more"])
def test_out_of_range_offset_is_logged_counted_and_reset_without_blocking_others(
    reset: str, after: int, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = ConsumerMetrics()
    fetcher = Fetcher(TimedLog(end=50, begin=30), metrics.of("g", "c"), reset)
    fetcher.begin({BROKEN: Position("id", before), WHOLE: Position("id", 40)})

    first = fetcher.fetch(1 << 20)
    jumps = fetcher.jumps
    fetcher.jump()
    second = fetcher.fetch(1 << 20)

    assert [(fetch.partition, fetch.first, fetch.next) for fetch in first] == [(WHOLE, 40, 50)]
    assert jumps == {BROKEN: Jump("id", before, after)}
    assert [(fetch.partition, fetch.first) for fetch in second] == ([(BROKEN, 30)] if reset == "earliest" else [])
    assert f"offset out of range: partition=t-0 offset={before} goes_on_at={after}" in caplog.text
    labels = {"group": "g", "consumer": "c"}
    assert metrics.registry.get_sample_value("zk_group_consumer_offset_resets_total", labels) == 1


def test_out_of_range_with_reset_none_raises_after_fetched_records_are_returned() -> None:
    fetcher = Fetcher(TimedLog(end=50, begin=30), auto_offset_reset="none")
    fetcher.begin({BROKEN: Position("id", 10), WHOLE: Position("id", 40)})

    assert [fetch.partition for fetch in fetcher.fetch(1 << 20)] == [WHOLE]
    assert fetcher.complaints == {BROKEN: "offset 10 of t-0: there is 30 to 50"}
    with pytest.raises(OffsetOutOfRange, match=r"offset 10 of t-0: .*; auto_offset_reset is none, so t-0 waits: set"):
        fetcher.refuse_out_of_range({BROKEN})
    fetcher.rewind(BROKEN, 30)
    fetcher.refuse_out_of_range({BROKEN})
    assert [fetch.first for fetch in fetcher.fetch(1 << 20)] == [30]


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_lost_offset_in_a_region_is_an_error_with_a_remedy_and_never_a_jump(reset: str) -> None:
    fetcher = Fetcher(TimedLog(end=50, begin=30), None, reset, "r")
    fetcher.begin({BROKEN: Position("id", 10)})

    assert not fetcher.fetch(1 << 20) and not fetcher.jumps
    with pytest.raises(OffsetOutOfRange, match=r"offset 10 of t-0: .*t-0 waits: .* regions reset r --to") as raised:
        fetcher.refuse_out_of_range({BROKEN})
    assert "auto_offset_reset" not in str(raised.value)


@pytest.mark.parametrize("given_up", [True, False], ids=["given up", "moved by a seek"])
def test_pending_jump_is_discarded_with_the_position(given_up: bool) -> None:
    fetcher = Fetcher(TimedLog(end=50, begin=30))
    fetcher.begin({BROKEN: Position("id", 10)})
    fetcher.fetch(1 << 20)

    if given_up:
        fetcher.end([BROKEN])
    else:
        fetcher.rewind(BROKEN, 45)
    fetcher.jump()

    assert {part: at.offset for part, at in fetcher.positions.items()} == ({} if given_up else {BROKEN: 45})


class LogThatIsAway(TimedLog):
    """It reports an offset out of range without its own beginning."""

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        raise LogError("the log is away")


def test_log_without_a_known_beginning_is_queried_again(caplog: pytest.LogCaptureFixture) -> None:
    fetcher = Fetcher(LogThatIsAway(end=50, begin=30))
    fetcher.begin({BROKEN: Position("id", 10)})

    assert fetcher.fetch(1 << 20) == []
    assert (fetcher.complaints, fetcher.jumps) == ({BROKEN: "the log is away"}, {})
    assert "partition fetch failed: partition=t-0 problem=the log is away" in caplog.text
