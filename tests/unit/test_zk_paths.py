"""zk_paths.md, the published contract, names every path and every field that the code writes."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path

import pytest

from consumer.assignment.metadata import ConsumerMetadata
from consumer.membership.client_assignment import ROOM
from coordinator.planning.asking import ROOM_BYTES
from coordinator.planning.target import OWNER_PATHS_A_SESSION
from coordinator.zk.store import MAX_COMMIT_BYTES
from coordinator.zk.znodes.commands import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    MAX_REASON,
    OPTIONS,
    START_FETCHER,
    STOP_FETCHER,
    Command,
)
from coordinator.zk.znodes.group_state import ClientSide, GroupState, Mark, Rebalance, Target
from coordinator.zk.znodes.json_fields import MAX_ZNODE_BYTES, Fields
from coordinator.zk.znodes.operator_requests import Pause, PausedRecord, TurnRequest
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, DRILL, PAUSED, Brokers, GroupPaths, ask_name
from coordinator.zk.znodes.records import (
    Channel,
    CoordinatorRecord,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Registration,
)
from coordinator.zk.znodes.segments import Pool, Query, Rewind, SealedRange, Segment, SegmentsRecord
from coordinator.zk.znodes.sync import (
    MAX_ANSWER_BYTES,
    MAX_ANSWER_PARTITIONS,
    MAX_GROUP_METADATA_BYTES,
    MAX_MEMBER_STATE_BYTES,
    MAX_METADATA_BYTES,
    Answer,
    Ask,
    AskMember,
    ClientProtocols,
    MemberAnswer,
    SyncRequest,
)

DOCUMENT = (Path(__file__).resolve().parents[2] / "zk_paths.md").read_text()
PART = frozenset([TopicPartition("t", 0)])
PATHS = GroupPaths("[group]")
CLIENT_SIDE = ClientSide("consumer", "ask-1", True, ("i",), 1, "ask-2", "ask-0")
OFFER = ClientProtocols(("lag",), {"lag": ""}, is_preferred=False, rejoins=1)
ASK = "ask-[number]"

WRITTEN = {
    "coordinator": CoordinatorRecord("a", "host", 1).to_bytes(),
    "coordinator_epoch": EpochRecord(1).to_bytes(),
    "paused": PausedRecord(Pause("who", 1, "why"), {"g": Pause("who", 1)}).to_bytes(),
    "request": TurnRequest("who", 1, "why").to_bytes(),
    "state": GroupState(
        target={"c": Target("i", {"c-0": PART}, True, True)}, marks=(Mark("c", "i", PART, 1, "r"),), client=CLIENT_SIDE
    ).to_bytes(),
    "history": Rebalance(1, 1, "why", 1).to_bytes(),
    "ids": Registration("i", {"t": 1}, user_data="x", seal_interval_ms=1, client=OFFER).to_bytes(),
    "channel": Channel("i", refused=PART, sealed="f", touched=1, ask="ask-1").to_bytes(),
    "start": Command(START_FETCHER, 1, 1, "i", {"c-0": PART}, topics={"t": "id"}, ask="ask-1").to_bytes(),
    "assign": Command(ASSIGN, 1, 1, "i", ask="ask-1").to_bytes(),
    "failed": Command(ASSIGNMENT_FAILED, 1, 1, "i", ask="ask-1", reason="why").to_bytes(),
    "ask": Ask("lag", "c", "i", {"c": AskMember("i", "d", 1)}, outdated=1).to_bytes(),
    "entry": MemberAnswer({"c-0": PART}, "AA==", "lag").to_bytes(),
    "answer": Answer(("c",), {"t": "id"}, {"t": frozenset([0])}).to_bytes(),
    "sync_request": SyncRequest("c", "i", "why").to_bytes(),
    "stop": Command(STOP_FETCHER, 1, 1, "i", partitions=PART, topics={"t": "id"}).to_bytes(),
    "owners": OwnerRecord("c-0", "c", "i", 1).to_bytes(),
    "offsets": OffsetRecord(1, "id", 1).to_bytes(),
    "segments": SegmentsRecord().to_bytes(),
    "segment": Segment("f", "d", 1, 1, (SealedRange("t", "id", 0, 0, 1),), "c", "i", 1).to_bytes(),
    "query": Query("r", 1, 1, expired_ms=1, rewind=Rewind(1, 1)).to_bytes(),
    "pool": Pool(1, "r").to_bytes(),
}


@pytest.mark.parametrize("kind", sorted(WRITTEN))
def test_every_field_that_is_written_is_in_the_document(kind: str) -> None:
    values = json.loads(WRITTEN[kind])
    nested = [mark for mark in values.get("marks", [])]
    nested += [values[name] for name in ("all", "client", "rewind") if values.get(name)]
    nested += values.get("target", {}).values()
    nested += values["members"].values() if kind == "ask" else []
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
        PATHS.sync,
        PATHS.ask(ASK),
        PATHS.member_answer(ASK, "[consumer]"),
        PATHS.answer(ASK),
        PATHS.sync_request,
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


def test_every_option_of_a_command_has_an_example() -> None:
    shown = {json.loads(line).get("option") for line in DOCUMENT.splitlines() if line.startswith('    {"version":1')}

    assert shown >= set(OPTIONS)


def section(title: str) -> str:
    return DOCUMENT.partition(f"\n### {title}\n")[2].partition("\n### ")[0]


def test_the_sizes_of_client_side_assignment_are_the_codes_own() -> None:
    rows = [
        line.split("|")[2].strip() for line in section("Sizes of client-side assignment").splitlines() if "|" in line
    ]
    sizes = [int(row.split(" ")[0].replace(",", "")) for row in rows if row[:1].isdigit()]

    assert sizes == [
        MAX_METADATA_BYTES, MAX_GROUP_METADATA_BYTES, MAX_MEMBER_STATE_BYTES, MAX_ANSWER_BYTES, OWNER_PATHS_A_SESSION,
        MAX_COMMIT_BYTES - ROOM_BYTES, MAX_ZNODE_BYTES, MAX_COMMIT_BYTES // 2, MAX_ANSWER_PARTITIONS, ROOM, MAX_REASON,
    ]  # fmt: skip


def test_the_examples_of_client_side_assignment_are_what_the_code_reads() -> None:
    ids = [json.loads(line) for line in section("ids/[consumer]").splitlines() if '"client":{' in line]
    offer = Registration.parse("ids", json.dumps(ids[0]).encode()).client
    assert offer is not None
    metadata = ConsumerMetadata.parse("metadata", b64decode(offer.metadata["lag"]))
    example = next(
        line for line in section("Formats of protocol type consumer").splitlines() if line.startswith("    {")
    )
    client = next(line for line in section("state").splitlines() if line.startswith('    {"protocol_type"'))
    ask = next(line for line in section("sync/ask-[number]").splitlines() if line.startswith("    {"))

    assert metadata == ConsumerMetadata(ids[0]["subscription"])
    assert ConsumerMetadata.parse("metadata", example.encode()).to_bytes() == example.strip().encode()
    assert ClientSide.read(Fields("client", json.loads(client))).to_json() == json.loads(client)
    assert Ask.parse("ask", ask.encode()).to_bytes() == ask.strip().encode()
    entry = next(
        line for line in section("sync/ask-[number]/member-[consumer]").splitlines() if line.startswith("    {")
    )
    assert MemberAnswer.parse("entry", entry.encode()).to_bytes() == entry.strip().encode()
    assert ask_name(31) in section("sync/ask-[number]") + section("sync_request") + section("state")
