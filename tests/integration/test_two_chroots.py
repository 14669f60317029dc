"""Two chroots of one ZooKeeper have a group and a region of the same names, and share the folders of their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumer.config import Subscription
from consumer.errors import DrainFailed, ForeignFolder
from consumer.sealing.segment_check import sweep
from consumer.sealing.segment_files import MARKER, chroot_of, claim
from consumer.spark.fetchers.config import SlotConfig, SlotSpec
from consumer.spark.fetchers.slot import Slot
from coordinator.cli import main
from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Create
from coordinator.zk.znodes.records import Channel
from coordinator.zk.znodes.regions import RegionRequest
from tests.support.clients import fresh_chroot
from tests.support.memlog import MemoryLog
from tests.support.region import PATHS, Counting, checkpoint, region, running
from tests.support.sealed import SealedGroup
from tests.support.slots import SESSION_MS, Later, SlotBench
from tests.support.wait import eventually
from tests.support.world import World, a_world


@pytest.fixture
def worlds(zookeeper: Ensemble) -> Iterator[list[World]]:
    with ExitStack() as stack:
        yield [stack.enter_context(a_world(fresh_chroot(zookeeper.hosts))) for _ in range(2)]


@pytest.fixture
def groups(worlds: list[World], tmp_path: Path) -> list[SealedGroup]:
    """The same group in both, whose files are in one folder, and whose consumer has ended in the second."""
    first, second = (SealedGroup(world.store, tmp_path / "segments") for world in worlds)
    second.channel(Channel(incarnation="abd", ended="left"))
    return [first, second]


def files_in(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


# ---- segments


def test_a_sweep_leaves_the_files_of_another_chroot(groups: list[SealedGroup]) -> None:
    first, second = groups
    sealed = first.path(first.seal())
    claim(first.folder, "g", chroot_of(first.store), "segments_dir")

    with pytest.raises(ForeignFolder, match="belongs to another chroot, whose /consumers has cZxid 0x"):
        sweep(second.store, Later(), second.folder, "g")

    assert sealed.exists()
    name = first.seal()
    orphan = first.path(name)
    first.remove(name)
    first.channel(Channel(incarnation="abc", ended="left"))
    assert sweep(first.store, Later(), first.folder, "g") == 1, "its own sweep goes on"
    assert (sealed.exists(), orphan.exists()) == (True, False)


def test_a_sweep_claims_a_folder_without_a_marker(groups: list[SealedGroup]) -> None:
    first, second = groups
    second.write()  # of an earlier release

    assert sweep(second.store, Later(), second.folder, "g") == 1

    with pytest.raises(ForeignFolder):
        claim(first.folder, "g", chroot_of(first.store), "segments_dir")


def test_a_slot_in_a_folder_of_another_chroot_says_so_and_is_no_member(worlds: list[World], tmp_path: Path) -> None:
    first, second = worlds
    bench, root = SlotBench(first, tmp_path / "segments"), tmp_path / "segments"
    try:
        for world in worlds:
            world.topic("t", 4)
            world.coordinator()
        bench.post.keep(1)
        bench.slot(0)
        bench.end(100)
        bench.all_sealed(4, 100)
        before = files_in(root)

        with pytest.raises(ForeignFolder) as refused:
            other_slot(second, root).run()

        assert str(refused.value).endswith(f"no other chroot uses the folder any more, remove {root}/g/{MARKER}")
        assert files_in(root) == before
        assert second.names(bench.paths.ids) == []
        bench.end(200)
        bench.all_sealed(4, 200)
    finally:
        bench.close()


def other_slot(world: World, root: Path) -> Slot:
    config = SlotConfig(
        zk=world.zk, group="g", pool="p", log_dir="m", segments_dir=str(root), seal_interval_ms=20,
        session_timeout_ms=SESSION_MS,
    )  # fmt: skip
    spec = SlotSpec(config, Subscription({"t": 1}), 0, "run-2", "0")
    return Slot(spec, MemoryLog(100), kazoo_factory(world.zk, SESSION_MS), ThreadRuntime())


def test_a_slot_whose_folder_was_taken_over_stops_sealing(
    worlds: list[World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumer.sealing.segment_files.CLAIM_AGAIN_S", 0.0)
    first, second = worlds
    bench, root = SlotBench(first, tmp_path / "segments"), tmp_path / "segments"
    try:
        first.topic("t", 4)
        first.coordinator()
        bench.post.keep(1)
        slot = bench.slot(0, most_failing_s=0.5)
        bench.end(100)
        bench.all_sealed(4, 100)
        (root / "g" / MARKER).unlink()
        claim(bench.folder, "g", chroot_of(second.store), "segments_dir")
        before = files_in(root)

        bench.end(200)

        eventually(lambda: 0 in bench.results, 20, "the slot has ended")
        assert bench.results[0]["reason"] == f"sealing fails: {slot.sealer.problem}"
        assert "belongs to another chroot" in str(slot.sealer.problem)
        assert files_in(root) == before and set(first.offsets("g").values()) == {100}
    finally:
        bench.close()


def test_verify_calls_no_file_of_another_chroot_an_orphan(groups: list[SealedGroup], worlds: list[World]) -> None:
    first, second = groups
    waiting = first.write().file
    second._number = 100
    second.seal()
    claim(first.folder, "g", chroot_of(first.store), "segments_dir")

    given = ["--segments-dir", first.folder.url]
    own, other = (CliRunner().invoke(main, ["segments", "verify", "g", "--zk", world.zk, *given]) for world in worlds)

    assert (own.exit_code, waiting in own.stdout) == (0, True)
    assert (other.exit_code, waiting in other.stdout) == (1, False)
    why = f"folder {second.folder.path('g')} belongs to another chroot"
    assert f"files without a segment were not checked: {why}" in other.stderr


# ---- states of a region


@pytest.fixture
def members(worlds: list[World], tmp_path: Path) -> Iterator[list[Counting]]:
    """A member of the region in each chroot; only the first has large states, which are files of its checkpoint."""
    with ExitStack() as stack:
        found = []
        for world, padding in zip(worlds, (b"x" * 10_000, b""), strict=True):
            world.coordinator(checkpoints_kept=1)
            world.topic("t", 4)
            member = Counting(world, "c1", MemoryLog(50), checkpoint_dir=str(tmp_path / "states"))
            stack.callback(member.close)
            member.padding = padding
            running(world)
            found.append(member)
        checkpoint(worlds[0])
        yield found


def test_members_of_a_region_remove_no_states_of_another_chroot_and_say_so_once(
    worlds: list[World], members: list[Counting], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = [path for path in (tmp_path / "states" / "r").rglob("*.arrow")]
    for path in states:
        os.utime(path, (0, 0))

    while region(worlds[1]).sequence < region(worlds[0]).sequence + 4:
        checkpoint(worlds[1])
    eventually(lambda: "state file removal failed" in caplog.text, 20, "the sweep is refused")
    checkpoint(worlds[1])
    eventually(lambda: worlds[1].names(PATHS.checkpoints)[1:] == [], 20, "one is kept")

    assert states and [path for path in states if not path.exists()] == []
    (said,) = [text for record in caplog.records if "removal failed" in (text := record.getMessage())]
    assert f"reason=folder {tmp_path}/states/r belongs to another chroot" in said


def test_a_member_writes_no_state_into_the_folder_of_another_chroot(
    worlds: list[World], members: list[Counting], tmp_path: Path
) -> None:
    before = files_in(tmp_path / "states")
    members[1].padding = b"x" * 10_000

    worlds[1].store.commit([Create(PATHS.request, RegionRequest("checkpoint", "a test").to_bytes())])
    failed = eventually(
        lambda: next((error for error in members[1].errors if isinstance(error, DrainFailed)), None), 20, "it fails"
    )

    assert f"ForeignFolder: folder {tmp_path}/states/r belongs to another chroot" in str(failed)
    assert str(failed).endswith(f"remove {tmp_path}/states/r/{MARKER}")
    assert files_in(tmp_path / "states") == before
    checkpoint(worlds[0])
