"""The Spark session of `bench stream` and `bench latency`, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

LIBRARY = Path(__file__).resolve().parent.parent.parent / "scripts" / "lib"


class Builder:
    """Records the options of a session."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    def master(self, master: str) -> Builder:
        return self

    def appName(self, name: str) -> Builder:
        return self

    def config(self, key: str = "", value: str = "", map: dict[str, str] | None = None) -> Builder:
        self.options |= map if map is not None else {key: value}
        return self

    def getOrCreate(self) -> MagicMock:
        return MagicMock()


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(LIBRARY))
    for variable in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(variable, "")
    from bench import ground

    monkeypatch.setattr(ground, "register", lambda spark: None)
    yield ground
    for name in [name for name in sys.modules if name.partition(".")[0] in ("bench", "common")]:
        del sys.modules[name]


def test_the_benchmarks_session_has_sparks_own_number_of_shuffle_partitions(
    ground: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builder = Builder()
    monkeypatch.setattr("drills.workloads.spark_app.SparkSession", MagicMock(builder=builder))

    ground.session(tmp_path)

    assert builder.options.get("spark.sql.shuffle.partitions", "200") == "200"
