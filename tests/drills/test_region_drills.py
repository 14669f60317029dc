"""Drills on a consistent region: whatever fails, the counts in memory are those of one uninterrupted run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coordinator.drills.regions import KEYS, REGIONS, compared
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.regions import Contribution
from coordinator.zk.sync import encoded
from tests.support.drills import drilled

NAMES = [drill.name for drill in REGIONS]
AT_ONCE = (NAMES[:2], NAMES[2:3], NAMES[3:])
"""Each of these runs waits for sessions to end most of the time."""


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Drill -> what was said of it."""
    runs = tmp_path_factory.mktemp("runs")

    def run(names: Sequence[str]) -> list[dict[str, Any]]:
        return list(drilled(runs / names[0], *names)[1]["drills"])

    with ThreadPoolExecutor(len(AT_ONCE)) as pool:
        return {drill["drill"]: drill for some in pool.map(run, AT_ONCE) for drill in some}


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_every_count_is_that_of_one_uninterrupted_run(passed: dict[str, dict[str, Any]], name: str) -> None:
    drill = passed[name]

    records = drill["records"]
    assert drill["why"] == []
    assert (records["lost"], records["duplicated"], records["misplaced"]) == (0, 0, 0)
    assert records["delivered"] == records["produced"] > 300
    assert drill["numbers"]["doubly_owned_s"] == 0.0
    assert (Path(drill["folder"]) / "report.html").exists()


def test_a_record_that_no_state_has_or_that_one_has_twice_is_told() -> None:
    partition = TopicPartition("t", 0)
    produced = {"t": {"an-id": {"0": 2 * KEYS}}}

    def states(records: int, by_key: str) -> Contribution:
        given = {partition: encoded(b"%d" % records)}
        return Contribution("life", 1, {partition: 6}, {"t": "an-id"}, given, encoded(by_key.encode()))

    def found(*given: Contribution) -> tuple[int | None, int | None, int | None]:
        records = compared(produced, given)
        return records.lost, records.duplicated, records.misplaced

    assert found(states(6, '{"0:0":2,"0:1":2,"0:2":2}')) == (0, 0, 0)
    assert found(states(6, '{"0:0":1,"0:1":2}'), states(0, '{"0:2":2}')) == (1, 0, 0)
    assert found(states(7, '{"0:0":2,"0:1":3,"0:2":2,"1:0":1}')) == (0, 3, 1)
