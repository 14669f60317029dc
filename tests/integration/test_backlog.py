"""The coordinator and the backlog of a group: fetchers pause and resume, finished segments are collected soon.

Most cases are the stories of `backlogs.txt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.backlog import KIB, PATHS, Backlog, BacklogStory, collector_on, coordinator
from tests.support.parties import Parties, owned_by
from tests.support.stories import play, stories
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.coordinator.planning.backpressure import Bounds
from zk_group.coordinator.zk.store import Create, Delete
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Registration
from zk_group.coordinator.zk.znodes.segments import Segment, SegmentsRecord

STORIES = Path(__file__).with_name("backlogs.txt")


@pytest.fixture
def backlog(world: World, tmp_path: Path) -> Backlog:
    return Backlog(world, tmp_path)


@pytest.mark.parametrize("title", stories(STORIES))
def test_story(backlog: Backlog, title: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> None:
    play(request, STORIES, title, BacklogStory(backlog, caplog))


def test_large_backlog_is_read_in_more_rounds(world: World, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.coordinator.retention.segments.READ_A_ROUND", 10)
    monkeypatch.setattr("zk_group.coordinator.retention.segments.MULTIS_A_ROUND", 1)
    monkeypatch.setattr("zk_group.coordinator.retention.segments.SEGMENTS_A_MULTI", 3)
    names = backlog.seals(25)
    collector = collector_on(world, bounds=Bounds(25, 25 * KIB - 1))

    found = []
    for _ in range(3):
        collector.collect(["g"])
        found.append(backlog.record.paused is not None)
    assert found == [False, False, True], "the bytes are over their bound once all are read"
    backlog.finishes("q", backlog.czxid(names[-2]))
    left = []
    while len(backlog.left) > 1:
        collector.collect(["g"])
        left.append(len(backlog.left))
    assert left == [22, 19, 16, 13, 10, 7, 4, 1]


def test_segment_files_that_this_node_may_not_remove_are_left_to_the_pools_sweep(
    world: World, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(root: Path, parts: Sequence[str]) -> None:
        tried.append(parts[-1])
        raise PermissionError(13, "Permission denied")  # the node's user is not in the group of the folder

    tried: list[str] = []
    monkeypatch.setattr("zk_group.coordinator.zk.below.unlink", forbidden)
    backlog.seals(2)
    backlog.finishes("q", 2**60)

    coordinator(world)

    eventually(lambda: backlog.left == [] and len(tried) == 2, 10, "both are collected")
    assert "segment file removal failed" not in caplog.text


# ---- how often to seal


def members(world: World, intervals: list[int], group: str = "g") -> None:
    """Registered fetchers that seal so often by themselves."""
    paths = GroupPaths(group)
    for number, interval in enumerate(intervals):
        record = Registration(f"i{number}", {"t": 1}, seal_interval_ms=interval)
        world.store.commit([Create(paths.id(f"m{number}"), record.to_bytes(), ephemeral=True)])


def test_seals_are_counted_over_all_groups_that_seal_and_no_others(world: World, backlog: Backlog) -> None:
    other, plain = GroupPaths("other"), GroupPaths("plain")
    for paths in (other, plain):
        ensure(world.store, paths.skeleton)
    segment = Segment("other/c/abc-0000000001.arrow", "/nowhere", 1, 1, (), "c", "abc", 1)
    world.store.commit([Create(other.segment_prefix, segment.to_bytes(), sequential=True)])
    backlog.seals(1)
    coordinator(world, max_seals_per_s=10)
    members(world, [200, 200], "plain")

    members(world, [200])
    members(world, [200, 1000], "other")

    def published(paths: GroupPaths) -> int | None:
        return SegmentsRecord.parse("segments", world.data(paths.segments) or b"").seal_interval_ms

    eventually(lambda: (published(PATHS), published(other)) == (None, 250), 10, "10 seals a second of three")
    assert published(plain) is None
    world.store.commit([Delete(other.id("m0"))])
    eventually(lambda: published(other) is None, 10, "the rest may seal as they like")


# ---- expiry


def test_segment_that_was_closed_and_is_open_again_is_collected(world: World, tmp_path: Path) -> None:
    backlog = Backlog(world, tmp_path)
    names = backlog.seals(3)
    path = PATHS.segment(names[1])
    collector = collector_on(world)
    backlog.finishes("q", 0)
    with closing(Parties(world.zk, tmp_path).session("mallory")) as mallory:
        mallory.set_acl(path, owned_by("mallory"))
        collector.collect(["g"])
        assert path in collector._term.problems.current()
        mallory.set_acl(path, OPEN_ACL)

    backlog.finishes("q", backlog.czxid(names[2]))
    for _ in range(3):
        collector.collect(["g"])

    assert not backlog.left
    assert path not in collector._term.problems.current()
