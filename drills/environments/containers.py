"""Three ZooKeeper servers in the containers of a Compose file."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zk_group.coordinator.zk.embedded.directory import HOST, choose_ports
from zk_group.coordinator.zk.embedded.ensemble import four_letter_word, mode_in, modes_are_healthy
from zk_group.coordinator.zk.errors import CoordinatorError, MissingProgram, UsageError

from ..base.processes import REPOSITORY, finished, held, wait_for
from .base import NETWORK, PAUSE, SERVERS, Action, Environment, version_in

_log = logging.getLogger(__name__)

COMPOSE_FILE = REPOSITORY / "tests" / "docker" / "docker-compose.yml"
SERVICES = ("zk1", "zk2", "zk3")
TICK_MS = 500
STATE = "{{.State.Status}}{{range $name, $_ := .NetworkSettings.Networks}} {{$name}}{{end}}"
LOGS = "/datalog/version-2"
HEALTHY_S = 60.0
ENGINE_S = 120.0
UP_S = 900.0
"""The image may have to be pulled."""


class EngineError(CoordinatorError):
    """A command of the Docker engine failed; with its error output."""


class Containers(Environment):
    """Entering creates the containers; leaving removes them with their volumes and networks.

    :param folder: for copies of the transaction logs.
    :param project: the Compose project; a unique one by default.
    :param ports: the published port of each server; free ones by default.
    :ivar project: that project.
    :raises UsageError: when the Compose file does not exist.  :raises MissingProgram: without an engine or Compose.
    """

    kind = "docker"
    can = frozenset({SERVERS, PAUSE, NETWORK})

    def __init__(self, folder: Path, project: str = "", ports: Sequence[int] = ()) -> None:
        if not COMPOSE_FILE.is_file():
            raise UsageError(f"drills on Docker need the project's folder: {COMPOSE_FILE} does not exist")
        self._folder = folder
        # Process ids are unique on one machine or container only; an engine may serve many.
        self.project = project or f"zkgroupdrill{os.getpid()}-{secrets.token_hex(4)}"
        self._peers = f"{self.project}_peers"
        self._compose = (*_compose_command(), "-f", str(COMPOSE_FILE), "-p", self.project)
        self._ports = tuple(ports) or tuple(each.client for each in choose_ports(len(SERVICES), None))
        self.addresses = tuple(f"{HOST}:{port}" for port in self._ports)
        self.tick_s = TICK_MS / 1000

    def leader(self) -> int:
        return wait_for(self._leaders, HEALTHY_S, "there is exactly one leader")[0]

    def _leaders(self) -> list[int] | None:
        leaders = [number for number, mode in enumerate(self._modes()) if mode == "leader"]
        return leaders if len(leaders) == 1 else None

    def has_leader(self) -> bool:
        return "leader" in self._modes()

    def is_healthy(self) -> bool:
        return modes_are_healthy(self._modes())

    def _modes(self) -> list[str | None]:
        return [mode_in(four_letter_word(HOST, port)) for port in self._ports]

    def act(self, action: Action, server: int) -> None:
        words: Mapping[str, Sequence[str]] = {
            "stop": ("stop", "--time", "2"),
            "resume": ("unpause",),
            "cut off": ("network", "disconnect", self._peers),  # clients use another network
            # The alias is its peers' name for it; a plain connect does not restore it.
            "join": ("network", "connect", "--alias", f"peer{server + 1}", self._peers),
        }
        self._run("docker", *words.get(action, (action,)), self._container(server))

    def heal(self) -> None:
        for server in range(len(SERVICES)):
            output = self._run("docker", "inspect", "--format", STATE, self._container(server))
            state, _, networks = output.partition(" ")  # a container that was never started has no network
            if state == "paused":
                self.act("resume", server)
            if self._peers not in networks.split():
                self.act("join", server)
            if state != "paused":
                self.act("start", server)  # no-op if it runs

    def version(self) -> str:
        return version_in(four_letter_word(HOST, self._ports[0]))

    def transaction_logs(self) -> list[Path]:
        copies = []
        for number, name in enumerate(SERVICES):
            copy = self._folder / name
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir(parents=True)
            self._run("docker", "cp", f"{self._container(number)}:{LOGS}", str(copy))
            copies.append(copy / "version-2")
        return copies

    def _container(self, server: int) -> str:
        """Its id."""
        containers = self._found("--filter", f"label=com.docker.compose.service={SERVICES[server]}")
        if not containers:
            raise EngineError(f"no container of {SERVICES[server]}")
        return containers[0]

    def _found(self, *filters: str) -> list[str]:
        """The ids of the project's containers, by label: their names depend on the Compose version."""
        project = f"label=com.docker.compose.project={self.project}"
        return self._run("docker", "ps", "-aq", "--filter", project, *filters).split()

    def __enter__(self) -> Containers:
        try:
            self._run(*self._compose, "up", "-d", timeout_s=UP_S)
            wait_for(self.is_healthy, HEALTHY_S, "the servers in containers are healthy")
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._down()

    def _down(self) -> None:
        """Remove everything. Failures are logged, and do not stop the removal of the rest."""
        with held():
            with suppress(CoordinatorError, OSError):
                for container in self._found("--filter", "status=paused"):  # a paused container cannot be stopped
                    with suppress(CoordinatorError, OSError):
                        self._run("docker", "unpause", container)
            try:
                self._run(*self._compose, "down", "-v", "--remove-orphans")
            except (CoordinatorError, OSError) as error:
                _log.warning("Compose project %s is not removed: %s", self.project, error)

    def _run(self, *command: str, timeout_s: float = ENGINE_S) -> str:
        """The stdout of a command of the engine.

        :raises EngineError: when it fails, or does not end in time.
        """
        published = {f"ZK{number}_PORT": str(port) for number, port in enumerate(self._ports, 1)}
        environment = {**os.environ, **published}
        try:
            done = finished(*command, timeout_s=timeout_s, environment=environment)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{' '.join(command[:4])}: it did not end within {timeout_s:.0f} s") from error
        if done.returncode:
            output = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise EngineError(f"{' '.join(command[:4])}: {output}")
        return done.stdout.strip()


def _compose_command() -> tuple[str, ...]:
    """`docker compose` (v2), or else `docker-compose` (1.29).

    :raises MissingProgram: when no engine answers, or neither runs.
    """
    if not _runs("docker", "version", "--format", "{{.Server.Version}}"):
        raise MissingProgram("no Docker engine answers: start one, or name it in DOCKER_HOST")
    for command in (os.environ.get("COMPOSE_COMMAND", ""), "docker compose", "docker-compose"):
        if command and _runs(*command.split(), "version"):
            return tuple(command.split())
    raise MissingProgram("neither `docker compose` nor `docker-compose` runs: install one of them")


def _runs(*command: str) -> bool:
    try:
        return finished(*command, timeout_s=ENGINE_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
