"""`zk-coordinator acl` and `groups create`: what they print and make, and the user's mistakes in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from coordinator.cli import main
from coordinator.zk.errors import WriteDenied
from coordinator.zk.security.policy import AclPolicy
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import DENIED, AclStore, Delete, SetData
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.paths import ACL_POLICY, CONSUMERS, GroupPaths
from tests.support.cli import run, run_json, run_ok

SECRET = "correct-horse"
OPERATOR = "digest:ann:514PHe2pPkv3b0xL92bbg/3f3a0="
TEAM = "ip:127.0.0.9"
POLICY = ["--coordinators", "ip:127.0.0.8", "--operators", OPERATOR]
G = GroupPaths("g")


@pytest.fixture(autouse=True)
def _operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command has an operator's credentials."""
    monkeypatch.setenv("ZK_GROUP_ZK_AUTH", f"digest:ann:{SECRET}")


@pytest.fixture
def ann(zk: str) -> Iterator[AclStore]:
    """An operator's session."""
    store = open_kazoo(zk, 10_000)
    yield store
    store.close()


@pytest.fixture
def intruder(zk: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AclStore]:
    """A session without credentials."""
    with monkeypatch.context() as without:
        without.delenv("ZK_GROUP_ZK_AUTH", raising=False)
        store = open_kazoo(zk, 10_000)
    yield store
    store.close()


@pytest.fixture
def secured(zk: str) -> str:
    run_ok(zk, "acl", "apply", "--acl", "secure", "--acl-read", "closed", *POLICY, "--execute")
    return zk


def mistake(zk: str, *words: str) -> str:
    """The one line on stderr of a command that ends with exit code 2."""
    result = run(zk, *words)
    assert result.exit_code == 2, (result.output, result.exception)
    assert SECRET not in result.output
    return " ".join(result.stderr.split())


def acl(*words: str) -> tuple[int, str]:
    """Exit code and output of `zk-coordinator acl` without a ZooKeeper."""
    result = CliRunner().invoke(main, ["acl", *words])
    return result.exit_code, result.output


def test_identity_is_that_of_the_credentials_without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert acl("identity") == (0, f"{OPERATOR}\n")
    monkeypatch.setenv("ZK_GROUP_ZK_AUTH", f"sasl:bob:{SECRET}\ndigest:ann:{SECRET}")
    code, output = acl("identity", "-o", "json")
    assert (code, json.loads(output)) == (0, ["sasl:bob", OPERATOR])
    monkeypatch.delenv("ZK_GROUP_ZK_AUTH")
    code, output = acl("identity")
    assert code == 2 and "there are no credentials" in output


def test_dry_run_prints_the_policy_and_changes_nothing(zk: str, ann: AclStore) -> None:
    result = run_ok(zk, "acl", "apply", "--acl", "secure", *POLICY)

    assert f"operators: {OPERATOR}" in result.stdout and "acl: secure" in result.stdout
    assert "nothing was changed" in result.stderr
    assert ann.get(CONSUMERS) is None


def test_group_of_a_secured_chroot_begins_with_its_members(secured: str, ann: AclStore) -> None:
    run_ok(secured, "groups", "create", "g", "--members", TEAM, "--regions", "r")

    found, state = ann.get_many([G.acl, G.state])
    assert found is not None and state is not None
    policy = AclPolicy.parse(G.acl, found.data)
    assert GroupState.parse(G.state, state.data) == GroupState()
    assert (policy.members, policy.regions, policy.operators) == ((TEAM,), ("r",), (OPERATOR,))
    checked = run_json(secured, "acl", "check")
    assert (checked["groups"], checked["deviations"]) == ({"g": [TEAM]}, [])


