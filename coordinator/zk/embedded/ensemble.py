"""The embedded ensemble: one or three real ZooKeeper servers as plain java processes, from PySpark's own jars.

For demos, drills and tests, and for users without a ZooKeeper of their own. All files of an ensemble are in its
directory (ports, configuration, process ids, data, logs), so another process can find, watch and stop it. A process is
signalled only if its command line names that directory's configuration file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from zk_group.coordinator.zk.embedded.directory import (
    HOST,
    Identities,
    Ports,
    choose_ports,
    create,
    describe,
    is_free,
    locked,
    read_state,
    server_directory,
    wait_until,
    write_atomically,
)
from zk_group.coordinator.zk.embedded.directory import EnsembleConfig as EnsembleConfig
from zk_group.coordinator.zk.embedded.directory import EnsembleError as EnsembleError
from zk_group.coordinator.zk.embedded.directory import has_ensemble as has_ensemble
from zk_group.coordinator.zk.errors import MissingProgram
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, secured

SERVER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CLI_MAIN = "org.apache.zookeeper.ZooKeeperMain"

LOGGING_JARS = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")
"""PySpark's logging backend."""
SERVER_JARS = (
    "zookeeper-3",
    "zookeeper-jute-",
    *LOGGING_JARS,
    "metrics-core-",
    "commons-io-",
    "snappy-java-",
    # Of TLS.
    "netty-handler-4",
    "netty-common-",
    "netty-buffer-",
    "netty-transport-4",
    "netty-transport-classes-epoll-",
    "netty-transport-native-unix-common-",
    "netty-codec-4",
    "netty-codec-base-",
    "netty-resolver-4",
)
CLI_JARS = (*SERVER_JARS, "commons-cli-", "jline-2")
# Quick to start; the server compiler gains nothing for a few thousand znodes.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_STILL = (*_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
LONGEST_ANSWER = 64 << 10
"""Bytes read of a reply to a four letter word; the peer may be no ZooKeeper."""


@dataclass(frozen=True)
class ServerStatus:
    """Status of one server. `pid` is None when it is down, `mode` when it does not serve (starting, or paused)."""

    id: int
    address: str
    pid: int | None
    mode: str | None


