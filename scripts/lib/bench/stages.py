"""Where the latency of `bench latency` goes: the stages of each record, from its scheduled time to its row in the sink.

| stage | from | to |
|---|---|---|
| append | the record's scheduled time | the producer has written it (Kafka: the broker has acknowledged it) |
| fetch | | a slot has fetched it (event `fetch` of the slot's history) |
| seal | | its segment's znode exists (`ctime`) |
| trigger | | the batch that reads it begins (`timestamp` of the query's progress) |
| plan | | the batch's job begins (`latestOffset`, `walCommit`, `getBatch`, `queryPlanning` of the progress) |
| read | | its row is in the sink |

A record that is sealed after its batch has begun did not wait for a trigger, and its plan is shorter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coordinator.zk.errors import BadData
from coordinator.zk.store import Store
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.segments import Segment

STAGES = ("append", "fetch", "seal", "trigger", "plan", "read")
BEFORE_JOB = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
Times = np.ndarray[Any, np.dtype[np.float64]]
"""Seconds since the epoch, by the record's number; NaN where a time is unknown."""

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Span(NamedTuple):
    """The records of a partition with offsets `first` to `end - 1`, and the time of what happened to them."""

    partition: int
    first: int
    end: int
    at_s: float


class Batch(NamedTuple):
    """A micro-batch of the query: when it began, and when its job began; seconds since the epoch."""

    began_s: float
    job_s: float


def fetch_spans(history_dir: Path, clock_offset_s: float) -> list[Span]:
    """The fetches in the slots' histories.

    :param clock_offset_s: the epoch's time at 0 of the monotonic clock.
    """
    events = [json.loads(line) for path in history_dir.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [
        Span(item["partition"], item["first"], item["next"], event["at"] + clock_offset_s)
        for event in events
        if event["event"] == "fetch"
        for item in event["ranges"]
    ]


def seal_spans(store: Store, group: str) -> list[Span]:
    """The ranges of the group's segments that are still in ZooKeeper: those of the last hour, up to 1,000."""
    paths = GroupPaths(group)
    listing = store.children(paths.segments)
    names = [paths.segment(name) for name in (listing.names if listing else ())]
    spans = []
    for path, node in zip(names, store.get_many(names), strict=True):
        try:
            ranges = Segment.parse(path, node.data).ranges if node else ()
        except BadData:
            continue
        spans += [Span(item.partition, item.first, item.next, node.stat.ctime_ms / 1000) for item in ranges if node]
    return spans


def batches_of(progress: Iterable[Any]) -> dict[int, Batch]:
    """Batch id -> its times, from a query's progress."""
    found = {}
    for each in progress:
        if each.numInputRows:
            began = datetime.fromisoformat(each.timestamp.replace("Z", "+00:00")).timestamp()
            before_ms = sum(each.durationMs.get(name, 0) for name in BEFORE_JOB)
            found[each.batchId] = Batch(began, began + before_ms / 1000)
    return found


def times_of(spans: Iterable[Span], partition_of: Numbers) -> Times:
    """The time of each record.

    :param partition_of: the partition of each record; those of a partition are at its offsets, in order.
    """
    found = np.full(len(partition_of), np.nan)
    numbers = {partition: np.flatnonzero(partition_of == partition) for partition in np.unique(partition_of).tolist()}
    for span in spans:
        found[numbers[span.partition][span.first : span.end]] = span.at_s
    return found


def stages(
    scheduled: Times, appended: Times, fetched: Times, sealed: Times, batches: Mapping[int, Batch], batch_of: Times
) -> Times:
    """The seconds of `STAGES` but `read`, which is the rest: a row for each stage, a column for each record.

    :param batch_of: the id of each record's batch.
    """
    began, job = (
        np.array([getattr(batches.get(int(batch)), name, np.nan) if batch == batch else np.nan for batch in batch_of])
        for name in ("began_s", "job_s")
    )
    # The producer is told of an append after the log has it; a batch may list a segment that is sealed meanwhile.
    marks = [scheduled, np.fmin(appended, fetched), fetched, sealed, np.fmax(began, sealed), np.fmax(job, sealed)]
    return np.diff(np.array(marks), axis=0)


def table(found: Times, latencies: Times) -> dict[str, dict[str, float]]:
    """Of each stage: its own percentiles, and its mean in the records around the latency's p50, and from its p99 on.

    The latter two add up to those records' latency.

    :param found: as of `stages`, without records that lack a time.
    """
    rows = [*found, latencies - found.sum(axis=0)]
    low, high, slow = np.percentile(latencies, (45, 55, 99))
    middle, last = (latencies >= low) & (latencies <= high), latencies >= slow
    return {
        name: {
            "p50": round(float(np.percentile(row, 50)), 3),
            "p99": round(float(np.percentile(row, 99)), 3),
            "at_p50": round(float(row[middle].mean()), 3),
            "at_p99": round(float(row[last].mean()), 3),
        }
        for name, row in zip(STAGES, rows, strict=True)
    }
