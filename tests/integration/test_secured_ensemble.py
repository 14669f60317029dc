"""The way to a secured ensemble: who is let in, and one sentence with exit code 78 for each refusal, at once.

The files of `scripts/ensemble start --tls --auth` make every command, and ZooKeeper's own client, an identity.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.processes import REPOSITORY, ProjectProcess, consumer_process, node_process
from tests.support.secured import MadeCA, TlsProxy, change_configuration, flags, identities_of_session, printed_secrets
from tests.support.wait import eventually
from zk_group.coordinator.admin.acl import apply, check, create_group
from zk_group.coordinator.cli.ensemble import ensemble as command
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig, Server
from zk_group.coordinator.zk.errors import AuthenticationFailed, UsageError, WriteDenied
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, environment_of
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.session.kazoo_store import KazooStore, open_kazoo
from zk_group.coordinator.zk.store import Create, Delete
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.drills.environments.base import ENFORCED_SASL

pytestmark = [
    pytest.mark.full("each refusal of servers"),
    pytest.mark.real_zookeeper("it is about TLS and credentials"),
]

NODE = ["zk_group.coordinator.cli", "run", "--node", "a"]
CONSUMER = ["zk_group.consumer.cli", "run", "--group", "g", "--topics", "t", "--log-dir", "/tmp"]
STATUS = ["zk_group.coordinator.cli", "status"]
CONNECT_TIMEOUT_S = 60.0
AT_ONCE_S = 15.0
"""Far below the connect timeout, also on a busy machine."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One server with TLS that lets only SASL users in."""
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False, tls=True, auth=True, extra=ENFORCED_SASL)
    with Ensemble(tmp_path_factory.mktemp("secure"), config) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> MadeCA:
    """Another CA, of nobody."""
    return MadeCA.make(tmp_path_factory.mktemp("foreign"))


@dataclass(frozen=True)
class Certified:
    """Three servers with TLS, each with another certificate of one CA: an expired one, another host's, a good one."""

    ensemble: Ensemble
    access: ZooKeeperAccess

    def address(self, number: int) -> str:
        return self.ensemble.servers[number - 1].address


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    folder = tmp_path_factory.mktemp("certified")
    made = MadeCA.make(folder / "made")
    certificates = [
        made.issue("expired", "127.0.0.1", expired=True),
        made.issue("another", "zk9.invalid"),
        made.issue("good", "127.0.0.1"),
    ]
    ensemble = Ensemble(folder / "ensemble", EnsembleConfig(servers=3, tick_ms=200, durable=False, tls=True))
    for server, certificate in zip(ensemble.servers, certificates, strict=True):
        keys = {"ssl.keyStore.location": str(certificate), "ssl.trustStore.location": str(made.file)}
        change_configuration(server, keys)
    own = str(made.issue("client", "client.invalid"))
    access = ZooKeeperAccess(zk_tls=True, zk_tls_ca=str(made.file), zk_tls_cert=own, zk_tls_key=own)
    try:
        ensemble.start()
        open_kazoo(ensemble.servers[2].address, 5000, 60, access=access).close()  # it serves: there is a quorum
        yield Certified(ensemble, access)
    finally:
        ensemble.stop()


