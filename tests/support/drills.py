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


def started(runs: Path, *words: str, breaks: Mapping[str, str] = {}, servers: int = 1) -> subprocess.Popen[str]:
    """Drills on embedded servers.

    :param breaks: drill -> a mutation of `tests/drills/broken`, in the processes that it starts.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BROKEN), str(REPOSITORY)])}
    environment |= {"DRILL_BREAKS": ",".join(f"{drill}={mutation}" for drill, mutation in breaks.items())}
    command = [sys.executable, "-m", "coordinator.cli", "drill", "run", *words, "--runs", str(runs)]
    return subprocess.Popen(
        [*command, "--servers", str(servers), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=REPOSITORY,
    )


def drilled(
    runs: Path, *words: str, breaks: Mapping[str, str] = {}, servers: int = 1
) -> tuple[int, dict[str, Any], str]:
    """Exit code, what it said last, and all that it said to people."""
    with started(runs, *words, breaks=breaks, servers=servers) as drill:
        out, err = drill.communicate()
    return drill.returncode, json.loads(out.splitlines()[-1]), err
