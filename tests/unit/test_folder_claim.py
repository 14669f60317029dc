"""A folder of files belongs to one chroot: markers, and what claims of them refuse."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from consumer.errors import ForeignFolder
from consumer.operator.region import RegionMember
from consumer.operator.states import State, StateFiles
from consumer.sealing.segment_files import (
    CLAIM_AGAIN_S,
    MARKER,
    MAX_MARKER_BYTES,
    ClaimedFiles,
    SegmentFolder,
    chroot_of,
    claim,
    refusal,
)
from consumer.spark.fetchers.pool import FetcherPool
from coordinator.zk.errors import AccessDenied, ConnectionLost
from coordinator.zk.store import DENIED, Node, Stat
from coordinator.zk.znodes.paths import is_name
from coordinator.zk.znodes.regions import MAX_STATE_BYTES
from tests.unit.manual import ManualRuntime

OWN, OTHER = "1f-195", "2a-196"
FILE = "g/c/abc-0000000001.arrow"


@pytest.fixture
def folder(tmp_path: Path) -> SegmentFolder:
    return SegmentFolder(str(tmp_path))


def chroot(czxid: int = 0x1F, ctime_ms: int = 0x195, data: bytes = b"") -> Mock:
    """Opens sessions in a chroot with this znode `/consumers`."""
    node = Node(data, Stat(czxid, czxid, czxid, 0, 0, 0, 0, ctime_ms))
    return Mock(return_value=Mock(**{"get.return_value": node}))


def marked(folder: SegmentFolder) -> str:
    values = json.loads(Path(folder.path("g"), MARKER).read_bytes())
    return str(values["chroot"])


def files_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir())


# ---- the marker


def test_a_folder_belongs_to_the_first_chroot_that_claims_it(folder: SegmentFolder, tmp_path: Path) -> None:
    folder.write(FILE, [])  # of a release without markers

    claim(folder, "g", OWN, "segments_dir")
    claim(folder, "g", OWN, "segments_dir")

    with pytest.raises(ForeignFolder) as refused:
        claim(folder, "g", OTHER, "segments_dir")
    assert str(refused.value) == (
        f"folder {tmp_path}/g belongs to another chroot, whose /consumers has cZxid 0x1f: give another segments_dir, "
        f"or, when no other chroot uses the folder any more, remove {tmp_path}/g/{MARKER}"
    )
    assert marked(folder) == OWN
    assert files_in(tmp_path) == [FILE, f"g/{MARKER}"], "no temporary file is left"

    Path(folder.path("g"), MARKER).unlink()
    claim(folder, "g", OTHER, "segments_dir")
    assert marked(folder) == OTHER


def test_of_chroots_that_claim_a_folder_at_once_exactly_one_gets_it(tmp_path: Path) -> None:
    together = Barrier(8)

    class Simultaneous(SegmentFolder):
        def marker(self, folder: str, most: int) -> bytes | None:
            found = super().marker(folder, most)
            if found is None:
                together.wait(10)
            return found

    def claims(chroot: str) -> str:
        try:
            claim(Simultaneous(str(tmp_path)), "g", chroot, "segments_dir")
        except ForeignFolder:
            return ""
        return chroot

    with ThreadPoolExecutor(8) as threads:
        got = [chroot for chroot in threads.map(claims, [f"{number:x}-195" for number in range(1, 9)]) if chroot]

    assert got == [marked(SegmentFolder(str(tmp_path)))]


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.EACCES, errno.EXDEV, 524])
def test_storage_without_links_has_markers_too(
    folder: SegmentFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refused)

    claim(folder, "g", OWN, "segments_dir")

    assert files_in(tmp_path) == [f"g/{MARKER}"]
    with pytest.raises(ForeignFolder):
        claim(folder, "g", OTHER, "segments_dir")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b'{"version":1}',
        b'{"version":1,"chroot":7}',
        b'{"version":1,"chroot":"1f-195"' + b" " * MAX_MARKER_BYTES + b"}",
        b"[" * 10_000_000,
    ],
    ids=["empty", "no text", "no object", "no chroot", "a number", "too long", "huge"],
)
def test_a_folder_with_an_invalid_marker_belongs_to_nobody(folder: SegmentFolder, tmp_path: Path, data: bytes) -> None:
    folder.write(FILE, [])
    Path(folder.path("g"), MARKER).write_bytes(data)

    with pytest.raises(
        ForeignFolder, match=r"/g may belong to another chroot \(.*/g/~chroot.*: give another "
    ) as refused:
        claim(folder, "g", OWN, "segments_dir")

    assert len(str(refused.value)) < 1000
    assert len(folder.marker("g", 3) or b"") <= 3, "no more of it is read"
    assert Path(folder.path("g"), MARKER).stat().st_size == len(data), "it is not replaced"


def test_the_text_of_a_foreign_marker_is_not_shown(folder: SegmentFolder) -> None:
    folder.mark("g", b'{"chroot":"\\u001b[31m evil"}')

    with pytest.raises(ForeignFolder) as refused:
        claim(folder, "g", OWN, "segments_dir")

    assert "evil" not in str(refused.value)


@pytest.mark.parametrize("plant", ["link", "dangling link", "folder", "pipe"])
def test_marker_that_is_no_file_is_neither_followed_nor_replaced(
    folder: SegmentFolder, tmp_path: Path, plant: str
) -> None:
    folder.write(FILE, [])
    place, elsewhere = tmp_path / "g" / MARKER, tmp_path / "elsewhere"
    if plant == "link":
        elsewhere.write_bytes(b'{"chroot":"1f-195"}')
    if plant.endswith("link"):
        place.symlink_to(elsewhere)
    elif plant == "folder":
        place.mkdir()
    else:
        os.mkfifo(place)

    with pytest.raises(OSError):
        claim(folder, "g", OWN, "segments_dir")

    assert plant == "link" or not elsewhere.exists()


def test_a_marker_is_no_segment_file_and_no_name_of_a_consumer(folder: SegmentFolder) -> None:
    claim(folder, "g", OWN, "segments_dir")
    folder.write(FILE, [])

    assert [found.file for found in folder.list("g")] == [FILE]
    assert folder.folders("g") == ["c"]
    assert not is_name(MARKER)


def test_a_read_of_a_marker_claims_nothing(folder: SegmentFolder, tmp_path: Path) -> None:
    assert refusal(folder, "g", OWN) is None
    assert files_in(tmp_path) == []
    claim(folder, "g", OTHER, "segments_dir")
    assert refusal(folder, "g", OTHER) is None
    assert (
        refusal(folder, "g", OWN) == f"folder {tmp_path}/g belongs to another chroot, whose /consumers has cZxid 0x2a"
    )


# ---- the chroot


def test_the_identity_of_a_chroot_is_the_creation_of_consumers_if_it_may_be_read() -> None:
    assert chroot_of(chroot()()) == OWN
    assert chroot_of(chroot(0x1F, 0x196)()) != OWN, "a new ensemble begins with the same numbers"
    with pytest.raises(AccessDenied, match="/consumers may not be read"):
        chroot_of(chroot(0, 0, DENIED)())


# ---- a slot


def test_a_session_in_another_chroot_is_closed_and_writes_nothing(folder: SegmentFolder, tmp_path: Path) -> None:
    claim(folder, "g", OTHER, "segments_dir")
    files, opens = ClaimedFiles(folder, "g", ManualRuntime()), chroot()

    with pytest.raises(ForeignFolder):
        files.opening(opens)()
    with pytest.raises(ForeignFolder):
        files.write(FILE, iter([]))

    assert opens().close.call_count == 1
    assert files_in(tmp_path) == [f"g/{MARKER}"]


def test_a_session_without_an_answer_is_closed(folder: SegmentFolder) -> None:
    session = Mock(**{"get.side_effect": ConnectionLost("no answer")})

    with pytest.raises(ConnectionLost):
        ClaimedFiles(folder, "g", ManualRuntime()).opening(lambda: session)()

    assert session.close.call_count == 1


def test_storage_that_fails_at_the_start_is_claimed_before_the_first_write(tmp_path: Path) -> None:
    root = tmp_path / "storage"
    root.touch()
    files = ClaimedFiles(SegmentFolder(str(root)), "g", ManualRuntime())
    files.opening(chroot())()
    with pytest.raises(NotADirectoryError):
        files.write(FILE, iter([]))

    root.unlink()
    files.write(FILE, iter([]))

    assert files_in(root) == [FILE, f"g/{MARKER}"]


def test_a_slot_looks_at_its_marker_again_after_a_minute(folder: SegmentFolder) -> None:
    runtime = ManualRuntime()
    files = ClaimedFiles(folder, "g", runtime)
    files.opening(chroot())()
    Path(folder.path("g"), MARKER).unlink()
    claim(folder, "g", OTHER, "segments_dir")

    runtime.now += CLAIM_AGAIN_S

    with pytest.raises(ForeignFolder):
        files.write(FILE, iter([]))


# ---- states, and a pool's sweep


def test_a_large_state_claims_its_regions_folder_and_a_small_one_does_not(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path), "r")
    large = State(member=b"x" * (MAX_STATE_BYTES + 1))

    files.put(State(member=b"x"), "0000000001/abc-1", OWN)
    assert files_in(tmp_path) == []
    files.put(large, "0000000001/abc-1", OWN)

    with pytest.raises(ForeignFolder, match=r"/r belongs to another chroot.*: give another checkpoint_dir, or"):
        files.put(large, "0000000001/abd-1", OTHER)
    assert files_in(tmp_path) == ["r/0000000001/abc-1.arrow", f"r/{MARKER}"]


def test_a_refused_sweep_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    refuses = Mock(side_effect=ForeignFolder("the folder is another's"))
    pool: Any = SimpleNamespace(sweep=refuses, config=SimpleNamespace(group="g"), _sweep_refusal="")
    with caplog.at_level(logging.WARNING):
        FetcherPool._sweep_quietly(pool)
        FetcherPool._sweep_quietly(pool)
    assert caplog.messages == ["orphan sweep refused: group=g reason=the folder is another's"]

    for pool.sweep in (lambda: 0, refuses):
        FetcherPool._sweep_quietly(pool)
    assert len(re.findall("orphan sweep refused", caplog.text)) == 2


def test_a_region_logs_a_refused_sweep_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = Mock()
    monkeypatch.setattr("consumer.operator.region.sweep", sweeps)
    at_once = SimpleNamespace(spawn=lambda run, _: run())
    member: Any = SimpleNamespace(
        _files=SimpleNamespace(folder="states"), _is_sweeping=False, _sweep_problem="", _runtime=at_once
    )
    member.paths, member._config = SimpleNamespace(region="r"), SimpleNamespace(consumer="c")
    store: Any = None
    refused = ForeignFolder("the folder is another's")
    for results, lines in ([refused, 0, refused], 1), ([3, refused], 2):
        sweeps.side_effect = results
        for _ in results:
            RegionMember._completed(member, store, 1)

        assert len(re.findall("state file removal failed", caplog.text)) == lines
