"""Endings of `drill run` after errors outside of the product."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coordinator.cli import main
from coordinator.zk.embedded.directory import EnsembleError
from coordinator.zk.errors import MissingProgram, ZooKeeperUnreachable
from drills.base.processes import NotReached
from drills.environments import containers
from drills.environments.base import Embedded, Environment
from drills.runner import DRILLS, DrillOptions, DrillRun
from drills.scenarios.definition import Drill
from drills.testbed.testbed import DataFrameReader

cli = importlib.import_module("drills.cli")
OPENED = cli._opened
NAME = "coordinator-sigkill"
TIMED_OUT = subprocess.TimeoutExpired(["docker", "compose", "up"], 120.0)


class Standing(Embedded):
    """A running ensemble without any process."""

    def __init__(self) -> None:
        """Without a folder."""


class NoReader:
    """In place of the reading Spark application."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture(autouse=True)
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "DataFrameReader", NoReader)
    monkeypatch.setattr(cli, "_opened", lambda *_: nullcontext((Standing(), None)))


def refusing(error: Exception) -> Callable[..., AbstractContextManager[None]]:
    """An ensemble that does not start."""

    def stand(*_: object) -> AbstractContextManager[None]:
        raise error

    return stand


def ran(runs: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["drill", "run", NAME, "--runs", str(runs), "--json", *words])


def concluding(*verdicts: str, then: Exception | None = None) -> Callable[..., DrillRun]:
    """A `run_drill` that returns these verdicts, and raises in the end."""
    left: Iterator[str] = iter(verdicts)

    def run_drill(
        _drill: Drill, _environment: Environment, _reader: DataFrameReader, options: DrillOptions, seed: int, *_: object
    ) -> DrillRun:
        verdict = next(left, None)
        if verdict is None and then is not None:
            raise then
        unknown: dict[str, Any] = {"seconds": 1.0, "why": [], "numbers": None, "promises": [], "records": {}}
        document = {**unknown, "drill": NAME, "seed": seed, "verdict": verdict, "invariants": {}}
        return DrillRun(DRILLS[NAME], options.runs / str(seed), options.settings, seed, document=document)

    return run_drill


@pytest.mark.parametrize(
    "error",
    [TIMED_OUT, OSError(28, "No space left on device"), containers.EngineError("no"), EnsembleError("not healthy"),
     NotReached("not within 60 s: the servers in containers are healthy")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_failed_ensemble_start_is_inconclusive_and_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    monkeypatch.setattr(cli, "_opened", refusing(error))

    done = ran(tmp_path)

    assert done.exit_code == 3
    assert json.loads(done.stdout.splitlines()[-1]) == {"verdict": "INCONCLUSIVE", "drills": []}
    assert done.stderr.splitlines() == [f"error: aborted after 0 drills: {error}"]


@pytest.mark.parametrize(("error", "code"), [(ZooKeeperUnreachable("no answer"), 4), (MissingProgram("no java"), 69)])
def test_error_with_its_own_exit_code_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int
) -> None:
    monkeypatch.setattr(cli, "_opened", refusing(error))

    done = ran(tmp_path)

    assert (done.exit_code, done.stderr, done.stdout) == (code, f"error: {error}\n", "")


@pytest.mark.parametrize(("first", "verdict", "code"), [("PASS", "INCONCLUSIVE", 3), ("FAIL", "FAIL", 1)])
def test_unwritable_run_folder_ends_the_run_with_the_finished_drills(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: str, verdict: str, code: int
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(cli, "run_drill", concluding(first, then=full))
    (tmp_path / NAME).write_text("")  # so that the folder of the aborted run cannot be made either

    done = ran(tmp_path, "--repeat", "3")

    report = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, report["verdict"]) == (code, verdict)
    assert [each["verdict"] for each in report["drills"]] == [first]
    assert "error: aborted after 1 drills: " in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_docker_engine_is_a_missing_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "_opened", OPENED)
    monkeypatch.setenv("PATH", str(tmp_path))

    done = ran(tmp_path, "--docker")

    assert done.exit_code == 69
    assert done.stderr == "error: no Docker engine answers: start one, or name it in DOCKER_HOST\n"
