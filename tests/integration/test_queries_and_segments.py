"""`zk-coordinator queries` and `segments`: what they show, what they remove, and what they find damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from consumer.logs.base import LOG_SCHEMA
from coordinator.admin import health, segments
from coordinator.admin.groups import Reading
from coordinator.cli import main
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, Listing, Node, SetData, Store, Watch
from coordinator.zk.znodes.records import Channel, OffsetRecord
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.sealed import SealedGroup, batches
from tests.support.stores import FrontStore


@pytest.fixture
def group(zk: str, tmp_path: Path) -> Iterator[SealedGroup]:
    store = open_kazoo(zk, 4000)
    yield SealedGroup(store, tmp_path / "segments")
    store.close()


@pytest.fixture
def run(zk: str) -> Any:
    def run(*args: str) -> Result:
        return CliRunner().invoke(main, [*args, "--zk", zk])

    return run


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


# ---- queries list


def test_queries_are_listed_with_their_retained_segments(group: SealedGroup, run: Any) -> None:
    names = [group.seal(), group.seal(), group.seal(5)]
    group.query("behind", names[0])
    group.query("done", names[2])
    group.query("new", ephemeral=True)

    result = run("queries", "list", "g", "-o", "json")

    assert result.exit_code == 0
    sizes = [group.segment(name).size for name in names]
    found = {row["query"]: row for row in rows(result)}
    assert {name: (row["segments"], row["bytes"], row["lag"]) for name, row in found.items()} == {
        "behind": (2, sum(sizes[1:]), 15),
        "done": (0, 0, 0),
        "new": (3, sum(sizes), 25),
    }
    assert {row["state"] for row in found.values()} == {"active"}
    assert (found["behind"]["finished"], found["behind"]["paused"]) == (group.czxid(names[0]), None)


def test_a_query_is_silent_when_it_has_given_no_sign_of_life_for_three_minutes(
    group: SealedGroup, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.query("one")
    group.query("new", ephemeral=True)
    now_ms = ThreadRuntime().wall_ms()

    def state(ahead_s: int) -> list[str]:
        monkeypatch.setattr(ThreadRuntime, "wall_ms", lambda self: now_ms + 1000 * ahead_s)
        return [row["state"] for row in rows(run("queries", "list", "-o", "json"))]

    assert state(100) == ["active", "active"]
    assert state(200) == ["active", "silent"], "a session that lives is a sign of life"


def test_status_check_finds_a_silent_query_that_is_far_behind(
    group: SealedGroup, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "BEHIND_RECORDS", 20)
    monkeypatch.setattr(segments, "SILENT_AFTER_MS", 0)
    names = [group.seal(), group.seal(), group.seal()]
    group.query("near", names[1])

    def silent() -> list[str]:
        found = json.loads(run("status", "--check", "-o", "json").stdout)["findings"]
        return [item["message"] for item in found if item["check"] == "query-silent"]

    assert silent() == []
    group.query("far", names[0])
    (message,) = silent()
    assert "query far is silent for" in message and "holds back 20 records in 2 segments" in message
    assert "queries remove g far --execute" in message
    monkeypatch.setattr(segments, "SILENT_AFTER_MS", 60_000)
    assert silent() == []


class Counting(FrontStore):
    """Remembers each path that is read or listed."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.paths: list[str] = []

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        self.paths += paths
        return self.behind.get_many(paths, watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        self.paths += paths
        return self.behind.children_many(paths, watch)


def silent_then(group: SealedGroup) -> tuple[dict[str, int], list[str]]:
    """The segments that each silent query holds back, and what was read for it."""
    store = Counting(group.store)
    found = segments.silent_queries(Reading(store), "g", ThreadRuntime().wall_ms())
    return {str(one.query): one.segments for one in found}, [
        path.removeprefix(group.paths.root) for path in store.paths
    ]


def test_status_check_reads_only_segments_that_a_silent_query_may_hold_back(
    group: SealedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SILENT_AFTER_MS", 0)
    monkeypatch.setattr(segments, "READ_AT_ONCE", 2)
    names = [group.seal() for _ in range(8)]
    group.query("near", names[6])

    held, read = silent_then(group)
    assert held == {"near": 1}
    assert read == ["/queries", "/queries/near", "/segments", *(f"/segments/{name}" for name in names[6:]), "/segments"]

    monkeypatch.setattr(segments, "FAR_BEHIND_SEGMENTS", 3)
    group.query("far", names[0])
    held, read = silent_then(group)
    assert held == {"far": 3, "near": 1}
    assert {path for path in read if "segment-" in path} == {f"/segments/{name}" for name in names[5:]}


def test_an_expired_query_is_listed_as_such_and_holds_nothing_back(group: SealedGroup, run: Any) -> None:
    group.seal()
    group.query("old", expired_ms=1)

    (row,) = rows(run("queries", "list", "-o", "json"))

    assert (row["state"], row["segments"], row["bytes"], row["lag"]) == ("expired", 0, 0, 0)


def test_a_group_that_is_paused_without_a_query_is_listed_with_the_reason(group: SealedGroup, run: Any) -> None:
    group.seal()
    reason = "the backlog is full: 1 of at most 0 segments; no query reads the group"
    group.store.commit([SetData(group.paths.segments, SegmentsRecord(paused=reason).to_bytes())])

    (row,) = rows(run("queries", "list", "-o", "json"))
    table = run("queries", "list").stdout

    assert (row["group"], row["query"], row["segments"], row["paused"]) == ("g", None, 1, reason)
    assert table.rstrip().splitlines()[-3:] == ["Fetchers are paused:", "GROUP  REASON", f"g      {reason}"]


def test_unreadable_query_is_listed_and_reported(group: SealedGroup, run: Any) -> None:
    group.seal()
    group.store.commit([Create(group.paths.query("bad"), b"garbage")])

    result = run("queries", "list", "-o", "json")

    assert [(row["query"], row["state"], row["segments"]) for row in rows(result)] == [("bad", "unreadable", 1)]
    assert "queries/bad holds no JSON" in result.stderr


@pytest.mark.parametrize("command", [("queries", "list"), ("segments", "list"), ("segments", "verify")])
def test_missing_group_is_a_usage_error(group: SealedGroup, run: Any, command: list[str]) -> None:
    result = run(*command, "other")

    assert result.exit_code == 2
    assert result.stderr.strip() == "error: Consumer group 'other' does not exist."


# ---- queries remove


def test_dry_run_of_a_removal_lists_the_freed_segments_and_removes_nothing(group: SealedGroup, run: Any) -> None:
    names = [group.seal() for _ in range(4)]
    group.query("slow", names[0])
    group.query("fast", names[2])

    result = run("queries", "remove", "g", "slow", "-o", "json")

    (row,) = rows(result)
    assert (row["segments_freed"], row["removed"]) == (2, False)
    assert row["bytes_freed"] == sum(group.segment(name).size for name in names[1:3])
    assert "if it runs, it would fail with its next batch" in result.stderr
    assert "dry run, remove with --execute" in result.stderr
    assert group.store.get(group.paths.query("slow")) is not None


def test_a_query_is_removed_and_the_set_of_queries_is_another(group: SealedGroup, run: Any) -> None:
    group.query("slow")
    before = group.set_of_queries

    result = run("queries", "remove", "g", "slow", "--execute")

    assert result.exit_code == 0
    assert group.store.get(group.paths.query("slow")) is None
    assert group.set_of_queries == before + 1
    assert "no other query reads group g: no segments are collected until one does" in result.stderr


def test_removing_a_query_that_is_expired_frees_nothing_that_was_not_free(group: SealedGroup, run: Any) -> None:
    names = [group.seal(), group.seal()]
    group.query("old", expired_ms=1)
    group.query("fast", names[1])

    (row,) = rows(run("queries", "remove", "g", "old", "--execute", "-o", "json"))

    assert (row["segments_freed"], row["state"], row["removed"]) == (0, "expired", True)


@pytest.mark.parametrize(("name", "query"), [("g", "none"), ("other", "q")])
def test_removal_of_a_missing_query_is_a_usage_error(group: SealedGroup, run: Any, name: str, query: str) -> None:
    result = run("queries", "remove", name, query, "--execute")

    assert result.exit_code == 2
    assert "does not exist" in result.stderr and "Traceback" not in result.output


def test_a_query_is_removed_though_it_writes_at_the_same_moment(group: SealedGroup) -> None:
    group.query("busy")

    class Busy:
        """A store in front of which the query publishes just before the first commit."""

        is_first = True

        def __getattr__(self, name: str) -> Any:
            return getattr(group.store, name)

        def commit(self, operations: Any) -> list[str]:
            if self.is_first:
                self.is_first = False
                node = group.store.get(group.paths.query("busy"))
                assert node is not None
                group.store.commit([SetData(group.paths.query("busy"), node.data)])
            return group.store.commit(operations)

    segments.remove_query(Busy(), "g", "busy")  # type: ignore[arg-type]

    assert group.store.get(group.paths.query("busy")) is None


# ---- segments list


def test_segments_are_listed_in_the_order_of_their_seals_with_their_offsets(group: SealedGroup, run: Any) -> None:
    names = [group.seal(10), group.seal(5, partition=1), group.seal(3)]
    bad = group.store.commit([Create(group.paths.segment_prefix, b"garbage", sequential=True)])[0].rsplit("/", 1)[1]

    found = rows(run("segments", "list", "g", "-o", "json"))

    assert [row["segment"] for row in found] == [*names, bad]
    assert [row["ranges"] for row in found] == ["t-0:0-9", "t-1:0-4", "t-0:10-12", None]
    assert [row["rows"] for row in found] == [10, 5, 3, None]
    assert [row["czxid"] for row in found] == sorted(row["czxid"] for row in found)
    assert "holds no JSON" in found[3]["error"]


# ---- segments verify


@pytest.fixture
def whole(group: SealedGroup) -> list[str]:
    """Four segments of two partitions, which are whole."""
    return [group.seal(), group.seal(partition=1), group.seal(), group.seal()]


def verify(run: Any, *options: str) -> tuple[int, list[tuple[str, str | None, str | None]]]:
    """The exit code, and (kind, segment, file) of each finding."""
    result = run("segments", "verify", "g", "-o", "json", *options)
    assert "Traceback" not in result.output and result.exit_code in (0, 5), result.output
    return result.exit_code, [(row["kind"], row["segment"], row["file"]) for row in rows(result)]


def problem(run: Any) -> str:
    (row,) = rows(run("segments", "verify", "g", "-o", "json"))
    return str(row["problem"])


def test_segments_that_are_whole_are_found_whole(run: Any, whole: list[str]) -> None:
    assert verify(run) == (0, [])


def test_a_missing_file_is_found(group: SealedGroup, run: Any, whole: list[str]) -> None:
    group.path(whole[1]).unlink()

    assert verify(run) == (5, [("missing file", whole[1], group.segment(whole[1]).file)])


def test_a_file_of_another_size_is_found(group: SealedGroup, run: Any, whole: list[str]) -> None:
    path = group.path(whole[1])
    path.write_bytes(path.read_bytes()[:-1])

    assert verify(run) == (5, [("wrong size", whole[1], group.segment(whole[1]).file)])


def test_a_file_that_is_no_arrow_file_is_found(group: SealedGroup, run: Any, whole: list[str]) -> None:
    path = group.path(whole[1])
    path.write_bytes(b"x" * path.stat().st_size)

    assert verify(run) == (5, [("unreadable file", whole[1], group.segment(whole[1]).file)])


def test_a_flipped_bit_is_found_with_its_offsets(group: SealedGroup, run: Any, whole: list[str]) -> None:
    path = group.path(whole[2])
    path.write_bytes(path.read_bytes().replace(b"t-0-17", b"t-0-16"))

    assert verify(run) == (5, [("unreadable file", whole[2], group.segment(whole[2]).file)])
    assert re.search(r": t-0 offsets 10 to 19 are damaged, with CRC32C [0-9a-f]{8}, and [0-9a-f]{8} was", problem(run))


def test_segments_without_checksums_are_counted_and_whole(group: SealedGroup, run: Any, whole: list[str]) -> None:
    assert "checksums" not in run("segments", "verify", "g").output
    for name in whole[:2]:
        segment, sink = group.segment(name), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, LOG_SCHEMA) as writer:
            for batch in batches(segment.ranges[0].partition, segment.ranges[0].first, segment.rows):
                writer.write_batch(batch)
        group.path(name).write_bytes(sink.getvalue())
        changed = replace(segment, size=len(sink.getvalue()))
        group.store.commit([SetData(group.paths.segment(name), changed.to_bytes())])

    result = run("segments", "verify", "g")

    assert (result.exit_code, "4 segments, 0 problems" in result.output) == (0, True)
    assert "2 segments have no checksums: an earlier release sealed them" in result.output


def test_file_whose_row_count_differs_from_its_znode_is_found(group: SealedGroup, run: Any, whole: list[str]) -> None:
    segment = replace(group.segment(whole[1]), rows=11)
    group.store.commit([SetData(group.paths.segment(whole[1]), segment.to_bytes())])

    assert verify(run) == (5, [("unreadable file", whole[1], segment.file)])
    assert "1 records too few" in problem(run)


@pytest.mark.parametrize("url", ["fsspec+memory://x", "mock:///x", "S3://x?endpoint_override=127.0.0.1:1"])
def test_url_that_only_a_znode_names_is_not_opened(group: SealedGroup, run: Any, whole: list[str], url: str) -> None:
    segment = replace(group.segment(whole[1]), segments_dir=url)
    group.store.commit([SetData(group.paths.segment(whole[1]), segment.to_bytes())])

    result = run("segments", "verify", "g")

    assert (result.exit_code, "4 segments, 0 problems" in result.stderr) == (1, True)
    assert f"1 segments were not checked: znodes alone name '{url}': give --segments-dir" in result.stderr
    group.path(whole[2]).unlink()
    assert verify(run) == (5, [("missing file", whole[2], group.segment(whole[2]).file)])


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ([(0, 10, 10)], "it has offsets 10 to 19 of t-0, and should have 0 to 9"),
        ([(0, 0, 4), (0, 6, 4), (0, 0, 2)], "it has 8 of the offsets 0 to 9 of t-0, and should have each"),
        ([(0, 0, 9), (1, 0, 1)], "it has offsets 0 to 8 of t-0, and should have 0 to 9"),
        ([(1, 0, 10)], "it has no records of t-0, and should have offsets 0 to 9"),
        ([(0, 0, 10), (0, 3, 1)], "it has 1 records twice"),
        ([(0, 0, 10), (1, 5, 1)], "it has offsets 5 to 5 of t-1, and should have none"),
    ],
)
def test_file_whose_offsets_differ_from_its_znode_is_found(
    group: SealedGroup, run: Any, inside: list[tuple[int, int, int]], words: str
) -> None:
    segment = group.write(10)
    rows = sum(count for _, _, count in inside)
    size = group.folder.write(segment.file, [batch for part in inside for batch in batches(*part)])
    group.name(replace(segment, size=size, rows=rows))

    assert verify(run)[1][0][0] == "wrong offsets"
    assert words in problem(run)


