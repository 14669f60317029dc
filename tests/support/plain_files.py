"""Reader of the files in docs/files.md, with pyarrow and no module of the product. It checks the checksums.

Run as a program: a JSON object on stdin, `{"partition": FOLDER}` or `{"segments": [[czxid, data of the znode], ...]}`;
the records on stdout.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

NAME = re.compile(r"[0-9]{20}\.arrow")
POLYNOMIAL = 0x82F63B78


def shifted(byte: int) -> int:
    """Eight steps of the polynomial division."""
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = [shifted(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """The CRC32C of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def check(data: bytes, reader: Any) -> None:
    """Check all checksums of a file."""
    metadata = reader.schema.metadata
    assert metadata[b"zk_group.checksums"] == b"crc32c"
    last, custom = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
    table = custom[b"zk_group.batches"]
    entries = b"".join(name + b"\0" + value + b"\0" for name, value in sorted(metadata.items()))
    assert int(custom[b"zk_group.crc32c"], 16) == crc32c(entries + table)
    begin, rows = 0, [reader.get_batch(index).num_rows for index in range(reader.num_record_batches - 1)]
    assert ([row for _, row, _ in json.loads(table)], last.num_rows) == (rows, 0)
    for end, _, written in json.loads(table):
        assert crc32c(data[begin:end]) == written
        begin = end


def rows_of(path: Path) -> tuple[list[dict[str, Any]], dict[bytes, bytes], list[str]]:
    """The rows of a file, its metadata, and the names of its columns."""
    data = path.read_bytes()
    assert data[:6] == b"ARROW1"
    reader = pa.ipc.open_file(data)
    check(data, reader)
    batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
    assert reader.stats.num_dictionary_batches == 0
    return [row for batch in batches for row in batch.to_pylist()], reader.schema.metadata or {}, reader.schema.names


def partition_of(folder: Path) -> dict[str, Any]:
    """The earliest offset of a partition of the log, its end, and its records."""
    names = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name)) if folder.exists() else []
    earliest = end = int(names[0][:20]) if names else 0
    records = []
    while (path := folder / f"{end:020d}.arrow").exists():
        rows, metadata, _ = rows_of(path)
        assert len(rows) == int(metadata[b"zk_group.rows"]) > 0
        newest_us = max(int(row["timestamp"].timestamp() * 1_000_000) for row in rows)
        assert newest_us == int(metadata[b"zk_group.newest_us"])
        records += [{"offset": end + number, **row} for number, row in enumerate(rows)]
        end += len(rows)
    assert not [name for name in names if int(name[:20]) > end], "a file is missing"
    return {"earliest": earliest, "end": end, "records": records}


def segments_of(znodes: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The records of all segments of a group, in order."""
    records: list[dict[str, Any]] = []
    ends: dict[tuple[str, str, str], int] = {}
    for _, znode in sorted(znodes, key=lambda pair: pair[0]):
        path = Path(znode["segments_dir"]) / znode["file"]
        rows, _, _ = rows_of(path)
        assert (path.stat().st_size, len(rows)) == (znode["bytes"], znode["rows"])
        assert rows == sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))
        for topic, partitions in znode["ranges"].items():
            for partition, (first, after) in partitions.items():
                offsets = [row["offset"] for row in rows if (row["topic"], str(row["partition"])) == (topic, partition)]
                missing = znode.get("missing", {}).get(topic, {}).get(partition, 0)
                assert len(set(offsets)) == len(offsets) == after - first - missing
                assert all(first <= offset < after for offset in offsets)
                place = topic, znode["topics"][topic], partition
                assert ends.get(place, first) == first, "the ranges do not join"
                ends[place] = after
        records += rows
    return records


def main() -> None:
    """The records of a partition's folder, or of segments."""
    request = json.load(sys.stdin)
    found: Any = (
        partition_of(Path(request["partition"])) if "partition" in request else segments_of(request["segments"])
    )
    json.dump(found, sys.stdout, default=lambda value: value.decode() if isinstance(value, bytes) else str(value))


if __name__ == "__main__":
    main()
