"""Rows of a fetch as records for an application."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator

import pyarrow as pa
import pytest

from consumer.consumer import records_of
from consumer.logs.base import LOG_SCHEMA, Fetch
from coordinator.zk.znodes.partitions import TopicPartition


@pytest.fixture
def no_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without a database of time zones, as a small container image is."""
    for package in ("tzdata", "pytz"):
        monkeypatch.setitem(sys.modules, package, None)
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


def test_records_are_read_on_a_machine_without_time_zone_data(no_time_zones: None) -> None:
    with pytest.raises(zoneinfo.ZoneInfoNotFoundError):
        zoneinfo.ZoneInfo("UTC")
    row = {
        "key": None,
        "value": b"v",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_795_246_698_088_000,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}],
    }
    without_time = {**row, "offset": 8, "timestamp": None, "headers": None}
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[field.name], without_time[field.name]], field.type) for field in LOG_SCHEMA], schema=LOG_SCHEMA
    )

    found = records_of(Fetch(TopicPartition("t", 3), "id", 7, 9, [batch]))

    assert [(record.offset, record.timestamp_ms) for record in found] == [(7, 1_795_246_698_088), (8, -1)]
    assert (found[0].value, found[0].headers, found[1].headers) == (b"v", (("h", b"x"),), ())
