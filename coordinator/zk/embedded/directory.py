"""The directory of an embedded ensemble: its configuration, its ports, one zoo.cfg per server, and its credentials.

Credentials are all thrown away with the directory: a CA, certificates, SASL users.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zk_group.coordinator.zk.errors import CoordinatorError, MissingProgram, UsageError
from zk_group.coordinator.zk.security.access import SASL, ZooKeeperAccess

if TYPE_CHECKING:
    import trustme

T = TypeVar("T")

HOST = "127.0.0.1"

# Below 32768: Linux assigns higher ports to outgoing connections; one of those could occupy the port of a stopped
# server, which then could not restart.
PORTS = range(15000, 30000)
SHARES = 16

LOG_CONFIGURATION = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p [%t:%C{1}] %m%n
"""


class EnsembleError(CoordinatorError):
    """An operation of the embedded ensemble failed; the message names the server and its log."""


@dataclass(frozen=True)
class EnsembleConfig:
    """Settings of an ensemble. The negotiated session timeout is at least two ticks.

    :raises EnsembleError: when a value breaks one of the rules below.
    """

    servers: int = 3
    tick_ms: int = 500
    init_limit_ticks: int = 20
    sync_limit_ticks: int = 4
    max_session_timeout_ms: int = 60_000
    heap_mb: int = 128
    durable: bool = True
    """Whether a write is synced to disk before its reply. False only for tests on new data."""
    tls: bool = False
    """Whether the client ports have TLS; every client needs a certificate of the ensemble's own CA."""
    auth: bool = False
    """Whether clients may authenticate by SASL."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further lines of zoo.cfg, for tests of one setting."""

    def __post_init__(self) -> None:
        if self.servers not in (1, 3):
            raise EnsembleError(f"servers is {self.servers}; an embedded ensemble has 1 or 3")
        if self.tick_ms < 50:
            raise EnsembleError(f"tick_ms is {self.tick_ms}; below 50 a busy machine looks like a dead server")
        if self.max_session_timeout_ms < 2 * self.tick_ms:
            raise EnsembleError("max_session_timeout_ms is below two ticks, the shortest session that a server grants")


@dataclass(frozen=True)
class Ports:
    """The three ports of one server, on `HOST`."""

    client: int
    quorum: int
    election: int


def has_ensemble(directory: Path) -> bool:
    """Whether `directory` contains an ensemble."""
    return (directory / "ensemble.json").exists()


def create(directory: Path, config: EnsembleConfig, ports: list[Ports]) -> None:
    """Lay out a new ensemble without starting it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log4j2.properties").write_text(LOG_CONFIGURATION)
    identities = Identities(directory, config.tls, config.auth)
    identities.create()
    for number in range(1, config.servers + 1):
        data = server_directory(directory, number) / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        configuration = _configuration(config, ports, number, data) | identities.server_lines() | dict(config.extra)
        (data.parent / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in configuration.items()))
    # Written last: without it `directory` contains no ensemble, and the next start lays it out again.
    state = {"version": 1, "config": asdict(config), "ports": [asdict(its) for its in ports]}
    write_atomically(directory / "ensemble.json", json.dumps(state) + "\n")


def server_directory(directory: Path, number: int) -> Path:
    """Directory of server `number` (from 1): configuration, data, log and process id."""
    return directory / f"server-{number}"


def _configuration(config: EnsembleConfig, ports: list[Ports], number: int, data: Path) -> dict[str, str]:
    """The lines of one server's zoo.cfg."""
    lines = {
        "dataDir": str(data),
        "tickTime": str(config.tick_ms),
        "initLimit": str(config.init_limit_ticks),
        "syncLimit": str(config.sync_limit_ticks),
        "cnxTimeout": "1000",
        "minSessionTimeout": str(2 * config.tick_ms),
        "maxSessionTimeout": str(config.max_session_timeout_ms),
        "maxClientCnxns": "0",  # every client of an embedded ensemble comes from one address
        "admin.enableServer": "false",  # PySpark ships no Jetty
        "4lw.commands.whitelist": "*",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "1",
        "forceSync": "yes" if config.durable else "no",
    }
    own = ports[number - 1]
    is_single = config.servers == 1
    if config.tls:
        lines |= {"secureClientPort": str(own.client), "secureClientPortAddress": HOST}
    elif is_single:
        lines |= {"clientPort": str(own.client), "clientPortAddress": HOST}
    for other, its in enumerate(ports, 1) if not is_single else ():
        client = "" if config.tls else f";{HOST}:{its.client}"
        lines[f"server.{other}"] = f"{HOST}:{its.quorum}:{its.election}{client}"
    return lines


