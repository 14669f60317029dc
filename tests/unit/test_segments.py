"""Sealing: every record is in exactly one sealed segment, despite any failure of files and commits."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.memlog import MemoryLog, TimedLog, batch_of
from tests.support.sealed import records_in
from tests.support.stories import play, stories
from tests.unit.manual import ManualRuntime
from zk_group.consumer.errors import SegmentError
from zk_group.consumer.fetching.polling import Fetcher
from zk_group.consumer.logs.base import NO_OFFSETS, Fetch, Fetched, Jump, OffsetOutOfRange, Offsets, Position
from zk_group.consumer.metrics import ConsumerMetrics
from zk_group.consumer.sealing.sealer import SealConfig, Sealer
from zk_group.consumer.sealing.segment_files import BATCH_BYTES, SegmentFolder, arranged, incarnation_of, segment_file
from zk_group.coordinator.zk.errors import ConnectionLost, IncarnationOver, OutcomeUnknown, Refused, UsageError
from zk_group.coordinator.zk.store import Create, Operation
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel
from zk_group.coordinator.zk.znodes.segments import Segment

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Membership:
    """A member whose commits have the fates that a test gives them, the first for the first; then all succeed.

    Fates: `refused`, `unsent` (the reply is lost, and it did not happen), `happened` (the reply is lost, and it did),
    `unanswered` (the connection is lost).
    """

    def __init__(self) -> None:
        self.truth = Channel("abc", running={P0: 0, P1: 0}, topics={"t": "id"})
        self.channel: Channel | None = self.truth
        self.paths = GroupPaths("g")
        self.trace = self  # and records its own events
        self.may_fetch = True
        self.lapses_after_commit = False
        self.fates: list[str] = []
        self.sealed: list[Segment] = []
        self.tried: list[str] = []
        self.jumps: list[dict[TopicPartition, Jump]] = []

    def advance(
        self, offsets: Offsets, operations: tuple[Operation, ...] = (), sealed: str = "", lost: Offsets = NO_OFFSETS
    ) -> None:
        fate = self.fates.pop(0) if self.fates else "done"
        self.may_fetch = not self.lapses_after_commit
        self.tried.append(sealed)
        if self.channel is None or fate == "over":
            self.channel = None
            raise IncarnationOver("evicted")
        if self.channel != self.truth:
            self.channel = self.truth
            raise Refused(0, "/channel", "bad-version")
        if fate == "refused":
            raise Refused(1, "/segments", "no-node")
        if fate in ("unsent", "unanswered"):
            raise OutcomeUnknown("the reply was lost") if fate == "unsent" else ConnectionLost("no answer")
        if not sealed:  # no records with it
            self.truth = self.truth.advanced(offsets, lost)
            if fate == "happened":
                raise OutcomeUnknown("the reply was lost")
            self.channel = self.truth
            return
        (create,) = operations
        assert isinstance(create, Create) and create.path == self.paths.segment_prefix and create.sequential
        self.sealed.append(Segment.parse("here", create.data))
        self.truth = self.truth.advanced(offsets, lost, sealed)
        if fate == "happened":
            raise OutcomeUnknown("the reply was lost")
        self.channel = self.truth

    def fetched(self, fetched: Sequence[Fetch], checked: float) -> None:
        pass

    def jumped(self, jumps: Mapping[TopicPartition, Jump]) -> None:
        self.jumps.append(dict(jumps))


class Folder(SegmentFolder):
    """A segments folder whose disk can be full, and which records removed files."""

    is_full = False
    removed: list[str]

    def write(self, file: str, batches: Iterator[pa.RecordBatch]) -> int:  # type: ignore[override]
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, batches)

    def remove(self, file: str) -> None:
        self.removed = [*getattr(self, "removed", []), file]
        super().remove(file)


class Bench:
    """A sealer with everything around it."""

    def __init__(self, folder: Path, end: int = 250, log: MemoryLog | None = None, **config: int) -> None:
        self.clock = ManualRuntime(100.0)
        self.log = log or MemoryLog(end)
        self.fetcher = Fetcher(self.log)
        self.files = Folder(str(folder))
        self.member = Membership()
        self.metrics = ConsumerMetrics()
        meter = self.metrics.of("g", "c1")
        self.sealer = Sealer(SealConfig(**config), "c1", self.clock, self.fetcher, self.files, meter)
        self.sealer.bind(self.member)
        self.sealer.assigned({P0: Position("id", 0), P1: Position("id", 0)})

    @property
    def seals(self) -> float | None:
        labels = {"group": "g", "consumer": "c1"}
        return self.metrics.registry.get_sample_value("zk_group_consumer_seal_duration_seconds_count", labels)

    def fetch_all(self) -> None:
        while self.sealer.fetch():
            pass

    def positions(self) -> dict[TopicPartition, int]:
        return {partition: position.offset for partition, position in self.fetcher.positions.items()}

    def sealed_offsets(self) -> dict[TopicPartition, list[int]]:
        """Every record in a sealed segment, as the files have it."""
        found: dict[TopicPartition, list[int]] = {}
        for segment in self.member.sealed:
            for batch in records_in(self.files, segment.file, segment.size, segment.rows):
                for row in batch.to_pylist():
                    found.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(row["offset"])
        return found

    def assert_once(self, end: int = 250) -> None:
        assert self.sealed_offsets() == {P0: list(range(end)), P1: list(range(end))}


class SealerStory:
    """Steps of stories (see `stories.py`) about a sealer; its log, commits, disk and time are the story's."""

    errors: tuple[type[Exception], ...] = (OutcomeUnknown,)

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._folder = folder
        self._log = caplog
        self.sealer()

    def sealer(self, **config: int) -> None:
        self._bench = Bench(self._folder, log=TimedLog(end=250), **config)

    def shown(self, text: str) -> str:
        return text

    def log(self, end: int, begin: int = 0) -> None:
        """What it holds of each partition by now."""
        log = self._bench.log
        assert isinstance(log, TimedLog)
        log.begin, log.end = begin, end

    def fetch(self, how: str = "") -> str | None:
        """Once, or `all`."""
        if not how:
            return f"{self._bench.sealer.fetch()} records"
        self._bench.fetch_all()
        return None

    def seal(self) -> str:
        return "nothing is open" if self._bench.sealer.seal() else "it is open"

    def due(self, interval_ms: int | None = None) -> str:
        """Seal if it is due; in how many seconds it is the next time."""
        return f"in {round(self._bench.sealer.seal_if_due(interval_ms), 6)} s"

    def wait(self, seconds: float) -> None:
        self._bench.clock.now += seconds

    def pause(self) -> None:
        self._bench.sealer.paused = "the backlog is full"

    def resume(self) -> None:
        self._bench.sealer.paused = None

    def revoke(self, *partitions: int) -> None:
        self._bench.sealer.revoke(frozenset(TopicPartition("t", number) for number in partitions))

    def lose(self, *partitions: int) -> None:
        self._bench.sealer.lost(frozenset(TopicPartition("t", number) for number in partitions))

    def commits(self, *fates: str) -> None:
        """The fates of the next ones."""
        self._bench.member.fates = list(fates)

    def settle(self) -> None:
        """The member learns what became of its commit."""
        self._bench.member.channel = self._bench.member.truth

    def move(self, offset: int) -> None:
        """Somebody else moves t-0 in the channel."""
        member = self._bench.member
        member.truth = member.channel = replace(member.truth, running={P0: offset, P1: 0})

    def lease(self, is_held: bool = True, lapses: bool = False) -> None:
        """Whether it is held now, and whether it lapses with the next commit."""
        self._bench.member.may_fetch, self._bench.member.lapses_after_commit = is_held, lapses

    def disk(self, is_full: bool) -> None:
        self._bench.files.is_full = is_full

    def logged(self) -> list[str]:
        return [record.getMessage() for record in self._log.records if record.levelno >= logging.ERROR]

    def state(self) -> list[str]:
        """The sealed segments, whose files have just these records; then the sealer, without what is 0 or none."""
        bench, sealer, member = self._bench, self._bench.sealer, self._bench.member
        ranges = [(TopicPartition("t", item.partition), item) for segment in member.sealed for item in segment.ranges]
        records = {
            part: [n for of, item in ranges if of == part for n in range(item.first, item.next)] for part, _ in ranges
        }
        assert bench.sealed_offsets() == records
        some = {
            "at": _offsets(bench.positions()),
            "running": "" if bench.positions() == member.truth.running else _offsets(member.truth.running),
            "open": sealer.is_open,
            "tried": " ".join(Path(file).stem.rpartition("-")[2].lstrip("0") or "none" for file in member.tried),
            "seals": int(bench.seals or 0),
            "refetched": sealer.refetched,
            "failed": sealer.failed,
            "removed": " ".join(getattr(bench.files, "removed", ())),
            "jumps": "; ".join(
                " ".join(f"{part}:{jump.before}-{jump.after}" for part, jump in jumps.items()) for jumps in member.jumps
            ),
            "problem": sealer.problem,
        }
        return [*map(_sealed, member.sealed), ", ".join(f"{key} {value}" for key, value in some.items() if value)]


