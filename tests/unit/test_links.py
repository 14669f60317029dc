"""A link below a shared folder leads to no file of another group, topic or region."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.sealed import records_in
from zk_group.consumer.errors import SegmentError
from zk_group.consumer.logs.base import LOG_SCHEMA, LogError
from zk_group.consumer.logs.embedded.log import EmbeddedLog, remove_topic
from zk_group.consumer.logs.embedded.producer import Appender, stored_batches
from zk_group.consumer.operator.states import State, StateFiles
from zk_group.consumer.sealing.segment_check import SegmentCheck
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.coordinator.cli.topics import _data
from zk_group.coordinator.zk.below import (
    files,
    folders,
    open_file,
    opened_folder,
    remove_folder,
    size_of,
    unlink_segment,
)
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.runtime import recorder_in
from zk_group.coordinator.zk.znodes.records import Topic
from zk_group.coordinator.zk.znodes.regions import MAX_STATE_BYTES
from zk_group.coordinator.zk.znodes.segments import Segment, local_file

FILE = "c1/abc-0000000001.arrow"
NOTHING = pa.RecordBatch.from_pylist([], schema=LOG_SCHEMA)


def link(root: Path, name: str, target: str) -> Path:
    """A link in the place of a file or a folder, to another below the same root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(root / target)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder in which `victim` has a file, and `evil` has none."""
    (tmp_path / "victim" / "c1").mkdir(parents=True)
    SegmentFolder(str(tmp_path)).write(f"victim/{FILE}", [NOTHING])
    return tmp_path


LINKS = {
    "its folder": ("evil", "victim"),
    "its folder by an absolute path": ("evil", "{root}/victim"),
    "a consumer's folder": ("evil/c1", "../victim/c1"),
    "the file": ("evil/c1/abc-0000000001.arrow", "../../victim/c1/abc-0000000001.arrow"),
}


@pytest.fixture(params=LINKS.values(), ids=LINKS.keys())
def linked(shared: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The same folder with a link of `evil`; the file of `victim` outlives the test."""
    name, target = request.param
    before = (shared / "victim" / FILE).read_bytes()
    (shared / name).parent.mkdir(parents=True, exist_ok=True)
    (shared / name).symlink_to(target.format(root=shared))
    yield shared
    assert (shared / "victim" / FILE).read_bytes() == before
    assert sorted(each.name for each in (shared / "victim" / "c1").iterdir()) == ["abc-0000000001.arrow"]


def test_the_collector_removes_no_file_behind_a_link(linked: Path) -> None:
    segment = Segment(f"evil/{FILE}", str(linked), 0, 1, (), "c1", "abc", 1)
    path = local_file("evil", segment)
    assert path is not None

    try:
        unlink_segment(path)
    except OSError as error:
        assert error.errno == errno.ELOOP
    else:
        assert not (linked / "evil" / FILE).is_symlink()


def test_the_sweep_lists_and_removes_no_file_behind_a_link(linked: Path) -> None:
    folder = SegmentFolder(str(linked))

    try:
        assert folder.list("evil") == []
    except OSError as error:
        assert error.errno == errno.ELOOP
    try:
        folder.remove(f"evil/{FILE}")
    except OSError as error:
        assert error.errno == errno.ELOOP


def test_readers_and_verify_read_no_file_behind_a_link(linked: Path) -> None:
    folder = SegmentFolder(str(linked))
    size = (linked / "victim" / FILE).stat().st_size

    assert folder.sizes([f"evil/{FILE}"]) == [None]
    with pytest.raises(SegmentError, match="a link is in the way"):
        list(records_in(folder, f"evil/{FILE}", size, 0))
    with pytest.raises(OSError, match="a link is in the way"):
        folder.read_bytes(f"evil/{FILE}", size)
    segment = Segment(f"evil/{FILE}", str(linked), 0, size, (), "c1", "abc", 1)
    problem = SegmentCheck().problem(segment)
    assert problem is not None and problem.kind == "missing file"


