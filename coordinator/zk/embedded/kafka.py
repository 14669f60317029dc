"""A Kafka broker for an embedded ensemble: one java process in a directory.

For the demo, the bench and the tests. All its files are in its directory, as an ensemble's are. Its jars come from
Maven, fetched once by PySpark's Ivy into the user's cache folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from zk_group.coordinator.zk.embedded.directory import (
    HOST,
    LOG_CONFIGURATION,
    EnsembleError,
    Ports,
    choose_ports,
    is_free,
    known,
    locked,
    state_in,
    wait_until,
    write_atomically,
)
from zk_group.coordinator.zk.embedded.ensemble import LOGGING_JARS, Server, class_path, java, started
from zk_group.coordinator.zk.errors import MissingProgram

READY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class KafkaConfig:
    """Settings of a broker.

    :ivar zookeeper: connect string to register at, `host:port,host:port/chroot`.
    :ivar broker_id: `broker.id`; each broker of a cluster has its own.
    :ivar extra: lines of server.properties, over those below.
    """

    zookeeper: str = ""
    heap_mb: int = 256
    extra: Mapping[str, str] = field(default_factory=dict)
    broker_id: int = 0


class Broker(Server):
    """One broker. Created where the directory contains none, else reopened with its ports and its data.

    As a context manager it starts, waits until ready, and stops at the end.

    :param base_port: the port of its first listener; two more follow. None chooses free ones.
    :raises EnsembleError: when the directory contains a broker of another configuration.
    """

    main = "kafka.Kafka"

    def __init__(self, directory: Path, config: KafkaConfig | None = None, base_port: int | None = None) -> None:
        directory = directory.expanduser().resolve()
        if not has_broker(directory):
            made = config or KafkaConfig()
            _create(directory, made, choose_ports(1, base_port)[0])
        with state_in(directory / "kafka.json", "a broker") as state:
            self.config, ports = known(KafkaConfig, state["config"]), known(Ports, state["ports"])
        if config is not None and config != self.config:
            raise EnsembleError(
                f"{directory} holds a broker of another configuration; name another directory or remove this one"
            )
        if base_port is not None and base_port != ports.client:
            raise EnsembleError(f"{directory} holds a broker on port {ports.client}, not {base_port}")
        super().__init__(self.config.broker_id, directory / "broker", ports, self.config.heap_mb)
        self._configuration = self.directory / "server.properties"

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The broker in `directory`, running or not.

        :raises EnsembleError: when there is none.
        """
        if not has_broker(directory.expanduser().resolve()):
            raise EnsembleError(f"there is no Kafka broker in {directory}")
        return cls(directory)

    @property
    def is_ready(self) -> bool:
        """Whether it runs and listens."""
        return self.is_running and not is_free(self.port)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until it listens. Its topics load a moment later.

        :raises EnsembleError: when its process exits, or after `timeout_s`; with the last error of its log.
        """

        def is_listening_or_lost() -> bool:
            if not self.is_running:
                raise EnsembleError(f"the broker has ended ({self.log}): {self.last_log_line()}")
            return not is_free(self.port)

        wait_until(is_listening_or_lost, timeout_s, lambda: f"the broker does not listen on {self.address}")

    def stop(self, timeout_s: float = 15.0) -> None:
        """SIGTERM (the broker moves its leaderships and closes its files), then SIGKILL after `timeout_s`."""
        super().stop(timeout_s)

    def _class_path(self) -> str:
        # Kafka's artifact depends on the logging API only.
        return f"{class_path(LOGGING_JARS)}:{fetch_kafka()}/*"

    def __enter__(self) -> Self:
        started(self, self.wait_ready)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(2.0)


def has_broker(directory: Path) -> bool:
    """Whether `directory` contains a broker."""
    return (directory / "kafka.json").exists()


def _create(directory: Path, config: KafkaConfig, ports: Ports) -> None:
    """Lay out a new broker without starting it."""
    data = directory / "broker" / "data"
    data.mkdir(parents=True, exist_ok=True)
    (directory / "log4j2.properties").write_text(LOG_CONFIGURATION.replace("INFO", "WARN"))
    # One broker holds every replica, without waits for others.
    lines = {
        "broker.id": str(config.broker_id),
        "zookeeper.connect": config.zookeeper,
        "zookeeper.session.timeout.ms": "6000",
        "listeners": f"PLAINTEXT://{HOST}:{ports.client}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "16777216",
        "log.cleaner.threads": "1",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "background.threads": "2",
        **config.extra,
    }
    (directory / "broker" / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
    state = {"version": 1, "config": asdict(config), "ports": asdict(ports)}
    write_atomically(directory / "kafka.json", json.dumps(state) + "\n")


KAFKA_VERSION = "3.9.1"
"""3.9 is the last Kafka release line with ZooKeeper mode."""

IVY_MAIN = "org.apache.ivy.Main"
FETCH_TIMEOUT_S = 600.0


class Artifact(NamedTuple):
    """A Maven artifact; `name` is for messages."""

    name: str
    organization: str
    module: str
    version: str


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/zk-group-coordinator`, with `~/.cache` where the variable is not set."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "zk-group-coordinator"


def fetch_kafka() -> Path:
    """The folder with the broker's jars (46 MB), as `fetched`."""
    artifact = Artifact(f"Kafka {KAFKA_VERSION}", "org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
    return fetched(artifact, cache_directory() / f"kafka-{KAFKA_VERSION}")


def fetched(artifact: Artifact, folder: Path) -> Path:
    """`folder`, with the jars of an artifact and its dependencies, fetched by the Ivy in PySpark's jars when missing.

    `ZK_GROUP_IVY_SETTINGS` may name an Ivy settings file, for a private repository. Concurrent fetches wait for each
    other.

    :raises MissingProgram: when the jars cannot be fetched, or there is no java, or no PySpark.
    """
    if folder.is_dir():
        return folder
    cache_directory().mkdir(parents=True, exist_ok=True)
    scratch = cache_directory() / "kafka.new"
    with locked(cache_directory() / "kafka.lock"):
        shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
        scratch.mkdir()
        try:
            if not folder.is_dir():
                _run_ivy(artifact, scratch, folder)
                (scratch / "lib").rename(folder)  # atomic: the folder is complete or absent
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _run_ivy(artifact: Artifact, scratch: Path, folder: Path) -> None:
    command = [java(), "-cp", class_path(("ivy-",)), IVY_MAIN, "-cache", str(scratch / "ivy")]
    if settings := os.environ.get("ZK_GROUP_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += ["-dependency", artifact.organization, artifact.module, artifact.version, "-confs", "default"]
    command += ["-retrieve", str(scratch / "lib" / "[artifact]-[revision].[ext]")]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingProgram(_cannot(artifact, folder, f"no end after {FETCH_TIMEOUT_S:g} s")) from error
    if done.returncode != 0 or not list((scratch / "lib").glob(f"{artifact.module}-*.jar")):
        raise MissingProgram(_cannot(artifact, folder, _reason(done.stdout)))


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if any(word in line for word in ("ERROR", "UNRESOLVED", "Exception"))]
    return (errors or lines or ["no output"])[-1][:200]


def _cannot(artifact: Artifact, folder: Path, reason: str) -> str:
    return (
        f"the jars of {artifact.name} cannot be fetched by PySpark's Ivy ({reason}): make a Maven repository reachable "
        "(ZK_GROUP_IVY_SETTINGS may name an Ivy settings file for one), or put the jars of a "
        f"{artifact.name} into {folder}"
    )
