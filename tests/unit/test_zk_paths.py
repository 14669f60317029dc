"""zk_paths.md, the published contract, names every path and every field that the code writes."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from tests.support import pages
from tests.support.pages import AccessRow, access_table
from zk_group.consumer.assignment.metadata import ConsumerMetadata
from zk_group.consumer.membership.client_assignment import ROOM
from zk_group.coordinator.planning.asking import ROOM_BYTES
from zk_group.coordinator.planning.target import OWNER_PATHS_A_SESSION
from zk_group.coordinator.zk import znodes
from zk_group.coordinator.zk.security import policy
from zk_group.coordinator.zk.store import MAX_COMMIT_BYTES
from zk_group.coordinator.zk.znodes import group_state, paths, records, regions, segments
from zk_group.coordinator.zk.znodes.forms import Record
from zk_group.coordinator.zk.znodes.json_fields import MAX_ZNODE_BYTES, Fields
from zk_group.coordinator.zk.znodes.partitions import Discontinuity, TopicPartition

DOCUMENT = pages.page("../zk_paths.md")
PART = frozenset([TopicPartition("t", 0)])
PATHS = paths.GroupPaths("[group]")
CLIENT_SIDE = group_state.ClientSide("consumer", "ask-1", True, ("i",), 1, "ask-2", "ask-0")
OFFER = group_state.ClientProtocols(("lag",), {"lag": ""}, "jobs", is_preferred=False, rejoins=1, digest="read")
ASK = "ask-[number]"
PAUSE = records.Pause("who", 1, "why")
REGISTRATION = records.Registration(
    *("i", {"t": 2}, records.WHITE_LIST, "host", ("sticky",), 1, 2, "x", 1, "c", OFFER),
    *(regions.RegionMembership("r", regions.SLOTS), 1),
)
COMMAND, CONTRIBUTION = "channel/[consumer]/command-[seq]", "checkpoint-[sequence]/[group]~[consumer]"
PARTITION = TopicPartition("t", 0)
EVICTED = (group_state.Evicted("c/i", "why", 1),)

WRITTEN: tuple[tuple[str, Any], ...] = (
    ("/brokers/topics/[topic]", records.Topic("t", "id", (0,), 1)),
    ("/consumers/acl", policy.AclPolicy(True, False, ("sasl:a",), ("sasl:b",), ("sasl:c",), ("sasl:d",), ("r",))),
    ("/consumers/coordinator", records.CoordinatorRecord("a", "host", 1)),
    ("/consumers/nodes/[session]", records.NodeRecord("a", "host")),
    ("/consumers/coordinator_epoch", records.EpochRecord(1)),
    ("/consumers/paused", records.PausedRecord(PAUSE, {"g": PAUSE})),
    ("/consumers/turn_times", records.TurnTimes(1, {"g": 1})),
    (
        "state",
        group_state.GroupState(
            group_state.STABLE,
            1,
            1,
            "range",
            {"c": group_state.Target("i", {"c-0": PART}, True, True)},
            {"t": "id"},
            (group_state.Mark("c", "i", PART, 1, "r", 1),),
            "why",
            {"c": "why"},
            CLIENT_SIDE,
            regions.GroupRegion("r", 1, ("c",)),
        ),
    ),
    ("request", records.TurnRequest("who", 1, "why")),
    ("history/rebalance-[generation]", group_state.Rebalance(1, 1, "why", 1, ("c",), ("c",), *[1] * 9, EVICTED)),
    ("ids/[consumer]", REGISTRATION),
    (
        "sync/ask-[number]",
        group_state.Ask("lag", "c", "i", {"c": group_state.AskMember("i", "d", 1)}, "jobs", 2, "why", 1, outdated=1),
    ),
    ("sync/ask-[number]/member-[consumer]", group_state.MemberAnswer({"c-0": PART}, "AA==", "lag")),
    ("sync/ask-[number]/answer", group_state.Answer(("c",), {"t": "id"}, {"t": frozenset([0])}, True, "why")),
    ("sync_request", group_state.SyncRequest("c", "i", "why")),
    ("seats/[instance]", records.Seat(REGISTRATION, 1, "why")),
    (
        "channel/[consumer]",
        records.Channel(
            *("i", 1, 1, "command-1", {PARTITION: 1}, {"t": "id"}, "why", PART, "f", 1, "e", "ask-1"),
            *(regions.Progress(1, 1, 1), {PARTITION: Discontinuity("reset", 1)}),
        ),
    ),
    (COMMAND, records.Command(records.START_FETCHER, 1, 1, "i", {"c-0": PART}, topics={"t": "id"}, ask="ask-1")),
    (COMMAND, records.Command(records.START_FETCHER, 1, 1, "i", region=regions.Order(1, 1, ("c",), ("c",)))),
    (COMMAND, records.Command(records.STOP_FETCHER, 1, 1, "i", partitions=PART, topics={"t": "id"})),
    (COMMAND, records.Command(records.ASSIGN, 1, 1, "i", ask="ask-1")),
    (COMMAND, records.Command(records.ASSIGNMENT_FAILED, 1, 1, "i", ask="ask-1", reason="why")),
    ("owners/[topic]/[partition]", records.OwnerRecord("c-0", "c", "i", 1)),
    ("offsets/[topic]", records.BegunRecord("id", frozenset([0]))),
    ("offsets/[topic]/[partition]", records.OffsetRecord(1, "id", 1, "end", Discontinuity("lost", 1))),
    ("segments", segments.SegmentsRecord(1, "why", 1)),
    (
        "segments/segment-[seq]",
        segments.Segment(
            *("f", "d", 1, 1, (segments.SealedRange("t", "id", 0, 0, 1),), "c", "i", 1, (segments.Missing("t", 0, 1),)),
            {PARTITION: Discontinuity("lost", 1)},
        ),
    ),
    ("queries, queries/[query]", segments.Query("r", 1, 1, expired_ms=1, rewind=segments.Rewind(1, 1, True))),
    ("pools/[pool]", segments.Pool(1, "r")),
    (
        "/consumers/regions/[region]",
        regions.Region(regions.SLOTS, "Running", 1, 2, 1, 2, ("g",), 1, "why", 1, 1, {"g": 1}),
    ),
    ("checkpoints/checkpoint-[sequence]", regions.Checkpoint("why", 1, 1, {"g": {"c": "i"}}, 1, {"g": ("c",)})),
    (
        CONTRIBUTION,
        regions.Contribution(
            "i", 1, {PARTITION: 1}, {"t": "id"}, {PARTITION: "AA=="}, "AA==", regions.StateFile("f", 1, 1), 1
        ),
    ),
    ("checkpoint-[sequence]/completed, aborted, abandoned", regions.CheckpointEnd(1, 1, "why", (1,))),
    ("regions/[region]/request", regions.RegionRequest("reset", "who", "why", 1, True, 1)),
)
"""The section of a znode, and its record with all that can be written: between them records leave no field out."""
NAMES = {"t", "c", "c-0", "g", "lag", "0"}
"""Keys of the records above that are no fields, but names and partitions."""


section = partial(pages.section, DOCUMENT)


def examples(title: str) -> list[str]:
    """The lines of JSON in a section."""
    return [line.strip() for line in section(title).splitlines() if line.startswith("    {")]


def keys_of(value: Any) -> set[str]:
    """The keys of every object in a JSON value."""
    if isinstance(value, dict):
        return set(value) | keys_of(list(value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize(
    ("title", "record"), WRITTEN, ids=[f"{title} {type(made).__name__}" for title, made in WRITTEN]
)
def test_every_field_that_is_written_is_in_the_section_of_its_znode(title: str, record: Any) -> None:
    text = section(title)
    if isinstance(record, records.Seat):
        text += section("ids/[consumer]")  # which it refers to
    fields = keys_of(json.loads(record.to_bytes())) - NAMES - {"version"}

    assert {name for name in fields if not re.search(rf"[`\"]{re.escape(name)}[`\"]", text)} == set()


def kinds() -> dict[str, type]:
    """Every class that is written into a znode, and every one that is a field of one."""
    modules = [import_module(f"{znodes.__name__}.{found.name}") for found in iter_modules(znodes.__path__)]
    return {
        made.__qualname__: made
        for module in modules
        for made in vars(module).values()
        if isinstance(made, type) and made.__module__ == module.__name__ and {"to_bytes", "to_json"} & set(dir(made))
        if made is not Record
    }


def parts_of(value: Any) -> Iterator[Any]:
    """A record and all records in it."""
    yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    names = [field.name for field in fields(value)] if is_dataclass(value) else []
    for each in [*inner, *(getattr(value, name) for name in names)]:
        yield from parts_of(each)


def defaults_of(kind: type) -> dict[str, Any]:
    """Field -> its value when it is left out; fields that cannot be left out are missing."""
    if issubclass(kind, tuple):
        return dict(kind._field_defaults)  # type: ignore[attr-defined]
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is not MISSING or field.default_factory is not MISSING
    }


def test_every_record_is_written_with_all_of_its_fields() -> None:
    made = [part for _, record in WRITTEN for part in parts_of(record)]

    for name, kind in kinds().items():
        of_kind = [each for each in made if type(each) is kind]
        assert of_kind, f"no {name} is written here"
        for field, default in defaults_of(kind).items():
            assert any(getattr(each, field) != default for each in of_kind), f"{name}.{field} is always left out"


SHOWN = (
    "/consumers/acl", "/consumers/coordinator", "/consumers/coordinator_epoch", "/consumers/drill", "/consumers/paused",
    "/consumers/nodes/[session]", "/brokers/topics/[topic]",
    *(f".../[group]/{name}" for name in (
        "acl", "request", "state", "ids/[consumer]", "channel/[consumer]", "channel/[consumer]/command-[seq]",
        "owners/[topic]/[partition]", "offsets/[topic]/[partition]", "segments", "segments/segment-[seq]", "queries",
        "queries/[query]", "pools", "pools/[pool]", "history/rebalance-[generation]", "sync", "sync/ask-[number]",
        "sync/ask-[number]/member-[consumer]", "sync/ask-[number]/answer", "sync_request",
    )),
)  # fmt: skip
OF_CODE = (
    paths.ACL_POLICY, paths.COORDINATOR, paths.COORDINATOR_EPOCH, paths.DRILL, paths.PAUSED,
    f"{paths.NODES}/[session]", paths.Brokers().topic("[topic]"),
    PATHS.acl, PATHS.request, PATHS.state, PATHS.id("[consumer]"), PATHS.channel("[consumer]"),
    PATHS.command("[consumer]", "command-[seq]"), PATHS.owners + "/[topic]/[partition]",
    PATHS.offsets + "/[topic]/[partition]", PATHS.segments, PATHS.segment("segment-[seq]"), PATHS.queries,
    PATHS.query("[query]"), PATHS.pools, PATHS.pool("[pool]"), PATHS.history + "/rebalance-[generation]", PATHS.sync,
    PATHS.ask(ASK), PATHS.member_answer(ASK, "[consumer]"), PATHS.answer(ASK), PATHS.sync_request,
)  # fmt: skip


@pytest.mark.parametrize(("path", "shown"), list(zip(OF_CODE, SHOWN, strict=True)), ids=SHOWN)
def test_every_path_is_in_the_documents_table(path: str, shown: str) -> None:
    assert path.replace("/consumers/groups/[group]/", ".../[group]/") == shown
    assert f"| `{shown}` |" in DOCUMENT


def test_examples_are_a_line_of_json_each_with_every_option_of_a_command() -> None:
    shown = [json.loads(line) for line in DOCUMENT.splitlines() if line.startswith('    {"version"')]

    assert len(shown) >= 15
    assert all(example["version"] >= 1 for example in shown)
    assert {example.get("option") for example in shown if example["version"] == 1} >= set(records.OPTIONS)


def test_the_sizes_of_client_side_assignment_are_the_codes_own() -> None:
    cells = [cells[1] for cells in pages.rows(section("Sizes of client-side assignment"))]
    sizes = [int(cell.split(" ")[0].replace(",", "")) for cell in cells if cell[:1].isdigit()]

    assert sizes == [
        group_state.MAX_METADATA_BYTES, group_state.MAX_GROUP_METADATA_BYTES, group_state.MAX_MEMBER_STATE_BYTES,
        group_state.MAX_ANSWER_BYTES, OWNER_PATHS_A_SESSION, MAX_COMMIT_BYTES - ROOM_BYTES, MAX_ZNODE_BYTES,
        MAX_COMMIT_BYTES // 2, group_state.MAX_ANSWER_PARTITIONS, ROOM, records.LONGEST_REASON,
    ]  # fmt: skip


def test_examples_of_client_side_assignment_are_readable_by_the_code() -> None:
    (ids,) = (json.loads(line) for line in examples("ids/[consumer]") if '"client":{' in line)
    offer = records.Registration.parse("ids", json.dumps(ids).encode()).client
    assert offer is not None
    metadata = ConsumerMetadata.parse("metadata", b64decode(offer.metadata["lag"]))
    client = next(line for line in examples("state") if line.startswith('{"protocol_type"'))

    assert metadata == ConsumerMetadata(ids["subscription"])
    assert group_state.ClientSide.read(Fields("client", json.loads(client))).to_json() == json.loads(client)
    for title, kind in (
        ("Formats of protocol type consumer", ConsumerMetadata),
        ("sync/ask-[number]", group_state.Ask),
        ("sync/ask-[number]/member-[consumer]", group_state.MemberAnswer),
    ):
        example = examples(title)[0].encode()
        assert kind.parse(title, example).to_bytes() == example
    assert paths.ask_name(31) in section("sync/ask-[number]") + section("sync_request") + section("state")


# ---- access control


def row(path: str, rights: policy.Rights) -> AccessRow:
    """The document's row of a znode, by the rights in the code: its creation and removal are rights on its parent."""
    parent = policy.RIGHTS.get(path.rpartition("/")[0] or "/", policy.Rights("")) if path != "/" else policy.Rights("")

    def parties(rights: policy.Rights, letter: str) -> str:
        held = (("C", rights.coordinators), ("M", rights.members))
        return " ".join(party for party, letters in held if letter in letters)

    return AccessRow(
        rights.coordinators,
        rights.members,
        rights.readers.value,
        parties(parent, "c"),
        parties(rights, "w"),
        parties(parent, "d"),
    )


