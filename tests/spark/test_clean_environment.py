"""The wheel alone: `spark-submit` from an environment that has it and its dependencies, and from another folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.spark import produce
from tests.support.world import World

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
APPLICATION = REPOSITORY / "tests" / "support" / "clean_application.py"
OURS = ("coordinator", "consumer", "drills", "zk_group")
SOURCES = ("coordinator", "consumer", "drills", "zk_group", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a program without this environment's variables; what it has started ends with it."""
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "PATH") if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_")) or "proxy" in name}
    words = [str(word) for word in command]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words, cwd=cwd, env=kept | (env or {}), start_new_session=True, **streams)  # type: ignore[call-overload]
    try:
        said, _ = process.communicate(timeout=800)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{words} ended with {process.returncode}:\n{said[-4000:]}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build leaves folders there, and would take from the last one's."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, folder / "source" / name)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "source", cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Path]:
    """An environment with the wheel and what it asks for; 800 MB that are removed at the end."""
    folder = wheel.parent / "installed"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile", f"{wheel}[spark]", cwd=wheel.parent)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def dependencies(installed: Path) -> Path:
    """An environment with the dependencies alone, as executors may have it."""
    folder = installed.parent / "dependencies"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (packages,) = installed.glob("lib/python*/site-packages")
    (own,) = folder.glob("lib/python*/site-packages")
    for entry in packages.iterdir():
        if not entry.name.startswith(OURS) and entry.suffix != ".pth":
            (own / entry.name).symlink_to(entry)
    return folder


def submit(installed: Path, python: Path, mode: str, world: World, folder: Path, rows: int) -> dict[str, object]:
    """Run the application; `python` is what executors run."""
    application = folder / "application.py"
    shutil.copy(APPLICATION, application)
    environment = {
        "PATH": f"{installed / 'bin'}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": str(python / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(installed / "bin" / "python"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    words = ("--master", "local-cluster[1,2,1024]", application, mode, world.zk, folder, rows)
    run(installed / "bin" / "spark-submit", *words, env=environment, cwd=folder)
    found: dict[str, object] = json.loads((folder / f"{mode}.json").read_text())
    return found


def test_spark_submit_needs_only_the_wheel(world: World, installed: Path, dependencies: Path, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    produce(world, tmp_path / "log", "t", 500)
    everything = [[partition, offset] for partition in (0, 1) for offset in range(500)]

    streamed = submit(installed, installed, "stream", world, tmp_path, 1000)
    assert streamed["rows"] == everything
    assert str(streamed["package"]).startswith(str(installed))

    # Executors that have only the dependencies are sent the package, also by an application without a pool.
    with pytest.raises(AssertionError, match="No module named 'consumer'"):
        run(dependencies / "bin" / "python", "-c", "import pyspark, kazoo, consumer", cwd=tmp_path)
    assert submit(installed, dependencies, "batch", world, tmp_path, 1000)["rows"] == everything
