"""Files below a folder that others write too, without following links below it.

A link would let one group's folder lead to another's files. The folder itself may be reached through links: its name
is the operator's.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PARTS_OF_A_SEGMENT = 3
"""Group, consumer, file."""


@contextmanager
def opened_folder(root: str | Path, parts: Sequence[str], makes: bool = False) -> Iterator[int]:
    """A descriptor of the folder `parts` below `root`.

    :param makes: creates the folders that are missing.
    :raises OSError: when one of them is missing, no folder, or a link (`ELOOP`).
    """
    if makes:
        Path(root).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            if makes:
                _make(part, descriptor)
            inner = _open(part, _FOLDER, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(root: str | Path, parts: Sequence[str]) -> int:
    """A descriptor for reading the file `parts` below `root`.

    :raises OSError: as `opened_folder`.
    """
    with opened_folder(root, parts[:-1]) as folder:
        return _open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, folder)


def size_of(root: str | Path, parts: Sequence[str]) -> int | None:
    """The bytes of a file; None when it is missing, no file, or behind a link."""
    try:
        with opened_folder(root, parts[:-1]) as folder:
            found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return found.st_size if stat.S_ISREG(found.st_mode) else None


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
    """Remove a folder with all that is in it, of a link in it the link itself.

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
            for place, _, names, folder in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                for name in names:
                    try:
                        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed meanwhile
                    if stat.S_ISREG(found.st_mode):
                        yield str(Path(*parts, place, name)), found
    except FileNotFoundError:
        return


def _make(name: str, folder: int) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
        os.fsync(folder)
    except FileExistsError:
        return


def _open(name: str, flags: int, folder: int) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP) and stat.S_ISLNK(
            os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        ):
            raise OSError(errno.ELOOP, "a link is in the way, and none is followed", name) from error
        raise
