"""Rules for every shell script of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumer.cli import main as consumer_main
from coordinator import __version__
from coordinator.cli import main as coordinator_main

ROOT = Path(__file__).parents[2]
# A reader that leaves before its writer is done: the writer gets SIGPIPE now and then, and pipefail fails the script.
LEAVES_EARLY = re.compile(r"(?<!\|)\|(?!\|) *(head\b|grep +-[A-Za-z]*[qm]|sed +[^|]*\dq\b)")


def shell_scripts() -> list[Path]:
    folders = (ROOT / "scripts", ROOT / "tests", ROOT / ".ci")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix in ("", ".sh")]
    return [path for path in files if path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# shellcheck"))]


def test_no_script_under_pipefail_reads_only_the_beginning_of_a_pipe() -> None:
    scripts = [path for path in shell_scripts() if "pipefail" in path.read_text()]
    assert len(scripts) >= 6
    early = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in scripts
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if LEAVES_EARLY.search(line)
    ]
    assert early == []


ENTRY_POINTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file())


@pytest.mark.parametrize("script", ENTRY_POINTS)
def test_help_of_a_script_installs_nothing(script: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "java", "apt-get"):
        (programs / name).write_text("#!/bin/sh\necho called >&2\nexit 1\n")
        (programs / name).chmod(0o755)
    command, path = [tmp_path / "scripts" / script, "--help"], f"{programs}:{os.environ['PATH']}"

    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: scripts/{script}")
    assert len(done.stdout) > 80, "a usage describes the script"
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(("peer", "extras"), [("aiokafka", ["bench"]), ("spark", [])])
def test_bench_installs_the_peers_that_it_is_asked_for(peer: str, extras: list[str], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(ROOT / "setup.cfg", tmp_path / ".venv" / ".installed-dev")  # it includes all but the peers
    for name in ("python", "pip"):
        (programs / name).write_text('#!/bin/sh\necho "$@"\n')
        (programs / name).chmod(0o755)

    done = subprocess.run(
        [tmp_path / "scripts" / "bench", "stream", "--against", peer],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert [line.rpartition("[")[2].rstrip("]") for line in done.stderr.splitlines() if "--editable" in line] == extras
    assert done.stdout == f"-m bench stream --against {peer}\n"


def test_the_wheels_commands_have_one_version() -> None:
    runner = CliRunner()

    versions = [runner.invoke(main, ["--version"]).output for main in (coordinator_main, consumer_main)]

    assert versions == [f"zk-coordinator, version {__version__}\n", f"zk-consumer, version {__version__}\n"]
