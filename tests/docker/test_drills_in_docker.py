"""Drills on servers in containers: `drill run --docker`, beside the engine's other containers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker.conftest import HERE, docker
from tests.support.drills import IN_DOCKER, environment
from tests.support.wait import eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

REPOSITORY = HERE.parents[1]
SESSION_MS = 6000
"""Long enough for a machine that has other things to do as well."""


@pytest.fixture(autouse=True)
def engine(docker_compose_command: str, docker_compose_file: str) -> None:
    """An engine, Compose, and $ZOOKEEPER_IMAGE."""


@contextmanager
def drilling(runs: Path, *names: str) -> Iterator[subprocess.Popen[str]]:
    """`drill run` of these drills, killed when it still runs at the end; its output is in `runs/said`."""
    command = [sys.executable, "-m", "zk_group.coordinator.cli", "drill", "run", *names, "--docker", "--json"]
    command += ["--session-timeout-ms", str(SESSION_MS), "--runs", str(runs)]
    with (
        (runs / "said").open("wb") as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment(), cwd=REPOSITORY
        ) as drill,
    ):
        try:
            yield drill
        finally:
            drill.kill()


def of_the_run(runs: Path) -> str:
    """The label of a run's objects, once it is printed."""
    said = eventually(
        lambda: re.findall(r"^Compose project (zkgroupdrill\d+-[0-9a-f]{8})\n", (runs / "said").read_text()),
        30,
        "the project is printed",
        pause_s=0.1,
    )
    return f"label=com.docker.compose.project={said[0]}"


def left_in(runs: Path) -> list[str]:
    """A run's objects that the engine still has: containers, networks, volumes."""
    options = ("--quiet", "--filter", of_the_run(runs))
    kinds = (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
    return [found for kind in kinds for found in docker(*kind, *options).split()]


def test_the_promises_are_kept_when_the_leader_is_killed_is_paused_and_is_cut_off(tmp_path: Path) -> None:
    volumes = docker("volume", "ls", "--quiet")

    with drilling(tmp_path, *IN_DOCKER) as drill:
        out, _ = drill.communicate()
    err = (tmp_path / "said").read_text()
    said = json.loads(out.splitlines()[-1])

    assert [each["drill"] for each in said["drills"]] == list(IN_DOCKER)
    for each in said["drills"]:
        assert each["verdict"] == "PASS", err
        assert each["broken"] == []
        assert each["records"]["delivered"] == each["records"]["produced"] > 100
        document = json.loads((Path(each["folder"]) / "run.json").read_text())
        assert document["ensemble"]["kind"] == "docker"
        assert "<svg" in (Path(each["folder"]) / "report.html").read_text()
    assert left_in(tmp_path) == []
    assert docker("volume", "ls", "--quiet") == volumes


def test_a_drill_that_is_interrupted_while_a_server_is_paused_leaves_nothing_behind(tmp_path: Path) -> None:
    with drilling(tmp_path, "zookeeper-leader-pause") as drill:
        ours = of_the_run(tmp_path)
        eventually(
            lambda: docker("ps", "--quiet", "--filter", ours, "--filter", "status=paused"),
            90,
            "the leader is paused",
            pause_s=0.1,
        )
        drill.send_signal(signal.SIGINT)
        drill.communicate(timeout=60)

    assert drill.returncode == 130
    assert left_in(tmp_path) == []
