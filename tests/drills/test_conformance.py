"""`zk-coordinator conformance`: consumers that pass the kit, and some that must not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.drills import REPOSITORY, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def tried(runs: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and result of the kit."""
    command = [sys.executable, "-m", "coordinator.cli", "conformance", *words, "--runs", str(runs), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=REPOSITORY
    ) as kit:
        try:
            out, err = kit.communicate()
        except BaseException:
            kit.terminate()
            kit.communicate()
            raise
    assert out, err
    return kit.returncode, json.loads(out.splitlines()[-1])


def failures(result: dict[str, Any]) -> dict[str, list[str]]:
    """The scenarios that failed, each with the reasons."""
    return {each["name"]: each["why"] for each in result["scenarios"] if not each["passed"]}


def test_the_products_own_consumer_passes_every_scenario(tmp_path: Path) -> None:
    code, result = tried(tmp_path)

    assert failures(result) == {}
    assert (code, result["passed"], result["left_out"]) == (0, True, [])
