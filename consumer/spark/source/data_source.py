"""`format("zk_group")`: a group's sealed segments; exactly once as a stream, the present ones as a batch.

Columns are those of Spark's Kafka source. The driver's parts are in `planner.py`; `read` runs in executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import StoreFactory

from ...errors import SegmentError
from ...logs import KafkaPlace, Log, open_log
from ...logs.base import LOG_SCHEMA
from ...sealing.segment_files import SegmentFolder
from ..gc_tuning import spare_modules
from ..resources import classic_context
from ..ship_modules import ship
from .log_ends import LogEnds
from .offset import SourceOffset
from .options import ClaimedReader, SourceConfig, source_config
from .planner import MAY_BE_COLLECTED, BatchPlanner, Planner, check_batch, check_stream
from .segment_index import Sealed

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
            self._planner = Planner(self._config, opener_of(self._config), ThreadRuntime(), name=name)
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
        runs = self.planner.plan(self._parsed(start), SourceOffset.parse(end))
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
            self._last = values, SourceOffset.parse(values)
        return self._last[1]

    def _log_ends(self) -> Mapping[str, Any]:
        if not self._config.log_dir:
            return {}
        if self._ends is None:
            self._ends = LogEnds(self._config.group, opener_of(self._config), self._open_log, ThreadRuntime())
        return self._ends.latest

    def _open_log(self) -> Log:
        config = self._config
        place = KafkaPlace(config.zk, config.brokers_path, config.bootstrap_servers, config.kafka, config.access)
        return open_log(config.log_dir, place)


class ZkGroupBatchReader(DataSourceReader):
    """Reads the segments sealed when it is planned. Pickled to the executors as well."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config

    def partitions(self) -> Sequence[InputPartition]:
        planner = BatchPlanner(self._config, opener_of(self._config), ThreadRuntime())
        try:
            return [SegmentsPartition(tuple(run)) for run in planner.plan_all()]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # With nothing to read, Spark passes one partition of its own.
        segments = partition.segments if isinstance(partition, SegmentsPartition) else ()
        return records(segments, self._config.include_headers, MAY_BE_COLLECTED)


def opener_of(config: SourceConfig) -> StoreFactory:
    """Opens ZooKeeper sessions."""
    client = f"query {config.query or config.group}"
    return kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000, client, config.access)


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
