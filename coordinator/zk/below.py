"""Files below a folder with other writers: no link below it is followed, and new files and folders have known modes.

A link would let one group's folder lead to another's files. The path of the folder itself may have links: the operator
chose it. Owners and modes are specified in `docs/security.md`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PARTS_OF_A_SEGMENT = 3
"""Group, consumer, file."""
FILE_MODE = 0o640
ROOT = 0
TEMPORARY_PREFIX = ".tmp-"
_OWN_UIDS: dict[tuple[int, int], int] = {}
"""Mount and effective user -> the owner of this process's new files there."""


def folder_mode(parent: int) -> int:
    """The permissions of a new folder, by the mode of its parent.

    Its group may write where it may write the parent, and that has the set-group-ID bit: then the group is the
    operator's choice, and not the primary group of a process, which may have any number of members.
    """
    return 0o750 | (parent & stat.S_IWGRP if parent & stat.S_ISGID else 0)


@contextmanager
def opened_folder(root: str | Path, parts: Sequence[str], makes: bool = False) -> Iterator[int]:
    """A descriptor of the folder `parts` below `root`.

    :param makes: for writing: creates missing folders, and refuses those that another user may change.
    :raises OSError: when one of them is missing, no folder, or a link (`ELOOP`); with `makes`, also when others may
        write it, or it belongs to another user (`EPERM`).
    """
    if makes:  # from the nearest existing folder at or above `root` on
        root = Path(root)
        while not root.exists() and root != root.parent:
            root, parts = root.parent, [root.name, *parts]
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = _made(part, descriptor) if makes else _open(part, _FOLDER, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def new_file(name: str, folder: int) -> int:
    """A descriptor for writing a new file in an open folder.

    :raises OSError: when the name exists, as a link too (`EEXIST`).
    """
    descriptor = os.open(name, _NEW_FILE, FILE_MODE, dir_fd=folder)
    _set_mode(descriptor, FILE_MODE, os.fstat(folder))
    return descriptor


def appended_file(name: str, folder: int) -> int:
    """A descriptor for appending to a file in an open folder, made if it is missing.

    :raises OSError: when the name is a link (`ELOOP`), no file, or a file of another user (`EPERM`).
    """
    with suppress(FileExistsError):
        os.close(new_file(name, folder))
    descriptor = _open(name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid != _own_uid(folder):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "the file is none of this process's user, or has another name too", name)
    return descriptor


class EventFile:
    """Appends events to `[folder]/[name].jsonl`, one JSON line each, unbuffered: a killed process loses none.

    :raises OSError: when the file cannot be written.
    """

    def __init__(self, folder: str, name: str) -> None:
        with opened_folder(folder, [], makes=True) as parent:
            self._file = appended_file(f"{name}.jsonl", parent)

    def add(self, event: Mapping[str, Any]) -> None:
        """Append an event."""
        line = json.dumps(event, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())  # one call per line: several threads may write


def write_file(root: str | Path, parts: Sequence[str], fill: Callable[[IO[bytes]], int]) -> int:
    """Write the file `parts` below `root` by `fill`, under a temporary name first; it is durable when this returns.

    :returns: the result of `fill`.
    :raises OSError: as `opened_folder`, or when it could not be written; no part of it remains.
    """
    temporary, name = TEMPORARY_PREFIX + parts[-1], parts[-1]
    with opened_folder(root, parts[:-1], makes=True) as folder:
        descriptor = new_file(temporary, folder)
        try:
            with os.fdopen(descriptor, "wb") as sink:
                size = fill(sink)
                sink.flush()
                os.fsync(descriptor)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except BaseException:
            for left in (temporary, name):
                with suppress(OSError):  # the sweep reports a file that cannot be removed
                    os.unlink(left, dir_fd=folder)
            raise
    return size


def write_new(root: str | Path, parts: Sequence[str], data: bytes) -> None:
    """Write the file `parts` below `root` unless its name exists: complete and durable, of concurrent calls by one.

    Storage without hard links takes the last of concurrent calls.

    :raises OSError: as `opened_folder`, or when it could not be written.
    """
    temporary, name = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}", parts[-1]
    with opened_folder(root, parts[:-1], makes=True) as folder:
        descriptor = new_file(temporary, folder)
        try:
            with os.fdopen(descriptor, "wb") as sink:
                sink.write(data)
                sink.flush()
                os.fsync(descriptor)
            try:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return
            except FileNotFoundError:
                raise
            except OSError:  # storage without hard links raises various errors
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def check_writable(root: str | Path, parts: Sequence[str]) -> None:
    """Create the folder `parts` below `root`, then write and remove a file in it.

    :raises OSError: as `opened_folder`, or when that fails.
    """
    with opened_folder(root, parts, makes=True) as folder, _removed_file(folder) as descriptor:
        os.write(descriptor, b"\0")


