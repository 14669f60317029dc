"""Groups that leave a consistent region, and what is removed of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from consumer.config import ConsumerConfig
from consumer.consumer import Callbacks
from consumer.membership.call_guard import MemberContext
from consumer.operator.region import RegionMember
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.security.policy import CREATE, READ, WORLD
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import AclEntry, Create, Delete, Node, Operation, Store, Watch
from coordinator.zk.update import ensure
from coordinator.zk.wire import OPEN_ACL
from coordinator.zk.znodes.group_state import FAILED
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel, OffsetRecord
from coordinator.zk.znodes.regions import CHECKPOINT, COMPLETED, RESET, RegionRequest
from tests.support.cli import run, run_json, run_ok
from tests.support.memlog import MemoryLog
from tests.support.parties import Parties, owned_by
from tests.support.region import PATHS, Counting, checkpoint, contributions, exact, region, running
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import World

GROUP = GroupPaths("g")
OTHER = GroupPaths("h")


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(end=40)


def emptied(world: World, *groups: str) -> None:
    for group in groups:
        eventually(lambda group=group: world.state(group).state == "Empty", 15, f"{group} is Empty")


def offset(world: World, paths: GroupPaths, partition: int) -> int:
    path = paths.offset("t", partition)
    return OffsetRecord.parse(path, world.data(path) or b"").offset


def test_empty_group_removed_from_its_region_resumes_at_the_checkpoint_stateless(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one, other = counting("c1"), counting("o1", group="h")
    eventually(lambda: region(world).groups == ("g", "h"), 10, "both groups are bound")
    running(world)
    exact(log, 2, one)
    exact(log, 2, other)
    cut = checkpoint(world)
    topic_id = contributions(world, cut)["h~o1"].topics["t"]
    refused = run(world.zk, "regions", "remove-group", "r", "h")
    assert refused.exit_code != 0 and "group h stays in region r: consumer o1 is registered" in refused.output
    other.vanish()
    emptied(world, "h")
    running(world, above=region(world).reset - 1)
    world.put(OTHER.offset("t", 0), OffsetRecord(7, topic_id, 0).to_bytes())

    run_ok(world.zk, "regions", "remove-group", "r", "h")

    assert region(world).groups == ("g",) and world.state("h").region is None
    assert [offset(world, OTHER, number) for number in (0, 1)] == [40, 40]
    later = checkpoint(world)
    assert later > cut and set(contributions(world, later)) == {"g~c1"}
    log.end = 50
    before = region(world).reset
    again = counting("o1", group="h")
    running(world, above=before)
    eventually(lambda: dict(again.by_key) == {"t-0": 10, "t-1": 10}, 20, "it starts again at the checkpoint's offsets")
    assert again.resets == [region(world).sequence]
    exact(log, 2, one)
    refused = run(world.zk, "regions", "remove-group", "r", "missing")
    assert refused.exit_code == 2 and "is not bound to consistent region r" in refused.output


def test_region_without_groups_is_removed_and_its_last_group_runs_without_one(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator(sweep_interval_ms=300)
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    checkpoint(world)
    one.close()
    emptied(world, "g")

    (removed,) = run_json(world.zk, "regions", "remove-group", "r", "g")

    assert removed["groups"] is None
    eventually(lambda: world.data(PATHS.root) is None, 15, "the region is removed")
    log.end = 60
    world.consumer("g", "p1", {"t": 1})
    world.stable("g", 1)
    assert world.state("g").region is None


def test_deleted_group_leaves_nothing_in_its_region_for_a_group_of_the_same_name(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one, other = counting("c1"), counting("o1", group="h")
    eventually(lambda: region(world).groups == ("g", "h"), 10, "both groups are bound")
    running(world)
    exact(log, 2, other)
    cut = checkpoint(world)
    topic_id = contributions(world, cut)["h~o1"].topics["t"]
    other.vanish()
    emptied(world, "h")

    run_ok(world.zk, "groups", "delete", "h")

    assert region(world).groups == ("g",)
    assert "h~o1" in contributions(world, cut), "it goes with the checkpoint"
    world.put(PATHS.initial_offset("h", "t", 1), OffsetRecord(33, topic_id, 0).to_bytes())
    before = region(world).reset
    again = counting("o1", group="h")
    running(world, above=before)
    exact(log, 2, again)
    exact(log, 2, one)


def aged(folder: Path) -> None:
    """Every file in `folder` is older than the age from which a sweep removes it."""
    for file in folder.rglob("*.arrow"):
        os.utime(file, (1, 1))


def test_members_remove_state_files_of_retired_checkpoints_and_no_others(
    world: World, log: MemoryLog, counting: Callable[..., Counting], tmp_path: Path
) -> None:
    world.coordinator(checkpoints_kept=1)
    world.topic("t", 2)
    one = counting("c1", group="g", checkpoint_dir=str(tmp_path))
    gone = counting("a1", group="a", checkpoint_dir=str(tmp_path))
    small = counting("b1", group="b")  # its states are in znodes: it does not know the folder
    one.padding = gone.padding = b"x" * 5000
    eventually(lambda: region(world).groups == ("a", "b", "g"), 10, "all groups are bound")
    running(world)
    exact(log, 2, one)
    exact(log, 2, gone)
    exact(log, 2, small)
    copied = checkpoint(world)
    before = region(world).reset
    gone.vanish()
    running(world, above=before)
    young, old = checkpoint(world), checkpoint(world)
    aged(tmp_path / "r" / f"{copied:010d}")
    aged(tmp_path / "r" / f"{old:010d}")

    last = checkpoint(world)
    eventually(lambda: world.names(PATHS.checkpoints) == [PATHS.checkpoint(last).rsplit("/", 1)[1]], 15, "one is kept")
    last = checkpoint(world)

    def look() -> None:
        left = {int(path.name) for path in (tmp_path / "r").iterdir() if path.is_dir()}
        assert old not in left and {copied, young, last} <= left, left

    eventually(lambda: look() or True, 15, "the old one's files are removed")
    back = counting("a1", group="a", checkpoint_dir=str(tmp_path))
    log.end = 50
    exact(log, 2, back)
    exact(log, 2, one)


def test_old_checkpoint_that_is_closed_does_not_hinder_the_next_ones(
    world: World, log: MemoryLog, counting: Callable[..., Counting], tmp_path: Path
) -> None:
    service = world.coordinator(checkpoints_kept=2)
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    old = PATHS.checkpoint(checkpoint(world))
    checkpoint(world)
    with closing(Parties(world.zk, tmp_path).session("mallory")) as mallory:
        mallory.set_acl(old, owned_by("mallory"))

        checkpoint(world)
        log.end += 10
        checkpoint(world)

        exact(log, 2, one)
        eventually(lambda: any("ACL" in each for each in service.problems.current().values()), 10, "it is reported")
        mallory.set_acl(old, OPEN_ACL)
    last = [PATHS.checkpoint(checkpoint(world)).rsplit("/", 1)[1] for _ in range(2)]
    eventually(lambda: world.names(PATHS.checkpoints) == last, 15, "the old ones are removed")
    assert not service.problems.current()


def test_region_that_may_not_be_written_is_tried_again_only_after_a_while(
    world: World, log: MemoryLog, counting: Callable[..., Counting], caplog: pytest.LogCaptureFixture
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    with closing(open_kazoo(world.zk, 10_000)) as mallory:
        mallory.set_acl(PATHS.root, (AclEntry(READ | CREATE, WORLD),))

    with caplog.at_level(logging.INFO, "coordinator"):
        world.store.commit([Create(PATHS.request, RegionRequest("checkpoint", "a test").to_bytes())])
        eventually(lambda: "region turn deferred" in caplog.text, 10, "it was tried")
        two = counting("c2")  # a change of its group requests the region's turn, too
        log.end += 10
        exact(log, 2, one, two)

    assert caplog.text.count("region turn deferred") == 1
    assert "the ACL of /consumers/regions/r, or of its parent" in caplog.text
    assert "region turn restarted" not in caplog.text


def test_unreadable_copied_contribution_aborts_a_checkpoint_and_counts_continue(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one, gone = counting("c1"), counting("o1", group="h")
    eventually(lambda: region(world).groups == ("g", "h"), 10, "both groups are bound")
    running(world)
    exact(log, 2, one)
    first = checkpoint(world)
    before = region(world).reset
    gone.vanish()
    running(world, above=before)
    world.put(PATHS.contribution(first, "h", "o1"), b"{")

    run_ok(world.zk, "regions", "checkpoint", "r")

    def reason() -> str:
        newest = run_json(world.zk, "regions", "history", "r")[-1]
        assert newest["state"] == "aborted", newest
        return str(newest["reason"])

    assert "the checkpoint before it cannot be read" in eventually(reason, 15, "it is aborted")
    log.end = 60
    exact(log, 2, one)


def test_checkpoints_continue_without_a_static_member_that_returns_to_its_state(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    running(world)
    exact(log, 4, one)
    two = counting("s", group_instance_id="s", session_timeout_ms=20_000)
    world.stable("g", 2)
    running(world, above=region(world).reset - 1)
    log.end = 50
    exact(log, 4, one, two)
    checkpoint(world)
    log.end = 60
    exact(log, 4, one, two)
    two._stop.set()
    two.thread.join(10)
    two.consumer.close(save=False)
    eventually(lambda: (bound := world.state("g").region) and bound.away == ("s",), 15, "its seat is kept")

    second = checkpoint(world)

    given = contributions(world, second)
    assert set(given) == {"g~c1", "g~s"}
    assert set(given["g~s"].offsets.values()) == {50} and set(given["g~c1"].offsets.values()) == {60}
    before, generation = region(world).reset, world.state("g").generation
    again = counting("s", group_instance_id="s")
    running(world, above=before)
    exact(log, 4, one, again)
    assert world.state("g").generation == generation, "its seat kept its partitions"
    third = checkpoint(world)
    assert set(contributions(world, third)["g~s"].offsets.values()) == {60}


@pytest.mark.parametrize("options", [{}, {"assignment": "client"}], ids=["coordinator", "client"])
def test_seat_that_expires_after_a_clean_leave_costs_the_others_no_work(
    world: World, log: MemoryLog, counting: Callable[..., Counting], options: dict[str, Any]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1", **options)
    running(world)
    two = counting("s", group_instance_id="s", **options)
    world.stable("g", 2)
    running(world, above=region(world).reset - 1)
    exact(log, 4, one, two)
    two.close()
    eventually(lambda: (bound := world.state("g").region) and bound.away == ("s",), 15, "its seat is kept")
    before, held = region(world).reset, len(one.by_partition)
    log.end = 60
    eventually(lambda: list(one.by_partition.values()) == [60] * held, 15, "the other one counts")
    assert region(world).reset == before, "the seat has not expired yet"

    after = running(world, above=before)

    assert set(contributions(world, after.sequence)["g~c1"].offsets.values()) == {60}
    assert set(world.state("g").target) == {"c1"}
    exact(log, 4, one)


@pytest.mark.parametrize("stray", ["completed", "aborted"])
def test_end_znode_made_by_hand_below_an_open_checkpoint_aborts_it(
    world: World, log: MemoryLog, counting: Callable[..., Counting], stray: str
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    one.drain_s = 0.5
    run_ok(world.zk, "regions", "checkpoint", "r")
    number = eventually(lambda: region(world).open, 10, "a checkpoint is open")
    world.put(PATHS.end(number, stray), b"")

    eventually(lambda: not region(world).open, 15, "it has ended")

    assert region(world).sequence == 0
    ends = set(world.names(PATHS.checkpoint(number))) - {"g~c1"}
    assert ends == {"aborted"}
    log.end = 50
    exact(log, 2, one)
    one.drain_s = 0.0
    assert checkpoint(world) == number + 1
    exact(log, 2, one)


@pytest.mark.parametrize("is_removed", [False, True], ids=["damaged", "removed"])
def test_damaged_contribution_is_reported_until_a_reset_to_another_checkpoint(
    world: World, log: MemoryLog, counting: Callable[..., Counting], is_removed: bool
) -> None:
    world.coordinator(max_rebalance_retries=1)
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    first = checkpoint(world)
    log.end = 60
    exact(log, 2, one)
    path = f"{PATHS.checkpoint(checkpoint(world))}/g~c1"
    if is_removed:
        world.remove(path)
    else:
        world.put(path, b"no contribution")
    before = region(world).reset

    one.vanish()
    two = counting("c2")

    failed = eventually(lambda: (now := world.state("g")).state == FAILED and now, 30, "the state is Failed")
    assert path in (failed.reason or "") and "regions reset r --to NUMBER" in (failed.reason or "")
    run_ok(world.zk, "regions", "reset", "r", "--to", str(first), "--execute")
    running(world, above=before)
    exact(log, 2, two)
    assert two.resets[-1] == first


def test_checkpoint_does_not_begin_while_a_group_cannot_take_part_with_the_reason(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    coordinator = world.coordinator()
    world.topic("t", 2)
    one, other = counting("c1"), counting("o1", group="h")
    eventually(lambda: region(world).groups == ("g", "h"), 10, "both groups are bound")
    running(world)
    exact(log, 2, one)
    exact(log, 2, other)
    path = PATHS.contribution(checkpoint(world), "h", "o1")
    given = world.data(path) or b""
    world.put(path, b"no contribution")
    world.stop_coordinator(coordinator)
    fast = {"checkpoint_interval_ms": 300, "drain_timeout_ms": 600, "sweep_interval_ms": 300}
    world.elected(world.coordinator(max_rebalance_retries=1, **fast))
    eventually(lambda: world.state("h").state == FAILED, 30, "the group's turns fail")
    hindered = eventually(
        lambda: (now := region(world)).reason and not now.open and now, 15, "the region has the reason"
    )
    assert hindered.reason.startswith(f"no checkpoint: the turns of group h fail: {path} "), hindered.reason

    run_ok(world.zk, "regions", "checkpoint", "r")
    eventually(lambda: world.data(PATHS.request) is None, 10, "the request is answered")
    log.end = 60
    exact(log, 2, one)
    assert region(world).next_sequence == hindered.next_sequence, "none has begun"
    assert hindered.reason in run_ok(world.zk, "regions", "describe", "r").output

    world.put(path, given)
    eventually(lambda: (now := region(world)).sequence > hindered.sequence and not now.reason, 30, "they go on")
    exact(log, 2, other)


class Between(FrontStore):
    """A change right after a member's read of the request."""

    happens: Callable[[], object] | None = None

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        nodes = super().get_many(paths, watch)
        if list(paths) == [PATHS.request] and (happens := self.happens):
            self.happens = None
            happens()
        return nodes


