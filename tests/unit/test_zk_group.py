"""`zk_group.coordinator` and `zk_group.consumer`: two names, the same modules; and a user's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PLAIN = "import consumer.consumer, consumer.errors, coordinator.zk.errors"
HELD = "import zk_group.consumer.consumer, zk_group.consumer.errors, zk_group.coordinator.zk.errors"
SAME = """
import pickle
import zk_group
assert zk_group.consumer is consumer and zk_group.coordinator is coordinator
assert zk_group.consumer.errors is consumer.errors
assert zk_group.consumer.consumer.Consumer is consumer.consumer.Consumer
assert issubclass(consumer.errors.UnknownMemberId, zk_group.coordinator.zk.errors.IncarnationOver)
assert pickle.loads(pickle.dumps(consumer.consumer.Consumer)) is zk_group.consumer.consumer.Consumer
for module in (consumer, consumer.errors, coordinator.zk.errors):
    assert module.__spec__.name == module.__name__, module
from consumer.spark import FetcherPool as one
from zk_group.consumer.spark import FetcherPool as other
assert one is other
"""
OURS = """
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.errors import UnknownMemberId
from zk_group.consumer.spark import FetcherPool, register
from zk_group.coordinator.cli import main
from zk_group.coordinator.zk.errors import IncarnationOver
assert issubclass(UnknownMemberId, IncarnationOver)
commands = [main.get_command(None, name) for name in main.list_commands(None) if name not in ("drill", "conformance")]
assert len(commands) >= 12
import sys
loaded = [name for name in sys.modules if name.split(".")[0] in ("consumer", "coordinator")]
assert set(loaded) <= {"consumer", "coordinator"}, loaded
"""


def run(folder: Path, *arguments: str) -> str:
    """Python in a folder, as a user calls it there; every warning is an error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=[("consumer",), ("coordinator",), ("consumer", "coordinator")], ids="+".join)
def users(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A user's folder, with files of these names beside the application; the others are ours."""
    for name in request.param:
        (tmp_path / f"{name}.py").write_text('WHOSE = "the user\'s"\n')
    return tmp_path


@pytest.mark.parametrize("first", [f"{PLAIN}\n{HELD}", f"{HELD}\n{PLAIN}"], ids=["plain first", "zk_group first"])
def test_both_names_are_the_same_modules_whichever_is_imported_first(first: str, tmp_path: Path) -> None:
    run(tmp_path, "-c", first + SAME)


def test_a_module_that_is_imported_late_is_the_same_under_both_names(tmp_path: Path) -> None:
    run(tmp_path, "-c", f"import zk_group\n{PLAIN}\nimport zk_group.consumer.errors{SAME}")
    run(tmp_path, "-c", f"{PLAIN}\nimport zk_group.consumer.consumer, zk_group.coordinator.zk.errors{SAME}")


def test_a_users_own_files_hide_nothing_from_an_application_that_imports_zk_group(users: Path) -> None:
    own = "\n".join(f'import {path.stem}; assert {path.stem}.WHOSE == "the user\'s"' for path in users.iterdir())

    for name, program in (("own_first", f"{own}\n{OURS}"), ("ours_first", f"{OURS}\n{own}")):
        (users / f"{name}.py").write_text(program)
        run(users, f"{name}.py")


def test_the_name_that_the_user_has_not_taken_stays_ours(tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text("")

    run(tmp_path, "-c", "import zk_group.coordinator.zk, coordinator.zk; assert coordinator is zk_group.coordinator")


def test_the_commands_run_as_modules_beside_a_users_own_files(users: Path) -> None:
    assert run(users, "-m", "zk_group.coordinator.cli", "--version").startswith("zk-coordinator, version ")
    assert run(users, "-m", "zk_group.consumer.cli", "--version").startswith("zk-consumer, version ")


def test_no_script_imports_modules_of_the_folder_it_is_called_in() -> None:
    scripts = {path.name: path.read_text() for path in (ROOT / "scripts").iterdir() if path.is_file()}
    calls = {name: text for name, text in scripts.items() if 'exec "$PYTHON"' in text}

    assert {"ensemble", "drill", "demo"} <= calls.keys()
    is_safe = {name: "PYTHONSAFEPATH=1 " in text or 'cd "$REPOSITORY"' in text for name, text in calls.items()}
    assert [name for name, safe in is_safe.items() if not safe] == []
