"""What a pool's status says of a slot, by its job and by the group's znodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from consumer.sealing.segment_files import SegmentFolder
from consumer.spark.fetchers.slot import check_folders
from consumer.spark.fetchers.slot_view import GroupView, shown_status
from consumer.spark.fetchers.supervisor import ENDED, NEW, RUNNING, WAITING, SlotStatus
from coordinator.zk.errors import UsageError
from coordinator.zk.znodes.group_state import FAILED, STABLE, GroupState, Target

SLOT = SlotStatus(0, "p-slot-0", RUNNING, attempts=1)
MISSING = {"t": "no such topic (yet)"}
NO_PARTITIONS = GroupState(STABLE, 1, 1, target={"p-slot-0": Target("i1", {})})


@pytest.mark.parametrize(
    ("status", "view", "state", "reason"),
    [
        (replace(SLOT, state=NEW, attempts=0), None, "new", None),
        (replace(SLOT, state=WAITING, last_error="no folder"), None, "failing", "no folder"),
        (replace(SLOT, state=ENDED), None, "ended", None),
        (SLOT, None, "unknown", "no answer"),
        (SLOT, GroupView({}, GroupState()), "registering", None),
        (
            replace(SLOT, attempts=3, last_error="no folder"),
            GroupView({}, GroupState()),
            "registering",
            "attempt 3, after: no folder",
        ),
        (
            SLOT,
            GroupView({"p-slot-0": 0}, GroupState(), has_coordinator=False),
            "unassigned",
            "no coordinator is elected: start a node (zk-coordinator run)",
        ),
        (
            SLOT,
            GroupView({"p-slot-0": 0}, GroupState(STABLE, left_out=MISSING)),
            "unassigned",
            "topic t: no such topic (yet)",
        ),
        (
            SLOT,
            GroupView({"p-slot-0": 0}, GroupState(STABLE, left_out={"p-slot-0": "evicted"})),
            "unassigned",
            "evicted",
        ),
        (
            SLOT,
            GroupView({"p-slot-0": 0}, GroupState(FAILED, reason="too many")),
            "unassigned",
            "the group could not be rebalanced: too many",
        ),
        (
            SLOT,
            GroupView({"p-slot-0": 0}, NO_PARTITIONS),
            "unassigned",
            "every partition is assigned to another consumer thread: there are more threads than partitions",
        ),
        (
            SLOT,
            GroupView({"p-slot-0": 0}, GroupState("CompletingRebalance", reason="c1 is asked")),
            "unassigned",
            "waits for an assignment: the group is CompletingRebalance (c1 is asked)",
        ),
        (SLOT, GroupView({"p-slot-0": 2}, GroupState(STABLE)), "fetching", None),
        (
            SLOT,
            GroupView({"p-slot-0": 2}, GroupState(STABLE, left_out=MISSING)),
            "fetching",
            "topic t: no such topic (yet)",
        ),
        (SLOT, GroupView({"p-slot-0": 2}, GroupState(STABLE), paused="5 GiB"), "paused", "5 GiB"),
    ],
)
def test_slot_has_the_state_that_it_is_in_and_the_reason(
    status: SlotStatus, view: GroupView | None, state: str, reason: str | None
) -> None:
    found = shown_status(status, view, ["s", "t"], "no answer")

    assert (found.state, found.reason) == (state, reason)
    assert found.consumer == status.consumer


def test_of_many_missing_topics_three_are_named() -> None:
    state = GroupState(STABLE, left_out={f"t{number}": "no such topic (yet)" for number in range(9)})

    found = shown_status(SLOT, GroupView({"p-slot-0": 1}, state), sorted(state.left_out))

    assert found.reason is not None and found.reason.endswith("; 6 more topics")


def test_folders_of_a_slot_are_tried_before_it_registers(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "file").touch()
    segments = SegmentFolder(str(tmp_path / "new" / "segments"))

    check_folders(str(tmp_path / "log"), segments)
    check_folders("kafka:", segments)
    assert list((tmp_path / "new" / "segments").iterdir()) == []
    with pytest.raises(UsageError, match=r"log_dir .*/nowhere is no folder on"):
        check_folders(f"file://{tmp_path}/nowhere", segments)
    with pytest.raises(UsageError, match=r"segments_dir .*/file/x cannot be written on .*: Not a directory"):
        check_folders(str(tmp_path / "log"), SegmentFolder(str(tmp_path / "file" / "x")))
