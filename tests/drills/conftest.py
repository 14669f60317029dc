"""One run of the short set for all tests that look at drills as they should be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.drills import PATIENT, drilled


@pytest.fixture(scope="session")
def short_set(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Drill -> what was said of it, on three servers."""
    _, said, _ = drilled(tmp_path_factory.mktemp("short"), "--short", *PATIENT, servers=3, is_read_by_spark=True)
    return {drill["drill"]: drill for drill in said["drills"]}
