"""ZooKeeper from PySpark's own jars: the java program, the class paths, and ZooKeeper's own client."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from coordinator.zk.errors import MissingProgram

SERVER_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CLI_MAIN = "org.apache.zookeeper.ZooKeeperMain"

SERVER_JARS = (
    "zookeeper-3",
    "zookeeper-jute-",
    "slf4j-api-",
    "log4j-api-",
    "log4j-core-",
    "log4j-slf4j2-impl-",
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
CLI_JARS = (
    *SERVER_JARS,
    "commons-cli-",
    "jline-2",
)
# Quick to start; the server compiler gains nothing for a few thousand znodes.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def zkcli_command(hosts: str, *args: str, flags: Sequence[str] = ()) -> list[str]:
    """The command line of ZooKeeper's own client for `hosts`; interactive without `args`.

    :param flags: further flags of its JVM, as for TLS.
    :raises MissingProgram: when there is no java, or no PySpark.
    """
    command = [java(), "-Xmx64m", *JVM_FLAGS, *flags, "-Dlog4j2.level=ERROR", "-cp", class_path(CLI_JARS)]
    return [*command, CLI_MAIN, "-server", hosts, *args]


def zkcli(
    hosts: str, *args: str, timeout_s: float = 30.0, flags: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run one command of ZooKeeper's own client, as `zkcli(hosts, "ls", "/")`, and return its output.

    Its return code is 1 for a znode that does not exist.

    :raises MissingProgram: when there is no java, or no PySpark.
    :raises subprocess.TimeoutExpired: after `timeout_s`.
    """
    return subprocess.run(
        zkcli_command(hosts, *args, flags=flags),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


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
