"""Files on shared storage: owners and modes, as docs/security.md has them; and the chroot that a folder belongs to."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from tests.support.ci import in_ci
from tests.support.sealed import records_in
from tests.unit.manual import ManualRuntime
from zk_group.consumer.errors import ForeignFolder, SegmentError
from zk_group.consumer.logs.base import LOG_SCHEMA, LogError
from zk_group.consumer.logs.embedded.log import EmbeddedLog
from zk_group.consumer.logs.embedded.producer import Appender, stored_batches
from zk_group.consumer.operator.region import RegionMember
from zk_group.consumer.operator.states import State, StateFiles
from zk_group.consumer.sealing.segment_files import (
    CLAIM_AGAIN_S,
    MARKER,
    MAX_MARKER_BYTES,
    ClaimedFiles,
    SegmentFolder,
    chroot_of,
    claim,
    refusal,
)
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.below import folder_mode, unlink_segment
from zk_group.coordinator.zk.errors import AccessDenied, ConnectionLost, UsageError
from zk_group.coordinator.zk.runtime import recorder_in
from zk_group.coordinator.zk.store import DENIED, Node, Stat
from zk_group.coordinator.zk.znodes.paths import is_name
from zk_group.coordinator.zk.znodes.regions import MAX_STATE_BYTES

FILE = "g/c1/abc-0000000001.arrow"
NOTHING = pa.RecordBatch.from_pylist([], schema=LOG_SCHEMA)
EXECUTOR, DRIVER, NODE, STRANGER = 50001, 50002, 50003, 50004
TEAM, OTHER_TEAM, STAFF = 51001, 51002, 51003


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def acting_as(user: int, group: int, *groups: int) -> Iterator[None]:
    """This process with the rights of another user."""
    before, group_before = os.getgroups(), os.getegid()
    os.setgroups([group, *groups])
    os.setegid(group)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group_before)
        os.setgroups(before)


@pytest.fixture
def storage() -> Iterator[Path]:
    """A folder of root's that other users reach, unlike pytest's."""
    if os.geteuid() != 0:
        if in_ci():
            pytest.fail("only root can act as other users")
        pytest.skip("only root can act as other users")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def a_folder(path: Path, mode: int, group: int, user: int = 0) -> Path:
    path.mkdir()
    os.chown(path, user, group)
    path.chmod(mode)
    return path


def write_segment(root: Path) -> None:
    SegmentFolder(str(root)).write(FILE, [NOTHING])


def write_state(root: Path) -> None:
    StateFiles(str(root), "g").put(State(member=b"x" * (MAX_STATE_BYTES + 1)), "0000000001/abc-1", "1-1")


def write_marker(root: Path) -> None:
    SegmentFolder(str(root)).mark("g", b"{}")


def write_log(root: Path) -> None:
    Appender(root, "g", "id", 0).append(stored_batches([b"x"]))


def write_history(root: Path) -> None:
    recorder_in(str(root / "g"), "n")


def written_by(*writers: Callable[[Path], None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("write", writers, ids=lambda write: write.__name__)


each_writer = written_by(write_segment, write_state, write_marker, write_log, write_history)
each_writer_of_records = written_by(write_segment, write_state, write_log)


def modes(root: Path) -> set[str]:
    """The modes of all folders and files below a folder."""
    return {stat.filemode(path.lstat().st_mode) for path in root.rglob("*")}


GROUP_MAY_WRITE = {0o2770: 0o770, 0o2777: 0o770}


@pytest.mark.parametrize("parent", [0o755, 0o775, 0o1777, 0o2770, 0o2750, 0o2777, 0o700], ids=oct)
def test_a_group_may_write_only_where_the_operator_has_said_so(parent: int) -> None:
    assert folder_mode(parent) == GROUP_MAY_WRITE.get(parent, 0o750)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(0, {"drwxr-x---", "-rw-r-----"}), (0o077, {"drwx------", "-rw-------"})],
    ids=["others may do nothing whatever the umask", "a umask narrows the modes"],
)
@each_writer
def test_modes_of_what_is_written(tmp_path: Path, write: Callable[[Path], None], mask: int, expected: set[str]) -> None:
    with umask(mask):
        write(tmp_path / "made" / "root")

    assert modes(tmp_path) == expected


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize(("mode", "below"), [(0o2770, "drwxrws---"), (0o2750, "drwxr-s---")])
@each_writer
def test_a_set_group_id_folder_hands_down_its_group_and_its_modes(
    storage: Path, write: Callable[[Path], None], mode: int, below: str, mask: int
) -> None:
    a_folder(storage / "g", mode, TEAM, EXECUTOR)

    with acting_as(EXECUTOR, STAFF, TEAM), umask(mask):
        write(storage)

    assert modes(storage) - {below} == {"-rw-r-----"}
    assert {path.lstat().st_gid for path in storage.rglob("*")} == {TEAM}


def test_a_forbidden_change_of_modes_leaves_them_narrower(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(descriptor: int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")  # as under systemd's RestrictSUIDSGID

    monkeypatch.setattr(os, "fchmod", forbidden)
    a_folder(storage / "g", 0o2770, TEAM)
    for name, mask in (("c1", 0o007), ("c2", 0o022)):  # the first as in the unit of a consumer
        with acting_as(EXECUTOR, STAFF, TEAM), umask(mask):
            SegmentFolder(str(storage)).write(f"g/{name}/abc-0000000001.arrow", [NOTHING])

    found = [stat.filemode((storage / "g" / name).stat().st_mode) for name in ("c1", "c2")]
    assert found == ["drwxrws---", "drwxr-s---"]


@pytest.mark.parametrize(("mask", "below"), [(0o022, "drwxr-s---"), (0o077, "drwx--S---")])
def test_a_writer_that_is_not_in_the_group_hands_the_group_down(storage: Path, mask: int, below: str) -> None:
    a_folder(storage / "g", 0o2750, TEAM, EXECUTOR)

    with acting_as(EXECUTOR, STAFF), umask(mask):
        write_log(storage)

    assert {stat.filemode(path.stat().st_mode) for path in (storage / "g").rglob("*") if path.is_dir()} == {below}
    assert {path.lstat().st_gid for path in storage.rglob("*")} == {TEAM}


def test_a_team_reads_and_removes_what_its_executors_write_and_writes_beside_it(storage: Path) -> None:
    a_folder(storage / "g", 0o2770, TEAM)
    folder = SegmentFolder(str(storage))
    with acting_as(EXECUTOR, STAFF, TEAM):
        folder.check("g")
        size = folder.write(FILE, [NOTHING])
        folder.write(FILE.replace("1.", "2."), [NOTHING])

    with acting_as(DRIVER, STAFF, TEAM):
        assert list(records_in(folder, FILE, size, 0)) == []
        with pytest.raises(PermissionError), (storage / FILE).open("ab"):
            pass
        assert len(folder.list("g")) == 2
        folder.remove(FILE)
        folder.write(FILE.replace("1.", "3."), [NOTHING])
    with acting_as(NODE, STAFF, TEAM):
        unlink_segment(storage / FILE.replace("1.", "2."))

    assert [path.name for path in (storage / "g" / "c1").iterdir()] == ["abc-0000000003.arrow"]


def test_another_team_neither_reads_nor_writes_nor_removes(storage: Path) -> None:
    a_folder(storage / "g", 0o2770, TEAM)
    folder = SegmentFolder(str(storage))
    with acting_as(EXECUTOR, STAFF, TEAM):
        size = folder.write(FILE, [NOTHING])

    with acting_as(STRANGER, STAFF, OTHER_TEAM):
        for refused in (
            lambda: folder.check("g"),
            lambda: folder.check("a-group-of-nobody"),
            lambda: folder.write(FILE.replace("1.", "2."), [NOTHING]),
            lambda: folder.sizes([FILE]),
            lambda: folder.list("g"),
            lambda: folder.remove(FILE),
            lambda: unlink_segment(storage / FILE),
        ):
            with pytest.raises(PermissionError):
                refused()
        with pytest.raises(SegmentError, match="Permission denied"):
            list(records_in(folder, FILE, size, 0))

    assert [path.name for path in (storage / "g" / "c1").iterdir()] == ["abc-0000000001.arrow"]


def test_a_log_that_may_not_be_read_is_an_error_and_not_empty(storage: Path) -> None:
    a_folder(storage / "g", 0o2770, TEAM)
    with acting_as(EXECUTOR, STAFF, TEAM):
        write_log(storage)

    with acting_as(DRIVER, STAFF, TEAM):
        assert EmbeddedLog(storage).latest("g", "id", 0) == 1
    with acting_as(STRANGER, STAFF), pytest.raises(LogError, match="Permission denied"):
        EmbeddedLog(storage).latest("g", "id", 0)


@each_writer_of_records
def test_nothing_is_written_where_others_may_write(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g").chmod(0o777)

    with pytest.raises((OSError, LogError), match="others may write folder g"):
        write(tmp_path)

    assert list((tmp_path / "g").iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o2770])
@each_writer_of_records
def test_nothing_is_written_into_a_strangers_folder(storage: Path, write: Callable[[Path], None], mode: int) -> None:
    storage.chmod(0o1777)
    a_folder(storage / "g", mode, STAFF, STRANGER)  # made before the team's, where everybody may make one

    with acting_as(EXECUTOR, STAFF), pytest.raises((OSError, LogError), match=f"folder g belongs to user {STRANGER}"):
        write(storage)

    assert list((storage / "g").iterdir()) == []


def test_an_owner_that_the_server_maps_is_the_process_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_folder(tmp_path / "g", 0o755, os.getgid(), os.getuid())
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # NFS with all_squash: files are another user's than the process
    monkeypatch.setattr("zk_group.coordinator.zk.below.ROOT", 54321)

    write_segment(tmp_path)

    assert [path.name for path in (tmp_path / "g" / "c1").iterdir()] == ["abc-0000000001.arrow"]


def test_a_history_is_not_appended_to_the_file_of_another_user(storage: Path) -> None:
    storage.chmod(0o1777)
    path = storage / f"n#{os.getpid()}.jsonl"
    with acting_as(STRANGER, STAFF):
        path.write_bytes(b"")
        path.chmod(0o666)

    with acting_as(EXECUTOR, STAFF), pytest.raises(UsageError, match="no history can be written"):
        recorder_in(str(storage), "n")

    assert path.read_bytes() == b""


# ---- whose a folder is: it belongs to one chroot


OWN, OTHER = "1f-195", "2a-196"


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
def test_marker_that_is_no_file_is_not_followed_nor_replaced(folder: SegmentFolder, tmp_path: Path, plant: str) -> None:
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
    assert folder.folders("g") == ["c1"]
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
    monkeypatch.setattr("zk_group.consumer.operator.region.sweep", sweeps)
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
