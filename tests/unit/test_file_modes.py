"""Files on shared storage: owners and modes, as docs/security.md has them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from consumer.errors import SegmentError
from consumer.logs.base import LOG_SCHEMA, LogError
from consumer.logs.embedded.log import EmbeddedLog
from consumer.logs.embedded.producer import Appender, stored_batches
from consumer.operator.states import State, StateFiles
from consumer.sealing.segment_files import SegmentFolder
from coordinator.zk.below import folder_mode, unlink_segment
from coordinator.zk.errors import UsageError
from coordinator.zk.runtime import recorder_in
from coordinator.zk.znodes.regions import MAX_STATE_BYTES
from tests.support.ci import in_ci
from tests.support.sealed import records_in

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
    monkeypatch.setattr("coordinator.zk.below.ROOT", 54321)

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
