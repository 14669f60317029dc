"""Drills on ensembles with TLS whose servers refuse sessions without SASL: the verdict, and where secrets are not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.drills import PATIENT, REPOSITORY, drilled, environment, require_pass
from zk_group.coordinator.admin.acl import apply, check
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.security.access import AUTH_VARIABLE, ZooKeeperAccess
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.paths import ACL_POLICY, Brokers, GroupPaths
from zk_group.drills.environments.base import ENFORCED_SASL
from zk_group.drills.evidence.files import znodes

pytestmark = [pytest.mark.full("each environment and kind of drill"), pytest.mark.integration, pytest.mark.timeout(300)]
OWN_SECRET = re.compile(rb"zk-group-drill-(coordinator|member|operator):[0-9a-f]{32}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three servers."""
    config = EnsembleConfig(servers=3, durable=False, tls=True, auth=True, extra=ENFORCED_SASL)
    with Ensemble(tmp_path_factory.mktemp("secured"), config) as ensemble:
        yield ensemble


@pytest.fixture
def access(secured: Ensemble) -> ZooKeeperAccess:
    return secured.identities.access("operator")


def secret_lines(access: ZooKeeperAccess) -> str:
    return Path(access.zk_auth_file).read_text()


def config_file(folder: Path, access: ZooKeeperAccess) -> Path:
    """The file of `--zk-config`, without credentials."""
    file = folder / "zk.toml"
    names = ("zk_tls_ca", "zk_tls_cert", "zk_tls_key")
    lines = ["zk_tls = true", *(f'{name} = "{getattr(access, name)}"' for name in names)]
    file.write_text("\n".join(lines) + "\n")
    return file


def drill(zk: str, runs: Path, *words: str, variables: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "zk_group.coordinator.cli", "drill", "run", *words, "--zk", zk, "--runs", str(runs)],
        capture_output=True,
        text=True,
        env={**environment(), **variables},
        cwd=REPOSITORY,
        check=False,
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_servers_refuse_who_does_not_authenticate(secured: Ensemble, access: ZooKeeperAccess) -> None:
    for refused in (replace(access, zk_auth_file=""), ZooKeeperAccess(zk_auth_file=access.zk_auth_file)):
        with pytest.raises(CoordinatorError):
            open_kazoo(secured.hosts, 4000, 3.0, access=refused).commit([])


@pytest.mark.parametrize("more", [[], ["--secure"]], ids=["one identity", "ACLs"])
def test_drills_pass_on_a_secured_ensemble_and_leave_no_secret_and_no_znode(
    secured: Ensemble, access: ZooKeeperAccess, tmp_path: Path, more: list[str]
) -> None:
    store = open_kazoo(f"{secured.hosts}/team", 10_000, access=access)
    words = ["coordinator-sigkill", "consumer-cut", "--json", *PATIENT, *more]
    words += ["--zk-config", str(config_file(tmp_path, access))]

    done = drill(f"{secured.hosts}/team", tmp_path / "runs", *words, variables={AUTH_VARIABLE: secret_lines(access)})

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for each in said["drills"]:
        require_pass(each)
    document = json.loads((Path(said["drills"][0]["folder"]) / "run.json").read_text())
    assert document["ensemble"]["security"] == ("TLS, sasl, digest" if more else "TLS, sasl")
    secret = secret_lines(access).strip().rpartition(":")[2]
    everything = {**files(tmp_path / "runs"), "stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert len(everything) > 20
    assert [name for name, data in everything.items() if secret.encode() in data or OWN_SECRET.search(data)] == []
    assert list(znodes(store, ["/"])) == ["/"], "no znode of the drills is left"
    policy = json.loads((Path(said["drills"][0]["folder"]) / "after.json").read_text()).get(ACL_POLICY)
    assert (policy is not None and '"acl":"secure"' in policy["data"]) is bool(more)
    store.close()


@pytest.mark.parametrize("is_coordinator", [True, False])
def test_named_group_in_a_secured_path_needs_an_identity_of_its_coordinators(
    secured: Ensemble, access: ZooKeeperAccess, tmp_path: Path, is_coordinator: bool
) -> None:
    zk = f"{secured.hosts}/named-{is_coordinator}"
    store = open_kazoo(zk, 10_000, access=access)
    coordinator = "sasl:operator" if is_coordinator else "sasl:coordinator"
    apply(store, AclPolicy(is_secure=True, coordinators=(coordinator,), operators=("sasl:operator",)), Brokers())
    words = ["consumer-sigkill", "--group", "orders", "--execute", *PATIENT]
    words += ["--zk-config", str(config_file(tmp_path, access))]

    done = drill(zk, tmp_path / "runs", *words, variables={AUTH_VARIABLE: secret_lines(access)})

    assert done.returncode == (0 if is_coordinator else 3), done.stderr
    assert ("the drill needs an identity of its coordinators" in done.stderr) is not is_coordinator
    assert store.get(GroupPaths("orders").root) is None
    assert list(check(store, Brokers())) == []
    store.close()


@pytest.mark.parametrize(
    ("variables", "has_tls", "sentence"),
    [
        ({AUTH_VARIABLE: "sasl:operator:wr0ng"}, True, "credentials"),
        ({AUTH_VARIABLE: "sasl:operator:wr0ng"}, False, "it has TLS on this port: set zk_tls and zk_tls_ca"),
        ({}, True, "credentials"),
    ],
    ids=["wrong password", "no TLS", "no credentials"],
)
def test_refused_credentials_end_a_drill_before_it_begins(
    secured: Ensemble, access: ZooKeeperAccess, tmp_path: Path, variables: dict[str, str], has_tls: bool, sentence: str
) -> None:
    words = ["--zk-config", str(config_file(tmp_path, access))] if has_tls else []

    done = drill(secured.hosts, tmp_path / "runs", "coordinator-sigkill", *words, variables=variables)

    assert done.returncode == 78, done.stderr
    assert sentence in done.stderr and "Traceback" not in done.stderr and "wr0ng" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_embedded_servers_are_secured_on_request(tmp_path: Path) -> None:
    code, said, err = drilled(tmp_path, "consumer-sigkill", "--secure", *PATIENT)

    assert code == 0, err
    require_pass(said["drills"][0])
    document = json.loads((Path(said["drills"][0]["folder"]) / "run.json").read_text())
    assert document["ensemble"]["security"] == "TLS, sasl, digest"
