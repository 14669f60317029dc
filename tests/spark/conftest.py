"""Real Spark executors for the tests: a small cluster of processes on this machine, started once for the session."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.object_store import CREDENTIALS
from tests.support.quick_java import java_options
from tests.support.spark import spark_home
from tests.support.world import World, a_world

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is in the slow lane `spark`."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session", autouse=True)
def quick_java(request: pytest.FixtureRequest) -> None:
    """For every JVM that Spark starts from here: most of what it loads and compiles well is used for a moment only."""
    os.environ.pop("SPARK_CONF_DIR", None)  # a folder in the class path: the archive is of none
    os.environ["JDK_JAVA_OPTIONS"] = java_options(request.config.cache.mkdir("java"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two executors with two cores each, as processes of their own."""
    home = spark_home(tmp_path_factory.mktemp("spark"))
    os.environ |= CREDENTIALS | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    temporary = tmp_path_factory.mktemp("java")
    session = (
        SparkSession.builder.master("local-cluster[2,2,1024]")
        .appName("zk-group tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(home / "local"))
        # Native libraries are unpacked there, and left by a JVM that is killed.
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={temporary}")
        .config("spark.executor.extraJavaOptions", f"-Djava.io.tmpdir={temporary}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def world(zk: str) -> Iterator[World]:
    """A coordinator and topics in a chroot of their own."""
    with a_world(zk) as world:
        yield world
