"""Claims: the folders `[segments_dir]/[group]` and `[checkpoint_dir]/[region]` each belong to one chroot.

Two chroots may have a group or a region of the same name. Without a claim, the sweep of each removes the other's files:
its own znodes name none of them. The claim is a marker file in the folder; `docs/files.md` specifies it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from coordinator.zk.errors import AccessDenied, BadData, StoreError
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import DENIED, Store, StoreFactory
from coordinator.zk.update import ensure
from coordinator.zk.znodes.json_fields import Fields, compact
from coordinator.zk.znodes.paths import CONSUMERS

from ..errors import ForeignFolder
from .segment_files import MARKER, SegmentFolder

MAX_MARKER_BYTES = 512
FIRST_AGAIN_S = 1.0
CLAIM_AGAIN_S = 60.0
"""A marker that was read so long ago is read again before a write: an operator may have removed it."""

_CHROOT = re.compile(r"([0-9a-f]{1,16})-[0-9a-f]{1,16}")


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
        """See `SegmentFolder`."""
        self._files.remove(file)

    def _claim(self) -> None:
        is_first = claim(self._files, self._group, self._chroot, "segments_dir")
        # Where files can be replaced, another chroot may have been first in the same moment.
        again_s = min(FIRST_AGAIN_S, CLAIM_AGAIN_S) if is_first else CLAIM_AGAIN_S
        self._claimed_at = self._runtime.monotonic() + again_s - CLAIM_AGAIN_S
