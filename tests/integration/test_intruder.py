"""An intruder in a secured chroot: every operation on every znode is refused by ZooKeeper, none by our own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kazoo import exceptions as kz
from kazoo.security import ACL, Id, Permissions

from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.security.policy import RIGHTS, pattern_of
from coordinator.zk.store import Stat
from coordinator.zk.znodes.paths import ROOT, TURN_TIMES
from tests.support.clients import connected, fresh_chroot
from tests.support.pages import ALL, NONE, READERS, AccessRow, access_table
from tests.support.secured_chroot import OTHER_TEAM, TEAM, SecuredChroot, a_secured_chroot

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
    "create ephemeral below": lambda client, path: client.create(
        f"{path.rstrip('/')}/x-", ephemeral=True, sequence=True
    ),
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