def test_a_znode_that_cannot_be_read_is_found_and_the_rest_is_checked(
    group: SealedGroup, run: Any, whole: list[str]
) -> None:
    group.store.commit([SetData(group.paths.segment(whole[3]), b"garbage")])
    group.path(whole[1]).unlink()

    code, found = verify(run)

    assert code == 5
    assert [item[:2] for item in found] == [("unreadable znode", whole[3]), ("missing file", whole[1])]


def test_removed_segment_znode_is_found_by_its_number_and_offsets(
    group: SealedGroup, run: Any, whole: list[str]
) -> None:
    file = group.segment(whole[2]).file
    group.remove(whole[2])

    code, found = verify(run)

    assert code == 5
    assert found == [("missing znode", whole[2], None), ("gap", whole[3], None), ("not sealed yet", None, file)]


def test_ranges_that_overlap_are_found(group: SealedGroup, run: Any, whole: list[str]) -> None:
    name = group.seal(10, first=25)

    assert verify(run) == (5, [("overlap", name, None)])
    assert problem(run) == "offsets 25 to 29 of t-0 are in a segment before it too"


def test_missing_last_segment_is_found_by_the_groups_offset(group: SealedGroup, run: Any, whole: list[str]) -> None:
    parents = [
        Create(group.paths.offsets_of("t")),
        Create(group.paths.offset("t", 0), OffsetRecord(30, "id", 1).to_bytes()),
    ]
    group.store.commit(parents)
    assert verify(run) == (0, [])
    Path(group.folder.path(group.segment(whole[3]).file)).unlink()
    group.remove(whole[3])

    assert verify(run) == (5, [("gap", None, None)])
    assert problem(run) == "the group's offset of t-0 is 30, but no segment contains 20 and later"


