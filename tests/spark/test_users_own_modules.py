"""A user's own `consumer.py` and `coordinator.py` beside the application, in its driver and in its executors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark import produce, spark_home
from tests.support.world import World

REPOSITORY = Path(__file__).parents[2]
APPLICATION = REPOSITORY / "tests" / "support" / "users_application.py"
OWN = {
    "consumer.py": "def doubled(number):\n    return 2 * number\n",
    "coordinator.py": "def checked(number):\n    assert number >= 0\n    return number\n",
}


@pytest.mark.full("applications, as users run them")
@pytest.mark.parametrize("master", ["local[3]", "local-cluster[1,3,1024]"])
def test_an_application_with_its_own_consumer_py_fetches_and_reads(world: World, tmp_path: Path, master: str) -> None:
    world.coordinator()
    world.topic("t", 2)
    produce(world, tmp_path / "log", "t", 300)
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(APPLICATION, tmp_path / "application.py")
    for name, text in OWN.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    if master != "local[3]":
        environment["SPARK_HOME"] = str(spark_home(home))
    command = [sys.executable, "application.py", master, world.zk, str(tmp_path), "600"]

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=170, check=False
    )

    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"] == [[partition, offset] for partition in (0, 1) for offset in range(300)]
    assert found["batch"] == 600
    assert found["executors"] == [{"doubled": [2, 4, 6], "module": "zk_group.consumer.errors", "same": True}]
