"""A real Spark Connect session is refused, by the pool and by the source, with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full("pools and queries in each situation"), pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2]

APPLICATION = """
import sys
from pyspark.sql import SparkSession
from zk_group.consumer.spark import FetcherPool, register
from zk_group.coordinator.zk.errors import UsageError

spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert spark.range(3).count() == 3
places = {"zk": "localhost:1", "group": "g", "log_dir": "/log", "segments_dir": "/segments"}
for refused in (lambda: register(spark), lambda: FetcherPool(spark, ["t"], **places)):
    try:
        refused()
    except UsageError as error:
        print("refused:", error)
spark.stop()
"""


def test_spark_connect_is_refused_with_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_DIRS": str(tmp_path)}
    environment = {name: value for name, value in environment.items() if name != "SPARK_HOME"}
    command = [sys.executable, "-c", APPLICATION]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("refused:")]
    assert len(said) == 2
    for line in said:
        assert "does not run on Spark Connect" in line and "use a classic session" in line
