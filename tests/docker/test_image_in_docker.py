"""The image of deploy/Containerfile, built and run, on the base that it names or on a stand-in for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.conftest import HERE, cannot_run, docker, engine_problem, problem_of, runs
from tests.support.wait import eventually
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, Brokers
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord

pytestmark = pytest.mark.docker

ROOT = HERE.parents[1]
BASE = "docker.io/library/python:3.12-slim"
STAND_IN = "zk-group-coordinator/python:stand-in"
TAG = "zk-group-coordinator:test"
SOURCES = ("coordinator", "consumer", "drills", "zk_group", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, built from a wheel of this tree as the Containerfile's first lines say."""
    if problem := engine_problem():
        cannot_run(problem)
    base = BASE if runs("docker", "image", "inspect", BASE) else STAND_IN
    if base == STAND_IN and (problem := problem_of(str(HERE / "build-python-image.sh"), STAND_IN, timeout_s=300)):
        cannot_run(problem)
    folder = tmp_path_factory.mktemp("image")
    for name in SOURCES:
        source = ROOT / name
        shutil.copytree(source, folder / name, symlinks=True) if source.is_dir() else shutil.copy(source, folder / name)
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    wheels = folder / "deploy" / "wheels"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(wheels), "."],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    docker(
        "build", "--quiet", "--network", "none", "--build-arg", f"BASE={base}",
        "--file", str(folder / "deploy" / "Containerfile"), "--tag", TAG, str(folder / "deploy"), timeout_s=400,
    )  # fmt: skip
    return TAG


@pytest.fixture
def store(zk: str) -> Iterator[Store]:
    store = open_kazoo(zk, 10_000)
    yield store
    store.close()


@pytest.fixture
def started() -> Iterator[list[str]]:
    """Containers that a test has started; they are removed."""
    found: list[str] = []
    yield found
    for container in found:
        docker("rm", "--force", container)


def run(started: list[str], image: str, zk: str, *arguments: str, mount: Path | None = None) -> str:
    """Start a container on the host's network, where the embedded ZooKeeper is; its id."""
    volume = ["--volume", f"{mount}:/mnt/log"] if mount else []
    user = ["--user", f"{os.getuid()}:{os.getgid()}"] if mount else []
    container = docker(
        "run", "--detach", "--network", "host", *volume, *user, "--env", f"ZK_GROUP_ZK={zk}", image, *arguments
    )
    started.append(container)
    return container


def said(container: str) -> str:
    """Its stderr."""
    return subprocess.run(["docker", "logs", container], capture_output=True, text=True, timeout=60, check=False).stderr


@pytest.mark.timeout(900)  # the first test builds the image
def test_node_container_coordinates_a_consumer_container_and_resigns_on_stop(
    image: str, zk: str, store: Store, started: list[str], tmp_path: Path
) -> None:
    create_topic(store, Brokers(), "t", 2)
    environment = {**os.environ, "ZK_GROUP_ZK": zk, "ZK_GROUP_LOG_DIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-m", "zk_group.consumer.cli", "produce", "t"],
        input="one\ntwo\nthree\n", text=True, cwd=ROOT, env=environment, check=True, timeout=60,
    )  # fmt: skip
    node = run(started, image, zk, "zk-coordinator", "run", "--node", "boxed")

    def elected() -> bool:
        found = store.get(COORDINATOR)
        return found is not None and CoordinatorRecord.parse("", found.data).node == "boxed"

    eventually(elected, 20, "the node in the container is elected")
    options = ["--group", "g", "--consumer", "c1", "--topics", "t", "--log-dir", "/mnt/log", "--max-records", "3"]
    consumer = run(started, image, zk, "zk-consumer", "run", *options, mount=tmp_path)
    assert docker("wait", consumer) == "0", said(consumer)
    assert sorted(json.loads(line)["value"] for line in docker("logs", consumer).splitlines()) == [
        "one",
        "three",
        "two",
    ]

    began = time.monotonic()
    docker("stop", "--time", "30", node)

    assert time.monotonic() - began < 10, "it did not wait to be killed"
    assert docker("inspect", "--format", "{{.State.ExitCode}}", node) == "0"
    assert store.get(COORDINATOR) is None


@pytest.mark.timeout(900)
def test_image_runs_as_an_unprivileged_user_and_reports_a_missing_option(image: str, started: list[str]) -> None:
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", image], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (2, "error: zk is needed: give --zk, or set ZK_GROUP_ZK\n")
    assert (
        docker("run", "--rm", "--network", "none", image, "python3", "-c", "import os; print(os.getuid())") == "10001"
    )
