"""A query goes back to a checkpoint with its znode and its Spark checkpoint, or nothing of both has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cuts import HandMadeRegion
from tests.support.ran_query import Ran
from tests.support.sealed import SealedGroup
from tests.support.wait import Ahead
from tests.support.world import a_world
from zk_group.consumer.errors import SegmentError
from zk_group.consumer.streaming.source.query_znode import QueryRewound, QueryTakenOver
from zk_group.consumer.streaming.source.rewind import PROVIDER, CheckpointFiles, NotRewindable, Rewinder, Rewound
from zk_group.consumer.streaming.source.segment_index import SourceOffset
from zk_group.coordinator.zk.errors import BadData, CoordinatorError, StoreError, UsageError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.segments import Rewind


@pytest.fixture
def ran(zk: str, tmp_path: Path) -> Iterator[Ran]:
    with a_world(zk) as world:
        group = SealedGroup(world.store, tmp_path / "segments")
        made = Ran(world, group, HandMadeRegion(world.store), tmp_path / "spark")
        yield made
        made.close()


def test_znode_and_files_are_rewound_and_the_next_run_repeats_later_batches(ran: Ran) -> None:
    assert ran.at == {1: 1, 2: 3, 3: 5}
    before, data = ran.files, ran.world.data(ran.group.paths.query("q"))
    assert ran.rewinder().to(1) == Rewound(1, 5, 16)
    assert (ran.files, ran.world.data(ran.group.paths.query("q"))) == (before, data), "a dry run changes nothing"
    queries = ran.group.set_of_queries

    assert ran.rewinder().to(1, execute=True) == Rewound(1, 5, 16)

    left = {name for name in before - ran.files if not name.endswith(".crc")}
    assert len(left) == 16 and not [name for name in ran.files if name.endswith((".crc", "6.delta")) and "6" in name]
    assert {int(name.rsplit("/", 1)[1]) for name in ran.files if name.startswith("offsets/") and "." not in name} == {
        0,
        1,
    }
    assert (ran.query.finished, ran.query.rewind) == (ran.ends[1].czxid, Rewind(1, ran.ends[1].czxid, True))
    assert ran.group.set_of_queries == queries + 1, "no earlier decision to collect is carried out after it"
    repeated = ran.ends[2:]
    del ran.ends[2:]
    ran.read(ran.planned(), ran.ends[1])
    assert ran.ends[2:] == repeated and ran.query.rewind is None
    assert ran.rewinder().to(3) == Rewound(5, 5, 0)


def test_run_with_the_files_of_before_and_the_earlier_run_are_both_fenced(ran: Ran) -> None:
    late, named = ran.planned(), ran.planned()
    ran.rewinder().to(2, execute=True)

    with pytest.raises(QueryTakenOver):
        ran.planner._patiently(lambda store: ran.planner._begin(store, "q", ran.ends[5], False)._own(store))
    for start in (ran.ends[5], ran.ends[4], ran.ends[1]):
        with pytest.raises(QueryRewound, match="is rewound, and this run begins elsewhere"):
            late.latest(start)
        with pytest.raises(QueryRewound):
            named.plan(start, ran.ends[5])
    asked_first = ran.planned()
    asked_first.initial()  # Spark asks this of a query that has a Spark checkpoint, too
    assert ran.query.rewind == Rewind(2, ran.ends[3].czxid, True)
    with pytest.raises(QueryRewound):
        asked_first.latest(ran.ends[5])
    assert ran.query.rewind is not None
    again = ran.planned()
    again.initial()
    assert again.latest(ran.ends[3], 10) == ran.ends[4]
    assert (ran.query.rewind, ran.query.finished) == (None, ran.ends[3].czxid)


def test_half_finished_rewind_blocks_the_query_and_is_repeated(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CheckpointFiles.remove

    def some(self: CheckpointFiles, files: list[str]) -> None:
        whole(self, files[:-3])
        raise OSError("the disk is away")

    monkeypatch.setattr(CheckpointFiles, "remove", some)
    with pytest.raises(OSError, match="the disk is away"):
        ran.rewinder().to(1, execute=True)
    monkeypatch.setattr(CheckpointFiles, "remove", whole)

    assert not any("delta" in name and name.split("/")[-1] > "3" for name in ran.files if not name.endswith(".crc"))
    assert {"offsets/3", "offsets/2", "commits/2"} <= ran.files and "commits/3" not in ran.files
    for start in (ran.ends[1], ran.ends[2], ran.ends[5]):
        with pytest.raises(QueryRewound, match="which has not ended"):
            ran.planned().latest(start)
    with pytest.raises(QueryRewound, match="which has not ended"):
        ran.planned().initial()

    assert ran.rewinder(has_ended=False).to(1, execute=True) == Rewound(1, 3, 3)

    assert ran.planned().latest(ran.ends[1], 10) == ran.ends[2]


def test_query_with_a_recent_heartbeat_is_not_rewound_unless_declared_stopped(ran: Ran) -> None:
    before = ran.files

    with pytest.raises(UsageError, match=r"sent a heartbeat [0-9] s ago: stop it, and confirm with --stopped"):
        ran.rewinder(has_ended=False).to(1, execute=True)

    assert ran.files == before and ran.query.rewind is None
    silent = Rewinder(ran.world.store, Ahead(240.0), "g", "q", str(ran.folder))  # no heartbeat for four minutes
    assert silent.to(1, execute=True).batch == 1


def test_batch_ends_at_any_of_several_checkpoints_with_nothing_between_them(ran: Ran) -> None:
    same = [ran.region.cut(), ran.region.cut()]
    ran.names += [ran.group.seal(), ran.group.seal()]
    spanned = ran.region.cut()
    ran.names += [ran.group.seal()]
    planner = ran.planned()
    ran.read(planner, ran.ends[-1])
    assert [end.checkpoint for end in ran.ends[4:]] == [0, 3, same[1], 0, spanned, 0]

    assert [ran.rewinder().to(number).batch for number in (3, *same, spanned)] == [6, 6, 6, 8]
    for number in (7, 8):
        (ran.folder / f"commits/{number}").unlink()
    with pytest.raises(NotRewindable, match=f"no batch of query q that Spark retains ended at checkpoint {spanned}"):
        ran.rewinder().to(spanned)


def test_rewind_to_a_batch_with_collected_segments_is_refused(ran: Ran) -> None:
    ran.group.collect(ran.names[:3])

    with pytest.raises(
        NotRewindable, match=f"segments after {ran.names[1]}, up to which Spark has read there, were collected"
    ):
        ran.rewinder().to(1)
    assert ran.rewinder().to(2).batch == 3


def writes(name: str, data: bytes) -> Callable[[Ran], object]:
    return lambda ran: (ran.folder / name).write_bytes(data)


def changes(name: str, change: Callable[[str], str]) -> Callable[[Ran], object]:
    return lambda ran: (ran.folder / name).write_text(change((ran.folder / name).read_text()))


def purged(ran: Ran) -> None:
    for number in (0, 1):
        (ran.folder / f"commits/{number}").unlink()


IMPOSSIBLE: list[tuple[Callable[[Ran], object], type[CoordinatorError], str]] = [
    (lambda ran: ran.region.retire(1), SegmentError, "no complete checkpoint 1, any more or yet; there are: 2, 3"),
    (purged, NotRewindable, "Spark retains no batch of query q from before the checkpoint"),
    (
        lambda ran: (ran.folder / "state/0/1/1.delta").unlink(),
        NotRewindable,
        "the state after batch 1 is not retained in .*/state/0/1",
    ),
    (
        lambda ran: ran.wrote(1, ran.ends[1], {PROVIDER: "com.example.Rows"}),
        NotRewindable,
        "'Rows', which does not support a rewind",
    ),
    (changes("offsets/5", lambda text: text + "\n{}"), NotRewindable, "the query has 2 sources"),
    (changes("offsets/5", lambda text: "v2" + text[2:]), NotRewindable, "is of version 'v2', and only v1 is known"),
    (lambda ran: ran.wrote(5, SourceOffset(1, 1, "p")), UsageError, "is of query p, and not of q"),
    (writes("offsets/5", b"v1\n{}\n["), BadData, "offsets/5 cannot be read"),
    (writes("offsets/5", b"x" * ((16 << 20) + 1)), BadData, "has 16777217 bytes, over 16777216"),
]


@pytest.mark.parametrize(("spoil", "error", "reason"), IMPOSSIBLE, ids=[reason for _, _, reason in IMPOSSIBLE])
def test_impossible_rewind_is_refused_and_changes_nothing(
    ran: Ran, spoil: Callable[[Ran], object], error: type[CoordinatorError], reason: str
) -> None:
    spoil(ran)
    before, data = ran.files, ran.world.data(ran.group.paths.query("q"))

    with pytest.raises(error, match=reason):
        ran.rewinder().to(1, execute=True)

    assert (ran.files, ran.world.data(ran.group.paths.query("q"))) == (before, data)


def test_snapshot_replaces_the_deltas_before_it(ran: Ran) -> None:
    (ran.folder / "state/0/1/1.delta").unlink()
    ran.file("state/0/1/2.snapshot", "x")
    ran.file("state/0/1/5.snapshot", "x")

    ran.rewinder().to(1, execute=True)

    assert {"state/0/1/2.snapshot", "state/0/1/2.delta"} <= ran.files and "state/0/1/5.snapshot" not in ran.files


def test_removed_query_is_rewound_too_and_an_invalid_folder_is_refused(ran: Ran, tmp_path: Path) -> None:
    ran.world.remove(ran.group.paths.query("q"))

    assert ran.rewinder(has_ended=False).to(2, execute=True).batch == 3

    assert ran.query.finished == ran.ends[3].czxid
    for place in (str(tmp_path / "nothing"), "nowhere://x"):
        with pytest.raises(UsageError, match="is no Spark checkpoint"):
            Rewinder(ran.world.store, ThreadRuntime(), "g", "q", place)


@pytest.mark.parametrize("what", ["removed", "rewound once more"])
def test_change_of_a_query_during_its_rewind_is_reported(ran: Ran, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    whole = CheckpointFiles.remove

    def and_then(self: CheckpointFiles, files: list[str]) -> None:
        whole(self, files)
        if what == "removed":
            ran.world.remove(ran.group.paths.query("q"))
        else:
            ran.rewinder(has_ended=False)._fence(ran.ends[3])

    monkeypatch.setattr(CheckpointFiles, "remove", and_then)
    with pytest.raises(StoreError, match="was removed, or rewound once more, meanwhile"):
        ran.rewinder().to(1, execute=True)