def test_verify_accepts_a_recreated_topic_that_starts_over(group: SealedGroup, run: Any, whole: list[str]) -> None:
    segment = group.write(10, first=0)
    group.name(replace(segment, ranges=tuple(part._replace(topic_id="other") for part in segment.ranges)))

    assert verify(run) == (0, [])


def test_files_that_nothing_names_are_left_over_and_no_damage(group: SealedGroup, run: Any, whole: list[str]) -> None:
    waiting = group.write().file
    dead = "g/c/dead-0000000001.arrow"
    unknown = "g/missing/abc-0000000001.arrow"
    half = "g/c/.tmp-dead-0000000002.arrow"
    for file in (dead, unknown, half):
        path = Path(group.folder.path(file))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")

    code, found = verify(run)

    assert code == 0
    assert sorted(found, key=str) == sorted(
        [("orphan", None, dead), ("orphan", None, unknown), ("orphan", None, half), ("not sealed yet", None, waiting)],
        key=str,
    )


def test_a_file_that_a_living_fetcher_has_passed_is_an_orphan(group: SealedGroup, run: Any, whole: list[str]) -> None:
    passed, last = group.write().file, group.segment(group.seal()).file
    group.channel(Channel(incarnation="abc", sealed=last))

    assert ("orphan", None, passed) in verify(run)[1]


def test_segments_are_found_where_this_machine_sees_them(
    group: SealedGroup, run: Any, whole: list[str], tmp_path: Path
) -> None:
    (tmp_path / "segments").rename(tmp_path / "moved")

    assert [kind for kind, _, _ in verify(run)[1]] == ["missing file"] * 4
    assert verify(run, "--segments-dir", str(tmp_path / "moved")) == (0, [])


def test_group_without_segments_is_not_found_whole(group: SealedGroup, run: Any, tmp_path: Path) -> None:
    group.query("q")
    unknown = run("segments", "verify", "g")
    (tmp_path / "segments").mkdir(exist_ok=True)
    given = run("segments", "verify", "g", "--segments-dir", str(tmp_path / "segments"))

    assert unknown.exit_code == 1
    assert "no segment names the folder of the files: give --segments-dir to check it" in unknown.stderr
    assert (given.exit_code, given.stderr.splitlines()[-1]) == (0, "0 segments, 0 problems, 0 files left over")


def test_unreadable_segments_folder_is_a_usage_error(group: SealedGroup, run: Any, whole: list[str]) -> None:
    result = run("segments", "verify", "g", "--segments-dir", "nonsense://there")

    assert result.exit_code == 2
    assert "is no folder for segments" in result.stderr
