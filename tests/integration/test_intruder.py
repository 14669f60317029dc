"""A secured chroot: an intruder's every operation on every znode is refused by ZooKeeper, none by our own code.

What each party does while groups live, its rights suffice for; and docs/security.md holds, step by step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo import exceptions as kz
from kazoo.security import ACL, Id, Permissions

from tests.support.cli import run_ok
from tests.support.clients import connected, fresh_chroot
from tests.support.memlog import MemoryLog
from tests.support.pages import ALL, NONE, READERS, AccessRow, access_table
from tests.support.processes import REPOSITORY
from tests.support.region import region, running
from tests.support.secured_chroot import OTHER_TEAM, TEAM, SecuredChroot, a_secured_chroot
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.streaming.source.query_znode import QueryPost
from zk_group.coordinator.admin.control import request_turn
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.access import environment_of
from zk_group.coordinator.zk.security.policy import RIGHTS, pattern_of
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Stat
from zk_group.coordinator.zk.znodes.paths import REGIONS, ROOT, TURN_TIMES, GroupPaths

pytestmark = pytest.mark.real_zookeeper("it is about ACLs")
OPEN: Final = [ACL(Permissions.ALL, Id("world", "anyone"))]
OTHERS_GROUP: Final = "/consumers/groups/other"
TABLE: Final = access_table()
NOBODY, READER = "", "reader"
Attempt = Callable[[Any, str], object]
READS: Final[dict[str, Attempt]] = {
    "get": lambda client, path: client.get(path),
    "exists": lambda client, path: client.exists(path),
    "children": lambda client, path: client.get_children(path),
    "get ACL": lambda client, path: client.get_acls(path),
}
WRITES: Final[dict[str, Attempt]] = {
    "set": lambda client, path: client.set(path, b"intruder"),
    "create below": lambda client, path: client.create(f"{path.rstrip('/')}/intruder", b""),
    "make ephemeral below": lambda client, path: client.create(f"{path.rstrip('/')}/x-", ephemeral=True, sequence=True),
    "delete": lambda client, path: client.delete(path),
    "set ACL": lambda client, path: client.set_acls(path, OPEN),
}


@pytest.fixture(scope="module", params=["open", "closed"])
def acl_read(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def chroot(sasl_server: Ensemble, acl_read: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredChroot]:
    """A secured chroot in full use, which stands still: coordinator and members live, and nobody writes."""
    zk, folder = fresh_chroot(sasl_server.hosts), tmp_path_factory.mktemp("segments")
    with a_secured_chroot(sasl_server, zk, folder, acl_read == "open") as chroot:
        yield chroot


def row_of(path: str) -> AccessRow:
    return TABLE[pattern_of(path)]


def stats(chroot: SecuredChroot) -> dict[str, Stat]:
    """The stat of each znode. Its sweeps let the coordinator write what turns have cost."""
    paths = chroot.paths()
    nodes = chroot.operator.get_many(paths)
    return {path: node.stat for path, node in zip(paths, nodes, strict=True) if node and path != TURN_TIMES}


def refused(client: Any, attempt: Attempt, path: str) -> bool:
    """Whether ZooKeeper refused it by an ACL; any other error fails the test."""
    try:
        attempt(client, path)
    except kz.NoAuthError:
        return True
    return False


def test_every_znode_of_the_table_is_there_with_its_acl(chroot: SecuredChroot) -> None:
    paths = chroot.paths()

    assert {pattern_of(path) for path in paths} == set(RIGHTS) == set(TABLE)
    assert chroot.deviations() == []


@pytest.mark.parametrize("identity", [NOBODY, OTHER_TEAM, READER])
def test_intruder_is_refused_every_operation_on_each_znode(chroot: SecuredChroot, acl_read: str, identity: str) -> None:
    before = stats(chroot)
    own = OTHERS_GROUP if identity == OTHER_TEAM else "no path"
    paths = [path for path in chroot.paths() if not f"{path}/".startswith(f"{own}/")]
    readers = {ALL, READERS} if acl_read == "open" or identity == READER else {ALL}
    attempts, allowed = 0, []

    with chroot.kazoo(identity) as intruder:
        for path in paths:
            for name, attempt in {**READS, **WRITES}.items():
                if (path, name) == (ROOT, "delete"):  # of the chroot: a right on its administrator's znode
                    continue
                attempts += 1
                if not refused(intruder, attempt, path):
                    allowed.append((path, name))

    assert allowed == [(path, name) for path in paths for name in READS if row_of(path).others in readers]
    assert attempts - len(allowed) > 40 * len(WRITES)
    assert stats(chroot) == before


def test_policies_are_readable_by_no_intruder() -> None:
    assert {path for path, row in TABLE.items() if row.others == NONE} == {
        "/consumers/acl",
        "/consumers/groups/[group]/acl",
    }


def may(client: Any, path: str, child: str) -> str:
    """The letters that a client has on a znode: each operation is tried in a multi whose last operation is refused.

    :param child: an existing child, empty for none: then DELETE is not tried.
    """
    found = ""
    below = path.rstrip("/")
    for letter in "cdrw":
        multi = client.transaction()
        if letter == "c":
            multi.create(f"{below}/tried")
        elif letter == "d" and child:
            multi.delete(f"{below}/{child}")
        elif letter == "r":
            multi.check(path, -1)
        elif letter == "w":
            multi.set_data(path, b"tried")
        multi.check(f"{below}/refused", 0)
        first, *_ = multi.commit()
        if letter == "d" and not child:
            continue
        assert isinstance(first, kz.ZookeeperError)
        found += "" if isinstance(first, kz.NoAuthError) else letter
    return found


@pytest.mark.parametrize("identity", ["coordinator", TEAM, "operator"])
def test_each_party_has_just_the_rights_of_the_table(chroot: SecuredChroot, acl_read: str, identity: str) -> None:
    before = stats(chroot)
    paths = [path for path in chroot.paths() if identity != TEAM or not f"{path}/".startswith(f"{OTHERS_GROUP}/")]
    wrong = []

    with chroot.kazoo(identity) as client:
        for path in paths:
            listing = chroot.operator.children(path)
            child = next(iter(listing.names if listing else ()), "")
            row = row_of(path)
            world = "r" if row.others == ALL or (row.others == READERS and acl_read == "open") else ""
            expected = {"coordinator": row.coordinators, TEAM: row.members, "operator": "cdrw"}[identity] + world
            wanted = "".join(letter for letter in "cdrw" if letter in expected and (letter != "d" or child))
            if (found := may(client, path, child)) != wanted:
                wrong.append((path, found, wanted))
            if identity != "operator" and not refused(client, WRITES["set ACL"], path):
                wrong.append((path, "a", ""))

    assert wrong == []
    assert stats(chroot) == before


def test_intruder_learns_of_a_path_that_it_guesses_whether_it_exists(chroot: SecuredChroot) -> None:
    """As zk_paths.md says: of two refusals one is that there is no such znode."""
    with chroot.kazoo(NOBODY) as intruder:
        assert refused(intruder, READS["get"], "/consumers/groups/g/acl")
        with pytest.raises(kz.NoNodeError):
            intruder.get("/consumers/groups/g/acl/none")
        assert intruder.exists("/consumers/groups/g/acl/none") is None


# ---- what stays possible, as zk_paths.md says


def test_member_can_close_what_it_creates_below_its_group_to_operators(chroot: SecuredChroot) -> None:
    closed = "/consumers/groups/g/offsets/closed"
    with chroot.kazoo(TEAM) as member, chroot.kazoo("operator") as operator:
        own = [ACL(Permissions.ALL, Id("sasl", TEAM))]
        member.create(closed, acl=own)
        member.create(f"{closed}/0", acl=own)
        try:
            for attempt in (READS["get"], WRITES["set"], WRITES["create below"], WRITES["set ACL"]):
                assert refused(operator, attempt, closed)
            assert refused(operator, WRITES["delete"], f"{closed}/0")
            with pytest.raises(kz.NotEmptyError):
                operator.delete(closed)
            assert "may neither read nor administer" in " ".join(chroot.deviations())
        finally:
            member.delete(f"{closed}/0")
            operator.delete(closed)


def test_quotas_beside_the_chroot_are_everybodys_by_default(sasl_server: Ensemble) -> None:
    with connected(sasl_server.hosts) as intruder:
        assert intruder.get_acls("/zookeeper/quota")[0] == OPEN


def test_coordinator_removes_what_an_operator_has_created_below_its_leaves(chroot: SecuredChroot) -> None:
    leaves = ["/consumers/groups/g/sync_request", "/consumers/groups/slots/queries/q", "/consumers/regions/r/request"]
    with chroot.kazoo("operator") as operator, chroot.kazoo("coordinator") as coordinator:
        for leaf in [path for path in leaves if operator.get(path)[1].ephemeralOwner == 0]:
            operator.create(f"{leaf}/stray")
            coordinator.delete(f"{leaf}/stray")


# ---- the life of groups


G = GroupPaths("g")


@pytest.fixture
def secured(
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


def test_members_join_leave_die_and_are_evicted_and_coordinators_follow_each_other(secured: SecuredChroot) -> None:
    world, log = secured.world, MemoryLog(10)
    first = world.elected(secured.coordinator("a", sweep_interval_ms=200))
    slow = secured.consumer("g", "slow", log=log, max_poll_interval_ms=1_000)
    one = secured.consumer("g", "one", log=log, group_instance_id="one")
    world.stable("g", 2)
    eventually(lambda: world.store.get(TURN_TIMES), 10, "it has swept")

    slow.hang()
    eventually(lambda: world.channel("g", "slow").ended, 15, "it has left")
    slow.is_stuck.clear()
    world.stable("g", 2, above=world.state("g").generation)
    request_turn(secured.operator, "g", "ann", 1, None)
    eventually(lambda: world.store.get(G.request) is None, 10, "the turn was taken")
    assert first.term is not None
    epoch = first.term.epoch
    second = secured.coordinator("b", sweep_interval_ms=200)
    world.stop_coordinator(first)
    world.elected(second, above=epoch)
    slow.vanish()
    world.stable("g", 1)
    late = secured.consumer("g", "late", log=log)
    world.stable("g", 2)
    late.close()
    world.stable("g", 1)
    before = world.channel("g", "one").incarnation
    run_ok(secured.zk, "groups", "remove-members", "g", "one")
    eventually(lambda: world.channel("g", "one").incarnation != before, 15, "it was evicted, and comes back")
    world.stable("g", 1)
    one.close()
    run_ok(secured.zk, "groups", "remove-members", "g", "--all-members")
    eventually(lambda: world.state("g").state == "Empty", 15, "nobody is left")
    run_ok(secured.zk, "groups", "delete-offsets", "g", "--topic", "t")
    run_ok(secured.zk, "groups", "delete", "g")

    assert world.store.get(G.root) is None


def test_segments_are_sealed_read_and_collected(secured: SecuredChroot, tmp_path: Path) -> None:
    secured.world.elected(secured.coordinator("a", sweep_interval_ms=200, segment_retention_ms=0))
    bench = secured.slots(tmp_path / "segments")
    paths = bench.paths
    query, store = QueryPost(ThreadRuntime(), paths, "q", False), secured.store(TEAM)
    bench.slot(0)
    query.begin(store, None, True)
    bench.grow(20)
    names = secured.world.names(paths.segments)
    newest = max(node.stat.czxid for node in store.get_many([paths.segment(name) for name in names]) if node)

    def are_collected() -> bool:
        query.publish(store, newest)
        return not secured.world.names(paths.segments)

    eventually(are_collected, 15, "they are collected")
    query.withdraw(store)
    bench.post.keep(0)
    eventually(lambda: secured.world.state("slots").state == "Empty", 15, "the pool has ended")


def test_regions_are_checkpointed_reset_and_removed(secured: SecuredChroot) -> None:
    world = secured.world
    world.elected(secured.coordinator("a", sweep_interval_ms=200, checkpoints_kept=2))
    one = secured.counting("c1")
    running(world)
    for sequence in range(1, 5):
        one.consumer.request_checkpoint()
        eventually(lambda before=sequence: region(world).sequence >= before, 15, "a checkpoint is complete")
    two = secured.counting("c2")
    eventually(lambda: len(world.state("counts").target) == 2, 20, "the second is assigned")
    reset = running(world, above=1).reset
    one.consumer.request_reset("a test")
    running(world, above=reset)
    two.vanish()
    eventually(lambda: len(world.state("counts").target) == 1, 20, "the second is gone")
    running(world, above=reset + 1)
    one.vanish()
    eventually(lambda: world.state("counts").state == "Empty", 20, "nobody is left")

    run_ok(secured.zk, "groups", "delete", "counts")

    eventually(lambda: not world.names(REGIONS), 20, "the region is removed")


SECTION = "\n## From an open chroot in use to a secured one\n"


def test_commands_of_the_page_secure_a_chroot_in_use_and_open_it_again(sasl_server: Ensemble) -> None:
    section = (REPOSITORY / "docs/security.md").read_text().split(SECTION)[1].split("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(commands) == 8
    zk, access = fresh_chroot(sasl_server.hosts), sasl_server.identities.access
    environment = {**os.environ, **environment_of(access("operator")), "ZK_GROUP_ZK": zk}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(REPOSITORY)
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
