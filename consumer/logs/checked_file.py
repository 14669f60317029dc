"""Arrow IPC files whose batches have checksums, for the embedded log and for segments.

The last batch of a file has no rows; its custom metadata has the CRC32C of each batch before it. So any Arrow reader
reads the file, and a reader of one batch checks that one alone. The format is specified in `docs/files.md`.

Compressed files are refused before anything of them is decompressed: few bytes may become gigabytes. pyarrow tells
neither the place of a batch in a file nor its compression, so both are read here from the flatbuffers: `File.fbs` and
`Message.fbs` of Arrow's format.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from fastcrc import crc32

from zk_group.coordinator.zk import below

MARK = b"zk_group.checksums"
"""In the schema's metadata: the file has checksums. So none that lost them is taken for one of an earlier release."""

ALGORITHM = b"crc32c"
_BATCHES = b"zk_group.batches"
_CRC32C = b"zk_group.crc32c"
_MAGIC_BYTES = 8
_LARGE = 1 << 16
_MOST = 2**63 - 1
_crc32c = crc32.iscsi
"""CRC32C is that of iSCSI. fastcrc computes it twice as fast as google-crc32c: about as fast as memory is read."""

_END = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
_CONTINUATION = 0xFFFFFFFF
_DICTIONARIES, _BLOCKS = 2, 3
_VERSION, _HEADER_TYPE, _HEADER = 0, 1, 2
_V5, _RECORD_BATCH = 4, 3
_COMPRESSION = 3


class DamagedBatch(ValueError):
    """The checksum of a batch is not the one that was written with it.

    :ivar first: the number of its first row in the file.
    :ivar rows: its rows.
    """

    def __init__(self, first: int, rows: int, written: int, computed: int) -> None:
        super().__init__(f"CRC32C {computed:08x}, and {written:08x} was written")
        self.first = first
        self.rows = rows


class _Part(NamedTuple):
    """A batch in a file: the bytes from `begin` to `end`. Those of the first one include the schema's message."""

    begin: int
    end: int
    rows: int
    crc32c: int


class CheckedFile:
    """The contents of a file. A batch is checked when it is read first.

    :param data: all bytes of the file; batches are slices of them.
    :ivar metadata: of its schema.
    :ivar has_checksums: whether it was written with checksums; those of the first releases have none.
    :ivar rows: the rows of each batch, in order.
    :raises ValueError: when its schema is another one, it is compressed, or its checksums are missing or damaged.
    :raises pa.ArrowException: when it is no Arrow file.
    """

    def __init__(self, data: pa.Buffer, schema: pa.Schema) -> None:
        self._data, self._schema = data, schema
        self._reader = reader = pa.ipc.open_file(pa.BufferReader(data))
        _refuse_compressed_file(data, slice(-1, None))
        if not reader.schema.equals(schema):
            raise ValueError("it has other columns")
        self.metadata: Mapping[bytes, bytes] = reader.schema.metadata or {}
        batches = reader.num_record_batches
        last = reader.get_batch_with_custom_metadata(batches - 1).custom_metadata if batches else None
        self.has_checksums = MARK in self.metadata or bool(last)
        self._read: dict[int, pa.RecordBatch] = {}
        self._parts: list[_Part] = []
        if self.has_checksums:
            self._parts = _parts(self.metadata, last or {}, data.size)
            if len(self._parts) != batches - 1:
                raise ValueError(f"it has {batches - 1} batches, and checksums of {len(self._parts)}")
            self.rows = [part.rows for part in self._parts]
        else:
            _refuse_compressed_file(data, slice(None))
            self.rows = [reader.get_batch(index).num_rows for index in range(batches)]

    def read(self, index: int) -> pa.RecordBatch:
        """A batch of `rows`.

        :raises DamagedBatch: when its checksum is wrong.
        :raises ValueError, pa.ArrowException: when it is none of this schema with that many rows.
        """
        batch = self._read.get(index)
        if batch is None:
            batch = self._checked(index) if self.has_checksums else self._reader.get_batch(index)
            batch.validate(full=True)  # an invalid offset in a damaged or forged file would read foreign memory
            if batch.num_rows != self.rows[index]:
                raise ValueError(f"a batch has {batch.num_rows} records and should have {self.rows[index]}")
            self._read[index] = batch
        return batch

    def _checked(self, index: int) -> pa.RecordBatch:
        part = self._parts[index]
        data = self._data.slice(part.begin, part.end - part.begin)
        computed = _crc32c(data)
        if computed != part.crc32c:
            raise DamagedBatch(sum(self.rows[:index]), part.rows, part.crc32c, computed)
        source = pa.BufferReader(data)
        try:
            if index == 0:
                source.seek(_MAGIC_BYTES)
                pa.ipc.read_message(source)  # the schema
            _refuse_compressed(memoryview(data)[source.tell() :])
            return pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)
        except (EOFError, struct.error) as error:
            raise ValueError("a batch is missing") from error


def write_checked(
    sink: Any, schema: pa.Schema, batches: Iterable[pa.RecordBatch], metadata: Mapping[bytes, bytes] | None = None
) -> int:
    """Write a file with checksums.

    :param metadata: of its schema, which the checksums cover.
    :returns: its bytes.
    """
    metadata = {**(metadata or {}), MARK: ALGORITHM}
    summed = _Sink(sink)
    buffered = io.BufferedWriter(summed, _LARGE)  # small pieces together: Arrow writes a batch in some thirty
    parts: list[tuple[int, int, int]] = []
    with pa.ipc.new_file(pa.PythonFile(buffered, mode="w"), schema.with_metadata(metadata)) as writer:
        for batch in batches:
            writer.write_batch(batch)
            buffered.flush()
            parts.append((summed.size, batch.num_rows, summed.crc32c))
            summed.crc32c = 0
        table = json.dumps(parts, separators=(",", ":")).encode()
        custom = {_BATCHES: table, _CRC32C: b"%08x" % _table_crc32c(metadata, table)}
        nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        writer.write_batch(nothing, custom_metadata=custom)
    buffered.flush()
    return summed.size


