"""`zk_group` beside a user's own files: these hide nothing of it, and a type checker reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
OURS = """
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.errors import UnknownMemberId
from zk_group.consumer.spark import FetcherPool, register
from zk_group.coordinator.cli import main
from zk_group.coordinator.zk.errors import IncarnationOver
assert issubclass(UnknownMemberId, IncarnationOver)
commands = [main.get_command(None, name) for name in main.list_commands(None)]
assert len(commands) >= 14
import sys
names = ("consumer", "coordinator", "drills")
assert [name for name in sys.modules if name.startswith(tuple(f"{each}." for each in names))] == []
"""
TYPED = """
from zk_group.consumer.errors import UnknownMemberId
from zk_group.coordinator.zk.errors import IncarnationOver

error: IncarnationOver = UnknownMemberId("c1")
number: int = error
"""


def run(folder: Path, *arguments: str) -> str:
    """Python in a folder, as a user calls it there; every warning is an error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=[("consumer",), ("coordinator",), ("consumer", "coordinator", "drills")], ids="+".join)
def users(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's folder, with files of these names beside the application."""
    for name in request.param:
        (tmp_path / f"{name}.py").write_text('WHOSE = "the user\'s"\n')
    return tmp_path


def test_a_users_own_files_hide_nothing_from_an_application_that_imports_zk_group(users: Path) -> None:
    own = "\n".join(f'import {path.stem}; assert {path.stem}.WHOSE == "the user\'s"' for path in users.iterdir())

    for name, program in (("own_first", f"{own}\n{OURS}"), ("ours_first", f"{OURS}\n{own}")):
        (users / f"{name}.py").write_text(program)
        run(users, f"{name}.py")


def test_the_commands_run_as_modules_beside_a_users_own_files(users: Path) -> None:
    assert run(users, "-m", "zk_group.coordinator.cli", "--version").startswith("zk-coordinator, version ")
    assert run(users, "-m", "zk_group.consumer.cli", "--version").startswith("zk-consumer, version ")


def test_a_type_checker_sees_the_classes_of_an_installed_zk_group(tmp_path: Path) -> None:
    """Installed as with `pip install --editable`: a line in a `.pth` of an environment of its own."""
    (tmp_path / "application.py").write_text(TYPED)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    (packages,) = tmp_path.glob("own/lib/python*/site-packages")
    (packages / "zk_group.pth").write_text(f"{ROOT}\n")
    python = tmp_path / "own" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "application.py"]

    environment = {name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert 'expression has type "IncarnationOver", variable has type "int"' in done.stdout, done.stdout
    assert done.stdout.endswith("Found 1 error in 1 file (checked 1 source file)\n")


def test_no_script_imports_modules_of_the_folder_it_is_called_in() -> None:
    scripts = {path.name: path.read_text() for path in (ROOT / "scripts").iterdir() if path.is_file()}
    calls = {name: text for name, text in scripts.items() if 'exec "$PYTHON"' in text}

    assert {"ensemble", "drill", "demo"} <= calls.keys()
    is_safe = {name: "PYTHONSAFEPATH=1 " in text or 'cd "$REPOSITORY"' in text for name, text in calls.items()}
    assert [name for name, safe in is_safe.items() if not safe] == []
