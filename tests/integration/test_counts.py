"""`scripts/counts`: the shipped example of a consistent region, run as its user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "lib"))

from counts.__main__ import wrong_keys  # noqa: E402


@pytest.mark.full("examples")
def test_counts_in_memory_are_exact_when_workers_and_a_coordinator_are_killed() -> None:
    done = subprocess.run([ROOT / "scripts" / "counts", "--json"], capture_output=True, text=True, timeout=290)

    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["verdict"] == "PASS" and verdict["wrong_keys"] == 0
    assert verdict["records"] == verdict["counted"] == 40_000
    assert verdict["kills"] == 4 and verdict["checkpoints"] > 5


def test_the_verdict_sees_a_record_that_was_counted_twice_or_never() -> None:
    written = Counter({"a": 2, "b": 1})

    assert wrong_keys(written, Counter({"a": 2, "b": 1})) == []
    assert wrong_keys(written, Counter({"a": 3, "c": 1})) == ["a", "b", "c"]
