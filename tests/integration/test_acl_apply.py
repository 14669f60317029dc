"""`acl apply` and `members`: interruptions, two operators, processes. All else is in `command_lines/acl.txt`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.admin.acl import apply, group_policies, read_policy, set_members
from coordinator.zk.errors import CoordinatorError, NotAuthorized, WriteDenied
from coordinator.zk.store import Acl, AclStore, Create, Operation
from coordinator.zk.znodes.paths import GROUPS, NODES, Brokers, GroupPaths
from tests.support.parties import OPEN, SECURE, Parties
from tests.support.stores import FrontStore
from tests.support.world import World

BROKERS = Brokers()


@pytest.fixture
def parties(zk: str, tmp_path: Path) -> Parties:
    return Parties(zk, tmp_path)


@pytest.fixture
def groups(world: World) -> World:
    """An open chroot in which groups `g` and `h` have been."""
    for group in ("g", "h"):
        paths = GroupPaths(group)
        for path in (paths.root, *paths.skeleton, paths.id("c1"), paths.channel("c1"), paths.offset("t", 0)):
            world.put(path)
    return world


def prepared(parties: Parties) -> None:
    """Everybody named, and open still."""
    assert parties.applies(*OPEN).exit_code == 0
    for group, team in (("g", "team-a"), ("h", "team-b")):
        parties.names(group, team)


class Interrupting(FrontStore, AclStore):
    """A session with ACLs, which does something once before it sends a commit or ACLs."""

    def __init__(self, store: AclStore, before: Callable[[], Any], at_acls: int = 0) -> None:
        super().__init__(store)
        self._acls = store
        self._before: list[Callable[[], Any]] = [before]
        self._at_acls = at_acls

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if not self._at_acls and any(GroupPaths("g").acl == each.path for each in operations):
            self._act()
        return self.behind.commit(operations)

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        return self._acls.get_acls(paths)

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        if len(acls) > self._at_acls > 0:
            self._acls.set_acls(acls[: self._at_acls])
            self._act()
        return self._acls.set_acls(acls)

    def set_acl(self, path: str, acl: Acl) -> bool:
        return self._acls.set_acl(path, acl)

    def _act(self) -> None:
        if self._before:
            self._before.pop()()


class Killed(BaseException):
    """The process ends here: no handler catches it."""


# ---- what an operator sees


@pytest.mark.real_zookeeper("it is about the server's schemes")
def test_scheme_that_the_server_lacks_is_refused_before_anything_changes(groups: World, parties: Parties) -> None:
    prepared(parties)

    done = parties.applies(*SECURE, "--coordinators", "sasl:coordinator")
    member = parties.run("operator", "acl", "members", "g", "--members", "sasl:team-a")

    for result in (done, member):
        assert result.exit_code == 2 and "the server lacks one of the schemes digest, sasl" in result.output
    assert parties.run("operator", "acl", "check").exit_code == 0


def test_policy_too_large_for_a_group_is_refused_before_any_is_written(groups: World, parties: Parties) -> None:
    prepared(parties)
    many = [part for number in range(8) for part in ("--members", f"digest:{'x' * 60}{number}:{'A' * 27}=")]

    member = parties.run("operator", "acl", "members", "g", *many)

    assert member.exit_code == 2 and "the identities have over 1000 bytes" in member.output
    assert parties.applies(*SECURE).exit_code == 0 and parties.deviations() == ""


# ---- interruptions, and two operators


@pytest.mark.parametrize(
    ("sent", "seen"),
    [(0, "it repeats an earlier policy: run acl apply"), (1, "/consumers"), (7, "/consumers")],
    ids=["before the groups' policies", "after one ACL", "after seven ACLs"],
)
def test_interrupted_apply_is_finished_by_the_next(groups: World, parties: Parties, sent: int, seen: str) -> None:
    prepared(parties)
    operator = parties.session("operator")

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        apply(Interrupting(operator, killed, at_acls=sent), parties.policy(is_secure=True), BROKERS)

    assert seen in parties.deviations()
    assert parties.applies(*SECURE).exit_code == 0
    assert parties.deviations() == ""
    operator.close()


def test_two_operators_who_apply_at_once_leave_no_mixed_policies(groups: World, parties: Parties) -> None:
    prepared(parties)
    operator, other = parties.session("operator"), parties.session("operator")
    opened = parties.policy(is_secure=False)
    closed = replace(opened, is_secure=True, is_read_open=False)

    with pytest.raises(CoordinatorError, match="another operator has changed the policy meanwhile"):
        apply(Interrupting(operator, lambda: apply(other, opened, BROKERS)), closed, BROKERS)

    assert read_policy(operator) == opened
    assert parties.applies(*OPEN).exit_code == 0 and parties.deviations() == ""
    for session in (operator, other):
        session.close()


def test_members_named_while_another_operator_applies_get_the_new_policy(groups: World, parties: Parties) -> None:
    prepared(parties)
    operator, other = parties.session("operator"), parties.session("operator")
    closed = parties.policy(is_secure=True)
    new = (parties.identity("team-c"),)

    set_members(Interrupting(operator, lambda: apply(other, closed, BROKERS)), "g", new, ())

    assert group_policies(operator)["g"] == replace(closed, members=new)
    assert parties.applies(*SECURE).exit_code == 0 and parties.deviations() == ""
    for session in (operator, other):
        session.close()


# ---- what a process creates


def test_process_without_identity_creates_until_a_chroot_is_secured(groups: World, parties: Parties) -> None:
    prepared(parties)
    nobody = parties.session("")

    nobody.commit([Create(GroupPaths("g").id("c2"), ephemeral=True)])
    nobody.commit([Create(f"{GROUPS}/i")])
    nobody.commit([Create(f"{NODES}")])

    parties.names("i", "team-a")
    assert parties.applies(*SECURE).exit_code == 0
    with pytest.raises(WriteDenied, match="this client has no identity of a member of group g, check the credentials"):
        nobody.commit([Create(GroupPaths("g").id("c3"), ephemeral=True)])
    with pytest.raises(NotAuthorized, match="this client has no identity of a coordinator or operator"):
        nobody.commit([Create(f"{NODES}/1", ephemeral=True)])
    assert parties.deviations() == ""
    assert parties.applies(*OPEN).exit_code == 0
    nobody.commit([Create(GroupPaths("g").id("c3"), ephemeral=True)])
    assert parties.deviations() == ""
    nobody.close()


def test_identity_that_is_named_later_is_used_by_the_session_that_runs(groups: World, parties: Parties) -> None:
    prepared(parties)
    team = parties.session("team-c")
    path = GroupPaths("g").channel("c2")
    team.commit([Create(f"{path}-first")])  # it may not read the policy

    parties.names("g", "team-a", "team-c")
    assert parties.applies(*SECURE).exit_code == 0

    team.commit([Create(path)])
    assert parties.deviations() == ""
    team.close()
