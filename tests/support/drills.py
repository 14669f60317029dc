"""`zk-coordinator drill run` as a process, with the product as it is or broken in one way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENT = ("--session-timeout-ms", "4000")
"""For drills that must pass beside other tests: a machine that is busy may stand still for a second and more."""
REPOSITORY = Path(__file__).parents[2]
BROKEN = REPOSITORY / "tests" / "drills" / "broken"


def environment(breaks: Mapping[str, str] = {}, is_read_by_spark: bool = False) -> dict[str, str]:
    """Of a command that runs drills.

    :param breaks: drill -> a mutation of `tests/drills/broken`, in the processes that it starts.
    :param is_read_by_spark: else what is sealed is read without one, which costs the machine less.
    """
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BROKEN), str(REPOSITORY)])}
    found["DRILL_BREAKS"] = ",".join(f"{drill}={mutation}" for drill, mutation in breaks.items())
    found["DRILL_READER"] = "spark" if is_read_by_spark else "plain"
    return found


def started(
    runs: Path, *words: str, breaks: Mapping[str, str] = {}, servers: int = 1, is_read_by_spark: bool = False
) -> subprocess.Popen[str]:
    """Drills on embedded servers. For the options see `environment`."""
    command = [sys.executable, "-m", "coordinator.cli", "drill", "run", *words, "--runs", str(runs)]
    return subprocess.Popen(
        [*command, "--servers", str(servers), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(breaks, is_read_by_spark),
        cwd=REPOSITORY,
    )


def drilled(
    runs: Path, *words: str, breaks: Mapping[str, str] = {}, servers: int = 1, is_read_by_spark: bool = False
) -> tuple[int, dict[str, Any], str]:
    """Exit code, what it said last, and all that it said to people."""
    with started(runs, *words, breaks=breaks, servers=servers, is_read_by_spark=is_read_by_spark) as drill:
        try:
            out, err = drill.communicate()
        except KeyboardInterrupt:
            drill.terminate()  # it stops what it has started
            drill.communicate()
            raise
    assert out, err
    return drill.returncode, json.loads(out.splitlines()[-1]), err
