"""One run of the short set for all tests that look at drills as they should be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.drills import PATIENT, QUIET, asked_for, drilled
from zk_group.drills.scenarios.coordinators import LEADERS


@pytest.fixture(scope="session")
def short_set(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Drill -> its report, on three servers."""
    runs = tmp_path_factory.mktemp("short")
    _, said, _ = drilled(runs, *asked_for(request, "name"), *PATIENT, servers=3, is_read_by_spark=True)
    return {drill["drill"]: drill for drill in said["drills"]}


@pytest.fixture(scope="session")
def quiet_set(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The same of drills that need a quiet machine, with those on client-side assignment; sessions as by default, but
    where an executor restarts meanwhile."""
    names = [*QUIET, *(drill.name for drill in LEADERS)]
    runs = ([name for name in names if name != "executor-sigkill"], ["executor-sigkill", *PATIENT])
    said = [drilled(tmp_path_factory.mktemp("quiet"), *words, servers=3)[1] for words in runs]
    return {drill["drill"]: drill for each in said for drill in each["drills"]}
