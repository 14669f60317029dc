"""zk_paths.md, the published contract, names every path and every field that the code writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coordinator.zk.asked import Pause, PausedRecord, TurnRequest
from coordinator.zk.commands import START_FETCHER, STOP_FETCHER, Command
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import COORDINATOR, COORDINATOR_EPOCH, DRILL, PAUSED, Brokers, GroupPaths
from coordinator.zk.records import Channel, CoordinatorRecord, EpochRecord, OffsetRecord, OwnerRecord, Registration
from coordinator.zk.sealed import Pool, Query, SealedRange, Segment, SegmentsRecord
from coordinator.zk.state import GroupState, Mark, Rebalance, Target

DOCUMENT = (Path(__file__).resolve().parents[2] / "zk_paths.md").read_text()
PART = frozenset([TopicPartition("t", 0)])
PATHS = GroupPaths("[group]")

WRITTEN = {
    "coordinator": CoordinatorRecord("a", "host", 1).to_bytes(),
    "coordinator_epoch": EpochRecord(1).to_bytes(),
    "paused": PausedRecord(Pause("who", 1, "why"), {"g": Pause("who", 1)}).to_bytes(),
    "request": TurnRequest("who", 1, "why").to_bytes(),
    "state": GroupState(target={"c": Target("i", {"c-0": PART})}, marks=(Mark("c", "i", PART, 1, "r"),)).to_bytes(),
    "history": Rebalance(1, 1, "why", 1).to_bytes(),
    "ids": Registration("i", {"t": 1}, user_data="x", seal_interval_ms=1).to_bytes(),
    "channel": Channel("i", refused=PART, sealed="f", touched=1).to_bytes(),
    "start": Command(START_FETCHER, 1, 1, "i", {"c-0": PART}, topics={"t": "id"}).to_bytes(),
    "stop": Command(STOP_FETCHER, 1, 1, "i", partitions=PART, topics={"t": "id"}).to_bytes(),
    "owners": OwnerRecord("c-0", "c", "i", 1).to_bytes(),
    "offsets": OffsetRecord(1, "id", 1).to_bytes(),
    "segments": SegmentsRecord().to_bytes(),
    "segment": Segment("f", "d", 1, 1, (SealedRange("t", "id", 0, 0, 1),), "c", "i", 1).to_bytes(),
    "query": Query("r", 1, 1, expired_ms=1).to_bytes(),
    "pool": Pool(1, "r").to_bytes(),
}


@pytest.mark.parametrize("kind", sorted(WRITTEN))
def test_every_field_that_is_written_is_in_the_document(kind: str) -> None:
    values = json.loads(WRITTEN[kind])
    nested = [mark for mark in values.get("marks", [])]
    nested += [values["all"]] if values.get("all") else []
    named = set(values) | {key for mark in nested for key in mark}

    unknown = {name for name in named if not re.search(rf"[`\"]{re.escape(name)}[`\"]", DOCUMENT)}

    assert unknown == set()


@pytest.mark.parametrize(
    "path",
    [
        COORDINATOR,
        COORDINATOR_EPOCH,
        DRILL,
        PAUSED,
        PATHS.request,
        Brokers().topic("[topic]"),
        PATHS.state,
        PATHS.id("[consumer]"),
        PATHS.channel("[consumer]"),
        PATHS.command("[consumer]", "command-[seq]"),
        PATHS.owners + "/[topic]/[partition]",
        PATHS.offsets + "/[topic]/[partition]",
        PATHS.segments,
        PATHS.segment("segment-[seq]"),
        PATHS.queries,
        PATHS.query("[query]"),
        PATHS.pools,
        PATHS.pool("[pool]"),
        PATHS.history + "/rebalance-[generation]",
    ],
)
def test_every_path_is_in_the_documents_table(path: str) -> None:
    shown = path.replace("/consumers/groups/[group]/", ".../[group]/")

    assert f"| `{shown}` |" in DOCUMENT


def test_the_examples_are_what_zkcli_shows_one_line_of_json_each() -> None:
    examples = [line.strip() for line in DOCUMENT.splitlines() if line.startswith('    {"version"')]

    assert len(examples) >= 15
    for example in examples:
        assert json.loads(example)["version"] >= 1
