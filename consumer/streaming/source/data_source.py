"""`format("zk_group")`: a group's sealed segments; exactly once as a stream, the present ones as a batch.

Columns are those of Spark's Kafka source. The driver's parts are in `planner.py`; `read` runs in executors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.store import Sessions, Store, StoreFactory
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import GroupPaths, names_below
from zk_group.coordinator.zk.znodes.ranges import is_partition
from zk_group.coordinator.zk.znodes.records import OffsetRecord, parsed_channel

from ...errors import SegmentError
from ...logs import open_log
from ...logs.base import LOG_SCHEMA, Log, TopicIdPartition
from ...sealing.segment_files import SegmentFolder
from ..gc_tuning import spare_modules
from ..resources import classic_context, ship
from .options import ClaimedReader, SourceConfig, source_config
from .planner import MAY_BE_COLLECTED, BatchPlanner, Planner, check_batch, check_stream
from .segment_index import Sealed, SourceOffset

log = logging.getLogger(__name__)

READ_AGAIN_S = 5.0
"""Between two reads of the ends of a group's partitions."""


COLUMNS = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"


def register(spark: SparkSession) -> None:
    """Register `format("zk_group")` with a session, and send this project's modules to its executors.

    :raises UsageError: when the session is a Spark Connect client.
    """
    ship(classic_context(spark))
    spark.dataSource.register(ZkGroupDataSource)


