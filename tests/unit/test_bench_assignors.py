"""`scripts/bench assignors`: missing peers, and slow ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIBRARY = str(Path(__file__).parents[2] / "scripts" / "lib")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(LIBRARY)
    module = importlib.import_module("bench.assignors")
    monkeypatch.setattr(module, "machine", dict)
    monkeypatch.setattr(module, "find_spec", lambda module: module != "aiokafka" or None)
    monkeypatch.setattr(module, "version", lambda package: "1.0")
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]


class Worker:
    """Our own in this process, and a peer that is too slow when a consumer joins."""

    def __init__(self, module: Any, name: str, partitions: int) -> None:
        self._module, self._name = module, name
        self._ours = module.Ours(partitions)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def seconds(self, names: list[str], is_first: bool, limit_s: float) -> float:
        if self._name != "ours" and not is_first:
            raise self._module.TooSlow("an assignment took more than 5 s")
        took: float = self._ours.seconds(names, is_first)
        return took


@pytest.mark.long
def test_missing_peer_is_null_and_a_slow_peer_is_more_than_its_limit(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "Worker", lambda name, partitions: Worker(bench, name, partitions))
    output: list[str] = []

    found = bench.measure(consumers=3, partitions=60, rounds=2, peer_limit_s=5.0, tell=output.append)

    assert output[0] == "not installed, skipped: aiokafka (pip install zk-group-coordinator[bench])"
    assert "kafka-python: join: an assignment took more than 5 s" in output
    for step in ("fresh", "join", "leave"):
        figures = found[f"ours_{step}_ms"]
        assert 0 < figures["min"] <= figures["median"] <= figures["max"]
        assert found[f"aiokafka_{step}_ms"] is None
    assert found["kafka_python_join_ms"] == {"more_than": 5000.0}
    assert found["kafka_python_leave_ms"] is None
    assert found["versions"] == {"kafka-python": "1.0", "aiokafka": None}
    assert list(found["ours_join_cpu_ms_by_partitions"]) == ["60", "120", "240"]


def test_unresponsive_peer_is_killed_after_the_timeout(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", LIBRARY)
    worker = bench.Worker("ours", 2000)
    names = [f"c{number}" for number in range(2)]

    with worker:
        assert worker.seconds(names, True, 30.0) > 0
        with pytest.raises(bench.TooSlow, match="took more than 0 s"):
            worker.seconds(names, True, 0.0)
        worker._process.join(10)
        assert worker._process.exitcode is not None


@pytest.mark.long
def test_failing_peer_is_reported_and_the_others_are_measured(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Worker):
        def seconds(self, names: list[str], is_first: bool, limit_s: float) -> float:
            if self._name != "ours":
                raise self._module.Unmeasured("an assignment: it failed")
            return super().seconds(names, is_first, limit_s)

    monkeypatch.setattr(bench, "Worker", lambda name, partitions: Failing(bench, name, partitions))
    output: list[str] = []

    found = bench.measure(consumers=3, partitions=200, rounds=1, peer_limit_s=5.0, tell=output.append)

    assert "kafka-python: fresh: an assignment: it failed" in output
    assert found["kafka_python_fresh_ms"] is None
    assert found["ours_leave_ms"]["min"] > 0
