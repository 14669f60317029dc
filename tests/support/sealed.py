"""A group whose segments, queries and channels are made by hand: real files, real znodes, no fetcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from tests.support.memlog import MemoryLog
from tests.support.terms import a_term
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.coordinator.retention.segments import SegmentCollector
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.store import Create, Delete, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.partitions import RESET, Discontinuity, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel
from zk_group.coordinator.zk.znodes.segments import Query, SealedRange, Segment, SegmentsRecord

NOTHING_RETAINED = {
    "max_backlog_segments": 1000, "max_backlog_bytes": 1 << 30, "segment_retention_ms": 0, "segment_retention_bytes": 0,
}  # fmt: skip


def records_in(folder: SegmentFolder, file: str, size: int, rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of a segment's file."""
    contents = folder.contents(file, size, rows)
    with folder._named(file):
        yield from map(contents.read, range(len(contents.rows)))


class SealedGroup:
    """Group `g`, whose consumer `c` lives as incarnation `abc` and has sealed topic `t` with id `id`."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.paths = GroupPaths("g")
        self.folder = SegmentFolder(str(folder))
        self.ends: dict[int, int] = {}
        self._number = 0
        ensure(store, [*self.paths.skeleton, self.paths.channel("c")])
        self.channel(Channel(incarnation="abc"))

    def channel(self, channel: Channel) -> None:
        """The channel data of consumer `c`."""
        self.store.commit([SetData(self.paths.channel("c"), channel.to_bytes())])

    def write(
        self, rows: int = 10, partition: int = 0, first: int | None = None, cause: Discontinuity | None = None
    ) -> Segment:
        """One more file, which no znode names yet."""
        first = self.ends.get(partition, 0) if first is None else first
        return self.written(batches(partition, first, rows), partition, first, cause)

    def written(
        self, batches: list[pa.RecordBatch], partition: int, first: int = 0, cause: Discontinuity | None = None
    ) -> Segment:
        """One more file with these records, which no znode names yet."""
        self._number += 1
        rows = sum(batch.num_rows for batch in batches)
        self.ends[partition] = first + rows
        file = f"g/c/abc-{self._number:010d}.arrow"
        size = self.folder.write(file, batches)
        ranges = (SealedRange("t", "id", partition, first, first + rows),)
        causes = {TopicPartition("t", partition): cause} if cause is not None else {}
        return Segment(file, self.folder.url, rows, size, ranges, "c", "abc", 1, discontinuities=causes)

    def name(self, segment: Segment) -> str:
        """Make the znode that names a segment; its name."""
        (path,) = self.store.commit([Create(self.paths.segment_prefix, segment.to_bytes(), sequential=True)])
        return path.rsplit("/", 1)[1]

    def seal(
        self, rows: int = 10, partition: int = 0, first: int | None = None, cause: Discontinuity | None = None
    ) -> str:
        """One more segment; its name."""
        return self.name(self.write(rows, partition, first, cause))

    def remove(self, name: str) -> None:
        """As a hand removes a segment's znode."""
        self.store.commit([Delete(self.paths.segment(name))])

    def collect(self, names: Sequence[str], collected: int = 0) -> None:
        """As the coordinator collects segments, all in one multi: up to the last of them."""
        record = SegmentsRecord(collected or self.czxid(names[-1])).to_bytes()
        self.store.commit([SetData(self.paths.segments, record), *(Delete(self.paths.segment(name)) for name in names)])

    @property
    def left(self) -> list[str]:
        """The segments that exist."""
        listing = self.store.children(self.paths.segments)
        return sorted(listing.names) if listing else []

    def segment(self, name: str) -> Segment:
        node = self.store.get(self.paths.segment(name))
        assert node is not None
        return Segment.parse(name, node.data)

    def path(self, name: str) -> Path:
        """Where a segment's file is."""
        return Path(self.folder.path(self.segment(name).file))

    def czxid(self, name: str) -> int:
        node = self.store.get(self.paths.segment(name))
        assert node is not None
        return node.stat.czxid

    def query(self, name: str, after: str = "", expired_ms: int = 0, ephemeral: bool = False) -> None:
        """Register a query that has finished everything up to segment `after`."""
        finished = self.czxid(after) if after else 0
        data = Query("run", finished, ThreadRuntime().wall_ms(), expired_ms).to_bytes()
        self.store.commit([SetData(self.paths.queries, b""), Create(self.paths.query(name), data, ephemeral=ephemeral)])

    def reset(self) -> Discontinuity:
        """An operator sets the group's offsets, now."""
        self.store.commit([SetData(self.paths.segments, b"")])
        node = self.store.get(self.paths.segments)
        assert node is not None
        return Discontinuity(RESET, node.stat.mzxid)

    def remove_query(self, name: str = "q") -> None:
        """As `zk-coordinator queries remove` does it."""
        self.store.commit([SetData(self.paths.queries, b""), Delete(self.paths.query(name))])

    @property
    def queries(self) -> dict[str, Query]:
        """Name -> its znode's data."""
        listing = self.store.children(self.paths.queries)
        names = sorted(listing.names) if listing else []
        nodes = zip(names, self.store.get_many([self.paths.query(name) for name in names]), strict=True)
        return {name: Query.parse(name, node.data) for name, node in nodes if node is not None}

    @property
    def set_of_queries(self) -> int:
        """The version of the set of queries."""
        node = self.store.get(self.paths.queries)
        assert node is not None
        return node.stat.version


def a_collector(store: Store, runtime: Runtime | None = None) -> SegmentCollector:
    """Of a coordinator that sweeps in each round, and retains no finished segment. The epoch's znode has version 0."""
    return sweeping(SegmentCollector(a_term(store, runtime or ThreadRuntime(), metrics=None, **NOTHING_RETAINED)))


def sweeping(collector: SegmentCollector, interval_s: float = 0.0) -> SegmentCollector:
    """It with another interval of sweeps, also one that no configuration allows: one in each round."""
    collector._sweep_s = interval_s
    return collector


def batches(partition: int, first: int, rows: int) -> list[pa.RecordBatch]:
    """Records of a partition, from `first` on."""
    source = MemoryLog(first + rows)
    found: list[pa.RecordBatch] = []
    while first < source.end:
        fetched = source.fetch("t", "id", partition, first, 1 << 20)
        found += fetched.batches
        first = fetched.next_offset
    return found
