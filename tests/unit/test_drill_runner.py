"""Running a drill where nothing can be run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from coordinator.drills.catalog import DRILLS
from coordinator.drills.ground import Ground
from coordinator.drills.reader import Reader
from coordinator.drills.runner import run_drill
from coordinator.drills.settings import Settings
from coordinator.zk.errors import ZooKeeperUnreachable


class Away:
    """An ensemble that serves nobody."""

    kind = "embedded"
    addresses = ("127.0.0.1:1",)
    tick_s = 0.2
    is_observed = False
    touches = ("nothing",)
    told: dict[str, object] = {}

    def is_healthy(self) -> bool:
        return False

    def heal(self) -> None:
        raise ZooKeeperUnreachable("no ZooKeeper server answers")

    def chroot_of(self, name: str) -> str:
        return f"/{name}"

    def version(self) -> str:
        return ""

    def cleared(self, chroot: str, keep: bool) -> Any:
        return nullcontext()


def test_a_drill_that_breaks_off_has_evidence_and_is_inconclusive(tmp_path: Path) -> None:
    reader = cast(Reader, None)  # nobody comes to ask it

    run = run_drill(
        DRILLS["coordinator-sigkill"], cast(Ground, Away()), tmp_path, Settings(), 1, reader, lambda _: None, False
    )

    assert run.verdict == "INCONCLUSIVE"
    assert run.document["why"][0] == "broken off: no ZooKeeper server answers"
    assert json.loads((tmp_path / "coordinator-sigkill" / "latest" / "run.json").read_text()) == run.document
    assert "INCONCLUSIVE" in (run.folder / "report.md").read_text()