@contextmanager
def _removed_file(folder: int) -> Iterator[int]:
    """A descriptor for writing a new file in an open folder, removed at the end."""
    name = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    descriptor = new_file(name, folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        os.unlink(name, dir_fd=folder)


def open_file(root: str | Path, parts: Sequence[str]) -> int:
    """A descriptor for reading the file `parts` below `root`.

    :raises OSError: as `opened_folder`, or when it is a pipe, a folder or anything else (`EINVAL`).
    """
    with opened_folder(root, parts[:-1]) as folder:
        descriptor = _open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", parts[-1])
    return descriptor


def size_of(root: str | Path, parts: Sequence[str]) -> int | None:
    """The bytes of a file; None when it is missing, no file, or behind a link."""
    try:
        with opened_folder(root, parts[:-1]) as folder:
            status = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def unlink(root: str | Path, parts: Sequence[str]) -> None:
    """Remove a file; of a link the link itself.

    :raises OSError: as `opened_folder`.
    """
    with opened_folder(root, parts[:-1]) as folder:
        os.unlink(parts[-1], dir_fd=folder)


def unlink_segment(path: Path) -> None:
    """Remove a segment's file, `[group]/[consumer]/[file]` below the segments folder.

    :raises OSError: as `opened_folder`.
    """
    unlink(path.parents[PARTS_OF_A_SEGMENT - 1], path.parts[-PARTS_OF_A_SEGMENT:])


def remove_folder(root: str | Path, parts: Sequence[str]) -> None:
    """Remove a folder with its contents, of a link in it the link itself.

    :raises OSError: as `opened_folder`.
    """
    with opened_folder(root, parts[:-1]) as folder:
        shutil.rmtree(parts[-1], dir_fd=folder)


def folders(root: str | Path, parts: Sequence[str]) -> list[str]:
    """The names of the folders in a folder; none when that is missing.

    :raises OSError: as `opened_folder`.
    """
    try:
        with opened_folder(root, parts) as folder, os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def files(root: str | Path, parts: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The files below a folder, each with its path below `root`; none when that is missing.

    :raises OSError: as `opened_folder`.
    """
    try:
        with opened_folder(root, parts) as top:
            for below, _, names, folder in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                for name in names:
                    try:
                        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed meanwhile
                    if stat.S_ISREG(status.st_mode):
                        yield str(Path(*parts, below, name)), status
    except FileNotFoundError:
        return


def _made(name: str, parent: int) -> int:
    """A descriptor of a folder for writing, made if it is missing."""
    above = os.fstat(parent)
    try:
        descriptor = _open(name, _FOLDER, parent)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, folder_mode(above.st_mode), dir_fd=parent)
            os.fsync(parent)
        descriptor = _open(name, _FOLDER, parent)
        if os.fstat(descriptor).st_uid == os.geteuid():
            _set_mode(descriptor, folder_mode(above.st_mode) | stat.S_ISGID, above)
    try:
        _refuse_foreign(descriptor, name, above)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _set_mode(descriptor: int, mode: int, above: os.stat_result) -> None:
    """Set the mode of a new file or folder, regardless of the umask, where its parent's group is the operator's choice.

    Elsewhere a umask narrows it.
    """
    status = os.fstat(descriptor)
    if mode & stat.S_ISGID and os.geteuid() != ROOT and status.st_gid not in (os.getegid(), *os.getgroups()):
        return  # the kernel clears the bit when a user outside the group changes the mode
    if above.st_mode & stat.S_ISGID and stat.S_IMODE(status.st_mode) != mode:
        with suppress(PermissionError):  # systemd's RestrictSUIDSGID: the mode stays as the umask has narrowed it
            os.fchmod(descriptor, mode)


def _refuse_foreign(folder: int, name: str, above: os.stat_result) -> None:
    """
    :raises OSError: when another user could replace the files of a folder.
    """
    status = os.fstat(folder)
    if status.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, f"others may write folder {name}: take that from them (chmod o-w)")
    is_of_the_group = bool(above.st_mode & stat.S_ISGID) and status.st_gid == above.st_gid
    if status.st_uid not in (ROOT, os.geteuid()) and not is_of_the_group and status.st_uid != _own_uid(folder):
        reason = f"folder {name} belongs to user {status.st_uid}, who could replace its files: chown it"
        raise PermissionError(errno.EPERM, reason)


def _own_uid(folder: int) -> int | None:
    """The owner of this process's new files in a folder, which a server may map; None when it may not write there.

    The mapping is a mount's: one trial file shows it, not one for each written file.
    """
    mount = os.fstat(folder).st_dev, os.geteuid()
    if mount not in _OWN_UIDS:
        with suppress(PermissionError), _removed_file(folder) as descriptor:
            _OWN_UIDS[mount] = os.fstat(descriptor).st_uid
    return _OWN_UIDS.get(mount)


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        is_in_the_way = error.errno in (errno.ENOTDIR, errno.ELOOP)
        if is_in_the_way and stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, "a link is in the way, and none is followed", name) from error
        raise
