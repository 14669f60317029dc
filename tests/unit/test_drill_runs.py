"""Runs of drills: in an environment without processes, their endings after errors, and signals."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import psutil
import pytest
from click.testing import CliRunner, Result

from tests.support.wait import eventually
from zk_group.coordinator.cli import main
from zk_group.coordinator.zk.embedded.directory import EnsembleError
from zk_group.coordinator.zk.embedded.ensemble import command_line
from zk_group.coordinator.zk.errors import MissingProgram, ZooKeeperUnreachable
from zk_group.drills.base.processes import ENDINGS, INTERRUPTS, NotReached, Process, end_all, finished, held
from zk_group.drills.base.settings import Settings
from zk_group.drills.environments import containers
from zk_group.drills.environments.base import DrillAccess, Embedded, Environment
from zk_group.drills.runner import DRILLS, DrillOptions, DrillRun, _window, run_drill
from zk_group.drills.scenarios.definition import Drill
from zk_group.drills.testbed.testbed import DataFrameReader

NAME = "coordinator-sigkill"
AWAY: Any = SimpleNamespace(
    kind="embedded",
    addresses=("127.0.0.1:1",),
    tick_s=0.2,
    is_observed=False,
    touches=("nothing",),
    access=DrillAccess(),
    details={},
    is_healthy=lambda: False,
    heal=MagicMock(side_effect=ZooKeeperUnreachable("no ZooKeeper server answers")),
    adjust=lambda settings: settings,
    chroot_of=lambda name: f"/{name}",
    version=lambda: "",
    cleared=lambda chroot, keep: nullcontext(),
)
"""An ensemble without connections."""


def test_aborted_drill_has_evidence_and_is_inconclusive(tmp_path: Path) -> None:
    options = DrillOptions((NAME,), runs=tmp_path)

    run = run_drill(DRILLS[NAME], AWAY, cast(Any, None), options, 1, lambda _: None)  # a reader gets no requests

    assert run.verdict == "INCONCLUSIVE"
    assert run.document["why"][0] == "aborted: no ZooKeeper server answers"
    assert json.loads((tmp_path / NAME / "latest" / "run.json").read_text()) == run.document
    assert "INCONCLUSIVE" in (run.folder / "report.md").read_text()


@pytest.mark.parametrize(("name", "is_shown"), [("consumer-sigkill", True), ("region-reset-to-initial", False)])
def test_region_drill_has_no_numbers_without_its_reports(tmp_path: Path, name: str, is_shown: bool) -> None:
    run = DrillRun(DRILLS[name], tmp_path, DRILLS[name].adjust(Settings()), 1)
    fetched = {"at": 2.0, "event": "fetch", "ranges": [{"first": 0, "next": 100}]}

    assert (_window(run, [fetched], 1.0) == []) == is_shown
    assert _window(run, [fetched, {**fetched, "event": "taken"}], 1.0) == []


# ---- endings of `drill run` after errors outside of the product


cli = importlib.import_module("zk_group.drills.cli")
OPENED = cli._opened
TIMED_OUT = subprocess.TimeoutExpired(["docker", "compose", "up"], 120.0)


class Standing(Embedded):
    """A running ensemble without any process."""

    def __init__(self) -> None:
        """Without a folder."""


@pytest.fixture(autouse=True)
def standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "DataFrameReader", MagicMock())
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
    ("error", "code"),
    [
        (TIMED_OUT, 3),
        (OSError(28, "No space left on device"), 3),
        (containers.EngineError("no"), 3),
        (EnsembleError("not healthy"), 3),
        (NotReached("not within 60 s: the servers in containers are healthy"), 3),
        (ZooKeeperUnreachable("no answer"), 4),
        (MissingProgram("no java"), 69),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failed_ensemble_start_is_one_sentence_and_inconclusive_or_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int
) -> None:
    monkeypatch.setattr(cli, "_opened", refusing(error))

    done = ran(tmp_path)

    is_aborted = code == 3
    assert (done.exit_code, done.stderr) == (code, f"error: {'aborted after 0 drills: ' * is_aborted}{error}\n")
    reports = [json.loads(line) for line in done.stdout.splitlines()[-1:]]
    assert reports == [{"verdict": "INCONCLUSIVE", "drills": []}] * is_aborted


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


# ---- the first signal ends the drills, later ones are ignored, and every process is ended


UNUSED_PID = 1 << 30
"""No process id."""
STUBBORN = "import time, subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}]); time.sleep(60)"
SLEEP = "import time; time.sleep(60)  # of {}"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in ENDINGS}
    for each in ENDINGS:  # under nohup SIGHUP is ignored, and remains so
        signal.signal(each, signal.SIG_DFL if each is not signal.SIGINT else signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


class Ending(Process):
    """A process that ends on SIGTERM; Ctrl-C is pressed during the wait for it."""

    def __init__(self) -> None:
        self.pid = UNUSED_PID
        self.done: list[str] = []

    @property
    def is_running(self) -> bool:
        return True

    def resume(self) -> None:
        self.done.append("resume")

    def terminate(self) -> None:
        self.done.append("terminate")

    def wait(self, timeout_s: float = 0.0) -> int | None:
        signal.raise_signal(signal.SIGINT)
        self.done.append("wait")
        return None

    def kill(self) -> None:
        self.done.append("kill")


@pytest.mark.parametrize("first", ENDINGS)
def test_only_the_first_signal_interrupts(first: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    with INTERRUPTS.taken():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(first)
        for again in (*ENDINGS, *ENDINGS):
            signal.raise_signal(again)

    assert capfd.readouterr().err == "cleaning up: this takes some seconds, and is not interrupted\n"


def test_ignored_signals_stay_ignored_and_handlers_are_restored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = {each: signal.getsignal(each) for each in ENDINGS}

    with INTERRUPTS.taken():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]

    assert {each: signal.getsignal(each) for each in ENDINGS} == before


def test_deferred_signal_takes_effect_when_the_last_hold_ends() -> None:
    done = []
    with INTERRUPTS.taken(), pytest.raises(KeyboardInterrupt), held():
        with held():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")

    assert done == ["inner", "outer"]


def test_first_signal_does_not_interrupt_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    with INTERRUPTS.taken():
        INTERRUPTS.ignore()
        signal.raise_signal(signal.SIGINT)
    with INTERRUPTS.taken(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # another run has its own

    assert capfd.readouterr().err.startswith("cleaning up")


def test_every_process_is_ended_despite_ctrl_c_during_the_first_wait() -> None:
    processes = [Ending(), Ending()]

    with INTERRUPTS.taken(), pytest.raises(KeyboardInterrupt):
        end_all(cast(list[Process], processes))

    assert [each.done for each in processes] == [["resume", "terminate", "wait", "kill"]] * 2


def test_command_runs_in_its_own_session_and_is_not_interrupted_by_the_terminal() -> None:
    done = finished(sys.executable, "-c", "import os; print(os.getsid(0), os.getpid())", timeout_s=30)

    session, pid = done.stdout.split()
    assert (done.returncode, session) == (0, pid)
    assert int(session) != os.getsid(0)


@pytest.mark.long
def test_command_that_does_not_end_is_killed_with_its_children() -> None:
    mark = SLEEP.format(os.getpid())

    with pytest.raises(subprocess.TimeoutExpired):
        finished(sys.executable, "-c", STUBBORN.format(mark), timeout_s=1.0)

    def left() -> list[int]:
        return [pid for pid in psutil.pids() if mark in command_line(pid)]

    eventually(lambda: not left(), 10, "both are gone")


def test_missing_program_is_reported() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        finished("no-such-program", timeout_s=1.0)
