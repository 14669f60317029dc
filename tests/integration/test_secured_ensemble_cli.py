"""`scripts/ensemble start --tls --auth`: its files make every command, and ZooKeeper's own client, an identity."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordinator.cli.ensemble import ensemble as command
from tests.support.processes import REPOSITORY
from tests.support.secured import printed_secrets

pytestmark = [
    pytest.mark.full("each refusal of servers"),
    pytest.mark.real_zookeeper("it is about TLS and credentials"),
]


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(command, [*words, "--dir", str(folder)])


def shell(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a shell that has evaluated `text`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZK_GROUP_")}
    return subprocess.run(
        ["bash", "-c", f'{text}\nexec "$@"', "bash", sys.executable, "-m", *words],
        capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=REPOSITORY,
    )  # fmt: skip


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder and the hosts of an ensemble with both."""
    folder = tmp_path_factory.mktemp("ensemble")
    try:
        words = ["start", "--servers", "1", "--tls", "--auth", "--dir", str(folder)]
        done = shell("", "coordinator.cli.ensemble", *words)
        assert done.returncode == 0, done.stderr
        yield folder, done.stdout.splitlines()[0]
    finally:
        run(folder, "stop")


def test_environment_makes_a_command_an_identity_and_has_no_secret(started: tuple[Path, str]) -> None:
    folder, hosts = started
    shown = run(folder, "env", "--as", "team-a")

    done = shell(shown.stdout, "coordinator.cli", "topics", "create", "t", "--partitions", "1", "--zk", f"{hosts}/try")

    assert (done.returncode, done.stderr) == (0, "")
    assert "# in ACLs: sasl:team-a" in shown.stdout
    assert printed_secrets(shown.output + done.stdout, folder) == []
    without = shell("", "coordinator.cli", "status", "--zk", f"{hosts}/try")
    assert (without.returncode, "it has TLS on this port: set zk_tls" in without.stderr) == (78, True)


def test_zookeepers_own_client_is_an_identity(started: tuple[Path, str]) -> None:
    folder, _ = started
    words = ["zkcli", "--dir", str(folder), "--as", "team-b"]

    made = shell("", "coordinator.cli.ensemble", *words, "create", "/of-team-b", "x", "auth::cdrwa")
    assert made.returncode == 0, made.stderr
    acl = shell("", "coordinator.cli.ensemble", *words, "getAcl", "/of-team-b")

    assert "'sasl,'team-b" in acl.stdout


def test_files_of_identities_are_their_owners_alone(started: tuple[Path, str]) -> None:
    folder, _ = started
    found = [path for path in (folder / "identities").iterdir() if path.name != "ca.pem"]

    assert len(found) > 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    assert stat.S_IMODE((folder / "identities").stat().st_mode) == 0o700


def test_status_reads_servers_with_tls_and_another_configuration_is_refused(started: tuple[Path, str]) -> None:
    folder, _ = started

    assert run(folder, "status").exit_code == 0
    other = run(folder, "start", "--no-tls")

    assert other.exit_code != 0
    assert "TLS, SASL" in str(other.exception)
