"""Decisions of `segments verify`: damaged files, and files without a segment."""

from __future__ import annotations

import pytest

from coordinator.admin.segments import (
    DAMAGED,
    LEFT_OVER,
    ListedSegment,
    SegmentFinding,
    file_findings,
    unnamed_findings,
)
from coordinator.zk.errors import BadData
from coordinator.zk.znodes.segments import Segment


def listed(number: int) -> ListedSegment:
    return ListedSegment(number, f"s{number}", 0, Segment(f"f{number}", "/s", 1, 1, (), "c", "i", 1))


@pytest.mark.parametrize("segments_dir", ["/s\0", "\0", "s3://b\0/x", "/\ud800"])
def test_a_folder_that_no_file_system_knows_is_bad_data_of_its_znode(segments_dir: str) -> None:
    data = Segment("f1", segments_dir, 1, 1, (), "c", "i", 1).to_bytes()

    with pytest.raises(BadData, match="/segment: field 'segments_dir' must be a folder or a URL"):
        Segment.parse("/segment", data)


UNREADABLE = ListedSegment(9, "s9", 0, None, "no JSON")


def test_damaged_files_are_found_but_for_collected_segments() -> None:
    problems = {"s1": ("missing file", "gone"), "s2": ("wrong size", "1 byte")}

    found = file_findings([listed(1), listed(2), listed(3), UNREADABLE], problems, {"s2", "s3", "s9"})

    assert found == [SegmentFinding(DAMAGED, "wrong size", "s2", "f2", "1 byte")]


def test_files_without_a_segment_are_orphans_unless_a_living_fetcher_may_seal_them() -> None:
    may = {"f1": False, "f2": True, "f3": True, "f4": False}

    found = unnamed_findings(list(may), [listed(1)], [listed(2)], may)

    assert found is not None
    assert [(each.severity, each.kind, each.file) for each in found] == [
        (LEFT_OVER, "not sealed yet", "f3"),
        (LEFT_OVER, "orphan", "f4"),
    ]


def test_no_file_is_left_over_while_a_segment_znode_is_unreadable() -> None:
    assert unnamed_findings(["f1"], [listed(1)], [UNREADABLE], {"f1": False}) is None