Opened = Callable[..., KazooStore]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens sessions, which are closed at the end."""
    stores: list[KazooStore] = []

    def opening(hosts: str, access: ZooKeeperAccess | None, session_timeout_ms: int = 5000) -> KazooStore:
        stores.append(open_kazoo(hosts, session_timeout_ms, CONNECT_TIMEOUT_S, access=access))
        return stores[-1]

    yield opening
    for store in stores:
        store.close()


def test_certificates_are_identities_of_acls(secure: Ensemble, opened: Opened) -> None:
    zk, access = f"{secure.hosts}/certificates", secure.identities.access
    subject = {
        name: (f"x509:CN={name},OU=embedded,O=zk-group",) for name in ("coordinator", "operator", "reader", "team-a")
    }
    operator = opened(zk, access("operator"))
    policy = AclPolicy(True, False, subject["coordinator"], subject["operator"], subject["reader"])
    apply(operator, policy, Brokers())
    create_group(operator, "g", subject["team-a"], ())

    opened(zk, access("team-a")).commit([Create(GroupPaths("g").id("c1"))])
    with pytest.raises(WriteDenied):
        opened(zk, access("team-b")).commit([Delete(GroupPaths("g").id("c1"))])

    assert list(check(operator, Brokers())) == []


def refusal(hosts: str, access: ZooKeeperAccess) -> str:
    """Why no session is opened; it is said at once, and nothing of it is logged besides."""
    began = time.monotonic()
    with pytest.raises(AuthenticationFailed) as refused:
        open_kazoo(hosts, 5000, CONNECT_TIMEOUT_S, access=access)
    assert time.monotonic() - began < AT_ONCE_S
    assert refused.value.exit_code == 78
    return str(refused.value)


def run(zk: str, words: list[str], access: ZooKeeperAccess | Mapping[str, str]) -> tuple[int, list[str]]:
    """A command's exit code, and its lines on stderr."""
    environment = environment_of(access) if isinstance(access, ZooKeeperAccess) else access
    command, environment = [sys.executable, "-m", *words, "--zk", zk], {**os.environ, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.splitlines()


def auth_file(folder: Path, text: str) -> str:
    path = folder / "auth"
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


# ---- who is let in


def test_session_is_of_the_sasl_user_and_the_certificate(secure: Ensemble, opened: Opened) -> None:
    store = opened(secure.hosts, secure.identities.access("team-a"))

    assert identities_of_session(store) == {"sasl:team-a", "x509:CN=team-a,OU=embedded,O=zk-group"}


def test_session_has_the_digests_of_its_file_beside_sasl(secure: Ensemble, opened: Opened, tmp_path: Path) -> None:
    access = secure.identities.access("reader")
    lines = Path(access.zk_auth_file).read_text() + "digest:alice:one\n# a comment\n\ndigest:bob:t:w:o\n"

    store = opened(secure.hosts, replace(access, zk_auth_file=auth_file(tmp_path, lines)))

    schemes = {one.rpartition(":")[0] if one.startswith("digest:") else one for one in identities_of_session(store)}
    assert schemes >= {"sasl:reader", "digest:alice", "digest:bob"}


def test_credentials_are_of_the_environment(secure: Ensemble, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of(secure.identities.access("team-b")).items():
        monkeypatch.setenv(name, value)

    store = opened(secure.hosts, None)

    assert "sasl:team-b" in identities_of_session(store)


def test_one_good_server_among_others_is_enough(certified: Certified, opened: Opened) -> None:
    for _ in range(3):  # servers are tried in any order
        assert opened(certified.ensemble.hosts, certified.access).get("/") is not None


def test_each_address_of_a_name_is_tried(secure: Ensemble, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    port = secure.servers[0].port

    store = opened(f"localhost:{port}", secure.identities.access())  # ::1 has no such server

    assert "sasl:operator" in identities_of_session(store)


def test_host_names_are_not_checked_only_where_that_is_said(certified: Certified, opened: Opened) -> None:
    access = replace(certified.access, zk_tls_check_hostname=False)

    assert opened(certified.address(2), access).get("/") is not None
    assert "certificate has expired" in refusal(certified.address(1), access)


# ---- refusals


@dataclass(frozen=True)
class Servers:
    """All of them, the open one of the session too, and a CA that none of them knows."""

    open: Ensemble
    secure: Ensemble
    certified: Certified
    foreign: MadeCA
    folder: Path

    def with_foreign_certificate(self) -> ZooKeeperAccess:
        own = str(self.foreign.issue("client", "client.invalid"))
        return replace(self.secure.identities.access(), zk_tls_cert=own, zk_tls_key=own)


@pytest.fixture
def servers(zookeeper: Ensemble, secure: Ensemble, certified: Certified, foreign: MadeCA, tmp_path: Path) -> Servers:
    return Servers(zookeeper, secure, certified, foreign, tmp_path)


REFUSALS: dict[str, tuple[Callable[[Servers], tuple[str, ZooKeeperAccess]], str]] = {
    "a server without TLS": (
        lambda s: (s.open.hosts, replace(s.secure.identities.access(), zk_auth_file="")),
        r"no session with ZooKeeper at HOSTS: it has no TLS on this port: check the port in --zk, or unset zk_tls",
    ),
    "a client without TLS": (
        lambda s: (f"127.0.0.1:{s.secure.servers[0].port}", ZooKeeperAccess()),
        r"no session with ZooKeeper at HOSTS: it has TLS on this port: set zk_tls and zk_tls_ca",
    ),
    "a client without TLS at a name": (
        lambda s: (f"localhost:{s.secure.servers[0].port}", ZooKeeperAccess()),
        r"no session with ZooKeeper at HOSTS: it has TLS on this port: set zk_tls and zk_tls_ca",
    ),
    "a foreign CA": (
        lambda s: (s.secure.hosts, replace(s.secure.identities.access(), zk_tls_ca=str(s.foreign.file))),
        r".*its certificate is refused \(.*: check zk_tls_ca",
    ),
    "an expired certificate": (
        lambda s: (s.certified.address(1), s.certified.access),
        r".*its certificate is refused \(certificate has expired\): renew it",
    ),
    "a certificate of another host": (
        lambda s: (s.certified.address(2), s.certified.access),
        r".*its certificate is refused \(IP address mismatch.*: name the server in --zk as its certificate does",
    ),
    "servers that are all bad": (
        lambda s: (f"{s.certified.address(1)},{s.certified.address(2)}", s.certified.access),
        r".*its certificate is refused.*",
    ),
    "a foreign certificate of the client": (
        lambda s: (s.secure.hosts, s.with_foreign_certificate()),
        r".*it refuses this client's certificate or TLS \(.*: check zk_tls_cert and zk_tls_key",
    ),
    "SASL at a server without it": (
        lambda s: (s.open.hosts, ZooKeeperAccess(zk_auth_file=auth_file(s.folder, "sasl:operator:secret"))),
        r"this ZooKeeper has no SASL users: use digest in zk_auth_file, or configure SASL at the servers",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusal_says_what_to_do(servers: Servers, what: str) -> None:
    given, sentence = REFUSALS[what]
    hosts, access = given(servers)

    text = refusal(hosts, access)

    assert re.fullmatch(sentence.replace("HOSTS", re.escape(hosts)), text, re.DOTALL), text


WRONG = "ZooKeeper refuses the credentials of this client, or requires some: check zk_auth_file, or ZK_GROUP_ZK_AUTH"


@pytest.mark.parametrize("line", ["sasl:operator:wrong", "sasl:nobody:wrong", "digest:operator:wrong", ""])
def test_wrong_or_missing_credentials_are_refused(secure: Ensemble, tmp_path: Path, line: str) -> None:
    file = auth_file(tmp_path, line) if line else ""

    for _ in range(5):  # the refusal comes while the client connects, or after
        assert refusal(secure.hosts, replace(secure.identities.access(), zk_auth_file=file)) == WRONG


@pytest.mark.parametrize("words", [NODE, CONSUMER, STATUS], ids=["node", "consumer", "command"])
def test_each_refusal_is_exit_code_78(secure: Ensemble, foreign: MadeCA, tmp_path: Path, words: list[str]) -> None:
    good = secure.identities.access()
    wrong = auth_file(tmp_path, "sasl:operator:forgotten-by-all")
    for access, reason in (
        (replace(good, zk_auth_file=wrong), WRONG),
        (replace(good, zk_tls_ca=str(foreign.file)), "check zk_tls_ca"),
        (ZooKeeperAccess(), "it has TLS on this port"),
    ):
        code, lines = run(f"{secure.hosts}/chroot", words, access)

        assert code == 78, lines
        assert reason in lines[-1] and lines[-1].startswith("error: ")
        assert "Traceback" not in "".join(lines) and "forgotten-by-all" not in "".join(lines)
        assert words is not STATUS or len(lines) == 1, lines


@pytest.mark.parametrize("words", [NODE, STATUS], ids=["node", "command"])
def test_file_that_others_may_read_is_a_mistake_of_usage(secure: Ensemble, tmp_path: Path, words: list[str]) -> None:
    file = auth_file(tmp_path, "sasl:operator:secret")
    Path(file).chmod(0o644)

    code, lines = run(secure.hosts, words, replace(secure.identities.access(), zk_auth_file=file))

    where = "(zk_auth_file from ZK_GROUP_ZK_AUTH_FILE)"
    assert (code, lines[-1]) == (2, f"error: zk_auth_file {file} may be read by others: chmod 600 {file} {where}")


# ---- a session at work


def test_renewed_certificate_is_used_and_a_lost_one_does_not_end_the_session(
    secure: Ensemble, opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = tmp_path / "ca.pem"
    access = secure.identities.access()
    ca.write_bytes(Path(access.zk_tls_ca).read_bytes())
    store = opened(secure.hosts, replace(access, zk_tls_ca=str(ca)))
    session = store.session_id

    ca.write_text("torn")
    store._client._connection._socket.shutdown(2)

    eventually(lambda: "TLS files unusable" in caplog.text, 10, "it connects again")
    eventually(lambda: store.get("/") is not None and store._client.connected, 10, "it goes on")
    assert (store.session_id, store.lost) == (session, False)
    assert caplog.text.count("TLS files unusable") == 1
    with pytest.raises(UsageError, match="cannot be read as PEM certificates"):
        opened(secure.hosts, replace(access, zk_tls_ca=str(ca)))


def test_answer_that_tls_has_decrypted_is_read_at_once(zookeeper: Ensemble, foreign: MadeCA, opened: Opened) -> None:
    """Where a TLS record holds several answers, the socket shows nothing more to read after the first one.

    Then kazoo would wait for a third of the session timeout, until its next ping is answered.
    """
    proxy = TlsProxy(("127.0.0.1", zookeeper.servers[0].port), foreign.issue("proxy", "127.0.0.1"))
    try:
        access = ZooKeeperAccess(zk_tls=True, zk_tls_ca=str(foreign.file))
        store = opened(proxy.address + "/pipelined", access, 60_000)
        paths = [f"/{number}" for number in range(400)]
        store.commit([Create(path, b"x" * 50) for path in paths])

        began = time.monotonic()
        for _ in range(3):
            reads = [store.send_get(path) for path in paths]
            assert all(read() is not None for read in reads)

        assert time.monotonic() - began < 10.0
        store.close()
    finally:
        proxy.close()


def test_processes_at_work_outlast_servers_that_know_other_users_for_a_while(tmp_path: Path) -> None:
    """They ask again at a bounded rate, and go on as soon as they are let in."""
    config = EnsembleConfig(servers=1, tick_ms=200, durable=False, auth=True, extra=ENFORCED_SASL)
    with Ensemble(tmp_path / "ensemble", config) as ensemble:
        access, server = ensemble.identities.access("team-a"), ensemble.servers[0]
        (users,) = ensemble.directory.rglob("server.jaas")
        known = users.read_text()
        with (
            node_process(tmp_path, ensemble.hosts, "a", 2000, *flags(access)) as node,
            consumer_process(tmp_path, ensemble.hosts, "g", "c1", tmp_path / "log", *flags(access)) as consumer,
        ):
            at_work = ((node, "elected: node=a"), (consumer, "registered: group=g consumer=c1"))
            for process, event in at_work:
                eventually(told_in(process, event), 60, "it is at work")
            users.write_text(re.sub(r'(user_team-a=)"\w+"', r'\1"another"', known))
            server.stop()
            server.start()
            for process in (node, consumer):
                eventually(told_in(process, "ZooKeeper unavailable: client="), 60, "it has an outage")
                eventually(told_in(process, WRONG), 60, "it is refused")
            began, before = time.monotonic(), refused_by(server)
            eventually(lambda: refused_by(server) >= before + 12, 60, "both have asked again")
            rate = 12 / (time.monotonic() - began)  # over seconds: `before` may be late on a busy machine
            users.write_text(known)
            server.stop()
            server.start()

            for process, event in at_work:
                eventually(told_in(process, event, 2), 60, "it goes on")
            assert rate < 4, "two processes, each after 0.2 s, 0.4 s, 0.8 s and so on"
            for process in (node, consumer):
                told = [line for line in process.said().splitlines() if WRONG in line]
                assert len([line for line in told if "ZooKeeper unavailable: client=" in line]) == 1
                assert len(told) <= 4, told  # it resigned, it left, and what was in flight
                assert printed_secrets(process.said(), ensemble.directory) == []


def told_in(process: ProjectProcess, text: str, times: int = 1) -> Callable[[], bool]:
    return lambda: process.said().count(text) >= times


def refused_by(server: Server) -> int:
    """How many logins a server has refused."""
    return server.log.read_text(errors="replace").count("failed to SASL authenticate")


# ---- scripts/ensemble start --tls --auth


def ensemble(folder: Path, *words: str) -> Result:
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
        done = shell("", "zk_group.coordinator.cli.ensemble", *words)
        assert done.returncode == 0, done.stderr
        yield folder, done.stdout.splitlines()[0]
    finally:
        ensemble(folder, "stop")


def test_environment_makes_a_command_an_identity_and_has_no_secret(started: tuple[Path, str]) -> None:
    folder, hosts = started
    shown = ensemble(folder, "env", "--as", "team-a")

    done = shell(
        shown.stdout, "zk_group.coordinator.cli", "topics", "create", "t", "--partitions", "1", "--zk", f"{hosts}/try"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "# in ACLs: sasl:team-a" in shown.stdout
    assert printed_secrets(shown.output + done.stdout, folder) == []
    without = shell("", "zk_group.coordinator.cli", "status", "--zk", f"{hosts}/try")
    assert (without.returncode, "it has TLS on this port: set zk_tls" in without.stderr) == (78, True)


def test_zookeepers_own_client_is_an_identity(started: tuple[Path, str]) -> None:
    folder, _ = started
    words = ["zkcli", "--dir", str(folder), "--as", "team-b"]

    made = shell("", "zk_group.coordinator.cli.ensemble", *words, "create", "/of-team-b", "x", "auth::cdrwa")
    assert made.returncode == 0, made.stderr
    acl = shell("", "zk_group.coordinator.cli.ensemble", *words, "getAcl", "/of-team-b")

    assert "'sasl,'team-b" in acl.stdout


def test_files_of_identities_are_their_owners_alone(started: tuple[Path, str]) -> None:
    folder, _ = started
    found = [path for path in (folder / "identities").iterdir() if path.name != "ca.pem"]

    assert len(found) > 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    assert stat.S_IMODE((folder / "identities").stat().st_mode) == 0o700


def test_status_reads_servers_with_tls_and_another_configuration_is_refused(started: tuple[Path, str]) -> None:
    folder, _ = started

    assert ensemble(folder, "status").exit_code == 0
    other = ensemble(folder, "start", "--no-tls")

    assert other.exit_code != 0
    assert "TLS, SASL" in str(other.exception)
