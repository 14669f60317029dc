"""`scripts/jobs`: the shipped example of a group that assigns named jobs, run as its user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "lib"))

from jobs.__main__ import Step, in_two_places  # noqa: E402


@pytest.mark.full("examples")
def test_every_job_runs_in_one_place_when_workers_are_killed_frozen_and_stopped() -> None:
    done = subprocess.run([ROOT / "scripts" / "jobs", "--json"], capture_output=True, text=True, timeout=170)

    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["verdict"] == "PASS"
    assert (verdict["in_two_places"], verdict["never_run"]) == ([], [])
    assert verdict["jobs"] == 8 and verdict["steps"] > 100


@pytest.mark.parametrize(
    ("steps", "is_odd"),
    [
        ([Step(1, 1, "a"), Step(2, 1, "a"), Step(3, 2, "b")], False),
        ([Step(1, 1, "a"), Step(2, 1, "b")], True),
        ([Step(1, 1, "a"), Step(2, 2, "b"), Step(3, 1, "a")], True),
        ([Step(1, 1, "a"), Step(2, 2, "b"), Step(3, 3, "a")], False),
    ],
    ids=["handed on", "two in one generation", "continues after it was handed on", "returns"],
)
def test_the_verdict_sees_a_job_in_two_places(steps: list[Step], is_odd: bool) -> None:
    assert in_two_places({"job": steps}) == (["job"] if is_odd else [])
