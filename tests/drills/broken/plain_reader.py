"""In place of `zk_group.drills.workloads.spark_app.read`: the same answers from the same plan and files, without a
Spark.

For runs that are about something else than the DataFrame: a Spark takes as much of the processors as a drill.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

from zk_group.consumer.errors import SegmentError
from zk_group.consumer.streaming.source.data_source import records
from zk_group.consumer.streaming.source.options import source_config
from zk_group.consumer.streaming.source.planner import MAY_BE_COLLECTED, BatchPlanner
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime


def main() -> None:
    """Answer until standard input ends."""
    answer({"event": "ready"})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer({"event": "read", "partitions": counted(asked)})
        except (CoordinatorError, SegmentError) as error:
            answer({"event": "failed", "reason": str(error)})


def counted(asked: dict[str, str]) -> list[dict[str, Any]]:
    """As `zk_group.drills.workloads.spark_app.counted`."""
    config = source_config(asked)
    planner = BatchPlanner(config, config.session_opener, ThreadRuntime())
    try:
        segments = [segment for run in planner.plan_all() for segment in run]
    finally:
        planner.close()
    found: dict[tuple[str, str, int], list[tuple[int, int | None]]] = defaultdict(list)
    for batch in records(segments, include_headers=False, if_missing=MAY_BE_COLLECTED):
        columns = (batch.column(name).to_pylist() for name in ("topic", "key", "partition", "offset", "value"))
        for topic, key, partition, offset, value in zip(*columns, strict=True):
            found[topic, key.decode(), partition].append((offset, int(value) if value.isdigit() else None))
    return [summary(*where, pairs) for where, pairs in found.items()]


def summary(topic: str, topic_id: str, partition: int, pairs: list[tuple[int, int | None]]) -> dict[str, Any]:
    """The summary of one partition.

    :param pairs: the offset and the number of each record.
    """
    numbers = {number for _, number in pairs if number is not None}
    return {
        "topic": topic,
        "id": topic_id,
        "partition": partition,
        "rows": len(pairs),
        "distinct": len(numbers),
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
        "misplaced": sum(offset != number for offset, number in pairs),
    }


def answer(values: dict[str, Any]) -> None:
    """One line of reply."""
    print(json.dumps(values), flush=True)
