"""Fetching from a log that is slow, hangs, or has a partition that cannot be read; and times of commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.property.tree import MemoryTree
from tests.support.memlog import TimedLog
from tests.unit.manual import ManualRuntime
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.errors import CommitFailed
from zk_group.consumer.fetching.polling import LONGEST_WAIT_S, LOOK_FOR_DATA_S, PENDING_S, AutoCommit, Fetcher, Looks
from zk_group.consumer.logs.base import (
    Fetch,
    Fetched,
    FetchLimits,
    Jump,
    LogError,
    OffsetOutOfRange,
    Position,
    PullSource,
)
from zk_group.consumer.logs.embedded.log import EmbeddedLog, topic_folder
from zk_group.consumer.logs.embedded.producer import Appender, stored_batches
from zk_group.consumer.membership.offsets import SLOW_RETRY_S, CommittedOffsets
from zk_group.consumer.membership.start_position import OffsetSpec, StartOffset
from zk_group.consumer.metrics import ConsumerMetrics
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel

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


Find = Callable[[TopicPartition], int | Exception]
IN_ORDER = [TopicPartition("t", number) for number in range(100)]


class Starting:
    """Partitions whose first offsets are looked up by `find`, which takes so long.

    :ivar asked: those that were looked up.  :ivar running: what is known of each.
    """

    def __init__(self, partitions: Iterable[TopicPartition], find: Find, takes_s: float = 0.0) -> None:
        self.runtime = ManualRuntime()
        self.asked: list[TopicPartition] = []
        self._find, self._takes_s = find, takes_s
        self._offsets = CommittedOffsets(self.runtime, GroupPaths("g"), self._found)
        self._store = MemoryTree().open()
        running: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        self._channel = Channel("abc", running=running, topics={part.topic: "id" for part in running})

    @property
    def running(self) -> Mapping[TopicPartition, int | None]:
        return self._channel.running

    def _found(self, partition: TopicPartition, topic_id: str, came_later: bool) -> StartOffset:
        self.asked.append(partition)
        self.runtime.now += self._takes_s
        found = self._find(partition)
        if isinstance(found, Exception):
            raise found
        return StartOffset(found, OffsetSpec("end"))

    def read(self) -> list[TopicPartition]:
        """A step; those that it looked up."""
        before, missing = len(self.asked), [part for part, offset in self.running.items() if offset is None]
        self._channel = self._offsets.read(self._store, self._channel, missing, lambda operations: None)
        return self.asked[before:]


def test_partition_without_a_known_first_offset_delays_no_other_partition(caplog: pytest.LogCaptureFixture) -> None:
    starting = Starting([BROKEN, WHOLE], lambda part: PermissionError("no access") if part == BROKEN else 7)

    starting.read()

    assert starting.running == {BROKEN: None, WHOLE: 7}
    assert caplog.messages == ["partition offset unavailable: partition=t-0 problem=no access"]


def test_unavailable_log_is_not_waited_for_at_each_partition() -> None:
    starting = Starting(IN_ORDER, lambda part: LogError("no answer"), takes_s=0.6)

    assert (starting.read(), starting.read()) == (IN_ORDER[:2], IN_ORDER[2:4]), "the next time others have their turn"


def test_lookups_that_take_long_and_fail_are_last_and_pause_together() -> None:
    """A broker that hangs leads one partition of each topic."""

    def find(partition: TopicPartition) -> int | Exception:
        if partition.partition:
            return 7
        starting.runtime.now += 3.5
        return LogError("no answer")

    sick, well = ([TopicPartition(topic, number) for topic in "abc"] for number in (0, 1))
    starting = Starting([*sick, *well], find)

    assert [starting.read() for _ in range(3)] == [sick[:1], [well[0], sick[1]], [well[1], sick[2]]]
    assert starting.read() == [well[2]], "the others pause for the time in which these are fetched"
    starting.runtime.now += SLOW_RETRY_S - 0.1
    assert starting.read() == []
    starting.runtime.now += 0.1
    assert starting.read() == sick[:1]


def test_slow_start_lookups_are_split_into_steps_between_which_the_consumer_runs() -> None:
    starting = Starting(IN_ORDER, lambda part: 7, takes_s=0.3)

    assert starting.read() == IN_ORDER[:4] == [part for part, offset in starting.running.items() if offset == 7]


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


def test_missing_beginning_is_asked_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(TimedLog, "earliest", Mock(side_effect=LogError("the log is away")))
    fetcher = Fetcher(TimedLog(end=50, begin=30))
    fetcher.begin({BROKEN: Position("id", 10)})

    assert fetcher.fetch(1 << 20) == []
    assert (fetcher.complaints, fetcher.jumps) == ({BROKEN: "the log is away"}, {})
    assert "partition fetch failed: partition=t-0 problem=the log is away" in caplog.text


# ---- times of commits under `enable_auto_commit`, and failed commits


class Commits:
    """Auto commits.

    :ivar made: their commits.
    """

    def __init__(self, enable_auto_commit: bool = True, fails: Exception | None = None) -> None:
        self.made = Mock(side_effect=fails)
        self.runtime = ManualRuntime()
        config = ConsumerConfig("zk:1", "g", "c1", enable_auto_commit=enable_auto_commit, auto_commit_interval_ms=5000)
        self.auto = AutoCommit(config, self.runtime, self.made)

    def polls_after(self, seconds: float) -> int:
        self.runtime.now += seconds
        self.auto.if_due()
        return self.made.call_count


def test_auto_commit_runs_every_interval_since_the_last_commit() -> None:
    commits = Commits()

    assert [commits.polls_after(seconds) for seconds in (0, 4.9, 0.1, 4.9, 0.1)] == [0, 0, 1, 1, 2]
    commits.runtime.now += 4
    commits.auto.now()
    assert [commits.polls_after(seconds) for seconds in (4.9, 0.1)] == [3, 4]


def test_auto_commit_is_off_unless_enabled() -> None:
    commits = Commits(enable_auto_commit=False)
    commits.auto.now()

    assert commits.polls_after(100) == 0


def test_failed_commit_is_logged_and_retried_after_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    commits = Commits(fails=CommitFailed("ZooKeeper does not answer"))

    with caplog.at_level(logging.WARNING):
        assert [commits.polls_after(seconds) for seconds in (5, 1, 4)] == [1, 1, 2]
    assert caplog.messages == ["auto commit failed: consumer=c1 reason=ZooKeeper does not answer"] * 2