class Server:
    """One server of an ensemble: a java process, its directory and its client port.

    :param flags: further flags of its JVM.
    :param access: for its client port; without TLS when None.
    """

    main = SERVER_MAIN

    def __init__(
        self,
        server_id: int,
        directory: Path,
        ports: Ports,
        heap_mb: int,
        flags: Sequence[str] = (),
        access: ZooKeeperAccess | None = None,
    ) -> None:
        self._flags = flags
        self._access = access
        self.id = server_id
        self.directory = directory
        self.port = ports.client
        self.log = directory / "server.log"
        self._heap_mb = heap_mb
        self._configuration = directory / "zoo.cfg"
        self._pid_file = directory / "pid"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id, or None when the server is down (another process may have the number now)."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid  # a child process; its number cannot be reused before it is reaped
        try:
            pid = int(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if command_line(pid).endswith(f"{self.main} {self._configuration}") else None

    @property
    def is_running(self) -> bool:
        """True for a paused server too."""
        return self.pid is not None

    def start(self) -> None:
        """Start the process, unless it runs. Returns at once; the server serves a second or two later.

        :raises MissingProgram: when there is no java, or no PySpark to take ZooKeeper's jars from.
        :raises EnsembleError: when another process has its port.
        """
        if self.is_running:
            return
        if not is_free(self.port):
            raise EnsembleError(f"port {self.port} of server {self.id} is in use by another process")
        command = [java(), f"-Xmx{self._heap_mb}m", *JVM_FLAGS, *self._flags, "-cp", self._class_path()]
        command += [f"-Dlog4j2.configurationFile={self.directory.parent / 'log4j2.properties'}"]
        command += [self.main, str(self._configuration)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C in the starter's terminal is not for the servers
            )
        write_atomically(self._pid_file, f"{self._process.pid}\n")

    def _class_path(self) -> str:
        return class_path(SERVER_JARS)

    def kill(self) -> None:
        """SIGKILL, as in a crash, and wait until the process is gone."""
        self._end(signal.SIGKILL, 10.0)

    def stop(self, timeout_s: float = 5.0) -> None:
        """SIGTERM, waking a paused server for it, and SIGKILL for one that has not ended after `timeout_s`."""
        self.resume()
        try:
            self._end(signal.SIGTERM, timeout_s)
        except EnsembleError:
            self.kill()
        self._pid_file.unlink(missing_ok=True)

    def terminate(self) -> None:
        """Ask the process to end, without waiting. A paused one is woken for it."""
        self._signal(signal.SIGTERM)
        self.resume()

    def pause(self) -> None:
        """SIGSTOP: its sockets stay open and nothing is answered, as in a long garbage collection.

        Returns when all threads have stopped: the signal reaches them one after the other.

        :raises EnsembleError: when it does not within 10 s.
        """
        pid = self.pid
        if self._signal(signal.SIGSTOP) and pid is not None:
            wait_until(lambda: stands_still(pid), 10.0, lambda: f"server {self.id} (process {pid}) does not stop")

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def ask(self, word: str = "srvr", timeout_s: float = 1.0) -> str:
        """The server's reply to a four letter word; empty without one within `timeout_s`."""
        return four_letter_word(HOST, self.port, word, timeout_s, self._access)

    def mode(self) -> str | None:
        """`leader`, `follower` or `standalone`; None while the server does not serve."""
        return mode_in(self.ask())

    def status(self) -> ServerStatus:
        """Process and mode in one value."""
        pid = self.pid
        return ServerStatus(self.id, self.address, pid, self.mode() if pid is not None else None)

    def last_log_line(self) -> str:
        """The last exception in the log, else its last line; empty when there is none."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-200:]
        except OSError:
            return ""
        errors = [line for line in lines if "Exception" in line or line.startswith("Error")]
        return (errors or lines or [""])[-1].strip()

    def _signal(self, number: signal.Signals) -> bool:
        """Signal the process; False when there is none."""
        pid = self.pid
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return True

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        """Signal the process and wait until it is gone and its port with it, which is a moment later."""
        pid = self.pid
        if self._signal(number) and pid is not None:
            wait_until(
                lambda: has_ended(pid) and is_free(self.port),
                timeout_s,
                lambda: f"server {self.id} (process {pid}) still runs after {number.name}",
            )
        if self._process is not None and not self.is_running:
            self._process.wait(timeout_s)


class Ensemble:
    """One or three ZooKeeper servers in one directory.

    Created where the directory contains none, else reopened with its ports and its data. As a context manager it
    starts, waits until healthy, and stops at the end.

    :param config: settings. None reopens the directory's ensemble, or takes the defaults.
    :param base_port: the first client port; the other ports follow it. None chooses free ones.
    :raises EnsembleError: when the directory contains an ensemble of another configuration.
    """

    def __init__(self, directory: Path, config: EnsembleConfig | None = None, base_port: int | None = None) -> None:
        self.directory = directory.expanduser().resolve()
        if not has_ensemble(self.directory):
            made = config or EnsembleConfig()
            create(self.directory, made, choose_ports(made.servers, base_port))
        self.config, ports = read_state(self.directory)
        if config is not None and self.config != config:
            raise EnsembleError(
                f"{self.directory} holds an ensemble of {describe(self.config)}, not of {describe(config)}; "
                "name another directory or remove this one"
            )
        if base_port is not None and ports[0].client != base_port:
            raise EnsembleError(f"{self.directory} holds an ensemble on port {ports[0].client}, not {base_port}")
        self.identities = Identities(self.directory, self.config.tls, self.config.auth)
        common = self.config.heap_mb, self.identities.server_flags, self.identities.access()
        numbered = [(number, server_directory(self.directory, number), its) for number, its in enumerate(ports, 1)]
        self.servers = tuple(Server(*own, *common) for own in numbered)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The ensemble in `directory`, running or not.

        :raises EnsembleError: when there is none.
        """
        directory = directory.expanduser().resolve()
        if not has_ensemble(directory):
            raise EnsembleError(f"there is no ensemble in {directory}")
        return cls(directory)

    @property
    def hosts(self) -> str:
        """The connect string: `127.0.0.1:P1,127.0.0.1:P2,...`."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Start every server that does not run. Follow with `wait_healthy`.

        :raises MissingProgram: when there is no java, or no PySpark.
        """
        with locked(self.directory / "lock"):
            for server in self.servers:
                server.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop every server; SIGKILL for those still running after `timeout_s`."""
        with locked(self.directory / "lock"):
            for server in self.servers:
                server.terminate()
            for server in self.servers:
                server.stop(timeout_s)

    def status(self) -> tuple[ServerStatus, ...]:
        """Status of every server."""
        return tuple(server.status() for server in self.servers)

    def is_healthy(self) -> bool:
        """Every server serves, and exactly one of them leads."""
        return modes_are_healthy([server.mode() for server in self.servers])

    def wait_healthy(self, timeout_s: float = 30.0) -> None:
        """Wait until `is_healthy`.

        :raises EnsembleError: when a server's process exits, or after `timeout_s`; with the last error of its log.
        """

        def is_healthy_or_lost() -> bool:
            for server in self.servers:
                if not server.is_running:
                    raise EnsembleError(f"server {server.id} has ended ({server.log}): {server.last_log_line()}")
            return self.is_healthy()

        wait_until(is_healthy_or_lost, timeout_s, lambda: f"the ensemble is not healthy: {self.status()}")

    def leader(self, timeout_s: float = 20.0) -> Server:
        """The leader (or standalone server), once exactly one reports it.

        Waits, because a leader without followers still reports itself as leader for a moment.

        :raises EnsembleError: when after `timeout_s` there is none, or more than one.
        """
        return wait_until(self._only_leader, timeout_s, lambda: f"there is not exactly one leader: {self.status()}")

    def _only_leader(self) -> Server | None:
        leaders = [server for server in self.servers if server.mode() in ("leader", "standalone")]
        return leaders[0] if len(leaders) == 1 else None

    def __enter__(self) -> Self:
        started(self, self.wait_healthy)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def started(made: Ensemble | Server, wait: Callable[[], object], has_run: bool = False) -> None:
    """Start servers and wait for them; stop them after a failed start, unless one `has_run` before."""
    try:
        made.start()
        wait()
    except BaseException:
        if not has_run:
            made.stop()
        raise


def four_letter_word(
    host: str, port: int, word: str = "srvr", timeout_s: float = 1.0, access: ZooKeeperAccess | None = None
) -> str:
    """A server's reply to `srvr`, `mntr`, `cons`, ..., truncated after 64 KiB.

    Empty when the reply is incomplete after `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    answer = b""
    context = access.tls_context() if access is not None else None
    try:
        plain = socket.create_connection((host, port), timeout_s)
        with plain if context is None else secured(plain, context, host, timeout_s) as connection:
            connection.sendall(word.encode())
            while len(answer) < LONGEST_ANSWER and (data := _received_before(end, connection)):
                answer += data
    except OSError:
        return ""
    return answer[:LONGEST_ANSWER].decode(errors="replace")


def _received_before(end: float, connection: socket.socket) -> bytes:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the answer takes too long")
    connection.settimeout(left)
    return connection.recv(LONGEST_ANSWER)


def mode_in(answer: str) -> str | None:
    """The mode in a reply to `srvr`, None without one."""
    return next((line.split()[1] for line in answer.splitlines() if line.startswith("Mode: ")), None)


def modes_are_healthy(modes: list[str | None]) -> bool:
    """Whether these are the modes of a complete ensemble: one standalone server, or a leader and its followers."""
    return modes == ["standalone"] or (modes.count("leader") == 1 and modes.count("follower") == len(modes) - 1)


def zkcli_command(hosts: str, *args: str, flags: Sequence[str] = ()) -> list[str]:
    """The command line of ZooKeeper's own client for `hosts`; interactive without `args`.

    :param flags: further flags of its JVM, as for TLS.
    :raises MissingProgram: when there is no java, or no PySpark.
    """
    command = [java(), "-Xmx64m", *JVM_FLAGS, *flags, "-Dlog4j2.level=ERROR", "-cp", class_path(CLI_JARS)]
    return [*command, CLI_MAIN, "-server", hosts, *args]


def java() -> str:
    """The java program: `$JAVA_HOME/bin/java`, else the first on the path.

    :raises MissingProgram: when there is neither.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    program = program or shutil.which("java")
    if program is None:
        raise MissingProgram(
            "java is not installed: install a Java 17 runtime, or a newer one "
            "(Debian and Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME"
        )
    return program


def class_path(prefixes: tuple[str, ...]) -> str:
    """PySpark's jars whose names begin with `prefixes`, as a class path. PySpark is not imported.

    :raises MissingProgram: when PySpark is not installed, or lacks one of the jars.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingProgram("PySpark, whose jars hold ZooKeeper, is not installed: pip install 'pyspark>=4.2,<5'")
    directory = Path(spec.origin).parent / "jars"
    return ":".join(str(_newest(directory, prefix)) for prefix in prefixes)


def _newest(directory: Path, prefix: str) -> Path:
    jars = sorted(directory.glob(f"{prefix}*.jar"))
    if not jars:
        raise MissingProgram(f"this PySpark ships no {prefix}*.jar in {directory}: install pyspark>=4.2,<5")
    return jars[-1]


def command_line(pid: int) -> str:
    """The arguments of a running process, separated by spaces; empty for one that is gone, or a zombie."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def descendants(pid: int) -> list[int]:
    """The living processes below a process."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def stands_still(pid: int) -> bool:
    """Whether every thread of a process is stopped, or the process is gone.

    Linux stops one thread after the other, and shows each under its own id as it does a process.
    """
    try:
        threads = [thread.id for thread in psutil.Process(pid).threads()] if psutil.LINUX else [pid]
    except psutil.NoSuchProcess:
        return True
    return all(_status(thread) in _STILL for thread in threads)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie without threads: its command line goes before its threads do."""
    try:
        process = psutil.Process(pid)
        return process.status() in _DEAD and process.num_threads() < 2
    except psutil.NoSuchProcess:
        return True


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)