def test_the_table_of_access_control_is_the_codes_own_row_for_row() -> None:
    assert list(access_table().items()) == [(path, row(path, rights)) for path, rights in policy.RIGHTS.items()]


def test_every_znode_of_the_tree_has_a_row_of_access_control() -> None:
    shown = " ".join(cells[0] for cells in pages.rows(section("The tree")))
    names = re.findall(r"`([^`]+)`", shown)
    patterns = {re.sub(r"\[[^]]*\]", "*", path) for path in policy.RIGHTS}
    found = set()
    for name in names:
        path = name.replace(".../[group]", "/consumers/groups/[group]").replace(
            ".../checkpoint-", "/consumers/regions/[region]/checkpoints/checkpoint-"
        )
        path = path if path.startswith("/") else "/consumers/regions/[region]/checkpoints/[checkpoint]/" + path
        path = re.sub(r"/(ask|member|command|segment|rebalance|checkpoint)-\[[^]]*\]", "/*", path)
        path = re.sub(r"/(answer|completed|aborted|abandoned)$", "/*", path)
        found.add(re.sub(r"\[group\]~\[consumer\]|\[[^]]*\]", "*", path))

    assert found - patterns == {"/brokers/ids/*"}  # Kafka's own


def test_the_bounds_of_identities_are_the_documents() -> None:
    text = section("/consumers/acl")

    assert f"`scheme:id`, {policy.MOST_IDENTITIES} each at most" in text
    assert f"An identity has {policy.LONGEST_IDENTITY} characters at most, and all of them" in text
    assert f"and all of them with 20 bytes each {policy.MOST_BYTES:,}" in text
    assert {readers.value for readers in policy.Readers} == {"all", "readers", "none"}


