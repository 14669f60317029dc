"""Jars from Maven, as of Kafka's broker, fetched once by PySpark's Ivy into the user's cache folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import MissingProgram
from .java import class_path, java

KAFKA_VERSION = "3.9.1"
"""3.9 is the last Kafka release line with ZooKeeper mode."""

IVY_MAIN = "org.apache.ivy.Main"
FETCH_TIMEOUT_S = 600.0
LOGGING_JARS = ("slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-")
"""PySpark's logging backend: Kafka's artifact depends on the logging API only."""


class Artifact(NamedTuple):
    """A Maven artifact; `name` is for messages."""

    name: str
    organization: str
    module: str
    version: str


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/zk-group-coordinator`, with `~/.cache` where the variable is not set."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "zk-group-coordinator"


def kafka_directory() -> Path:
    """The folder of the jars, whether fetched or not."""
    return cache_directory() / f"kafka-{KAFKA_VERSION}"


def kafka_class_path() -> str:
    """The broker's class path; missing jars are fetched.

    :raises MissingProgram: when they cannot be fetched.
    """
    return f"{class_path(LOGGING_JARS)}:{fetch_kafka()}/*"


def fetch_kafka() -> Path:
    """The folder with the broker's jars (46 MB), as `fetched`."""
    return fetched(
        Artifact(f"Kafka {KAFKA_VERSION}", "org.apache.kafka", "kafka_2.13", KAFKA_VERSION), kafka_directory()
    )


def fetched(artifact: Artifact, folder: Path) -> Path:
    """`folder`, with the jars of an artifact and its dependencies, fetched by the Ivy in PySpark's jars when missing.

    `ZK_GROUP_IVY_SETTINGS` may name an Ivy settings file, for a private repository. Concurrent fetches wait for each
    other.

    :raises MissingProgram: when the jars cannot be fetched, or there is no java, or no PySpark.
    """
    if folder.is_dir():
        return folder
    cache_directory().mkdir(parents=True, exist_ok=True)
    with _lock(), _scratch() as scratch:
        if not folder.is_dir():
            _run_ivy(artifact, scratch, folder)
            (scratch / "lib").rename(folder)  # atomic: the folder is complete or absent
    return folder


def _run_ivy(artifact: Artifact, scratch: Path, folder: Path) -> None:
    command = [java(), "-cp", class_path(("ivy-",)), IVY_MAIN, "-cache", str(scratch / "ivy")]
    if settings := os.environ.get("ZK_GROUP_IVY_SETTINGS"):
        command += ["-settings", settings]
    command += ["-dependency", artifact.organization, artifact.module, artifact.version, "-confs", "default"]
    command += ["-retrieve", str(scratch / "lib" / "[artifact]-[revision].[ext]")]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingProgram(_cannot(artifact, folder, f"no end after {FETCH_TIMEOUT_S:g} s")) from error
    if done.returncode != 0 or not list((scratch / "lib").glob(f"{artifact.module}-*.jar")):
        raise MissingProgram(_cannot(artifact, folder, _reason(done.stdout)))


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if any(word in line for word in ("ERROR", "UNRESOLVED", "Exception"))]
    return (errors or lines or ["no output"])[-1][:200]


def _cannot(artifact: Artifact, folder: Path, reason: str) -> str:
    return (
        f"the jars of {artifact.name} cannot be fetched by PySpark's Ivy ({reason}): make a Maven repository reachable "
        "(ZK_GROUP_IVY_SETTINGS may name an Ivy settings file for one), or put the jars of a "
        f"{artifact.name} into {folder}"
    )


@contextmanager
def _lock() -> Iterator[None]:
    with (cache_directory() / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder beside the jars' folder, for an incomplete set."""
    scratch = cache_directory() / "kafka.new"
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process; the lock is held
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
