"""What drills make in an engine and in the network, and that it goes again whatever goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.drills import containers
from coordinator.drills.containers import Containers


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is not asked."""
    monkeypatch.setattr(containers, "_compose_command", lambda: ("docker", "compose"))


@pytest.mark.usefixtures("engine")
def test_no_two_runs_have_one_compose_project_though_their_process_ids_are_equal(tmp_path: Path) -> None:
    first, second = Containers(tmp_path), Containers(tmp_path)

    assert first.project != second.project