# ---- paths


G = paths.GroupPaths("flights")


@pytest.mark.parametrize(
    ("path", "expected", "parents"),
    [
        (paths.Brokers().topics, "/brokers/topics", ()),
        (paths.Brokers("/kafka/brokers").topic("t"), "/kafka/brokers/topics/t", ()),
        (paths.Brokers().ids, "/brokers/ids", ()),
        (paths.Brokers("/kafka/brokers").id("0"), "/kafka/brokers/ids/0", ()),
        (G.rebalance(12), f"{G.root}/history/rebalance-0000000012", (G.history,)),
        (G.command_prefix("c1"), f"{G.root}/channel/c1/command-", ()),
        (G.owner("t", 3), f"{G.root}/owners/t/3", (G.owners, G.owners_of("t"))),
        (G.offset("t", 3), f"{G.root}/offsets/t/3", (G.offsets, G.offsets_of("t"))),
        (G.segment_prefix, f"{G.root}/segments/segment-", (G.segments,)),
        (G.segment("segment-0000000001"), f"{G.root}/segments/segment-0000000001", (G.segments,)),
        (G.state, "/consumers/groups/flights/state", ()),
        (G.command("c1", "command-0000000001"), f"{G.root}/channel/c1/command-0000000001", ()),
        (G.owners, f"{G.root}/owners", ()),
        (paths.COORDINATOR, "/consumers/coordinator", ()),
        ("/brokers/topics/t/owners/x", "/brokers/topics/t/owners/x", ()),
    ],
)
def test_path_is_as_documented_and_its_parents_are_known(path: str, expected: str, parents: tuple[str, ...]) -> None:
    """Those of owners, offsets, history and segments."""
    assert (path, paths.parents_of(path)) == (expected, parents)