class Guarded:
    """A channel whose fence always holds."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def guarded(self, operations: Sequence[Operation]) -> None:
        self._store.commit(operations)


@pytest.mark.parametrize("stands", [False, True], ids=["comes", "goes"])
def test_reset_request_of_an_application_survives_concurrent_requests(world: World, stands: bool) -> None:
    ensure(world.store, [*PATHS.skeleton, PATHS.root])
    store = Between(world.store)
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c1", region="r", log_dir="none")
    member = RegionMember(MemberContext(config, ThreadRuntime()), Callbacks())  # type: ignore[arg-type]
    other = Create(PATHS.request, RegionRequest(CHECKPOINT, "another").to_bytes())
    if stands:
        world.store.commit([other])
        store.happens = lambda: world.store.commit([Delete(PATHS.request)])
    else:
        store.happens = lambda: world.store.commit([other])

    member.request_reset(store, Guarded(world.store), "it has lost its way")  # type: ignore[arg-type]

    assert RegionRequest.parse("it", world.data(PATHS.request) or b"").what == RESET


def test_the_end_of_one_checkpoint_does_not_end_the_drain_for_the_next(world: World) -> None:
    ensure(world.store, [*PATHS.skeleton, PATHS.root, PATHS.checkpoints, PATHS.checkpoint(1), PATHS.end(1, COMPLETED)])
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c1", region="r", log_dir="none")
    member = RegionMember(MemberContext(config, ThreadRuntime()), Callbacks())  # type: ignore[arg-type]
    member._paused_for, member._draining_for = 1, 2
    member._look.set()

    member._look_for_the_end(world.store, Channel("i1"))

    assert not member.is_paused and member.is_in_checkpoint
