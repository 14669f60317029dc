"""`zk-coordinator drill run` as a process, with the product as it is or broken in one way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from zk_group.drills.environments.base import Embedded
from zk_group.drills.runner import DRILLS
from zk_group.drills.scenarios.coordinators import LEADERS
from zk_group.drills.scenarios.ensembles import KAFKA
from zk_group.drills.scenarios.regions import REGIONS

PATIENT = ("--session-timeout-ms", "4000")
"""For drills that must pass beside other tests: a busy machine may stall for a second and more."""
REPOSITORY = Path(__file__).parents[2]
QUIET = (
    "coordinator-sigterm",
    "consumer-sigterm",
    "executor-sigkill",
    "member-lies-acknowledges-only",
    "member-lies-keeps-what-was-stopped",
)
"""Drills of the short set with promises in tenths of a second, with a Spark application on the same cores, or with
several turns in a promise: they are `quiet`."""
FEW = ("coordinator-sigkill", "consumer-cut", "disk-full", "zookeeper-leader-sigkill")
"""Drills of a node, a consumer, a seal and a server: those of `scripts/test` without `full`."""
BESIDE_OTHERS = [
    name for name, drill in DRILLS.items() if drill.is_short and drill.needs <= Embedded.can and name not in QUIET
]
"""The rest of the short set on embedded servers."""
IN_DOCKER = ("zookeeper-leader-sigkill", "zookeeper-leader-pause", "zookeeper-leader-cut-off")
"""Drills on servers in containers."""
RUN_BY_TESTS = {*BESIDE_OTHERS, *QUIET, *IN_DOCKER, *(drill.name for drill in (*LEADERS, *REGIONS, *KAFKA))}
"""The others are run before each release: docs/evidence.md has their verdicts."""
ALL_DRILLS = pytest.mark.full("each drill once")
BITES_AT_ONCE = 3
BROKEN = REPOSITORY / "tests" / "drills" / "broken"


def drill_names(names: Sequence[str]) -> list[Any]:
    """As parameters: `FEW`, and others in `scripts/test full`."""
    return [name if name in FEW else pytest.param(name, marks=ALL_DRILLS) for name in names]


def asked_for(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """The values of a parameter of those tests of this run that use the fixture, each once, in order."""
    items = [item for item in request.session.items if request.fixturename in getattr(item, "fixturenames", ())]
    calls = [item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    return list(dict.fromkeys(params[parameter] for params in calls if parameter in params))


def require_pass(drill: dict[str, Any]) -> None:
    """A drill's verdict is PASS: every promise is kept, every invariant held, and every record was delivered once."""
    assert (drill["verdict"], drill["why"], drill["broken"]) == ("PASS", [], [])
    assert (drill["records"]["lost"], drill["records"]["duplicated"]) == (0, 0)
    assert drill["numbers"]["doubly_owned_s"] == 0.0


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
    command = [sys.executable, "-m", "zk_group.coordinator.cli", "drill", "run", *words, "--runs", str(runs)]
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
    """Exit code, last line on stdout, and stderr. For the options see `environment`."""
    return finished(started(runs, *words, breaks=breaks, servers=servers, is_read_by_spark=is_read_by_spark))


def bitten(folders: pytest.TempPathFactory, runs: Sequence[Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Mutation -> the report of its drill, of runs side by side: they wait for sessions to end most of the time.

    :param runs: drill -> mutation, of each.
    """

    def run(breaks: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
        _, said, _ = drilled(folder, *breaks, breaks=breaks)
        assert [drill["drill"] for drill in said["drills"]] == list(breaks)
        return list(said["drills"])

    with ThreadPoolExecutor(BITES_AT_ONCE) as pool:
        found = pool.map(run, runs, [folders.mktemp("runs") for _ in runs])
        return {
            name: drill
            for breaks, some in zip(runs, found, strict=True)
            for name, drill in zip(breaks.values(), some, strict=True)
        }


def finished(command: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, last line on stdout, and stderr of a command, once it has ended."""
    with command:
        try:
            out, err = command.communicate()
        except BaseException:
            command.terminate()  # it stops what it has started
            command.communicate()
            raise
    assert out, err
    return command.returncode, json.loads(out.splitlines()[-1]), err