def _offsets(places: Mapping[TopicPartition, int | None]) -> str:
    return " ".join(f"{part}:{offset}" for part, offset in sorted(places.items())) or "none"


def _sealed(segment: Segment) -> str:
    ranges = " ".join(f"{item.topic}-{item.partition}:{item.first}-{item.next}" for item in segment.ranges)
    causes = [f", {part} {each.cause} from {each.number}" for part, each in segment.discontinuities.items()]
    return f"segment of {segment.rows} rows {ranges}{''.join(causes)}"


STORIES = Path(__file__).with_name("sealing.txt")


@pytest.mark.parametrize("title", stories(STORIES))
def test_sealing(tmp_path: Path, title: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    play(request, STORIES, title, SealerStory(tmp_path, caplog), is_joined=True)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_fetched_records_are_sealed_as_one_file_of_all_partitions_with_offsets(bench: Bench) -> None:
    bench.fetch_all()
    assert bench.sealer.seal()
    (segment,) = bench.member.sealed
    assert segment.file == "g/c1/abc-0000000001.arrow"
    assert segment.rows == 500
    assert [(item.partition, item.topic_id, item.first, item.next) for item in segment.ranges] == [
        (0, "id", 0, 250),
        (1, "id", 0, 250),
    ]
    assert bench.member.truth.running == {P0: 250, P1: 250}
    assert bench.member.truth.sealed == segment.file
    bench.assert_once()


@pytest.mark.parametrize("fates", ["happened", "unsent", "unsent happened", "unanswered", "refused", "happened " * 3])
def test_seal_with_an_unknown_outcome_is_neither_repeated_nor_lost(bench: Bench, fates: str) -> None:
    bench.member.fates = fates.split()
    for _ in range(10):
        bench.sealer.fetch()
        bench.clock.now += 6.0
        bench.sealer.seal_if_due()
    assert bench.member.fates == []
    bench.assert_once()


def test_failed_seals_are_retried_with_increasing_backoff(bench: Bench) -> None:
    bench.files.is_full = True
    bench.fetch_all()
    bench.clock.now += 1
    waits = []
    for _ in range(8):
        waits.append(bench.sealer.seal_if_due())
        bench.clock.now += waits[-1]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


# ---- files


def batch(rows: int, size: int, first: int = 0) -> pa.RecordBatch:
    return batch_of("t", 0, first, [bytes(size)] * rows)


def test_batches_are_arranged_to_half_to_two_megabytes() -> None:
    (large,) = arranged(iter([batch(1, 5 * BATCH_BYTES)]))
    assert large.num_rows == 1
    batches = [batch(1, 100, first) for first in range(1000)] + [batch(9000, 1000, 1000), batch(3, 10, 10_000)]
    found = list(arranged(iter(batches)))
    assert [row for item in found for row in item.column("offset").to_pylist()] == list(range(10_003))
    assert all(BATCH_BYTES // 2 <= item.nbytes <= 2 * BATCH_BYTES for item in found[:-1])


def test_a_batch_of_the_size_that_spark_takes_is_not_copied() -> None:
    batches = [batch(600, 1000), batch(1500, 1000, 600), batch(10, 10, 2100)]
    found = list(arranged(iter(batches)))
    assert [item.num_rows for item in found] == [600, 1500, 10]
    for given, taken in zip(batches, found, strict=True):
        assert given.column("value").buffers()[2].address == taken.column("value").buffers()[2].address


@pytest.mark.parametrize("url", ["{}", "file://{}", "{}/"])
def test_a_folder_is_a_path_or_a_url(tmp_path: Path, url: str) -> None:
    folder = SegmentFolder(url.format(tmp_path))
    size = folder.write("g/c/a-0000000001.arrow", iter([batch(3, 10)]))
    assert folder.url == str(tmp_path)
    assert folder.sizes(["g/c/a-0000000001.arrow", "g/c/none.arrow"]) == [size, None]
    assert sum(item.num_rows for item in records_in(folder, "g/c/a-0000000001.arrow", size, 3)) == 3


def test_a_write_that_fails_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(3, 10)
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        SegmentFolder(str(tmp_path)).write("g/c/a-0000000001.arrow", broken())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("file", ["../g/c/a.arrow", "/etc/passwd", "g//a.arrow", "g/c/.."])
def test_path_outside_the_folder_is_refused(tmp_path: Path, file: str) -> None:
    with pytest.raises(SegmentError, match="no path of a segment"):
        list(records_in(SegmentFolder(str(tmp_path)), file, 1, 1))
    with pytest.raises(UsageError, match="no folder for segments"):
        SegmentFolder("nonsense://host/folder")


def test_a_damaged_file_is_refused_and_named(tmp_path: Path) -> None:
    folder, file = SegmentFolder(str(tmp_path)), "g/c/a-0000000001.arrow"
    size = folder.write(file, iter([batch(3, 10)]))
    path = tmp_path / file
    whole = path.read_bytes()
    for damaged in (whole[:-10], whole[:100], b"", b"x" * size, whole + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(SegmentError, match=file):
            list(records_in(folder, file, size, 3))
    path.write_bytes(whole)
    with pytest.raises(SegmentError, match="1 records too few"):
        list(records_in(folder, file, size, 4))
    path.unlink()
    with pytest.raises(SegmentError, match="is missing"):
        list(records_in(folder, file, size, 3))


def test_file_name_contains_its_incarnation() -> None:
    assert incarnation_of(segment_file("g", "c-1", "0a1b", 7)) == "0a1b"
    assert incarnation_of("g/c/.tmp-0a1b-0000000007.arrow") == "0a1b"
    assert incarnation_of("g/c/notes.txt") is None


# ---- the log does not have an offset any more


class Marked(TimedLog):
    """A `TimedLog` in which the offsets that `marks` names have no record; and a partition can have gone further.

    :ivar marks: partition -> its first offset without a record, and the one after the last of these.
    :ivar begins: partition -> the offset of its oldest record, where it is not `begin`.
    """

    def __init__(self, end: int, marks: Mapping[int, tuple[int, int]]) -> None:
        super().__init__(end)
        self.marks = marks
        self.begins: dict[int, int] = {}

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self.begins.get(partition, self.begin)

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        if offset < self.begins.get(partition, 0):
            raise OffsetOutOfRange(f"offset {offset} of {topic}-{partition} is gone")
        first, following = self.marks.get(partition, (self.end, self.end))
        if first <= offset < following:
            return Fetched([], following)
        found = super().fetch(topic, topic_id, partition, offset, max_bytes)
        if not offset < first < found.next_offset:
            return found
        return Fetched([batch.slice(0, first - offset) for batch in found.batches], first)


def test_log_gap_after_offsets_without_records_begins_at_the_channel_offset(tmp_path: Path) -> None:
    """And nothing is dropped: neither later records, nor such offsets of a partition that does not jump."""
    log = Marked(20, {0: (10, 20), 1: (15, 20)})
    bench = Bench(tmp_path, log=log)
    bench.sealer.fetch()
    bench.sealer.seal()
    bench.sealer.fetch()  # the marks, of which nothing is sealed yet
    log.begins = {0: 40}
    bench.sealer.fetch()
    bench.sealer.fetch()
    log.end = 60
    bench.fetch_all()
    bench.sealer.seal()

    assert bench.member.jumps == [{P0: Jump("id", 10, 40)}]
    assert [[tuple(item[2:]) for item in segment.ranges] for segment in bench.member.sealed] == [
        [(0, 0, 10), (1, 0, 15)],
        [(0, 40, 60), (1, 15, 60)],
    ]
    assert bench.sealer.refetched == 0
    assert bench.sealed_offsets() == {P0: [*range(10), *range(40, 60)], P1: [*range(15), *range(20, 60)]}


def test_log_gap_after_initial_offsets_without_records_begins_at_0(tmp_path: Path) -> None:
    log = Marked(20, {0: (0, 20), 1: (0, 20)})
    bench = Bench(tmp_path, log=log)
    bench.sealer.fetch()
    log.begins = {0: 40}
    bench.sealer.fetch()
    bench.sealer.fetch()

    assert bench.member.jumps == [{P0: Jump("id", 0, 40)}]
