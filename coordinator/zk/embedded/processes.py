"""Processes of this machine, and java programs from PySpark's own jars: class paths, and ZooKeeper's own client."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from ..errors import MissingProgram

_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_STILL = (*_DEAD, psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


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
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise MissingProgram(
            "java is not installed: install a Java 17 runtime, or a newer one "
            "(Debian and Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME"
        )
    return found


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
    found = sorted(directory.glob(f"{prefix}*.jar"))
    if not found:
        raise MissingProgram(f"this PySpark ships no {prefix}*.jar in {directory}: install pyspark>=4.2,<5")
    return found[-1]
