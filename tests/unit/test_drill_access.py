"""How a drill and its processes authenticate: files for each kind of process, and nothing of them anywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import AUTH_VARIABLE, ZooKeeperAccess, digest_identity, read_credentials
from drills.base.processes import own_environment
from drills.environments.base import COORDINATOR, MEMBER, OPERATOR, ROLES, DrillAccess

GIVEN = {AUTH_VARIABLE: "sasl:drill:s3cret\ndigest:team:t0psecret"}
TLS = ZooKeeperAccess(zk_tls=True, zk_tls_ca="ca.pem")


def test_every_process_authenticates_with_what_the_drill_was_given(tmp_path: Path) -> None:
    access = DrillAccess(TLS, GIVEN)

    with access.in_force(tmp_path / "access"):
        for role in ROLES:
            found = access.behind_proxy(role).credentials({})
            assert (found.sasl, found.digests) == (("drill", "s3cret"), ("team:t0psecret",))
            assert access.acl_ids(role) == ("sasl:drill", digest_identity("team:t0psecret"))


def test_roles_have_digest_identities_of_their_own_beside_the_given_user(tmp_path: Path) -> None:
    access = DrillAccess(TLS, GIVEN, has_roles=True)

    with access.in_force(tmp_path / "access"):
        found = {role: read_credentials(tmp_path / "access" / f"{role}.auth") for role in ROLES}

    assert {each.sasl for each in found.values()} == {("drill", "s3cret")}
    assert len({each.digests[0] for each in found.values()}) == len(ROLES)
    assert [role for role, each in found.items() if "team:t0psecret" in each.digests] == [OPERATOR]
    for role, each in found.items():
        assert access.acl_ids(role) == tuple(map(digest_identity, each.digests))


def test_tls_is_on_the_way_to_servers_and_not_on_the_way_to_a_proxy(tmp_path: Path) -> None:
    access = DrillAccess(TLS, GIVEN)

    with access.in_force(tmp_path / "access"):
        assert access.to_servers(OPERATOR).zk_tls and access.tls.zk_tls
        assert list(access.environment(COORDINATOR)) == ["ZK_GROUP_ZK_AUTH_FILE"]


def test_only_the_owner_may_read_the_files_and_they_are_removed_at_the_end(tmp_path: Path) -> None:
    access, folder = DrillAccess(TLS, GIVEN), tmp_path / "access"

    with access.in_force(folder):
        assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
        assert len(list(folder.iterdir())) == len(ROLES)

    assert list(folder.iterdir()) == []


def test_no_process_inherits_what_the_drill_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "sasl:drill:s3cret")
    monkeypatch.setenv("ZK_GROUP_ZK_TLS", "true")
    access = DrillAccess(TLS, os.environ)

    with access.in_force(tmp_path / "access"):
        assert not [name for name in os.environ if name.startswith("ZK_GROUP_ZK_")]
        assert "s3cret" not in str(access.environment(MEMBER))

    assert os.environ["ZK_GROUP_ZK_TLS"] == "true"
    assert not [name for name in own_environment() if name.startswith("ZK_GROUP_")]


def test_without_credentials_there_are_no_files_and_no_variables(tmp_path: Path) -> None:
    access = DrillAccess()

    with access.in_force(tmp_path / "access"):
        assert access.environment(MEMBER) == {}
        assert access.to_servers(MEMBER) == ZooKeeperAccess()

    assert list(tmp_path.iterdir()) == []


def test_report_names_the_schemes_and_no_secret() -> None:
    assert DrillAccess(TLS, GIVEN).described == "TLS, sasl, digest"
    assert DrillAccess().described == "none"


def test_malformed_credentials_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="line 1 is not"):
        DrillAccess(TLS, {AUTH_VARIABLE: "s3cret"})
