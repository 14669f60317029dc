"""`zk-coordinator drill run` as a process, with the product as it is or broken in one way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coordinator.drills.promises import HANDED_OVER, NEXT_ACTS_AT_ONCE
from coordinator.drills.verdict import INCONCLUSIVE

PATIENT = ("--session-timeout-ms", "4000")
"""For drills that must pass beside other tests: a machine that is busy may stand still for a second and more."""
LATE_S = 0.5
"""A machine that is busy with other tests makes a promise be missed by so much, and says nothing of the product."""
IN_PLAIN_SECONDS = tuple(f"({promise.rule})" for promise in (HANDED_OVER, NEXT_ACTS_AT_ONCE))
"""How a reason ends that only such a machine gives: other bounds are in session timeouts."""
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


def unexcused(reasons: Iterable[str], *excused: str) -> list[str]:
    """What of the reasons for a verdict is not for a busy machine.

    :param excused: how reasons end that are, besides.
    """
    missed = re.compile(r": ([0-9.]+) s, promised ([0-9.]+) \(")
    found = []
    for reason in reasons:
        times = missed.search(reason)
        is_late = times is not None and float(times[1]) - float(times[2]) <= LATE_S
        if not is_late and not reason.endswith((*IN_PLAIN_SECONDS, *excused)):
            found.append(reason)
    return found


def wrong_in(said: Mapping[str, Any]) -> dict[str, Any]:
    """Drill -> what is wrong with it that is not for a busy machine; nothing when all is as it should be."""
    found: dict[str, Any] = {}
    for drill in said["drills"]:
        wrong = [*unexcused(drill["why"]), *drill["broken"]]
        if drill["verdict"] == INCONCLUSIVE or wrong:
            found[drill["drill"]] = drill["verdict"], wrong
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
        out, err = drill.communicate()
    return drill.returncode, json.loads(out.splitlines()[-1]), err
