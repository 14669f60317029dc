"""A drill in an environment without processes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.zk.errors import ZooKeeperUnreachable
from drills.base.settings import Settings
from drills.environments.base import DrillAccess, Environment
from drills.runner import DRILLS, DrillOptions, DrillRun, _window, run_drill
from drills.testbed.testbed import DataFrameReader

NAME = "coordinator-sigkill"


class Away:
    """An ensemble without connections."""

    kind = "embedded"
    addresses = ("127.0.0.1:1",)
    tick_s = 0.2
    is_observed = False
    touches = ("nothing",)
    access = DrillAccess()
    details: dict[str, object] = {}

    def is_healthy(self) -> bool:
        return False

    def heal(self) -> None:
        raise ZooKeeperUnreachable("no ZooKeeper server answers")

    def adjust(self, settings: Settings) -> Settings:
        return settings

    def chroot_of(self, name: str) -> str:
        return f"/{name}"

    def version(self) -> str:
        return ""

    def cleared(self, chroot: str, keep: bool) -> Any:
        return nullcontext()


def test_aborted_drill_has_evidence_and_is_inconclusive(tmp_path: Path) -> None:
    reader = cast(DataFrameReader, None)  # it gets no requests
    options = DrillOptions((NAME,), runs=tmp_path)

    run = run_drill(DRILLS[NAME], cast(Environment, Away()), reader, options, 1, lambda _: None)

    assert run.verdict == "INCONCLUSIVE"
    assert run.document["why"][0] == "aborted: no ZooKeeper server answers"
    assert json.loads((tmp_path / NAME / "latest" / "run.json").read_text()) == run.document
    assert "INCONCLUSIVE" in (run.folder / "report.md").read_text()


@pytest.mark.parametrize(("name", "is_shown"), [("consumer-sigkill", True), ("region-reset-to-initial", False)])
def test_region_drill_shows_no_numbers_without_reports_of_its_applications(
    tmp_path: Path, name: str, is_shown: bool
) -> None:
    run = DrillRun(DRILLS[name], tmp_path, DRILLS[name].adjust(Settings()), 1)
    fetched = {"at": 2.0, "event": "fetch", "ranges": [{"first": 0, "next": 100}]}

    assert (_window(run, [fetched], 1.0) == []) == is_shown
    assert _window(run, [fetched, {**fetched, "event": "taken"}], 1.0) == []
