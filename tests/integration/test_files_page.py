"""docs/files.md is sufficient: a reader with pyarrow alone reads the log and segments."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.pages import ROOT, rows
from tests.support.sealed import batches
from tests.support.slots import PATHS, slots
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.logs import open_log
from zk_group.consumer.logs.base import LOG_SCHEMA
from zk_group.consumer.logs.embedded.log import STORED_SCHEMA
from zk_group.consumer.logs.embedded.producer import Appender, Producer, partition_of, stored_batches
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.coordinator.zk.znodes.records import Topic

PAGE = (ROOT / "docs" / "files.md").read_text()
READER = ROOT / "tests" / "support" / "plain_files.py"
TOPIC = Topic("t", "t-id", (0, 1))
TYPES = {
    "Binary": pa.binary(),
    "Utf8": pa.string(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    'Timestamp(MICROSECOND, "UTC")': pa.timestamp("us", tz="UTC"),
    "List(Struct(key: Utf8, value: Binary))": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}


def read_plainly(**request: Any) -> Any:
    """The reader's records, from a separate process."""
    command = [sys.executable, "-I", str(READER)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_reader_imports_an_arrow_library_and_nothing_of_the_product() -> None:
    tree = ast.parse(READER.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert imported - {"__future__", "json", "re", "sys", "pathlib", "typing"} == {"pyarrow"}


@pytest.mark.parametrize(("place", "schema"), [("log", STORED_SCHEMA), ("segment", LOG_SCHEMA)])
def test_the_columns_of_the_page_are_those_of_the_files(place: str, schema: pa.Schema) -> None:
    head, *table = rows(PAGE)
    columns = [(row[0].strip("`"), TYPES[row[1]]) for row in table if row[head.index(place)] == "yes"]

    assert pa.schema(columns) == schema


def test_a_partition_of_the_log_is_read_as_the_page_says(tmp_path: Path) -> None:
    with Producer(tmp_path, {"t": TOPIC}, batch_bytes=1000) as producer:
        for number in range(100):
            headers = [("h", b"1"), ("h", None)] if number % 3 == 0 else ()
            value = None if number == 7 else b"x" * number
            producer.send("t", value, b"k%d" % number, partition=0, timestamp_ms=1000 * (100 - number), headers=headers)
    folder = tmp_path / "t" / "t-id" / "0"
    (folder / ".tmp-unfinished").write_bytes(b"nothing")

    found = read_plainly(partition=str(folder))

    log = open_log(str(tmp_path))
    expected = [
        row for batch in log.fetch("t", "t-id", 0, 0, 1 << 30).batches for row in batch.select(
            ["offset", *STORED_SCHEMA.names]
        ).to_pylist()
    ]  # fmt: skip
    assert len(list(folder.glob("*.arrow"))) > 3
    assert (found["earliest"], found["end"], log.latest("t", "t-id", 0)) == (0, 100, 100)
    assert found["records"] == json.loads(
        json.dumps(expected, default=lambda value: value.decode() if isinstance(value, bytes) else str(value))
    )
    assert read_plainly(partition=str(folder.parent / "1")) == {"earliest": 0, "end": 0, "records": []}


def test_a_log_whose_first_file_is_gone_begins_at_the_next(tmp_path: Path) -> None:
    for _ in range(3):
        with Producer(tmp_path, {"t": TOPIC}) as producer:
            producer.send_batch("t", 0, [b"a", b"b"])
    folder = tmp_path / "t" / "t-id" / "0"
    (folder / f"{0:020d}.arrow").unlink()

    found = read_plainly(partition=str(folder))

    assert (found["earliest"], found["end"], [row["offset"] for row in found["records"]]) == (2, 6, [2, 3, 4, 5])


def test_files_are_not_compressed(tmp_path: Path) -> None:
    with Producer(tmp_path, {"t": TOPIC}) as producer:
        producer.send("t", b"x" * 500_000, partition=0)
    (path,) = (tmp_path / "t" / "t-id" / "0").iterdir()
    size = SegmentFolder(str(tmp_path / "segments")).write("g/c/i-0000000001.arrow", batches(0, 0, 20_000))

    assert path.stat().st_size > 500_000
    assert size > 20_000 * len(b"t-0-19999")


def test_a_producer_appends_by_a_link_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = stored_batches([b"a", b"b"])
    appender, first = (Appender(tmp_path, "t", "t-id", 0) for _ in range(2))
    linked: list[tuple[str, str]] = []
    steps: list[tuple[str, str]] = []
    link, fsync = os.link, os.fsync

    def watched(source: str, target: str, **folders: int) -> None:
        linked.append((source, target))
        steps.append(("link", source))
        if len(linked) == 1:
            first.append(batch)
        link(source, target, **folders)

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink().name))

    monkeypatch.setattr("os.link", watched)
    monkeypatch.setattr("os.fsync", synced)

    assert appender.append(batch) == 2
    sources, targets = zip(*linked, strict=True)
    assert targets == (f"{0:020d}.arrow", f"{0:020d}.arrow", f"{2:020d}.arrow")
    assert sources[0] == sources[2] != sources[1]
    assert all(source.startswith(".tmp-") for source in sources)
    assert sorted(path.name for path in (tmp_path / "t" / "t-id" / "0").iterdir()) == sorted({*targets})
    one, other, _ = sources
    assert steps == [
        ("sync", one), ("link", one), ("sync", other), ("link", other), ("sync", "0"), ("link", one), ("sync", "0")
    ]  # fmt: skip


def test_a_stale_temporary_file_is_removed_by_the_next_producer(tmp_path: Path) -> None:
    assert "A `.tmp-` file without a write for an hour is stale and may be removed." in PAGE
    folder = tmp_path / "t" / "t-id" / "0"
    folder.mkdir(parents=True)
    for name, age_s in ((".tmp-stale", 3660), (".tmp-written", 3540)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)

    Appender(tmp_path, "t", "t-id", 0)

    assert [path.name for path in folder.iterdir()] == [".tmp-written"]


def test_the_partition_of_a_key_is_the_pages() -> None:
    assert "`(murmur2(key) & 0x7fffffff) % n`" in PAGE

    # Kafka's own values: org.apache.kafka.common.utils.UtilsTest
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}

    for key, value in hashes.items():
        assert partition_of(key, range(7)) == (value & 0x7FFFFFFF) % 7


def test_segments_of_a_group_are_read_as_the_page_says(world: World, tmp_path: Path) -> None:
    world.coordinator()
    topic = world.topic("t", 2)
    with slots(world, tmp_path / "segments") as bench:
        bench.log = open_log(str(tmp_path / "log"))  # type: ignore[assignment]
        bench.slot(0)
        producer = Producer(tmp_path / "log", {"t": topic}, batch_bytes=2000)
        for number in range(600):
            producer.send("t", b"v%d" % number, partition=number % 2, headers=[("h", b"1")] if number % 5 == 0 else ())
            if number % 200 == 199:
                producer.flush()
                sealed = number + 1
                eventually(lambda end=sealed: sum(each.rows for each in bench.segments()) == end, 20, "all is sealed")

    nodes = [world.store.get(PATHS.segment(name)) for name in world.names(PATHS.segments)]
    found = read_plainly(segments=[(node.stat.czxid, json.loads(node.data)) for node in nodes if node is not None])

    assert len(nodes) >= 3
    for partition in (0, 1):
        values = [row["value"] for row in found if row["partition"] == partition]
        assert values == [f"v{number}" for number in range(partition, 600, 2)]
    assert [name for name in found[0] if name in LOG_SCHEMA.names] == LOG_SCHEMA.names
