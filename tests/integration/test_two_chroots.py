"""Two chroots of one ZooKeeper have a group and a region of the same names, and share the folders of their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.clients import fresh_chroot
from tests.support.memlog import MemoryLog
from tests.support.region import PATHS, Counting, CountingRegion, RegionBench
from tests.support.sealed import SealedGroup
from tests.support.slots import SESSION_MS, Later, SlotBench
from tests.support.wait import eventually
from tests.support.world import World, a_world
from zk_group.consumer.config import Subscription
from zk_group.consumer.errors import DrainFailed, ForeignFolder
from zk_group.consumer.sealing.segment_check import sweep
from zk_group.consumer.sealing.segment_files import MARKER, chroot_of, claim
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import Slot
from zk_group.coordinator.cli import main
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.znodes.records import Channel


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


@pytest.fixture
def bench(worlds: list[World], tmp_path: Path) -> Iterator[SlotBench]:
    """A slot of the first chroot that has sealed 100 records of each partition."""
    worlds[0].topic("t", 4)
    worlds[0].coordinator()
    with closing(SlotBench(worlds[0], tmp_path / "segments")) as made:
        made.post.keep(1)
        made.slot(0, most_failing_s=0.5)
        made.end(100)
        made.all_sealed(4, 100)
        yield made


def test_slot_in_a_folder_of_another_chroot_is_no_member(worlds: list[World], bench: SlotBench, tmp_path: Path) -> None:
    second, root = worlds[1], tmp_path / "segments"
    second.topic("t", 4)
    second.coordinator()
    before = files_in(root)
    config = SlotConfig(
        zk=second.zk, group="g", pool="p", log_dir="m", segments_dir=str(root), seal_interval_ms=20,
        session_timeout_ms=SESSION_MS,
    )  # fmt: skip
    spec = SlotSpec(config, Subscription({"t": 1}), 0, "run-2", "0")

    with pytest.raises(ForeignFolder) as refused:
        Slot(spec, MemoryLog(100), kazoo_factory(second.zk, SESSION_MS), ThreadRuntime()).run()

    assert str(refused.value).endswith(f"no other chroot uses the folder any more, remove {root}/g/{MARKER}")
    assert files_in(root) == before
    assert second.names(bench.paths.ids) == []
    bench.end(200)
    bench.all_sealed(4, 200)


def test_slot_whose_folder_is_taken_stops(
    worlds: list[World], bench: SlotBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zk_group.consumer.sealing.segment_files.CLAIM_AGAIN_S", 0.0)
    (first, second), root = worlds, tmp_path / "segments"
    (root / "g" / MARKER).unlink()
    claim(bench.folder, "g", chroot_of(second.store), "segments_dir")
    before = files_in(root)

    bench.end(200)

    eventually(lambda: 0 in bench.results, 20, "the slot has ended")
    ((slot, _),) = bench.running
    assert bench.results[0]["reason"] == f"sealing fails: {slot.sealer.problem}"
    assert "belongs to another chroot" in str(slot.sealer.problem)
    assert files_in(root) == before and set(first.offsets("g").values()) == {100}


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
def regions(worlds: list[World], tmp_path: Path) -> Iterator[list[CountingRegion]]:
    """One in each chroot, of member c1; only the first has large states, which are files of its checkpoint."""
    with ExitStack() as stack:
        found = [stack.enter_context(closing(RegionBench(world, Counting))) for world in worlds]
        for r in found:
            r.world.coordinator(checkpoints_kept=1)
            r.joins("c1", checkpoint_dir=str(tmp_path / "states"))
        found[0].members["c1"].padding = b"x" * 10_000
        found[0].checkpoint()
        yield found


def test_members_of_a_region_remove_no_states_of_another_chroot_and_say_so_once(
    regions: list[CountingRegion], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = regions
    states = [path for path in (tmp_path / "states" / "r").rglob("*.arrow")]
    for path in states:
        os.utime(path, (0, 0))

    while second.now.sequence < first.now.sequence + 4:
        second.checkpoint()
    eventually(lambda: "state file removal failed" in caplog.text, 20, "the sweep is refused")
    second.checkpoint()
    eventually(lambda: second.world.names(PATHS.checkpoints)[1:] == [], 20, "one is kept")

    assert states and [path for path in states if not path.exists()] == []
    (said,) = [text for record in caplog.records if "removal failed" in (text := record.getMessage())]
    assert f"reason=folder {tmp_path}/states/r belongs to another chroot" in said


def test_member_writes_no_state_into_another_chroots_folder(regions: list[CountingRegion], tmp_path: Path) -> None:
    first, second = regions
    before, member = files_in(tmp_path / "states"), second.members["c1"]
    member.padding = b"x" * 10_000

    second.asks("checkpoint")
    failed = eventually(lambda: next((e for e in member.errors if isinstance(e, DrainFailed)), None), 20, "it fails")

    assert f"ForeignFolder: folder {tmp_path}/states/r belongs to another chroot" in str(failed)
    assert str(failed).endswith(f"remove {tmp_path}/states/r/{MARKER}")
    assert files_in(tmp_path / "states") == before
    first.checkpoint()