def test_deviation_is_named_with_what_it_means(secured: str, ann: AclStore) -> None:
    run_ok(secured, "groups", "create", "g", "--members", TEAM)
    (entries,) = ann.get_acls([G.state])
    ann.set_acl(G.state, tuple(each._replace(permissions=31) for each in entries or ()))

    result = run(secured, "acl", "check", "-o", "json")

    assert result.exit_code == 5
    assert G.state in result.stdout and f"{TEAM} may create below it, delete below it, write it" in result.stdout
    run_ok(secured, "acl", "apply", "--execute")
    assert run(secured, "acl", "check").exit_code == 0


def test_parties_are_named_before_anything_is_applied(zk: str) -> None:
    assert "name the identities of --coordinators and --operators" in mistake(zk, "acl", "apply", "--acl", "secure")
    assert "is not digest:USER:HASH" in mistake(zk, "acl", "apply", "--operators", f"digest:ann:{SECRET}")
    assert "is not digest:USER:HASH" in mistake(zk, "acl", "apply", "--operators", SECRET)


def test_policy_that_locks_its_author_out_is_refused(zk: str) -> None:
    others = ["--coordinators", TEAM, "--operators", TEAM]

    assert "none of --operators" in mistake(zk, "acl", "apply", "--acl", "secure", *others, "--execute")
    assert run_json(zk, "acl", "check")["policy"]["acl"] == "open"


def test_group_without_members_is_refused_in_a_secured_chroot(secured: str) -> None:
    assert "name the identities of the group's members with --members" in mistake(secured, "groups", "create", "g")
    assert "--regions: 'a/b' is no name" in mistake(
        secured, "groups", "create", "g", "--members", TEAM, "--regions", "a/b"
    )


def test_members_are_of_a_group_that_exists_and_of_a_chroot_with_a_policy(zk: str) -> None:
    create, members = ["groups", "create", "g"], ["acl", "members", "g"]
    assert "run zk-coordinator acl apply first" in mistake(zk, *create, "--members", TEAM)
    run_ok(zk, *create)
    assert "run zk-coordinator acl apply first" in mistake(zk, *members, "--members", TEAM)
    run_ok(zk, "acl", "apply", *POLICY, "--execute")

    assert "there is no group h" in mistake(zk, "acl", "members", "h", "--members", TEAM)
    assert "name the identities of the group's members" in mistake(zk, *members)
    assert "group g exists" in mistake(zk, *create, "--members", TEAM)
    assert "group g has no members in the policy" in mistake(zk, "acl", "apply", "--acl", "secure", "--execute")
    run_ok(zk, *members, "--members", TEAM)
    run_ok(zk, "acl", "apply", "--acl", "secure", "--execute")


def test_command_without_an_operators_identity_ends_with_its_exit_code(
    secured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK_AUTH", f"digest:eve:{SECRET}")

    for words in (["acl", "check"], ["acl", "members", "g", "--members", TEAM], ["groups", "create", "g"]):
        result = run(secured, *words)
        assert result.exit_code in (1, 77), (words, result.output, result.exception)
        assert "ACL" in result.stderr and "Traceback" not in result.output
    assert run(secured, "topics", "create", "t", "--partitions", "1").exit_code == 77


def test_policy_of_an_open_chroot_is_closed_but_may_be_removed_by_everybody(zk: str, intruder: AclStore) -> None:
    """DELETE is a right on the parent, which is open."""
    run_ok(zk, "groups", "create", "g")
    run_ok(zk, "acl", "apply", *POLICY, "--execute")
    run_ok(zk, "acl", "members", "g", "--members", TEAM)

    for path in (ACL_POLICY, G.acl):
        found = intruder.get(path)
        assert found is not None and found.data == DENIED
        with pytest.raises(WriteDenied):
            intruder.commit([SetData(path, b"{}")])
    intruder.commit([SetData(G.state, b"{}"), Delete(G.acl), Delete(ACL_POLICY)])


def test_policy_of_a_secured_chroot_may_be_removed_by_nobody_else(secured: str, intruder: AclStore) -> None:
    run_ok(secured, "groups", "create", "g", "--members", TEAM)

    for path in (ACL_POLICY, G.acl):
        with pytest.raises(WriteDenied):
            intruder.commit([Delete(path)])
