"""Refuses compressed Arrow files before anything of them is decompressed: few bytes may become gigabytes.

pyarrow tells neither the place of a batch in a file nor its compression, so both are read here from the flatbuffers:
`File.fbs` and `Message.fbs` of Arrow's format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

_END = struct.Struct("<i6s")
_BLOCK = struct.Struct("<qi4xq")
_CONTINUATION = 0xFFFFFFFF
_DICTIONARIES, _BATCHES = 2, 3
_VERSION, _HEADER_TYPE, _HEADER = 0, 1, 2
_V5, _RECORD_BATCH = 4, 3
_COMPRESSION = 3


def refuse_compressed_file(data: pa.Buffer) -> None:
    """
    :param data: all bytes of a file of Arrow's random access format.
    :raises ValueError: when it has a batch that is compressed, or of Arrow before 1.0, or dictionaries.
    """
    _refuse(data, slice(None))


def refuse_compressed_end(data: pa.Buffer) -> None:
    """The same of its last batch alone."""
    _refuse(data, slice(-1, None))


def _refuse(data: pa.Buffer, some: slice) -> None:
    view = memoryview(data)
    try:
        for begin in list(_batches(view))[some]:
            refuse_compressed(view[begin:])
    except (struct.error, IndexError) as error:
        raise ValueError("it is no Arrow file") from error


def refuse_compressed_stream(data: bytes) -> None:
    """
    :param data: all bytes of a stream of Arrow's.
    :raises ValueError: when it has a batch that is compressed, or of Arrow before 1.0, or dictionaries.
    :raises pa.ArrowException: when it is no stream.
    """
    for message in pa.ipc.MessageReader.open_stream(data):
        if message.type != "schema":
            refuse_compressed(memoryview(bytes(4) + message.metadata.to_pybytes()))


def refuse_compressed(message: memoryview) -> None:
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
    if blocks := _field(view, footer, _BATCHES):
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
    number: int = struct.unpack_from(form, view, at)[0]
    return number
