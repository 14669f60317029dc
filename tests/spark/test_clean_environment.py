"""The wheel alone: `spark-submit` from an environment that has it and its dependencies, and from another folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.spark import produce
from tests.support.world import World

pytestmark = [pytest.mark.full("applications, as users run them"), pytest.mark.timeout(1800)]

REPOSITORY = Path(__file__).parents[2]
APPLICATION = REPOSITORY / "tests" / "support" / "clean_application.py"
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
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with its links: a build leaves folders there, and would take from the last one's."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, folder / name, symlinks=True)
        else:
            shutil.copy(REPOSITORY / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, cwd=folder)
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
        if not entry.name.startswith("zk_group") and entry.suffix != ".pth":
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


def names_in(archive: Path) -> set[str]:
    """The files of a wheel, or of a source distribution without its own folder."""
    if archive.suffix == ".whl":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as found:
        return {each.name.partition("/")[2] for each in found.getmembers() if each.isfile()}


def test_wheel_and_source_distribution_have_one_package(source: Path, wheel: Path, tmp_path: Path) -> None:
    folders = [source / name for name in ("coordinator", "consumer", "drills")]
    modules = {f"zk_group/{path.relative_to(source)}" for folder in folders for path in folder.rglob("*.py")}
    others = {"zk_group/__init__.py", "zk_group/py.typed", "zk_group/drills/checker/history.md"}
    build = "import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])"

    assert {name.split("/")[0].split("-")[0] for name in names_in(wheel)} == {"zk_group", "zk_group_coordinator"}
    assert modules | others <= names_in(wheel)

    run(sys.executable, "-m", "venv", tmp_path / "builder")
    python = tmp_path / "builder" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "setuptools>=77", cwd=tmp_path)
    run(python, "-c", build, tmp_path, cwd=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    packed = names_in(archive)
    assert modules | others <= packed
    assert not [name for name in packed if name.startswith(("coordinator/", "consumer/", "drills/"))]


def test_spark_submit_needs_only_the_wheel(world: World, installed: Path, dependencies: Path, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    produce(world, tmp_path / "log", "t", 500)
    everything = [[partition, offset] for partition in (0, 1) for offset in range(500)]

    streamed = submit(installed, installed, "stream", world, tmp_path, 1000)
    assert streamed["rows"] == everything
    assert str(streamed["package"]).startswith(str(installed))

    # Executors that have only the dependencies are sent the package, also by an application without a pool.
    with pytest.raises(AssertionError, match="No module named 'zk_group'"):
        run(dependencies / "bin" / "python", "-c", "import pyspark, kazoo, zk_group", cwd=tmp_path)
    assert submit(installed, dependencies, "batch", world, tmp_path, 1000)["rows"] == everything
