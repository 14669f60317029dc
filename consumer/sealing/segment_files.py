"""Files of sealed segments: Arrow IPC files of `LOG_SCHEMA` with checksums, written once, durably, and never changed.

A file belongs to one incarnation of a consumer, `[group]/[consumer]/[incarnation]-[number].arrow` below the segments
folder, which is a local path or any URI that pyarrow has a file system for. How a file becomes complete and durable:

- local (a path, `file://`): written under another name, synced, moved into place, the folder synced.
- an object store (`s3://`, `gs://`, `abfs://`): one object, which appears complete when its upload has ended.
- any other (`hdfs://`): written under its own name. A file is read only after its segment is sealed, which is later.

The folders `[segments_dir]/[group]` and `[checkpoint_dir]/[region]` each belong to one chroot, which claims them.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from zk_group.coordinator.zk import below
from zk_group.coordinator.zk.errors import AccessDenied, BadData, StoreError, UsageError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import DENIED, Store, StoreFactory
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.values import shown
from zk_group.coordinator.zk.znodes.json_fields import Fields, compact
from zk_group.coordinator.zk.znodes.paths import CONSUMERS, is_name
from zk_group.coordinator.zk.znodes.segments import SealedRange, Segment

from ..errors import ForeignFolder, SegmentError
from ..logs.base import LOG_SCHEMA
from ..logs.checked_file import CheckedFile, DamagedBatch, mapped, write_checked

BATCH_BYTES = 1 << 20
"""Arrow memory of a batch in a file, about; a batch of half to twice this is written unchanged.

Spark is fastest with batches of 1 to 2 MB, and hardly slower with half of that: joining two costs more."""

SUFFIX = ".arrow"
MARKER = "~chroot"
"""Names the chroot of a folder; no consumer and no checkpoint can have this name."""
MAX_MARKER_BYTES = 512
FIRST_AGAIN_S = 1.0
CLAIM_AGAIN_S = 60.0
"""A marker that was read so long ago is read again before a write: an operator may have removed it."""

_CHROOT = re.compile(r"([0-9a-f]{1,16})-[0-9a-f]{1,16}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_LOCAL_URL = re.compile(r"(?i)file:")
_SECRET = re.compile(r"(?i)secret|password|token|signature|access_?key|account_?key")
OBJECT_STORES = ("s3", "gcs", "abfs")
_FILE = re.compile(r"(?:\.tmp-)?([A-Za-z0-9]{1,64})-\d{10}\.arrow")


class FoundFile(NamedTuple):
    """A listed file; `modified_s` is seconds since the epoch, by the file system's clock."""

    file: str
    modified_s: float


def segment_file(group: str, consumer: str, incarnation: str, number: int) -> str:
    """The path of a segment's file below the segments folder."""
    return f"{group}/{consumer}/{incarnation}-{number:010d}{SUFFIX}"


def incarnation_of(file: str) -> str | None:
    """The incarnation that wrote `file`, a temporary one too; None when it is not a segment's file."""
    match = _FILE.fullmatch(file.rsplit("/", 1)[-1])
    return match[1] if match else None


