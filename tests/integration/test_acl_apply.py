"""`acl apply`, `check` and `members`: lock-outs, interruptions, two operators, znodes of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.admin.acl import apply, check, group_policies, read_policy, set_members
from coordinator.zk.errors import CoordinatorError, NotAuthorized, UsageError, WriteDenied
from coordinator.zk.security.access import digest_identity
from coordinator.zk.security.policy import CREATE, READ, WORLD, AclPolicy
from coordinator.zk.store import Acl, AclEntry, AclStore, Create, Operation
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.paths import ACL_POLICY, CONSUMERS, GROUPS, NODES, Brokers, GroupPaths
from coordinator.zk.znodes.regions import GroupRegion
from tests.support.parties import OPEN, SECURE, Parties, owned_by
from tests.support.stores import FrontStore
from tests.support.world import World

BROKERS = Brokers()


@pytest.fixture
def parties(zk: str, tmp_path: Path) -> Parties:
    return Parties(zk, tmp_path)


@contextmanager
def session(parties: Parties, name: str) -> Iterator[AclStore]:
    store = parties.session(name)
    try:
        yield store
    finally:
        store.close()


def acl_of(store: AclStore, path: str) -> Acl:
    (acl,) = store.get_acls([path])
    assert acl is not None
    return acl


@pytest.fixture
def groups(world: World) -> World:
    """An open chroot in which groups `g` and `h` have been."""
    for group in ("g", "h"):
        paths = GroupPaths(group)
        for path in (paths.root, *paths.skeleton, paths.id("c1"), paths.channel("c1"), paths.offset("t", 0)):
            world.put(path)
    return world


def policy_of(parties: Parties, is_secure: bool) -> AclPolicy:
    one = [(parties.identity(name),) for name in ("coordinator", "operator", "reader")]
    return AclPolicy(is_secure=is_secure, coordinators=one[0], operators=one[1], readers=one[2])


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


def killed() -> None:
    raise Killed


# ---- what an operator sees


def test_check_of_a_chroot_without_policy_finds_it_open(groups: World, parties: Parties) -> None:
    assert "acl: open" in parties.run_ok("", "acl", "check")
    with session(parties, "mallory") as mallory:
        mallory.set_acl(GroupPaths("g").channel("c1"), owned_by("mallory"))

    result = parties.run("", "acl", "check")

    assert result.exit_code == 5 and "this client may neither read nor administer it" in result.stdout


def test_dry_run_tells_all_that_would_change_and_changes_nothing(groups: World, parties: Parties) -> None:
    dry = parties.applies(*SECURE, execute=False)
    assert dry.exit_code == 0 and parties.run_ok("", "acl", "check").startswith("acl: open\n")
    assert "groups without members, which is refused: g, h" in dry.stdout
    assert "nothing was changed" in dry.stderr
    assert groups.store.get(ACL_POLICY) is None

    prepared(parties)
    dry = parties.applies(*SECURE, execute=False)

    assert f"members of g: {parties.identity('team-a')}" in dry.stdout and "without members" not in dry.stdout
    count = int(next(line for line in dry.stdout.splitlines() if "deviate" in line).split()[0])
    done = parties.applies(*SECURE)
    assert done.stdout == f"{count} ACLs set; the chroot is secure\n"
    assert parties.deviations() == ""


def test_dry_run_names_an_operator_that_is_none(groups: World, parties: Parties) -> None:
    options = ("--coordinators", parties.identity("coordinator"), "--operators", parties.identity("operator"))

    dry = parties.run("team-a", "acl", "apply", *options, *SECURE)
    done = parties.run("team-a", "acl", "apply", *options, *OPEN, "--execute")

    assert f"this client ({parties.identity('team-a')}) is none of the operators" in dry.stdout
    assert done.exit_code == 2 and "it would lock itself out" in done.output
    assert groups.store.get(ACL_POLICY) is None and groups.names(CONSUMERS) == ["groups"]


@pytest.mark.real_zookeeper("it is about the server's schemes")
def test_scheme_that_the_server_lacks_is_refused_before_anything_changes(groups: World, parties: Parties) -> None:
    prepared(parties)

    done = parties.applies(*SECURE, "--coordinators", "sasl:coordinator")
    member = parties.run("operator", "acl", "members", "g", "--members", "sasl:team-a")

    for result in (done, member):
        assert result.exit_code == 2 and "the server lacks one of the schemes digest, sasl" in result.output
    assert parties.run("operator", "acl", "check").exit_code == 0


def test_group_without_members_is_refused_and_named(groups: World, parties: Parties) -> None:
    assert parties.applies(*OPEN).exit_code == 0
    parties.names("g", "team-a")

    done = parties.applies(*SECURE)

    assert done.exit_code == 2 and "group h has no members in the policy" in done.output
    assert "acl: open" in parties.run_ok("operator", "acl", "check")


def test_group_whose_region_is_not_permitted_is_refused_and_named(groups: World, parties: Parties) -> None:
    prepared(parties)
    groups.put(GroupPaths("g").state, GroupState(region=GroupRegion("r")).to_bytes())

    dry, done = parties.applies(*SECURE, execute=False), parties.applies(*SECURE)

    assert "group g is bound to consistent region r" in done.output and done.exit_code == 2
    assert "refused: g (r)" in dry.output
    parties.names("g", "team-a", regions=("r",))
    assert parties.applies(*SECURE).exit_code == 0


def test_znode_that_an_operator_may_not_set_is_passed_over_and_named(groups: World, parties: Parties) -> None:
    prepared(parties)
    with session(parties, "mallory") as mallory:
        mallory.set_acl(GroupPaths("g").channels, owned_by("mallory"))

    done = parties.applies(*SECURE)

    assert done.exit_code == 5 and "1 znodes have an ACL that this client may not set" in done.stdout
    found = parties.deviations()
    assert found.count("/consumers/") == 1 and "an operator may remove it" in found


def test_digests_that_the_server_masks_deviate_only_where_rights_do(groups: World, parties: Parties) -> None:
    prepared(parties)
    assert parties.applies(*SECURE).exit_code == 0
    coordinator = parties.session("coordinator")
    assert list(check(coordinator, BROKERS)) == []
    with session(parties, "operator") as operator:
        operator.set_acl(NODES, tuple(one for one in acl_of(operator, NODES) if one.identity != WORLD))

    (found,) = check(coordinator, BROKERS)

    assert (found.path, found.meaning) == (NODES, "anybody may not read it")
    coordinator.close()


def test_znode_with_the_operators_name_and_another_password_deviates(groups: World, parties: Parties) -> None:
    """ZooKeeper shows no hash of a digest to who may not administer the znode: the names alone are equal."""
    prepared(parties)
    assert parties.applies(*SECURE).exit_code == 0
    path = GroupPaths("g").id("c1")
    with session(parties, "operator") as operator:
        digests = [one for one in acl_of(operator, path) if one.identity.startswith("digest:")]
        forged = [one._replace(identity=digest_identity(f"{one.identity.split(':')[1]}:guessed")) for one in digests]
        operator.set_acl(path, (*forged, AclEntry(READ, WORLD)))

    assert [line.split()[0] for line in parties.deviations().splitlines() if line.startswith("/")] == [path]
    assert "may not administer it" in parties.deviations()


@pytest.mark.parametrize("options", [OPEN, SECURE])
def test_topics_of_a_kafka_whose_brokers_are_down_keep_its_acls(
    groups: World, parties: Parties, options: tuple[str, ...]
) -> None:
    prepared(parties)
    groups.put(BROKERS.topic("t"))
    groups.put(BROKERS.ids)
    with session(parties, "kafka") as kafka:
        closed = owned_by("kafka", others=READ)
        kafka.set_acl(BROKERS.topic("t"), closed)

        assert parties.applies(*options).exit_code == 0
        assert acl_of(kafka, BROKERS.topic("t")) == closed


def test_chroot_that_an_administrator_has_closed_is_not_opened(groups: World, parties: Parties) -> None:
    with session(parties, "operator") as administrator:
        closed = owned_by("operator", others=READ | CREATE)
        administrator.set_acl("/", closed)

        prepared(parties)
        assert acl_of(administrator, "/") == closed


def test_members_named_again_keep_their_regions_unless_there_shall_be_none(groups: World, parties: Parties) -> None:
    prepared(parties)
    parties.names("g", "team-a", regions=("r",))
    parties.names("g", "team-b")
    assert "regions of g: r" in parties.run_ok("operator", "acl", "check")

    parties.run_ok("operator", "acl", "members", "g", "--members", parties.identity("team-b"), "--no-regions")

    assert "regions of g" not in parties.run_ok("operator", "acl", "check")


def test_malformed_policy_is_written_again_when_the_options_tell_all_of_it(groups: World, parties: Parties) -> None:
    groups.put(ACL_POLICY, b"garbage")

    refused = parties.run("operator", "acl", "apply", *SECURE, "--execute")
    assert refused.exit_code == 1 and "with --acl, --coordinators and --operators it is written again" in refused.output
    assert parties.applies(*OPEN).exit_code == 0

    groups.put(GroupPaths("g").acl, b"garbage")
    refused = parties.applies(*SECURE)
    assert refused.exit_code == 1 and "acl members g --members ID --no-regions writes it again" in refused.output
    parties.run_ok("operator", "acl", "members", "g", "--members", parties.identity("team-a"), "--no-regions")
    parties.names("h", "team-a")
    assert parties.applies(*SECURE).exit_code == 0
    assert parties.deviations() == ""


def test_policy_too_large_for_a_group_is_refused_before_any_is_written(groups: World, parties: Parties) -> None:
    prepared(parties)
    many = [part for number in range(8) for part in ("--members", f"digest:{'x' * 60}{number}:{'A' * 27}=")]

    member = parties.run("operator", "acl", "members", "g", *many)

    assert member.exit_code == 2 and "the identities have over 1000 bytes" in member.output
    assert parties.applies(*SECURE).exit_code == 0 and parties.deviations() == ""


# ---- interruptions, and two operators


@pytest.mark.parametrize("sent", [1, 7])
def test_interrupted_apply_is_seen_by_check_and_finished_by_the_next(
    groups: World, parties: Parties, sent: int
) -> None:
    prepared(parties)
    operator = parties.session("operator")

    with pytest.raises(Killed):
        apply(Interrupting(operator, killed, at_acls=sent), policy_of(parties, is_secure=True), BROKERS)

    assert parties.deviations()
    assert parties.applies(*SECURE).exit_code == 0
    assert parties.deviations() == ""
    operator.close()


def test_apply_interrupted_before_the_groups_policies_is_seen_by_check(groups: World, parties: Parties) -> None:
    prepared(parties)
    operator = parties.session("operator")

    with pytest.raises(Killed):
        apply(Interrupting(operator, killed), policy_of(parties, is_secure=True), BROKERS)

    assert "it repeats an earlier policy: run acl apply" in parties.deviations()
    assert parties.applies(*SECURE).exit_code == 0
    assert parties.deviations() == ""
    operator.close()


def test_two_operators_who_apply_at_once_leave_no_mixed_policies(groups: World, parties: Parties) -> None:
    prepared(parties)
    operator, other = parties.session("operator"), parties.session("operator")
    opened = policy_of(parties, is_secure=False)
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
    closed = policy_of(parties, is_secure=True)
    new = (parties.identity("team-c"),)

    set_members(Interrupting(operator, lambda: apply(other, closed, BROKERS)), "g", new, ())

    assert group_policies(operator)["g"] == replace(closed, members=new)
    assert parties.applies(*SECURE).exit_code == 0 and parties.deviations() == ""
    for session in (operator, other):
        session.close()


# ---- what a process creates


def test_process_without_identity_creates_in_a_prepared_chroot_until_it_is_secured(
    groups: World, parties: Parties
) -> None:
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


@pytest.mark.real_zookeeper("it is about the server's schemes")
def test_unknown_scheme_in_an_acl_is_one_sentence(groups: World, parties: Parties) -> None:
    operator = parties.session("operator")
    (entry,) = operator.get_acls([GROUPS])[0] or ()

    with pytest.raises(UsageError, match="the server lacks one of the schemes sasl"):
        operator.set_acls([(GROUPS, (entry._replace(identity="sasl:x"),))])
    operator.close()