class _Sink(io.RawIOBase):
    """Passes bytes on to another sink.

    :ivar size: their number.  :ivar crc32c: of those since it was set to 0.
    """

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.crc32c = 0
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.crc32c = _crc32c(data, self.crc32c)
        self.size += len(data)
        self._sink.write(data)
        return len(data)


def mapped(root: str | Path, parts: Sequence[str]) -> pa.Buffer:
    """The bytes of a local file, memory-mapped; no link leads to it."""
    descriptor = below.open_file(root, parts)
    try:
        # By the descriptor, not the path, which may be a link by now. Close frees both; the buffer keeps the mapping.
        with pa.memory_map(f"/dev/fd/{descriptor}") as source:
            return source.read_buffer(source.size())
    finally:
        os.close(descriptor)


def _table_crc32c(metadata: Mapping[bytes, bytes], table: bytes) -> int:
    entries = [part + b"\0" for entry in sorted(metadata.items()) for part in entry]
    return _crc32c(b"".join([*entries, table]))


def _parts(metadata: Mapping[bytes, bytes], custom: Mapping[bytes, bytes], size: int) -> list[_Part]:
    """
    :raises ValueError: when a file has lost its checksums, or they are damaged.
    """
    table, written = custom.get(_BATCHES), custom.get(_CRC32C)
    if MARK not in metadata or table is None or written is None:
        raise ValueError("its checksums are missing")
    computed = b"%08x" % _table_crc32c(metadata, table)
    if written != computed:
        raise ValueError(f"its checksums have CRC32C {computed.decode()}, and {written[:8]!r} was written")
    try:
        numbers = json.loads(table)
    except RecursionError as error:
        raise ValueError("its checksums are nested") from error
    parts, unknown = [_Part(0, 0, 0, 0)], ValueError("its checksums are none of a kind known here")
    if metadata[MARK] != ALGORITHM or not isinstance(numbers, list):
        raise unknown
    for entry in numbers:
        if not isinstance(entry, list) or [type(number) for number in entry] != [int] * 3:
            raise unknown
        parts.append(_Part(parts[-1].end, *entry))
        begin, end, rows, crc32c = parts[-1]  # batches follow one another: no two read the same bytes
        if not (begin < end <= size and 0 <= rows <= _MOST and 0 <= crc32c < 2**32):
            raise unknown
    return parts[1:]


def refuse_compressed_stream(data: bytes) -> None:
    """Refuse a stream of Arrow's before anything of it is decompressed.

    :raises ValueError: when it has a batch that is compressed, or of Arrow before 1.0, or dictionaries.
    :raises pa.ArrowException: when it is no stream.
    """
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.type != "schema":
            _refuse_compressed(memoryview(bytes(4) + message.metadata.to_pybytes()))


def _refuse_compressed_file(data: pa.Buffer, some: slice) -> None:
    """
    :param some: of its batches.
    :raises ValueError: when one of them is compressed, or of Arrow before 1.0, or it has dictionaries.
    """
    view = memoryview(data)
    try:
        for begin in list(_batches(view))[some]:
            _refuse_compressed(view[begin:])
    except (struct.error, IndexError) as error:
        raise ValueError("it is no Arrow file") from error


def _refuse_compressed(message: memoryview) -> None:
    """
    :param message: begins with the encapsulated message of a record batch.
    :raises ValueError: when that is compressed, or of Arrow before 1.0 (which has its compression elsewhere).
    :raises struct.error: when it is no message.
    """
    root = 8 if _number(message, 0, "<I") == _CONTINUATION else 4
    root += _number(message, root, "<I")
    version, kind = _field(message, root, _VERSION), _field(message, root, _HEADER_TYPE)
    header = _field(message, root, _HEADER)
    if not version or _number(message, version, "<h") != _V5 or not kind or message[kind] != _RECORD_BATCH:
        raise ValueError("a batch is of another version of Arrow's format")
    if _field(message, header + _number(message, header, "<I"), _COMPRESSION):
        raise ValueError("a batch is compressed")


def _batches(view: memoryview) -> Iterator[int]:
    """Where the messages of the batches begin, as the footer says."""
    size, _ = _END.unpack_from(view, len(view) - _END.size)
    footer = len(view) - _END.size - size
    footer += _number(view, footer, "<I")
    dictionaries = _field(view, footer, _DICTIONARIES)
    if dictionaries and _number(view, dictionaries + _number(view, dictionaries, "<I"), "<I"):
        raise ValueError("it has dictionaries")
    if blocks := _field(view, footer, _BLOCKS):
        blocks += _number(view, blocks, "<I")
        for index in range(_number(view, blocks, "<I")):
            yield _BLOCK.unpack_from(view, blocks + 4 + index * _BLOCK.size)[0]


def _field(view: memoryview, table: int, index: int) -> int:
    """Where a field of a table begins; 0 when it has its default."""
    vtable = table - _number(view, table, "<i")
    entry = 4 + 2 * index
    place = _number(view, vtable + entry, "<H") if entry < _number(view, vtable, "<H") else 0
    return table + place if place else 0


def _number(view: memoryview, at: int, form: str) -> int:
    return int(struct.unpack_from(form, view, at)[0])
