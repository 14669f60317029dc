"""Drills on a consistent region: after each fault, the counts in memory equal those of an uninterrupted run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.drills import drilled
from zk_group.coordinator.zk.znodes.group_state import encoded
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.regions import Contribution
from zk_group.drills.checker import HELD
from zk_group.drills.checker.replay.sketches import NOTHING, Sketch, of_range
from zk_group.drills.scenarios.regions import REGIONS, compared, waits_for

NAMES = [drill.name for drill in REGIONS]
AT_ONCE = (NAMES[:2], NAMES[2:3], NAMES[3:])
"""Each of these runs waits for sessions to end most of the time."""


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Drill -> its report."""
    runs = tmp_path_factory.mktemp("runs")

    def run(names: Sequence[str]) -> list[dict[str, Any]]:
        return list(drilled(runs / names[0], *names)[1]["drills"])

    with ThreadPoolExecutor(len(AT_ONCE)) as pool:
        return {drill["drill"]: drill for some in pool.map(run, AT_ONCE) for drill in some}


@pytest.mark.full("each drill once")
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


@pytest.mark.full("each drill once")
@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_s10_is_decided_by_the_counts_of_the_applications(passed: dict[str, dict[str, Any]], name: str) -> None:
    folder = Path(passed[name]["folder"])
    events = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    said = {what: [event for event in events if event["event"] == what] for what in ("restored", "taken", "saved")}

    assert json.loads((folder / "run.json").read_text())["invariants"]["S10"]["outcome"] == HELD
    assert all(event["heard"] > 0 for some in said.values() for event in some)
    consumers = {event["consumer"] for event in events if event["event"] == "registered"}
    assert all({event["consumer"] for event in some} == consumers for some in said.values())
    taken = sum(item["next"] - item["first"] for event in said["taken"] for item in event["ranges"])
    assert taken >= passed[name]["records"]["produced"]


def test_a_member_hangs_in_the_checkpoint_to_which_it_has_not_contributed() -> None:
    assert waits_for("g~c", {"g~a", "g~b"}, ["g~a", "g~b"])
    assert not waits_for("g~c", {"g~a", "g~b"}, ["g~a"])
    assert not waits_for("g~c", {"g~a", "g~b"}, ["g~a", "g~b", "g~c"])


def test_record_missing_from_every_state_or_present_twice_is_reported() -> None:
    partition = TopicPartition("t", 0)
    produced = {"t": {"an-id": {"0": 6}}}

    def states(of_partition: Sketch, *of_member: Sketch, number: int = 0) -> Contribution:
        given = {partition: encoded(json.dumps(of_partition).encode())}
        member = json.dumps([["t", "an-id", number, *each] for each in of_member])
        return Contribution("life", 1, {partition: 6}, {"t": "an-id"}, given, encoded(member.encode()))

    def found(*given: Contribution) -> tuple[int | None, int | None, int | None]:
        records = compared(produced, given)
        return records.lost, records.duplicated, records.misplaced

    whole, twice = of_range(0, 6), of_range(0, 6).plus(of_range(5, 6))
    assert found(states(whole, of_range(0, 2)), states(NOTHING, of_range(2, 6))) == (0, 0, 0)
    assert found(states(whole, of_range(0, 2)), states(NOTHING, of_range(3, 6))) == (1, 0, 0)
    assert found(states(twice, twice), states(NOTHING, of_range(0, 1), number=1)) == (0, 2, 1)
    assert found(states(whole, of_range(1, 6).plus(of_range(5, 6)))) == (1, 1, 0)
