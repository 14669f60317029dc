"""Groups in a secured chroot: what each party does, its rights suffice for; and docs/security.md, step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumer.spark.source.query_znode import QueryPost
from coordinator.admin.control import request_turn
from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.security.access import environment_of
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.znodes.paths import REGIONS, TURN_TIMES, GroupPaths
from tests.support.cli import run_ok
from tests.support.clients import fresh_chroot
from tests.support.memlog import MemoryLog
from tests.support.region import region, running
from tests.support.secured_chroot import TEAM, SecuredChroot
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = pytest.mark.real_zookeeper("it is about ACLs")
G = GroupPaths("g")


@pytest.fixture
def chroot(
    sasl_server: Ensemble, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SecuredChroot]:
    """A secured chroot, closed to readers. In the end no ACL has refused anything, and none deviates."""
    made = SecuredChroot(sasl_server, fresh_chroot(sasl_server.hosts), tmp_path)
    monkeypatch.setenv("ZK_GROUP_ZK_AUTH_FILE", made.access("operator").zk_auth_file)  # of commands
    try:
        made.secure(is_read_open=False)
        yield made
        assert made.deviations() == []
        assert "ACL" not in caplog.text and "may not" not in caplog.text
    finally:
        made.close()


def test_members_join_leave_die_and_are_evicted_and_coordinators_follow_each_other(chroot: SecuredChroot) -> None:
    world, log = chroot.world, MemoryLog(10)
    first = world.elected(chroot.coordinator("a", sweep_interval_ms=200))
    slow = chroot.consumer("g", "slow", log=log, max_poll_interval_ms=1_000)
    one = chroot.consumer("g", "one", log=log, group_instance_id="one")
    world.stable("g", 2)
    eventually(lambda: world.store.get(TURN_TIMES), 10, "it has swept")

    slow.hang()
    eventually(lambda: world.channel("g", "slow").ended, 15, "it has left")
    slow.is_stuck.clear()
    world.stable("g", 2, above=world.state("g").generation)
    request_turn(chroot.operator, "g", "ann", 1, None)
    eventually(lambda: world.store.get(G.request) is None, 10, "the turn was taken")
    assert first.term is not None
    epoch = first.term.epoch
    second = chroot.coordinator("b", sweep_interval_ms=200)
    world.stop_coordinator(first)
    world.elected(second, above=epoch)
    slow.vanish()
    world.stable("g", 1)
    late = chroot.consumer("g", "late", log=log)
    world.stable("g", 2)
    late.close()
    world.stable("g", 1)
    before = world.channel("g", "one").incarnation
    run_ok(chroot.zk, "groups", "remove-members", "g", "one")
    eventually(lambda: world.channel("g", "one").incarnation != before, 15, "it was evicted, and comes back")
    world.stable("g", 1)
    one.close()
    run_ok(chroot.zk, "groups", "remove-members", "g", "--all-members")
    eventually(lambda: world.state("g").state == "Empty", 15, "nobody is left")
    run_ok(chroot.zk, "groups", "delete-offsets", "g", "--topic", "t")
    run_ok(chroot.zk, "groups", "delete", "g")

    assert world.store.get(G.root) is None


def test_segments_are_sealed_read_and_collected(chroot: SecuredChroot, tmp_path: Path) -> None:
    chroot.world.elected(chroot.coordinator("a", sweep_interval_ms=200, segment_retention_ms=0))
    bench = chroot.slots(tmp_path / "segments")
    paths = bench.paths
    query, store = QueryPost(ThreadRuntime(), paths, "q", False), chroot.store(TEAM)
    bench.slot(0)
    query.begin(store, None, True)
    bench.grow(20)
    names = chroot.world.names(paths.segments)
    newest = max(node.stat.czxid for node in store.get_many([paths.segment(name) for name in names]) if node)

    def are_collected() -> bool:
        query.publish(store, newest)
        return not chroot.world.names(paths.segments)

    eventually(are_collected, 15, "they are collected")
    query.withdraw(store)
    bench.post.keep(0)
    eventually(lambda: chroot.world.state("slots").state == "Empty", 15, "the pool has ended")


def test_regions_are_checkpointed_reset_and_removed(chroot: SecuredChroot) -> None:
    world = chroot.world
    world.elected(chroot.coordinator("a", sweep_interval_ms=200, checkpoints_kept=2))
    one = chroot.counting("c1")
    running(world)
    for sequence in range(1, 5):
        one.consumer.request_checkpoint()
        eventually(lambda before=sequence: region(world).sequence >= before, 15, "a checkpoint is complete")
    two = chroot.counting("c2")
    eventually(lambda: len(world.state("counts").target) == 2, 20, "the second is assigned")
    reset = running(world, above=1).reset
    one.consumer.request_reset("a test")
    running(world, above=reset)
    two.vanish()
    eventually(lambda: len(world.state("counts").target) == 1, 20, "the second is gone")
    running(world, above=reset + 1)
    one.vanish()
    eventually(lambda: world.state("counts").state == "Empty", 20, "nobody is left")

    run_ok(chroot.zk, "groups", "delete", "counts")

    eventually(lambda: not world.names(REGIONS), 20, "the region is removed")


ROOT = Path(__file__).parents[2]
SECTION = "\n## From an open chroot in use to a secured one\n"


def test_commands_of_the_page_secure_a_chroot_in_use_and_open_it_again(sasl_server: Ensemble) -> None:
    section = (ROOT / "docs/security.md").read_text().split(SECTION)[1].split("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(commands) == 8
    zk, access = fresh_chroot(sasl_server.hosts), sasl_server.identities.access
    environment = {**os.environ, **environment_of(access("operator")), "ZK_GROUP_ZK": zk}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    world, log = World(zk, open_kazoo(zk, 30_000, access=access("operator"))), MemoryLog(100)
    try:
        node = world.coordinator(zk_auth_file=access("coordinator").zk_auth_file)
        world.topic("t", 2)
        one = world.consumer("orders", "c1", {"t": 1}, log=log, zk_auth_file=access("team-a").zk_auth_file)
        generation = world.stable("orders", 1).generation

        for command in commands:
            done = subprocess.run(
                ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            log.end += 100
            eventually(lambda: len(one.polled) == 2 * log.end, 15, f"the group reads on after {command}")
            if command == "zk-coordinator acl check":
                assert "acl: secure" in done.stdout and "members of orders: sasl:team-a" in done.stdout

        assert (world.stable("orders", 1).generation, one.error) == (generation, None)
        assert node.term is not None and node.term.epoch == 1
    finally:
        world.close()
