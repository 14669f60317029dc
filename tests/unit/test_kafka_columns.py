"""Columns of librdkafka's records as Arrow batches, beside `pa.array` and `pa.RecordBatch.from_pylist`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.logs.base import LOG_SCHEMA, MAX_TIMESTAMP_MS
from consumer.logs.kafka import client
from consumer.logs.kafka.client import Columns, runs

from .modelled_kafka import columns

NAMES, DATA = st.text(max_size=3), st.none() | st.binary(max_size=9)
RECORDS = st.tuples(
    st.sampled_from(["a", "b\u00fc"]),
    st.integers(0, 2),
    DATA,
    DATA,
    st.integers(0, 2),
    st.integers(-1, MAX_TIMESTAMP_MS + 1),
    st.none() | st.lists(st.tuples(NAMES, DATA), max_size=3),
)


@given(st.lists(RECORDS, min_size=1, max_size=20))
@pytest.mark.long
def test_batches_are_equal_to_those_of_single_records(records: list[tuple[Any, ...]]) -> None:
    topics, partitions, keys, values, kinds, times, headers = (list(column) for column in zip(*records, strict=True))
    numbers = np.array(partitions, np.int32), np.arange(len(records)) + 7
    stamps = np.array([kinds, times], np.int64).T
    found = list(runs(Columns(topics, *numbers, keys, values, stamps, headers)))

    expected = [
        {
            "key": key,
            "value": value,
            "topic": topic,
            "partition": partition,
            "offset": number + 7,
            "timestamp": 1000 * time if 0 <= time <= MAX_TIMESTAMP_MS else None,
            "timestampType": kind - 1,
            "headers": [{"key": name, "value": data} for name, data in row] if row else None,
        }
        for number, (topic, partition, key, value, kind, time, row) in enumerate(records)
    ]
    for run in found:
        run.batch.validate(full=True)
    assert pa.Table.from_batches([run.batch for run in found]) == pa.Table.from_pylist(expected, LOG_SCHEMA)


def test_columns_are_cut_where_the_topic_or_the_partition_changes() -> None:
    found = list(runs(columns(["a", "a", "a", "b", "b", "a"], [0, 0, 1, 1, 1, 0], [5, 7, 0, 0, 1, 8])))

    assert [(run.topic, run.partition, run.first, run.next) for run in found] == [
        ("a", 0, 5, 8),
        ("a", 1, 0, 1),
        ("b", 1, 0, 2),
        ("a", 0, 8, 9),
    ]
    assert [run.batch.column("offset").to_pylist() for run in found] == [[5, 7], [0], [0, 1], [8]]


def test_timestamp_outside_the_range_of_dates_is_none() -> None:
    some = columns(["a"] * 3, [0] * 3, [0, 1, 2])
    (run,) = runs(some._replace(timestamps=np.array([(0, -1), (1, 2**62), (2, 1000)])))

    assert [stamp is None for stamp in run.batch.column("timestamp").to_pylist()] == [True, True, False]
    assert run.batch.column("timestampType").to_pylist() == [-1, 0, 1]


def test_columns_larger_than_an_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_COLUMN_BYTES", 10)

    with pytest.raises(pa.ArrowCapacityError, match="12 bytes"):
        list(runs(columns(["a"], [0], [0], [b"x" * 12])))


def test_records_become_batches_without_pandas() -> None:
    code = """
import sys
import numpy as np
from consumer.logs.kafka.client import Columns, runs
numbers = np.array([0, 0, 1], np.int32), np.arange(3)
stamps = np.array([(1, 5), (0, -1), (1, 5)])
some = Columns(["a", "a", "b"], *numbers, [None, b"k", b""], [b"v", None, b"w"], stamps, [None, [("h", b"x")], []])
assert len(list(runs(some))) == 2
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
