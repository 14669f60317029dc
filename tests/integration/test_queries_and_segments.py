"""`queries` and `segments` where they are no session: all else is in `command_lines/queries_and_segments.txt`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.cli import run
from tests.support.sealed import SealedGroup, batches
from tests.support.stores import Interrupted, Reads
from zk_group.consumer.logs.base import LOG_SCHEMA
from zk_group.coordinator.admin import segments
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import SetData, Store


@pytest.fixture
def group(store: Store, tmp_path: Path) -> SealedGroup:
    return SealedGroup(store, tmp_path / "segments")


def silent_then(group: SealedGroup) -> tuple[dict[str, int], list[str]]:
    """The segments that each silent query holds back, and what was read for it."""
    store = Reads(group.store)
    found = segments.silent_queries(Reading(store), "g", ThreadRuntime().wall_ms())
    return {str(one.query): one.segments for one in found}, [
        path.removeprefix(group.paths.root) for path in store.paths
    ]


def test_status_reads_only_what_silent_queries_hold_back(group: SealedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SILENT_AFTER_MS", 0)
    monkeypatch.setattr(segments, "READ_AT_ONCE", 2)
    names = [group.seal() for _ in range(8)]
    group.query("near", names[6])

    held, read = silent_then(group)
    assert held == {"near": 1}
    assert read == ["/queries", "/queries/near", "/segments", *(f"/segments/{name}" for name in names[6:]), "/segments"]

    monkeypatch.setattr(segments, "FAR_BEHIND_SEGMENTS", 3)
    group.query("far", names[0])
    held, read = silent_then(group)
    assert held == {"far": 3, "near": 1}
    assert {path for path in read if "segment-" in path} == {f"/segments/{name}" for name in names[5:]}


def test_a_query_is_removed_though_it_writes_at_the_same_moment(group: SealedGroup) -> None:
    group.query("busy")

    def publishes() -> None:
        path = group.paths.query("busy")
        node = group.store.get(path)
        assert node is not None
        group.store.commit([SetData(path, node.data)])

    segments.remove_query(Interrupted(group.store, publishes), "g", "busy")

    assert group.store.get(group.paths.query("busy")) is None


def test_segments_without_checksums_are_counted_and_whole(zk: str, group: SealedGroup) -> None:
    names = [group.seal(), group.seal(partition=1), group.seal(), group.seal()]
    assert "checksums" not in run(zk, "segments", "verify", "g").output
    for name in names[:2]:
        segment, sink = group.segment(name), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, LOG_SCHEMA) as writer:
            for batch in batches(segment.ranges[0].partition, segment.ranges[0].first, segment.rows):
                writer.write_batch(batch)
        group.path(name).write_bytes(sink.getvalue())
        changed = replace(segment, size=len(sink.getvalue()))
        group.store.commit([SetData(group.paths.segment(name), changed.to_bytes())])

    result = run(zk, "segments", "verify", "g")

    assert (result.exit_code, "4 segments, 0 problems" in result.output) == (0, True)
    assert "2 segments have no checksums: an earlier release sealed them" in result.output
