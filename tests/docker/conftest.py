"""pytest-docker, wired for an engine that may be missing, either Compose, and one ensemble of three for a session.

On a developer's machine without an engine these tests are skipped, with the reason; with CI=true they fail.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ci import in_ci
from tests.support.clients import fresh_chroot
from zk_group.drills.environments.base import connect_string
from zk_group.drills.environments.containers import Containers

HERE = Path(__file__).parent
PROJECT = "zkgroupcoordinator"
PORTS = (14811, 14812, 14813)
"""The default ports of docker-compose.yml."""
OFFICIAL_IMAGE = "zookeeper:3.9"
STAND_IN_IMAGE = "zk-group-coordinator/zookeeper:3.9"


def problem_of(*command: str, timeout_s: float = 20.0) -> str | None:
    """The failure or timeout of a command, with its last line of output."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
    return f"{command[0]} exited with {done.returncode}: {said}"


def runs(*command: str, timeout_s: float = 20.0) -> bool:
    """Whether a command ends well in time."""
    return problem_of(*command, timeout_s=timeout_s) is None


def docker(*arguments: str, timeout_s: float = 60.0) -> str:
    """Run the docker client; what it printed.

    :raises AssertionError: when it fails, with its output.
    """
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout.strip()


@functools.cache
def compose_command() -> str | None:
    """`docker compose` (v2) or `docker-compose` (1.29, or v2 on its own), whichever runs."""
    commands = (os.environ.get("COMPOSE_COMMAND"), "docker compose", "docker-compose")
    return next((command for command in commands if command and runs(*command.split(), "version")), None)


@functools.cache
def zookeeper_image() -> tuple[str, str | None]:
    """The image to use, and why it cannot be had: $ZOOKEEPER_IMAGE, else the official one, else the stand-in."""
    named = os.environ.get("ZOOKEEPER_IMAGE")
    wanted = named or OFFICIAL_IMAGE
    if runs("docker", "image", "inspect", wanted):
        return wanted, None
    # A built stand-in means an unreachable registry; another attempt would take as long.
    if named or not runs("docker", "image", "inspect", STAND_IN_IMAGE):
        pulling = problem_of("docker", "pull", "--quiet", wanted, timeout_s=60)
        if named or pulling is None:
            return wanted, pulling
    return STAND_IN_IMAGE, problem_of(str(HERE / "build-zk-image.sh"), STAND_IN_IMAGE, timeout_s=300)


@functools.cache
def engine_problem() -> str | None:
    """Why no container can run here, in a line."""
    if shutil.which("docker") is None:
        return "there is no docker client on the path"
    if not runs("docker", "version", "--format", "{{.Server.Version}}"):
        return f"no Docker engine answers at {os.environ.get('DOCKER_HOST', 'unix:///var/run/docker.sock')}"
    if compose_command() is None:
        return "neither `docker compose` nor `docker-compose` runs"
    return None


def cannot_run(reason: str) -> None:
    """Skip, or in CI fail."""
    if in_ci():
        pytest.fail(f"CI=true, and the Docker tests cannot run: {reason}", pytrace=False)
    pytest.skip(f"Docker: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip before pytest-docker is asked for anything; in CI `docker_compose_command` fails instead."""
    wanted = [item for item in items if item.get_closest_marker("docker")]
    if wanted and not in_ci() and (problem := engine_problem()):
        for item in wanted:
            item.add_marker(pytest.mark.skip(reason=f"Docker: {problem}"))


@pytest.fixture(scope="session")
def docker_compose_command() -> str | None:
    """For pytest-docker."""
    if problem := engine_problem():
        cannot_run(problem)
    return compose_command()


@pytest.fixture(scope="session")
def docker_compose_file() -> Iterator[str]:
    """For pytest-docker; sets the image that the file names."""
    image, problem = zookeeper_image()
    if problem:
        cannot_run(f"there is no image {image}: {problem}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOOKEEPER_IMAGE", image)
        yield str(HERE / "docker-compose.yml")


@pytest.fixture(scope="session")
def docker_compose_project_name() -> str:
    """For pytest-docker. Fixed, so that the next session removes what a killed one has left."""
    return PROJECT


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    """For pytest-docker. Its default, `up --build --wait`, is not for Compose 1.29."""
    return ["down -v --remove-orphans", "up -d"]


@pytest.fixture(scope="session")
def compose_ensemble(docker_services: Any, tmp_path_factory: pytest.TempPathFactory) -> Containers:
    """Three servers for the whole session. Tests ask for `docker_ensemble`."""
    return Containers(tmp_path_factory.mktemp("containers"), PROJECT, PORTS)


@pytest.fixture
def docker_ensemble(compose_ensemble: Containers, docker_services: Any) -> Iterator[Containers]:
    """Three servers in containers, whole at the start of each test, also after a test that broke them."""
    compose_ensemble.heal()
    docker_services.wait_until_responsive(check=compose_ensemble.is_healthy, timeout=40, pause=0.1)
    yield compose_ensemble


@pytest.fixture
def docker_zk(docker_ensemble: Containers) -> str:
    """A chroot of the test's own on them, as a connect string."""
    return fresh_chroot(connect_string(docker_ensemble.addresses, ""))