def read_state(directory: Path) -> tuple[EnsembleConfig, list[Ports]]:
    """The settings and ports of the ensemble in `directory`.

    :raises EnsembleError: when there is none, or its file cannot be read.
    """
    with state_in(directory / "ensemble.json", "an ensemble") as state:
        return known(EnsembleConfig, state["config"]), [known(Ports, its) for its in state["ports"]]


@contextmanager
def state_in(path: Path, owner: str) -> Iterator[dict[str, Any]]:
    """The state of `owner` in a file.

    :raises EnsembleError: when it cannot be read, or used within.
    """
    try:
        yield json.loads(path.read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnsembleError(f"{path} cannot be read as {owner}'s state: {error!r}") from error


def known(kind: type[T], state: Mapping[str, Any]) -> T:
    """`kind` from its fields in a state; other fields are those of earlier releases.

    :raises TypeError: when one is missing.
    """
    return kind(**{field.name: state[field.name] for field in fields(kind) if field.name in state})  # type: ignore[arg-type]


def describe(config: EnsembleConfig) -> str:
    """A configuration in a few words, for an error message."""
    durability = "durable" if config.durable else "not durable"
    security = "".join(f", {name}" for name, is_on in (("TLS", config.tls), ("SASL", config.auth)) if is_on)
    return f"{config.servers} server(s), tick {config.tick_ms} ms, {durability}{security}"


def choose_ports(servers: int, base_port: int | None) -> list[Ports]:
    """Three ports per server, client ports first and consecutive.

    :raises UsageError: when `base_port` is out of range, or one of the ports is in use.
    :raises EnsembleError: when no free ports are found.
    """
    count = 3 * servers
    if base_port is not None:
        _require_free(base_port, count)
        base = base_port
    else:
        base = wait_until(lambda: _free_base(count), 5.0, lambda: f"no {count} free ports were found in {PORTS}")
    numbers = range(base, base + count)
    return [Ports(numbers[i], numbers[servers + i], numbers[2 * servers + i]) for i in range(servers)]


def _free_base(count: int) -> int | None:
    """Draw from a range used by few other processes: a port stays free until it is bound."""
    share = len(PORTS) // SHARES
    first = PORTS.start + os.getpid() % SHARES * share
    base = random.randrange(first, first + share - count)
    return base if all(is_free(port) for port in range(base, base + count)) else None


def _require_free(base: int, count: int) -> None:
    if not 1024 <= base <= 32768 - count:
        raise UsageError(f"port {base}: choose one from 1024 to {32768 - count}; {count} ports in a row are used")
    taken = [port for port in range(base, base + count) if not is_free(port)]
    if taken:
        raise UsageError(f"port {taken[0]} is in use; {count} ports in a row from {base} are needed")


def is_free(port: int) -> bool:
    """Whether no process listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The lock in a file: one process at a time."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` atomically."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text)
    temporary.replace(path)


def wait_until(condition: Callable[[], T | None], timeout_s: float, describe: Callable[[], str]) -> T:
    """Poll `condition` until its result is truthy, and return it.

    :raises EnsembleError: after `timeout_s`, with the text of `describe`.
    """
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise EnsembleError(f"after {timeout_s:g} s {describe()}")
        time.sleep(0.02)
    return result


IDENTITIES: Final = ("coordinator", "operator", "reader", "team-a", "team-b")
"""A client of each is set up: its certificate, and its SASL user."""
ORGANIZATION: Final = "zk-group"
UNIT: Final = "embedded"
_SERVER: Final = "server"
_FOLDER: Final = "identities"
_CA: Final = "ca.pem"
_SERVER_JAAS: Final = "server.jaas"
_SASL_PROVIDER: Final = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
_LOGIN_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"


class Identities:
    """The files below an ensemble's directory; only their owner may read them.

    :param tls: whether there are certificates.
    :param auth: whether there are SASL users.
    """

    def __init__(self, directory: Path, tls: bool, auth: bool) -> None:
        self._folder = directory / _FOLDER
        self._tls = tls
        self._auth = auth

    def create(self) -> None:
        """Make all files, for servers on this machine.

        :raises MissingProgram: when trustme, which makes the certificates, is not installed.
        """
        if self._tls or self._auth:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._tls:
            self._create_certificates()
        if self._auth:
            self._create_users()

    def _create_certificates(self) -> None:
        try:
            import trustme
        except ImportError as error:
            raise MissingProgram(
                "trustme, which makes the certificates, is not installed: pip install trustme"
            ) from error
        ca = trustme.CA(organization_name=ORGANIZATION, organization_unit_name=UNIT)
        ca.cert_pem.write_to_path(self._folder / _CA)
        self._write_certificate(_SERVER, ca, [HOST, "localhost"])
        for name in IDENTITIES:
            self._write_certificate(name, ca, [f"{name}.invalid"])

    def _write_certificate(self, name: str, ca: trustme.CA, hosts: Sequence[str]) -> None:
        """Certificate and key in one file. ZooKeeper reads keys in PKCS #8 only."""
        from cryptography.hazmat.primitives import serialization as pem

        made = ca.issue_cert(*hosts, common_name=name, organization_name=ORGANIZATION, organization_unit_name=UNIT)
        key = pem.load_pem_private_key(made.private_key_pem.bytes(), password=None)
        text = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())
        self._write(f"{name}.pem", (text + b"".join(one.bytes() for one in made.cert_chain_pems)).decode())

    def _create_users(self) -> None:
        passwords = {name: secrets.token_hex(16) for name in IDENTITIES}
        users = "\n".join(f'  user_{name}="{password}"' for name, password in passwords.items())
        self._write(_SERVER_JAAS, f"Server {{\n  {_LOGIN_MODULE} required\n{users};\n}};\n")
        for name, password in passwords.items():
            self._write(f"{name}.auth", f"{SASL}:{name}:{password}\n")
            client = f'username="{name}"\n  password="{password}"'
            self._write(f"{name}.jaas", f"Client {{\n  {_LOGIN_MODULE} required\n  {client};\n}};\n")

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text)

    # ---- servers

    def server_lines(self) -> dict[str, str]:
        """Lines of zoo.cfg."""
        lines = {"authProvider.sasl": _SASL_PROVIDER} if self._auth else {}
        if self._tls:
            lines |= {
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(self._folder / f"{_SERVER}.pem"),
                "ssl.trustStore.location": str(self._folder / _CA),
                "ssl.clientAuth": "want",
            }
        return lines

    @property
    def server_flags(self) -> tuple[str, ...]:
        """Flags of a server's JVM."""
        return (f"-Djava.security.auth.login.config={self._folder / _SERVER_JAAS}",) if self._auth else ()

    # ---- clients

    def access(self, name: str = "operator") -> ZooKeeperAccess:
        """The access of a client with this identity.

        :raises UsageError: when there is no such identity.
        """
        if name not in IDENTITIES:
            raise UsageError(f"there is no identity {name}: known are {', '.join(IDENTITIES)}")
        certificate = str(self._folder / f"{name}.pem") if self._tls else ""
        return ZooKeeperAccess(
            zk_auth_file=str(self._folder / f"{name}.auth") if self._auth else "",
            zk_tls=self._tls,
            zk_tls_ca=str(self._folder / _CA) if self._tls else "",
            zk_tls_cert=certificate,
            zk_tls_key=certificate,
        )

    def zookeeper_id(self, name: str) -> str:
        """The identity as in an ACL, `scheme:id`; of the certificate where there are no users."""
        if self._auth:
            return f"{SASL}:{name}"
        return f"x509:CN={name},OU={UNIT},O={ORGANIZATION}"

    def zkcli_flags(self, name: str) -> tuple[str, ...]:
        """Flags of the JVM of ZooKeeper's own client."""
        flags: tuple[str, ...] = ()
        if self._auth:
            # In FIPS mode, its default since 3.9, the client has no DIGEST-MD5.
            login = f"-Djava.security.auth.login.config={self._folder / f'{name}.jaas'}"
            flags += (login, "-Dzookeeper.fips-mode=false")
        if self._tls:
            flags += (
                "-Dzookeeper.client.secure=true",
                "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
                f"-Dzookeeper.ssl.keyStore.location={self._folder / f'{name}.pem'}",
                f"-Dzookeeper.ssl.trustStore.location={self._folder / _CA}",
            )
        return flags