@pytest.mark.parametrize(("name", "target"), [("evil", "victim"), ("evil/c1", "victim/c1")])
def test_a_sealer_writes_no_file_behind_a_link(shared: Path, name: str, target: str) -> None:
    link(shared, name, target)

    with pytest.raises(OSError, match="a link is in the way"):
        SegmentFolder(str(shared)).write("evil/c1/abc-0000000002.arrow", [NOTHING])

    assert [each.name for each in (shared / "victim" / "c1").iterdir()] == ["abc-0000000001.arrow"]


def test_state_files_behind_a_link_are_neither_listed_nor_removed(shared: Path) -> None:
    link(shared, "evil/7", "victim")
    link(shared, "other", "victim")
    folder = SegmentFolder(str(shared))

    assert folder.folders("evil") == []
    for refused in (
        lambda: folder.folders("other"),
        lambda: folder.remove_folder("evil/7", 1e12),
        lambda: folder.remove_folder("other/c1", 1e12),
    ):
        with pytest.raises(OSError):
            refused()

    assert (shared / "victim" / FILE).exists()


def test_a_removed_folder_loses_its_links_and_not_what_they_lead_to(shared: Path) -> None:
    link(shared, "evil/7/state", f"victim/{FILE}")
    link(shared, "evil/7/folder", "victim")

    assert SegmentFolder(str(shared)).remove_folder("evil/7", 1e12)

    assert not (shared / "evil" / "7").exists()
    assert (shared / "victim" / FILE).exists()


