"""Groups that leave a consistent region, and what is removed of it."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.cli import run, run_json, run_ok
from tests.support.made_group import MadeGroup
from tests.support.parties import Parties, owned_by
from tests.support.region import PATHS, CountingRegion, running
from tests.support.stores import Reads
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.consumer import Callbacks
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.consumer.operator.region import RegionMember
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.policy import CREATE, READ, WORLD
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import AclEntry, Create, Delete
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.group_state import FAILED
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord
from zk_group.coordinator.zk.znodes.regions import CHECKPOINT, COMPLETED, RESET, RegionRequest


def test_empty_group_removed_from_its_region_resumes_at_the_checkpoint_stateless(r: CountingRegion) -> None:
    r.topic(2)
    one, other = r.starts("c1", "h~o1")
    cut = r.checkpoint()
    topic_id = r.given(cut)["h~o1"].topics["t"]
    refused = run(r.zk, "regions", "remove-group", "r", "h")
    assert refused.exit_code != 0 and "group h stays in region r: consumer o1 is registered" in refused.output
    r.reset_by(other.vanish)
    r.emptied("h")
    r.world.put(GroupPaths("h").offset("t", 0), OffsetRecord(7, topic_id, 0).to_bytes())

    run_ok(r.zk, "regions", "remove-group", "r", "h")

    assert r.now.groups == ("g",) and r.world.state("h").region is None
    assert MadeGroup(r.world.store, "h", state=None).offsets == {("t", 0): 40, ("t", 1): 40}
    later = r.checkpoint()
    assert later > cut and set(r.given(later)) == {"g~c1"}
    r.log.end, before = 50, r.now.reset
    again = r.member("h~o1")
    running(r.world, above=before)
    eventually(lambda: dict(again.by_key) == {"t-0": 10, "t-1": 10}, 20, "it starts again at the checkpoint's offsets")
    assert again.resets == [r.now.sequence]
    r.exact(one)
    refused = run(r.zk, "regions", "remove-group", "r", "missing")
    assert refused.exit_code == 2 and "is not bound to consistent region r" in refused.output


def test_deleted_group_leaves_nothing_in_its_region_for_a_group_of_the_same_name(r: CountingRegion) -> None:
    _, other = r.starts("c1", "h~o1")
    cut = r.checkpoint()
    topic_id = r.given(cut)["h~o1"].topics["t"]
    other.vanish()
    r.emptied("h")

    run_ok(r.zk, "groups", "delete", "h")

    assert r.now.groups == ("g",)
    assert "h~o1" in r.given(cut), "it goes with the checkpoint"
    r.world.put(PATHS.initial_offset("h", "t", 1), OffsetRecord(33, topic_id, 0).to_bytes())
    r.joins("h~o1")


def test_members_remove_state_files_of_retired_checkpoints_and_no_others(r: CountingRegion, tmp_path: Path) -> None:
    r.world.coordinator(checkpoints_kept=1)
    files = tmp_path / "r"
    one, gone = r.starts("g~c1", "a~a1", checkpoint_dir=str(tmp_path))
    one.padding = gone.padding = b"x" * 5000
    r.joins("b~b1")  # its states are in znodes: it does not know the folder
    copied = r.checkpoint()
    r.reset_by(gone.vanish)
    young, old = r.checkpoint(), r.checkpoint()
    for sequence in (copied, old):
        for file in (files / f"{sequence:010d}").rglob("*.arrow"):
            os.utime(file, (1, 1))  # older than the age from which a sweep removes it

    last = PATHS.checkpoint(r.checkpoint()).rsplit("/", 1)[1]
    eventually(lambda: r.world.names(PATHS.checkpoints) == [last], 15, "one is kept")
    newest = r.checkpoint()

    def look() -> bool:
        left = {int(path.name) for path in files.iterdir() if path.is_dir()}
        assert old not in left and {copied, young, newest} <= left, left
        return True

    eventually(look, 15, "the old one's files are removed")
    r.log.end = 50
    r.joins("a~a1", checkpoint_dir=str(tmp_path))


def test_old_checkpoint_that_is_closed_does_not_hinder_the_next_ones(r: CountingRegion, tmp_path: Path) -> None:
    service = r.world.coordinator(checkpoints_kept=2)
    r.joins("c1")
    old = PATHS.checkpoint(r.checkpoint())
    r.checkpoint()
    with closing(Parties(r.zk, tmp_path).session("mallory")) as mallory:
        mallory.set_acl(old, owned_by("mallory"))

        r.checkpoint()
        r.log.end += 10
        r.checkpoint()

        r.exact()
        eventually(lambda: any("ACL" in each for each in service.problems.current().values()), 10, "it is reported")
        mallory.set_acl(old, OPEN_ACL)
    last = [PATHS.checkpoint(r.checkpoint()).rsplit("/", 1)[1] for _ in range(2)]
    eventually(lambda: r.world.names(PATHS.checkpoints) == last, 15, "the old ones are removed")
    assert not service.problems.current()


def test_region_that_is_not_writable_is_tried_again_later(r: CountingRegion, caplog: pytest.LogCaptureFixture) -> None:
    r.joins("c1")
    with closing(open_kazoo(r.zk, 10_000)) as mallory:
        mallory.set_acl(PATHS.root, (AclEntry(READ | CREATE, WORLD),))

    with caplog.at_level(logging.INFO, "zk_group.coordinator"):
        r.asks("checkpoint")
        eventually(lambda: "region turn deferred" in caplog.text, 10, "it was tried")
        r.member("c2")  # a change of its group requests the region's turn, too
        r.counts_on()

    assert caplog.text.count("region turn deferred") == 1
    assert "the ACL of /consumers/regions/r, or of its parent" in caplog.text
    assert "region turn restarted" not in caplog.text


def test_unreadable_copied_contribution_aborts_a_checkpoint_and_counts_continue(r: CountingRegion) -> None:
    _, gone = r.starts("c1", "h~o1")
    first = r.checkpoint()
    r.reset_by(gone.vanish)
    r.world.put(PATHS.contribution(first, "h", "o1"), b"{")

    run_ok(r.zk, "regions", "checkpoint", "r")

    def reason() -> str:
        newest = run_json(r.zk, "regions", "history", "r")[-1]
        assert newest["state"] == "aborted", newest
        return str(newest["reason"])

    assert "the checkpoint before it cannot be read" in eventually(reason, 15, "it is aborted")
    r.counts_on()


def seat_is_kept(r: CountingRegion) -> None:
    """Of the static member, which has left."""
    eventually(lambda: (bound := r.world.state("g").region) and bound.away == ("s",), 15, "its seat is kept")


def test_checkpoints_continue_without_a_static_member_that_returns_to_its_state(r: CountingRegion) -> None:
    r.joins("c1")
    two = r.joins("s", group_instance_id="s", session_timeout_ms=20_000)
    r.counts_on(10)
    r.checkpoint()
    r.counts_on(10)
    two.stops()
    two.consumer.close(save=False)
    seat_is_kept(r)

    given = r.given(r.checkpoint())

    assert set(given) == {"g~c1", "g~s"}
    assert set(given["g~s"].offsets.values()) == {50} and set(given["g~c1"].offsets.values()) == {60}
    generation = r.world.state("g").generation
    r.joins("s", group_instance_id="s")
    assert r.world.state("g").generation == generation, "its seat kept its partitions"
    assert set(r.given(r.checkpoint())["g~s"].offsets.values()) == {60}


@pytest.mark.parametrize("options", [{}, {"assignment": "client"}], ids=["coordinator", "client"])
def test_seat_that_expires_after_a_leave_costs_the_others_no_work(r: CountingRegion, options: dict[str, Any]) -> None:
    one = r.joins("c1", **options)
    two = r.joins("s", group_instance_id="s", **options)
    two.close()
    seat_is_kept(r)
    before, held = r.now.reset, len(one.by_partition)
    r.log.end = 60
    eventually(lambda: list(one.by_partition.values()) == [60] * held, 15, "the other one counts")
    assert r.now.reset == before, "the seat has not expired yet"

    after = r.settles(above=before)

    assert set(r.given(after.sequence)["g~c1"].offsets.values()) == {60}
    assert set(r.world.state("g").target) == {"c1"}


@pytest.mark.parametrize("is_removed", [False, True], ids=["damaged", "removed"])
def test_damaged_contribution_is_reported_until_a_reset_to_another(r: CountingRegion, is_removed: bool) -> None:
    r.world.coordinator(max_rebalance_retries=1)
    one = r.joins("c1")
    first = r.checkpoint()
    r.counts_on()
    path = PATHS.contribution(r.checkpoint(), "g", "c1")
    if is_removed:
        r.world.remove(path)
    else:
        r.world.put(path, b"no contribution")
    before = r.now.reset

    one.vanish()
    two = r.member("c2")

    failed = eventually(lambda: (now := r.world.state("g")).state == FAILED and now, 30, "the state is Failed")
    assert path in (failed.reason or "") and "regions reset r --to NUMBER" in (failed.reason or "")
    run_ok(r.zk, "regions", "reset", "r", "--to", str(first), "--execute")
    r.settles(above=before)
    assert two.resets[-1] == first


def test_checkpoint_does_not_begin_while_a_group_cannot_take_part_with_the_reason(r: CountingRegion) -> None:
    coordinator = r.world.coordinator()
    one, other = r.starts("c1", "h~o1")
    path = PATHS.contribution(r.checkpoint(), "h", "o1")
    given = r.world.data(path) or b""
    r.world.put(path, b"no contribution")
    r.world.stop_coordinator(coordinator)
    fast = {"checkpoint_interval_ms": 300, "drain_timeout_ms": 600, "sweep_interval_ms": 300}
    r.world.elected(r.world.coordinator(max_rebalance_retries=1, **fast))
    eventually(lambda: r.world.state("h").state == FAILED, 30, "the group's turns fail")
    hindered = eventually(lambda: (now := r.now).reason and not now.open and now, 15, "the region has the reason")
    assert hindered.reason.startswith(f"no checkpoint: the turns of group h fail: {path} "), hindered.reason

    run_ok(r.zk, "regions", "checkpoint", "r")
    eventually(lambda: r.world.data(PATHS.request) is None, 10, "the request is answered")
    r.log.end = 60
    r.exact(one)
    assert r.now.next_sequence == hindered.next_sequence, "none has begun"
    assert hindered.reason in run_ok(r.zk, "regions", "describe", "r").output

    r.world.put(path, given)
    eventually(lambda: (now := r.now).sequence > hindered.sequence and not now.reason, 30, "they go on")
    r.exact(other)


def a_member(world: World) -> RegionMember:
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c1", region="r", log_dir="none")
    return RegionMember(MemberContext(config, ThreadRuntime()), Callbacks())  # type: ignore[arg-type]


@pytest.mark.parametrize("stands", [False, True], ids=["comes", "goes"])
def test_reset_request_of_an_application_survives_concurrent_requests(world: World, stands: bool) -> None:
    ensure(world.store, [*PATHS.skeleton, PATHS.root])
    other = Create(PATHS.request, RegionRequest(CHECKPOINT, "another").to_bytes())
    if stands:
        world.store.commit([other])
    changes = Delete(PATHS.request) if stands else other
    store = Reads(world.store).after(PATHS.request, lambda: world.store.commit([changes]))

    fenced = SimpleNamespace(guarded=world.store.commit)  # its fence always holds
    a_member(world).request_reset(store, fenced, "it has lost its way")  # type: ignore[arg-type]

    assert RegionRequest.parse("it", world.data(PATHS.request) or b"").what == RESET


def test_the_end_of_one_checkpoint_does_not_end_the_drain_for_the_next(world: World) -> None:
    ensure(world.store, [*PATHS.skeleton, PATHS.root, PATHS.checkpoints, PATHS.checkpoint(1), PATHS.end(1, COMPLETED)])
    member = a_member(world)
    member._paused_for, member._draining_for = 1, 2
    member._look.set()

    member._look_for_the_end(world.store, Channel("i1"))

    assert not member.is_paused and member.is_in_checkpoint
