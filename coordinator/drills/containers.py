"""Three ZooKeeper servers in containers: those of a Compose file, which the engine kills, stops and starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ..zk.ensemble import four_letter_word, mode_in, modes_are_healthy
from ..zk.errors import CoordinatorError, UsageError
from .ground import Passing, version_in
from .processes import REPOSITORY
from .waiting import wait_for

COMPOSE_FILE = REPOSITORY / "tests" / "docker" / "docker-compose.yml"
PROJECT = "zkgroupdrill"
SERVERS = ("zk1", "zk2", "zk3")
PORTS = (14811, 14812, 14813)
"""What the file publishes: fixed, since a random port would change when a killed container is started again."""
TICK_MS = 500
LOGS = "/datalog/version-2"
HEALTHY_S = 60.0
ENGINE_S = 120.0


class EngineError(CoordinatorError):
    """The Docker engine refused, with what it said."""


class Containers(Passing):
    """See `Ground`. As a context manager it makes the containers, and removes them with their volumes.

    :param folder: for copies of the transaction logs.
    """

    kind = "docker"
    addresses = tuple(f"127.0.0.1:{port}" for port in PORTS)

    def __init__(self, folder: Path) -> None:
        if not COMPOSE_FILE.is_file():
            raise UsageError(f"drills on Docker need the project's own folder: there is no {COMPOSE_FILE}")
        self._folder = folder
        self._compose = _compose_command()
        self.tick_s = TICK_MS / 1000

    def leader(self) -> int:
        """See `Ground`."""
        return wait_for(self._leaders, HEALTHY_S, "exactly one server leads")[0]

    def _leaders(self) -> list[int] | None:
        found = [number for number, mode in enumerate(self._modes()) if mode == "leader"]
        return found if len(found) == 1 else None

    def has_leader(self) -> bool:
        """See `Ground`."""
        return "leader" in self._modes()

    def is_healthy(self) -> bool:
        """See `Ground`."""
        return modes_are_healthy(self._modes())

    def _modes(self) -> list[str | None]:
        answers = (address.rsplit(":", 1) for address in self.addresses)
        return [mode_in(four_letter_word(host, int(port))) for host, port in answers]

    def kill(self, server: int) -> None:
        """See `Ground`."""
        self._run("docker", "kill", self._container(server))

    def stop(self, server: int) -> None:
        """See `Ground`."""
        self._run("docker", "stop", "--time", "2", self._container(server))

    def start(self, server: int) -> None:
        """See `Ground`."""
        self._run("docker", "start", self._container(server))

    def version(self) -> str:
        """See `Ground`."""
        host, port = self.addresses[0].rsplit(":", 1)
        return version_in(four_letter_word(host, int(port)))

    def transaction_logs(self) -> list[Path]:
        """See `Ground`: copies of what the servers have now."""
        found = []
        for number, name in enumerate(SERVERS):
            copy = self._folder / name
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir(parents=True)
            self._run("docker", "cp", f"{self._container(number)}:{LOGS}", str(copy))
            found.append(copy / "version-2")
        return found

    def _container(self, server: int) -> str:
        """Its id, by label: the two Composes do not agree on the names of containers."""
        labels = (f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={SERVERS[server]}")
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        found = self._run("docker", "ps", "-aq", *filters).split()
        if not found:
            raise EngineError(f"there is no container of {SERVERS[server]}")
        return found[0]

    def __enter__(self) -> Containers:
        try:
            self._run(*self._compose, "up", "-d")
            wait_for(self.is_healthy, HEALTHY_S, "the servers in containers are healthy")
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._down()

    def _down(self) -> None:
        self._run(*self._compose, "down", "-v", "--remove-orphans")

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ENGINE_S)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            raise EngineError(f"{' '.join(command[:4])}: {said}")
        return done.stdout.strip()


def _compose_command() -> tuple[str, ...]:
    """`docker compose` (v2) or `docker-compose` (1.29), whichever runs, on the project's file.

    :raises EngineError: when no engine answers, or neither runs.
    """
    if not _runs("docker", "version", "--format", "{{.Server.Version}}"):
        raise EngineError("no Docker engine answers: start one, or name it in DOCKER_HOST")
    for command in (os.environ.get("COMPOSE_COMMAND", ""), "docker compose", "docker-compose"):
        if command and _runs(*command.split(), "version"):
            return (*command.split(), "-f", str(COMPOSE_FILE), "-p", PROJECT)
    raise EngineError("neither `docker compose` nor `docker-compose` runs: install one of them")


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=ENGINE_S).returncode == 0
    except OSError:
        return False
