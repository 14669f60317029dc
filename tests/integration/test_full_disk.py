"""A full disk while slots seal: nothing is sealed, nothing is lost, the error is reported, and sealing resumes."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ci import in_ci
from tests.support.sealed import batches
from tests.support.slots import SlotBench, slots
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.sealing.segment_files import MARKER, SegmentFolder

FILE = "g/c/abc-0000000001.arrow"
DISK = "4m"


class Disk:
    """A small file system of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "segments"
        self.folder.mkdir()

    def fill(self) -> None:
        """Leave not a byte."""
        with (self.root / "filler").open("ab", buffering=0) as filler:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def make_room(self) -> None:
        (self.root / "filler").unlink()

    @property
    def files(self) -> list[str]:
        """Without the markers of folders."""
        found = [path for path in self.folder.rglob("*") if path.is_file() and path.name != MARKER]
        return sorted(str(path.relative_to(self.folder)) for path in found)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(root)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        reason = f"a small disk cannot be mounted here: {mounted.stderr.strip()}"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield Disk(root)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """That of the segments, which does not exist yet without a disk of its own."""
    return request.getfixturevalue("disk").folder if "disk" in request.fixturenames else tmp_path / "segments"


@pytest.fixture
def bench(served: World, folder: Path) -> Iterator[SlotBench]:
    with slots(served, folder) as bench:
        yield bench


def test_full_disk_loses_nothing_and_is_named(bench: SlotBench, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    slot = bench.slot(0)
    bench.end(100)
    bench.all_sealed(4, 100)
    sealed, files = len(bench.segments()), disk.files

    with caplog.at_level(logging.ERROR):
        disk.fill()
        bench.end(500)
        eventually(lambda: slot.sealer.failed >= 3, 15, "it has tried again and again")

    assert "No space left on device" in str(slot.sealer.problem)
    said = [record.getMessage() for record in caplog.records if record.name == "zk_group.consumer.sealing.sealer"]
    assert len(said) == 1 and said[0].startswith("seal failed, retrying: consumer=p-slot-0 reason=")
    assert len(bench.segments()) == sealed
    assert slot.member.may_fetch, "it keeps its lease and its partitions"
    disk.make_room()
    bench.all_sealed(4, 500)
    assert slot.sealer.problem is None
    assert slot.sealer.refetched == 0, "what it had fetched it kept"
    assert len(disk.files) == len(bench.segments()) > len(files), "nothing half-written is left"


def test_a_file_that_fills_the_disk_half_way_is_removed(disk: Disk) -> None:
    large = [batch for _ in range(200) for batch in batches(0, 0, 1000)]
    assert sum(batch.nbytes for batch in large) > 2 * (4 << 20)

    with pytest.raises(OSError, match="No space left on device"):
        SegmentFolder(str(disk.folder)).write(FILE, large)

    assert disk.files == []


def test_a_folder_that_cannot_be_made_stops_sealing_until_it_can(bench: SlotBench, folder: Path) -> None:
    folder.write_text("in the way")
    slot = bench.slot(0)
    bench.end(100)
    eventually(lambda: slot.sealer.failed >= 2, 15, "it has tried")
    assert str(folder) in str(slot.sealer.problem)
    assert bench.segments() == []
    folder.unlink()
    bench.all_sealed(4, 100)


def test_a_folder_that_vanishes_is_made_again(bench: SlotBench, folder: Path) -> None:
    bench.slot(0)
    bench.end(100)
    bench.all_sealed(4, 100)
    folder.rename(folder.with_name("gone"))
    bench.grow(200)
    assert [path for path in folder.rglob("*.arrow")]


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_sync_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Of the data, and of each folder in which a name is new."""
    calls, fsync = [], os.fsync

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    folder = SegmentFolder(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            folder.write(FILE, batches(0, 0, 10))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    size = folder.write(FILE, batches(0, 0, 10))
    assert folder.sizes([FILE]) == [size]
