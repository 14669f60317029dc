"""Garbage collection of PySpark's workers between two tasks, and while a slot fetches."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from consumer.spark.gc_tuning import fewer_collections
from consumer.spark.source import data_source

IN_A_WORKER = """
import gc
from consumer.spark.source.data_source import records

assert not list(records([], True))
frozen, left = gc.get_freeze_count(), len(gc.get_objects())
assert frozen > 100 * left, (frozen, left)

class Knot: ...
knot = Knot()
knot.itself = knot
del knot
gc.collect()
assert not any(isinstance(found, Knot) for found in gc.get_objects())

kept = [[number] for number in range(1000)]
assert not list(records([], True))
assert gc.get_freeze_count() <= frozen
"""


@pytest.mark.long
def test_worker_collects_only_objects_created_after_its_modules_were_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_WORKER], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_read_task_excludes_the_modules_from_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(data_source, "spare_modules", lambda: calls.append(None))
    assert not list(data_source.records([], True))
    assert calls == [None]


def test_slot_collects_less_often_and_restores_the_process() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), fewer_collections():
        assert gc.get_threshold()[0] >= 20_000
        raise KeyError
    assert gc.get_threshold() == before