class ZkGroupDataSource(DataSource):
    """The data source; options as in `SourceConfig`, in Spark's style."""

    @classmethod
    def name(cls) -> str:
        return "zk_group"

    def schema(self) -> str:
        return f"{COLUMNS}, {HEADERS}" if source_config(self.options).include_headers else COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ZkGroupStreamReader(check_stream(source_config(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ZkGroupBatchReader(check_batch(source_config(self.options)))


@dataclass
class SegmentsPartition(InputPartition):
    """The segments that one task reads, in order."""

    segments: tuple[Sealed, ...]


class ZkGroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Pickled to the executors as well, so resources are opened at the driver's first call."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._planner: Planner | None = None
        self._claimed: ClaimedReader | None = None
        self._ends: LogEnds | None = None
        self._last: tuple[dict[str, Any], SourceOffset] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_config": self._config, "_planner": None, "_claimed": None, "_ends": None, "_last": None}

    @property
    def planner(self) -> Planner:
        """The driver's part, created on first use."""
        if self._planner is None:
            self._claimed = ClaimedReader(self._config) if self._config.query else None
            name = self._claimed.query if self._claimed else ""
            self._planner = Planner(self._config, self._config.session_opener, ThreadRuntime(), name=name)
        return self._planner

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._config.max_rows) if self._config.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.prepare_available_now()

    def initialOffset(self) -> dict[str, Any]:
        return self.planner.initial().to_dict()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        before = self._parsed(start)
        end = self.planner.latest(before, max_rows)
        return start if end == before else end.to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self.planner.newest
        progress = {**(newest.to_dict() if newest else {}), **self._log_ends()}
        return progress or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        runs = self.planner.plan(self._parsed(start), SourceOffset.of(end))
        return [SegmentsPartition(tuple(run)) for run in runs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentsPartition)
        return records(partition.segments, self._config.include_headers)

    def stop(self) -> None:
        for opened in (self._claimed, self._ends, self._planner):
            if opened is not None:
                opened.close()

    def _parsed(self, values: dict[str, Any]) -> SourceOffset:
        """Spark asks again and again after the same offset, which may have thousands of partitions."""
        if self._last is None or self._last[0] != values:
            self._last = values, SourceOffset.of(values)
        return self._last[1]

    def _log_ends(self) -> Mapping[str, Any]:
        if not self._config.log_dir:
            return {}
        if self._ends is None:
            source = partial(open_log, self._config.log_dir, self._config.kafka_place)
            self._ends = LogEnds(self._config.group, self._config.session_opener, source, ThreadRuntime())
        return self._ends.latest


class ZkGroupBatchReader(DataSourceReader):
    """Reads the segments sealed when it is planned. Pickled to the executors as well."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config

    def partitions(self) -> Sequence[InputPartition]:
        planner = BatchPlanner(self._config, self._config.session_opener, ThreadRuntime())
        try:
            return [SegmentsPartition(tuple(run)) for run in planner.plan_all()]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # With nothing to read, Spark passes one partition of its own.
        segments = partition.segments if isinstance(partition, SegmentsPartition) else ()
        return records(segments, self._config.include_headers, MAY_BE_COLLECTED)


def records(segments: Sequence[Sealed], include_headers: bool, if_missing: str = "") -> Iterator[pa.RecordBatch]:
    """The records of `segments`, in order.

    :param if_missing: text added to the error of a missing file.
    :raises SegmentError: when a file is missing or damaged; the message names the segment and its offsets.
    """
    spare_modules()
    names = [name for name in LOG_SCHEMA.names if include_headers or name != "headers"]
    folders: dict[str, SegmentFolder] = {}
    for sealed in segments:
        segment = sealed.segment
        try:
            folder = folders.setdefault(segment.segments_dir, SegmentFolder(segment.segments_dir))
            for batch in folder.records(segment):
                yield batch.select(names)
        except SegmentError as error:
            more = f"; {if_missing}" if if_missing and isinstance(error.__cause__, FileNotFoundError) else ""
            raise SegmentError(f"segment {sealed}: {error}{more}") from error


class LogEnds:
    """The ends of a group's partitions and its lag, read every `READ_AGAIN_S`.

    A thread with a separate ZooKeeper session reads them until `close`.

    :ivar latest: see `progress_of`; empty until the log has answered.
    """

    def __init__(self, group: str, open_store: StoreFactory, open_source: Callable[[], Log], runtime: Runtime) -> None:
        self._group = group
        self._paths = GroupPaths(group)
        self._sessions = Sessions(open_store)
        self._open_source = open_source
        self._stopping = runtime.event()
        self._last_problem = ""
        self.latest: Mapping[str, Any] = {}
        runtime.spawn(self._run, "log-ends")

    def close(self) -> None:
        """Let the thread end soon."""
        self._stopping.set()

    def _run(self) -> None:
        source: Log | None = None
        while not self._stopping.is_set():
            try:
                store = self._sessions.store()
                source = source or self._open_source()
                self.latest = progress_of(source, stands_of(store, self._paths))
                self._last_problem = ""
            except (CoordinatorError, OSError) as error:
                is_new, self._last_problem = str(error) != self._last_problem, str(error)
                if is_new:
                    log.warning("log end unavailable: group=%s reason=%s", self._group, error)
            self._stopping.wait(READ_AGAIN_S)
        self._sessions.close()
        if source is not None:
            source.close()


def stands_of(store: Store, paths: GroupPaths) -> dict[TopicIdPartition, int]:
    """The group's position in each partition: of the channel that runs it, else of `offsets/`.

    An unreadable one is omitted: the coordinator, and `status`, report its problem.
    """
    positions: dict[TopicIdPartition, int] = {}
    topics = names_below(store, paths.offsets)
    parts = [(name, int(n)) for name in topics for n in names_below(store, paths.offsets_of(name)) if is_partition(n)]
    for (topic, number), node in zip(parts, store.get_many([paths.offset(*part) for part in parts]), strict=True):
        if (record := readable(OffsetRecord.parse, "an offset", node)) is not None:
            positions[TopicIdPartition(topic, record.topic_id, number)] = record.offset
    names = names_below(store, paths.channels)
    for node in store.get_many([paths.channel(name) for name in names]):
        if (channel := readable(parsed_channel, "a channel", node)) is not None:
            for part, offset in channel.running.items():
                if offset is not None and part.topic in channel.topics:
                    positions[TopicIdPartition(part.topic, channel.topics[part.topic], part.partition)] = offset
    return positions


def progress_of(source: Log, positions: Mapping[TopicIdPartition, int]) -> Mapping[str, Any]:
    """`log_end`, topic -> partition -> the log's end, and `lag`, the records there that the group has not sealed.

    A partition whose end cannot be read is omitted, and so is a topic that is not in the log (any more).
    """
    ends: dict[str, dict[str, int]] = {}
    lag = 0
    for place, end in sorted(source.latest_of(sorted(positions)).items(), key=lambda item: item[0]):
        if isinstance(end, int):
            ends.setdefault(place.topic, {})[str(place.partition)] = end
            lag += max(0, end - positions[place])
    return {"log_end": ends, "lag": lag}