def test_folder_that_is_itself_reached_through_a_link_is_used(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to(shared)
    folder = SegmentFolder(str(tmp_path / "there"))

    assert [found.file for found in folder.list("victim")] == [f"victim/{FILE}"]
    size = folder.sizes([f"victim/{FILE}"])[0]
    assert size is not None
    assert list(records_in(folder, f"victim/{FILE}", size, 0)) == []
    folder.remove(f"victim/{FILE}")
    assert folder.list("victim") == []


def test_what_is_no_file_is_neither_read_nor_listed(tmp_path: Path) -> None:
    (tmp_path / "g" / "c1").mkdir(parents=True)
    os.mkfifo(tmp_path / "g" / FILE)

    assert list(files(tmp_path, ["g"])) == []
    assert size_of(tmp_path, ["g", *FILE.split("/")]) is None
    with pytest.raises(OSError, match="no regular file"):  # it does not wait for a writer
        open_file(tmp_path, ["g", *FILE.split("/")])


def test_missing_folders_are_empty_and_made_where_asked_for(tmp_path: Path) -> None:
    assert folders(tmp_path, ["g"]) == []
    assert list(files(tmp_path, ["g", "c"])) == []
    with opened_folder(tmp_path, ["g", "c"], makes=True):
        assert (tmp_path / "g" / "c").is_dir()
    remove_folder(tmp_path, ["g", "c"])
    assert folders(tmp_path, ["g"]) == []


def test_removing_a_topic_removes_no_other_topics_data(tmp_path: Path) -> None:
    (tmp_path / "victim" / "id" / "0").mkdir(parents=True)
    link(tmp_path, "evil", "victim")
    link(tmp_path, "mean/id", "victim/id")

    for topic in ("evil", "mean"):
        with pytest.raises(LogError, match="cannot remove"):
            remove_topic(tmp_path, topic, "id")
    with pytest.raises(LogError, match="a link is in the way"):
        Appender(tmp_path, "evil", "id", 0)  # nor does a producer write there, and it is not shown as their own
    assert [_data(tmp_path, Topic(topic, "id", (0,))) for topic in ("mean", "victim")] == [[], [tmp_path / "victim/id"]]
    assert (tmp_path / "victim" / "id" / "0").is_dir()


def test_a_sealer_writes_no_file_behind_a_link_with_its_temporary_name(shared: Path) -> None:
    before = (shared / "victim" / FILE).read_bytes()
    planted = link(shared, "evil/c1/.tmp-abc-0000000002.arrow", f"victim/{FILE}")

    with pytest.raises(FileExistsError):
        SegmentFolder(str(shared)).write("evil/c1/abc-0000000002.arrow", [NOTHING])

    assert (shared / "victim" / FILE).read_bytes() == before
    assert [each.name for each in planted.parent.iterdir()] == [planted.name]


def test_a_link_with_the_name_of_a_new_segment_is_replaced(shared: Path) -> None:
    before = (shared / "victim" / FILE).read_bytes()
    planted = link(shared, f"evil/{FILE}", f"victim/{FILE}")

    SegmentFolder(str(shared)).write_bytes(f"evil/{FILE}", b"own")

    assert (planted.is_symlink(), planted.read_bytes()) == (False, b"own")
    assert (shared / "victim" / FILE).read_bytes() == before


def test_a_state_is_written_to_no_other_regions_folder(shared: Path) -> None:
    link(shared, "evil", "victim")
    state = State(member=b"x" * (MAX_STATE_BYTES + 1))

    with pytest.raises(OSError, match="a link is in the way"):
        StateFiles(str(shared), "evil").put(state, "0000000001/abc-1", "1-1")

    assert [each.name for each in (shared / "victim").iterdir()] == ["c1"]


@pytest.fixture(params=["evil", "evil/id", "evil/id/0", f"evil/id/0/{0:020d}.arrow"])
def linked_log(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A log in which topic `victim` has records, and a link in the place of `evil`'s."""
    Appender(tmp_path, "victim", "id", 0).append(stored_batches([b"secret"]))
    link(tmp_path, request.param, request.param.replace("evil", "victim"))
    return tmp_path


def test_a_reader_of_the_log_follows_no_link(linked_log: Path) -> None:
    log = EmbeddedLog(linked_log)

    for read in (
        lambda: log.earliest("evil", "id", 0),
        lambda: log.latest("evil", "id", 0),
        lambda: log.record_of_time("evil", "id", 0, 0),
        lambda: log.fetch("evil", "id", 0, 0, 1000),
    ):
        with pytest.raises(LogError, match="a link is in the way"):
            read()


def test_a_pipe_in_the_log_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "t" / "id" / "0").mkdir(parents=True)
    os.mkfifo(tmp_path / "t" / "id" / "0" / f"{0:020d}.arrow")

    with pytest.raises(LogError, match="no regular file"):
        EmbeddedLog(tmp_path).latest("t", "id", 0)


def test_a_log_file_that_is_replaced_by_a_link_is_not_read(tmp_path: Path) -> None:
    for topic in ("victim", "evil"):
        appender = Appender(tmp_path, topic, "id", 0)
        for value in (b"1", b"2"):
            appender.append(stored_batches([value]))
    log = EmbeddedLog(tmp_path)
    assert log.latest("evil", "id", 0) == 2
    file = f"evil/id/0/{0:020d}.arrow"
    (tmp_path / file).unlink()
    link(tmp_path, file, file.replace("evil", "victim"))

    with pytest.raises(LogError, match="a link is in the way"):
        log.fetch("evil", "id", 0, 0, 1000)


def test_a_producer_whose_folder_is_replaced_by_a_link_appends_nothing(tmp_path: Path) -> None:
    (tmp_path / "victim" / "id" / "0").mkdir(parents=True)
    appender = Appender(tmp_path, "evil", "id", 0)
    (tmp_path / "evil" / "id" / "0").rmdir()
    link(tmp_path, "evil/id/0", "victim/id/0")

    with pytest.raises(LogError, match="a link is in the way"):
        appender.append(stored_batches([b"x"]))

    assert list((tmp_path / "victim" / "id" / "0").iterdir()) == []


def a_history(folder: Path) -> None:
    record = recorder_in(str(folder), "n")
    assert record is not None
    record(1.0, "event", {})


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "pipe": lambda path, victim: os.mkfifo(path),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_history_is_written_to_no_other_file(tmp_path: Path, plant: Callable[[Path, Path], object]) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "history").mkdir()
    plant(tmp_path / "history" / f"n#{os.getpid()}.jsonl", victim)

    with pytest.raises(UsageError, match="no history can be written"):
        a_history(tmp_path / "history")

    assert victim.read_bytes() == b"precious"


def test_a_history_of_the_same_process_name_is_continued(tmp_path: Path) -> None:
    for _ in range(2):  # in a container each process may have the same id
        a_history(tmp_path)

    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == 2