@pytest.mark.parametrize("number", [1, 10**10 - 1, 10**10, 2**52, 2**53 - 1])
def test_every_number_that_a_coordinator_counts_is_read_from_the_name_it_is_given(number: int) -> None:
    def name(path: str) -> str:
        return path.rpartition("/")[2]

    assert paths.history_generation(name(G.rebalance(number))) == number
    assert paths.checkpoint_number(name(paths.RegionPaths("r").checkpoint(number))) == number
    assert paths.ask_number(paths.ask_name(number)) == number


@pytest.mark.parametrize("digits", ["1", "00000000001", "-0000000001", "", "9" * 19, "000000000a", "\uff10000000001"])
def test_other_names_have_no_number(digits: str) -> None:
    assert paths.history_generation(f"rebalance-{digits}") == 0
    assert paths.checkpoint_number(f"checkpoint-{digits}") == 0
    assert paths.checkpoint_number(f"rebalance-{1:010d}") == 0


def test_parents_of_a_group_are_in_order_of_creation() -> None:
    made = set("/")
    for path in G.skeleton:
        assert (path.rsplit("/", 1)[0] or "/") in made
        made.add(path)
    for path in (G.id("c"), G.channel("c"), G.owners_of("t"), G.offsets_of("t"), G.segment("s"), G.query("q")):
        assert path.rsplit("/", 1)[0] in made
    assert G.rebalance(1).rsplit("/", 1)[0] in made


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("command-0000000000", 0),
        ("command-0000000012", 12),
        ("segment-2147483647", 2**31 - 1),
        ("segment--2147483648", -(2**31)),
        *((name, None) for name in ("", "command", "command-", "command-1", "command-00000000001")),
        *((name, None) for name in ("command-000000000x", "command-" + "\u0661" * 10)),
    ],
)
def test_the_number_that_zookeeper_appended_is_read(name: str, number: int | None) -> None:
    assert paths.sequence(name) == number