def offsets_text(ranges: Iterable[SealedRange], most: int = 8) -> str:
    """Offsets for a message: `flights-0 offsets 10 to 19, flights-1 offsets 0 to 4`."""
    texts = [f"{item.topic}-{item.partition} offsets {item.first} to {item.next - 1}" for item in sorted(ranges)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more partitions" if len(texts) > most else "")


class _Place(NamedTuple):
    """The rows of a partition in a segment's file: from `begin` to, not including, `end`."""

    range: SealedRange
    has_missing: bool
    begin: int
    end: int


def _places(segment: Segment) -> Iterator[_Place]:
    """In a segment's file partitions follow one another, in order."""
    missing = {(item.topic, item.partition): item.offsets for item in segment.missing}
    begin = 0
    for item in sorted(segment.ranges):
        lacking = missing.get((item.topic, item.partition), 0)
        end = begin + item.next - item.first - lacking
        yield _Place(item, lacking > 0, begin, end)
        begin = end


def sealed_rows(segment: Segment, first: int, rows: int) -> Iterator[SealedRange]:
    """The offsets of these rows of a segment's file. All of a partition's offsets where some have no record."""
    for item, has_missing, begin, end in _places(segment):
        if begin < first + rows and first < end:
            offsets = item.first + max(first - begin, 0), item.first + min(first + rows, end) - begin
            yield item if has_missing else item._replace(first=offsets[0], next=offsets[1])


def _check_offsets(batch: pa.RecordBatch, first: int, places: deque[_Place]) -> None:
    """Check the first and the last record of each partition in a batch: what is between them was written with them.

    :param first: the batch's first row in the segment's file.
    :param places: of this and later rows; those of this batch alone are removed.
    :raises ValueError: when the batch has other records than the segment.
    """
    after = first + batch.num_rows
    expected: dict[int, _Place] = {}
    while places and places[0].begin < after:
        begin, end = max(first, places[0].begin), min(after, places[0].end)
        expected |= {row - first: places[0] for row in (begin, end - 1) if begin < end}
        if places[0].end > after:
            break
        places.popleft()
    columns = [batch.column(name) for name in ("topic", "partition", "offset")]
    for row, (item, has_missing, begin, _) in expected.items():
        topic, partition, offset = (column[row].as_py() for column in columns)
        is_there = item.first <= offset < item.next if has_missing else offset == item.first + first + row - begin
        if (topic, partition) != (item.topic, item.partition) or not is_there:
            where = offsets_text([item])
            raise ValueError(f"it has {topic}-{partition} offset {offset} in the place of {where}")


def is_remote(segments_dir: str) -> bool:
    """Whether it is a URL of another machine's storage."""
    return bool(_URL.match(segments_dir)) and not _LOCAL_URL.match(segments_dir)


def arranged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of half of `BATCH_BYTES` to twice that, except the last."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for piece, more in (piece for batch in batches for piece in _pieces(batch)):
        if pending and (size >= BATCH_BYTES // 2 or size + more > 2 * BATCH_BYTES):
            yield from _joined(pending)
            pending, size = [], 0
        pending.append(piece)
        size += more
    if pending:
        yield from _joined(pending)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """A batch in pieces, each with its bytes, which take pyarrow 8 us to add up."""
    rows, size = batch.num_rows, batch.nbytes
    if size <= 2 * BATCH_BYTES:
        if rows:
            yield batch, size
        return
    step = max(1, rows * BATCH_BYTES // size)
    for first in range(0, rows, step):
        piece = batch.slice(first, step)
        yield piece, piece.nbytes


def _joined(batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    joined: Sequence[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


class SegmentFolder:
    """The segments folder.

    :ivar url: its URL as in segment znodes: an absolute path when it is local.
    :raises UsageError: when pyarrow has no file system for it, or it contains credentials, which any reader of the
        znodes could see.
    """

    def __init__(self, segments_dir: str) -> None:
        if not segments_dir:
            raise UsageError("segments need storage that all executors share: give segments_dir a folder or a URL")
        _refuse_credentials(segments_dir)
        try:
            place = segments_dir if _URL.match(segments_dir) else str(Path(segments_dir).absolute())
            self._fs, self._root = fs.FileSystem.from_uri(place)
        except (pa.ArrowException, OSError, ValueError, ImportError) as error:
            raise UsageError(f"{shown(segments_dir)} is no folder for segments: {error}") from error
        self._is_local = isinstance(self._fs, fs.LocalFileSystem)
        self._is_object_store = self._fs.type_name in OBJECT_STORES
        self.url = self._root if self._is_local else place.rstrip("/")

    def check(self, group: str) -> None:
        """Create a local folder with that of `group`, and try to write into it; object stores are not tried.

        :raises OSError: when that fails.
        """
        if self._is_local:
            below.check_writable(self._root, [group])

    def marker(self, folder: str, most: int) -> bytes | None:
        """At most `most` bytes of a folder's marker; None when it has none.

        :raises OSError: when it cannot be read.
        """
        try:
            with self._opened(f"{folder}/{MARKER}", f"{self.path(folder)}/{MARKER}") as source:
                return bytes(source.read(most))
        except FileNotFoundError:
            return None

    def mark(self, folder: str, data: bytes) -> None:
        """Write the marker of a folder that has none. A local one is never replaced; elsewhere the last writer wins.

        :raises OSError: when it cannot be written.
        """
        path = self.path(folder)
        if self._is_local:
            return below.write_new(self._root, [folder, MARKER], data)
        if not self._is_object_store:
            self._fs.create_dir(path, recursive=True)
        with self._fs.open_output_stream(f"{path}/{MARKER}") as sink:
            sink.write(data)

    def path(self, file: str) -> str:
        """A file's path in the file system.

        :raises SegmentError: when `file` is outside of the folder.
        """
        if not all(is_name(part) for part in file.split("/")):
            raise SegmentError(f"{shown(file)} is no path of a segment")
        return f"{self._root.rstrip('/')}/{file}"

    def write(self, file: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Write a new file; when this returns it is complete and durable.

        :returns: its bytes.
        :raises OSError: when it could not be written; no part of it remains under its name.
        """
        return self._durably(file, lambda sink: write_checked(sink, LOG_SCHEMA, arranged(batches)))

    def write_bytes(self, file: str, data: bytes) -> int:
        """The same with unparsed bytes."""
        return self._durably(file, lambda sink: int(sink.write(data)))

    def read_bytes(self, file: str, size: int) -> bytes:
        """The bytes of a file.

        :raises OSError: when it is missing.
        :raises ValueError: when its size is not `size`.
        """
        with self._opened(file, self.path(file)) as source:
            _check_size(source.size(), size)
            return bytes(source.read(size))

    def _opened(self, file: str, path: str) -> Any:
        """A file to read; no link leads to a local one."""
        if self._is_local:
            return pa.PythonFile(os.fdopen(below.open_file(self._root, file.split("/")), "rb"), mode="r")
        return self._fs.open_input_file(path)

    def _durably(self, file: str, fill: Callable[[Any], int]) -> int:
        path = self.path(file)
        if self._is_local:
            return below.write_file(self._root, file.split("/"), fill)
        if not self._is_object_store:  # which has no folders, only empty objects that look like some
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        # In memory first: a stream closed by a failed writer ends the upload, and leaves a truncated file.
        whole = pa.BufferOutputStream()
        size = fill(whole)
        try:
            with self._fs.open_output_stream(path) as sink:
                sink.write(whole.getvalue())
        except BaseException:
            with suppress(OSError):
                self._fs.delete_file(path)
            raise
        return size

    def remove(self, file: str) -> None:
        """Remove a file, if it is there.

        :raises OSError: when it cannot be removed.
        """
        path = self.path(file)
        with suppress(FileNotFoundError):
            if self._is_local:
                below.unlink(self._root, file.split("/"))
            else:
                self._fs.delete_file(path)

    def folders(self, parent: str) -> list[str]:
        """The names of the folders in a folder.

        :raises OSError: when it cannot be listed.
        """
        path = self.path(parent)
        if self._is_local:
            return below.folders(self._root, parent.split("/"))
        infos = self._fs.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def remove_folder(self, folder: str, before_s: float) -> bool:
        """Remove a folder with its files, unless one was modified at `before_s` (seconds since the epoch) or later.

        :raises OSError: when it cannot be listed or removed.
        """
        path, parts = self.path(folder), folder.split("/")
        if self._is_local:
            if any(found.st_mtime >= before_s for _, found in below.files(self._root, parts)):
                return False
            with suppress(FileNotFoundError):
                below.remove_folder(self._root, parts)
            return True
        infos = self._fs.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
        if any(info.mtime.timestamp() >= before_s for info in infos if info.type == fs.FileType.File):
            return False
        with suppress(FileNotFoundError):
            self._fs.delete_dir(path)
        return True

    def sizes(self, files: Sequence[str]) -> list[int | None]:
        """The bytes of each file, None for a missing one.

        :raises OSError: when the file system does not answer.
        """
        paths = [self.path(file) for file in files]
        if self._is_local:
            return [below.size_of(self._root, file.split("/")) for file in files]
        infos = self._fs.get_file_info(paths)
        return [int(info.size) if info.type == fs.FileType.File else None for info in infos]

    def list(self, group: str) -> list[FoundFile]:
        """The segment files of a group, temporary ones too.

        :raises OSError: when the folder cannot be listed.
        """
        if self._is_local:
            found = below.files(self._root, [group])
            return [FoundFile(file, stat.st_mtime) for file, stat in found if incarnation_of(file)]
        root = self._root.rstrip("/") + "/"
        infos = self._fs.get_file_info(fs.FileSelector(root + group, allow_not_found=True, recursive=True))
        files = [info for info in infos if info.type == fs.FileType.File and incarnation_of(info.path)]
        return [FoundFile(info.path.removeprefix(root), info.mtime.timestamp()) for info in files]

    def records(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The batches of a segment's file, each with the offsets that the segment has there.

        :raises SegmentError: as `contents` and `unplaced`, and when the file is of another segment.
        """
        contents = self.contents(segment.file, segment.size, segment.rows)
        first, places = 0, deque(_places(segment))
        for batch in self.unplaced(segment, contents):
            with self._named(segment.file):
                _check_offsets(batch, first, places)
            first += batch.num_rows
            yield batch

    def unplaced(self, segment: Segment, contents: CheckedFile) -> Iterator[pa.RecordBatch]:
        """The batches of a segment's file, each checked before it is returned, with unchecked offsets.

        :raises SegmentError: when one is damaged, with the offsets that it should have.
        """
        with self._named(segment.file):
            for index in range(len(contents.rows)):
                try:
                    batch = contents.read(index)
                except DamagedBatch as error:
                    where = offsets_text(sealed_rows(segment, error.first, error.rows))
                    raise ValueError(f"{where} are damaged, with {error}") from error
                yield batch

    def contents(self, file: str, size: int, rows: int) -> CheckedFile:
        """An open file; a local one is memory-mapped. Its batches are not read yet.

        :raises SegmentError: when it is missing, or is not `size` bytes with `rows` records.
        """
        with self._named(file):
            contents = CheckedFile(self._data(file, size), LOG_SCHEMA)
            if (found := sum(contents.rows)) != rows:
                raise ValueError(f"it has {abs(rows - found)} records too {'few' if rows > found else 'many'}")
            return contents

    @contextmanager
    def _named(self, file: str) -> Iterator[None]:
        """
        :raises SegmentError: when the file is missing or cannot be read.
        """
        try:
            yield
        except FileNotFoundError as error:
            raise SegmentError(f"the file {self.path(file)} is missing") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise SegmentError(f"the file {self.path(file)} cannot be read: {reason}") from error

    def _data(self, file: str, size: int) -> pa.Buffer:
        """All of a file; a local one is memory-mapped."""
        path = self.path(file)
        if self._is_local:
            data = mapped(self._root, file.split("/"))
        else:
            with self._fs.open_input_file(path) as source:  # one request: each batch would take a round trip
                _check_size(source.size(), size)
                data = source.read_buffer(size)
        _check_size(data.size, size)
        return data


def _check_size(actual: int, size: int) -> None:
    if actual != size:
        raise ValueError(f"it has {actual} bytes and should have {size}")


def _refuse_credentials(place: str) -> None:
    """
    :raises UsageError: when a URI contains a password or other credentials; the message omits them.
    """
    if not _URL.match(place):
        return
    authority, _, query = place.partition("?")
    user = re.match(r"[^:]+:/*([^@?]*)@", authority)
    if (user and ":" in user[1]) or any(_SECRET.search(item.partition("=")[0]) for item in query.split("&")):
        raise UsageError(
            "segments_dir has credentials, and the znodes of segments would publish them: leave them out, and "
            "give them to driver and executors by their environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


def chroot_of(store: Store) -> str:
    """The identity of a chroot: czxid and creation time of `/consumers`, which is never removed.

    Recreated groups and a restored backup keep it; an ensemble that was made new has another one.

    :raises StoreError: when ZooKeeper did not answer, or an ACL refuses to read `/consumers`.
    """
    node = store.get(CONSUMERS)
    if node is None:
        ensure(store, [CONSUMERS])
        node = store.get(CONSUMERS)
    if node is None:
        raise StoreError(f"{CONSUMERS} is missing")
    if node.data == DENIED:
        raise AccessDenied(CONSUMERS)
    return f"{node.stat.czxid:x}-{node.stat.ctime_ms:x}"


def claim(files: SegmentFolder, folder: str, chroot: str, option: str) -> bool:
    """Make sure that a folder belongs to `chroot`. The first caller writes the marker; whether this was one.

    Two chroots may have a group or a region of the same name. Without a claim, the sweep of each removes the other's
    files: its own znodes name none of them. `docs/files.md` specifies the marker.

    :param folder: a group or region, below `files`.
    :param chroot: from `chroot_of`.
    :param option: the option that named `files`, for the message.
    :raises ForeignFolder: when it belongs to another chroot, or its marker is invalid.
    :raises OSError: when the marker cannot be read or written.
    """
    where = f"{files.path(folder)}/{MARKER}"
    data = files.marker(folder, MAX_MARKER_BYTES + 1)
    is_first = data is None
    if data is None:
        files.mark(folder, compact({"chroot": chroot}) + b"\n")
        data = files.marker(folder, MAX_MARKER_BYTES + 1)
    if data is None:
        raise FileNotFoundError(errno.ENOENT, "a marker that was just written is missing", where)
    if reason := _difference(files, folder, data, chroot):
        raise ForeignFolder(
            f"{reason}: give another {option}, or, when no other chroot uses the folder any more, remove {where}"
        )
    return is_first


def refusal(files: SegmentFolder, folder: str, chroot: str) -> str | None:
    """Why a folder is not this chroot's; None when it is, or when it has no marker.

    :raises OSError: when the marker cannot be read.
    """
    data = files.marker(folder, MAX_MARKER_BYTES + 1)
    return _difference(files, folder, data, chroot) if data is not None else None


def _difference(files: SegmentFolder, folder: str, data: bytes, chroot: str) -> str | None:
    place = files.path(folder)
    try:
        owner = Fields.parse(f"{place}/{MARKER}", data, MAX_MARKER_BYTES).text("chroot")
    except BadData as error:
        return f"folder {place} may belong to another chroot ({error})"
    if owner == chroot:
        return None
    match = _CHROOT.fullmatch(owner)
    known = f", whose {CONSUMERS} has cZxid 0x{match[1]}" if match else ""
    return f"folder {place} belongs to another chroot{known}"


class ClaimedFiles:
    """A group's files for its sealer: none is written before the folder is claimed for the chroot of the session.

    :ivar url: see `SegmentFolder`.
    """

    def __init__(self, files: SegmentFolder, group: str, runtime: Runtime) -> None:
        self._files = files
        self._group = group
        self._runtime = runtime
        self._chroot = ""
        self._claimed_at = float("-inf")
        self.url = files.url

    def opening(self, open_store: StoreFactory) -> StoreFactory:
        """Opens sessions and claims the folder, so that no partition is assigned where none can be sealed.

        Opening raises `ForeignFolder` when the folder belongs to another chroot. Where the marker cannot be read or
        written, the next `write` raises.
        """

        def opened() -> Store:
            store = open_store()
            try:
                self._chroot, self._claimed_at = chroot_of(store), float("-inf")
                with suppress(OSError):
                    self._claim()
            except BaseException:
                store.close()
                raise
            return store

        return opened

    def write(self, file: str, batches: Iterator[pa.RecordBatch]) -> int:
        """See `SegmentFolder`.

        :raises ForeignFolder: when the folder belongs to another chroot.
        """
        if self._runtime.monotonic() - self._claimed_at >= CLAIM_AGAIN_S:
            self._claim()
        return self._files.write(file, batches)

    def remove(self, file: str) -> None:
        self._files.remove(file)

    def _claim(self) -> None:
        is_first = claim(self._files, self._group, self._chroot, "segments_dir")
        # Where files can be replaced, another chroot may have been first in the same moment.
        again_s = min(FIRST_AGAIN_S, CLAIM_AGAIN_S) if is_first else CLAIM_AGAIN_S
        self._claimed_at = self._runtime.monotonic() + again_s - CLAIM_AGAIN_S
