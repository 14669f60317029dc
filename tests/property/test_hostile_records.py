"""No record costs time or memory out of proportion to its bytes: hostile changes of every record, measured.

PROPERTY_EFFORT=50 tries 100,000.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

import pytest

from tests.property.effort import Draw, tried
from tests.property.records import RECORDS, Build
from tests.property.test_records import FLOATS, PARSERS, TEXTS, document, read
from zk_group.coordinator.planning.target import filters_of, threads_of
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.znodes.group_state import CLIENT, GroupState
from zk_group.coordinator.zk.znodes.json_fields import MAX_ZNODE_BYTES
from zk_group.coordinator.zk.znodes.partitions import TopicPartition, partition_set, range_texts, united
from zk_group.coordinator.zk.znodes.records import Channel, Command, Registration, Topic

SECONDS, SECONDS_A_BYTE = 0.2, 5e-6
"""CPU time of reading one record: 30 ns a byte were measured, and this machine does other things as well."""
BYTES, BYTES_A_BYTE = 200_000, 150
"""Python has 24 bytes for each of `[[],[],…`, and 110 for each of a channel's offsets."""

KINDS = sorted(PARSERS)
TOPICS = {"t": Topic("t", "id", tuple(range(100)))}
EXISTING = partition_set({"t": range(100)})
RANGES = ("0-999999", "0-1000000", "0-499999,500000-1000000", ",".join(f"{n}-{n + 1}" for n in range(0, 900, 3)), "7")


@contextmanager
def in_proportion(data: bytes) -> Iterator[None]:
    """Whatever is done is bounded by the size of `data`."""
    gc.freeze()  # what other tests have left is no part of the record's collections
    tracemalloc.start()
    began = thread_time()
    try:
        yield
    finally:
        took_s = thread_time() - began
        gc.unfreeze()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert took_s <= SECONDS + SECONDS_A_BYTE * len(data), f"{took_s:.2f} s for {len(data)} bytes: {data[:300]!r}"
    assert peak <= BYTES + BYTES_A_BYTE * len(data), f"{peak} bytes of memory for {len(data)} bytes: {data[:300]!r}"


def used(found: Any) -> None:
    """What turns, consumers and commands do with a record, whoever wrote it."""
    if isinstance(found, Channel):
        assert len(found.refused & EXISTING) <= 100
        range_texts(found.refused)
    elif isinstance(found, Command):
        missing = found.started - EXISTING
        assert len(found.started) == len(missing) + len(found.started & EXISTING)
        assert (found.partitions & EXISTING) <= EXISTING
    elif isinstance(found, GroupState):
        taken = united([EXISTING, *(mark.partitions for mark in found.marks)])
        assert TopicPartition("t", 5) in taken
        assert sum(len(target.partitions) for target in found.target.values()) <= 1_000_000
    elif isinstance(found, Registration) and found.pattern != CLIENT:
        try:
            threads_of(found, TOPICS, filters_of([found]))
        except BadData as error:
            assert str(error).isprintable()
    if hasattr(found, "to_bytes"):
        found.to_bytes()


def measured(kind: str, data: bytes) -> None:
    """Read and use a record, or find that it is none."""
    with in_proportion(data):
        if (found := read(kind, data)) is not None:
            used(found)


# ---- hostile changes

BOMBS: tuple[Build, ...] = (
    lambda draw: draw.choice(RANGES),
    lambda draw: {f"t{n}": draw.choice(RANGES) for n in range(draw.upto(200))},
    lambda draw: {f"c-{n}": {"t": draw.choice(RANGES)} for n in range(draw.upto(200))},
    lambda draw: {f"c{n}": {"incarnation": "i", "ownershipMap": {f"c{n}-0": {"t": "0-9999"}}} for n in range(60)},
    lambda draw: [{"consumer": "c", "incarnation": "i", "partitions": {"t": draw.choice(RANGES)}, "lease_ms": 1}] * 50,
    lambda draw: {"t": {str(n): draw.choice([n, None, "x", 2**63 - 1]) for n in range(draw.upto(500))}},
    lambda draw: [[]] * draw.upto(3_000),
    lambda draw: ["a" * draw.upto(4_096)] * draw.upto(20),
    lambda draw: "x" * draw.upto(70_000),
    lambda draw: draw.choice(["(", "[", "a|", ".*", "(a+)+", "(?#", "\\pL{9}"]) * draw.upto(400),
    lambda draw: {draw.choice(["(.+)+1", "(?#[)(.+)+1(?#])", "(){1000000000}t", "(a{30}){30}", "[^a]{900}"]): 1},
    lambda draw: {"a\n2026-01-01 level=error" * draw.upto(5): "\x1b[2J"},
    lambda draw: draw.choice([*TEXTS, *FLOATS, True, None]),
    document,
    lambda draw: draw.choice([2**63 - 1, 2**63, -1, 10**400]),
    lambda draw: json.loads("[" * 100 + "]" * 100),
)
NAMED = {"partitions": (0, 1), "refused": (1,), "ownershipMap": (2,), "target": (3,), "marks": (4,), "running": (5,)}
"""Fields whose own bombs are tried more often."""


def fields_of(values: Any) -> list[tuple[Any, ...]]:
    """The place of every field, nested ones included."""
    found: list[tuple[Any, ...]] = []
    left: list[tuple[tuple[Any, ...], Any]] = [((), values)]
    while left and len(found) < 2_000:
        path, value = left.pop()
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, each in inner:
            found.append((*path, key))
            left.append((found[-1], each))
    return found


def with_bomb(draw: Draw, values: Any) -> Any:
    place = draw.choice(fields_of(values) or [()])
    named = NAMED.get(place[-1] if place else "", ())
    bomb = draw.choice([BOMBS[index] for index in named] if named and draw.truth() else BOMBS)(draw)
    if not place:
        return bomb
    at = values
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = bomb
    return values


def with_torn_bytes(draw: Draw, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    change = draw.randrange(4)
    if change == 0:
        return data[:at]
    if change == 1:
        return data[:at] + draw.randbytes(3) + data[at + 3 :]
    if change == 2:
        return data[:at] + data[at : at + 20] * draw.upto(500) + data[at:]
    return (
        data[:at] + draw.choice([b"[" * 2_000, b'{"a":' * 2_000, b"9" * 5_000, b"NaN", b"\xff", b"\\ud800"]) + data[at:]
    )


def hostile(draw: Draw, kind: str) -> bytes:
    build = RECORDS.get(kind)
    data = build(draw).to_bytes() if build is not None else b'{"version":1,"topics":["t"],"pattern":"white_list"}'
    if draw.random() < 0.75:
        values = json.loads(data)
        for _ in range(draw.randint(1, 3)):
            values = with_bomb(draw, values)
        data = json.dumps(values, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return data if draw.random() < 0.75 else with_torn_bytes(draw, data)


@pytest.mark.parametrize("kind", KINDS)
@tried(67, hostile)
def test_hostile_record_costs_no_more_than_its_bytes(kind: str, data: bytes) -> None:
    measured(kind, data)


# ---- the worst that is known, at full size

FULL = MAX_ZNODE_BYTES - 300
_PAIRS = ",".join(f'"c{n}-0":{{"t":"0-9999"}}' for n in range(20_000))
_TARGETS = ",".join(f'"c{n}":{{"incarnation":"i","ownershipMap":{{"c-0":{{"t":"0-9999"}}}}}}' for n in range(6_000))
_MARKS = ",".join('{"consumer":"c","incarnation":"i","partitions":{"t":"0-999999"},"lease_ms":1}' for _ in range(5_000))
_TOPICS = ",".join(f'"t{n}":"0-999999"' for n in range(25_000))
_SCATTERED = ",".join(str(number) for number in range(0, 140_000, 2))
_COMMAND = '"epoch":1,"generation":1,"incarnation":"i"'
_RUNNING = ",".join(f'"{number}":1' for number in range(45_000))
_THREADS = ",".join(f'"t{number}":1' for number in range(20_000))
_NAMES = ",".join(['"r"'] * 120_000)
WORST = {
    "refused channel": f'{{"incarnation":"i","refused":{{{_TOPICS}}}}}',
    "running channel": f'{{"incarnation":"i","running":{{"t":{{{_RUNNING}}}}}}}',
    "start command": f'{{"option":"start-fetcher",{_COMMAND},"ownershipMap":{{{_PAIRS}}}}}',
    "stop command": f'{{"option":"stop-fetcher",{_COMMAND},"partitions":{{{_TOPICS}}}}}',
    "target state": f'{{"state":"Stable","target":{{{_TARGETS}}}}}',
    "marked state": f'{{"state":"Stable","marks":[{_MARKS}]}}',
    "answer": f'{{"members":["c"],"topics":{{}},"partitions":{{{_TOPICS}}}}}',
    "member's answer": f'{{"ownershipMap":{{{_PAIRS}}}}}',
    "begun": f'{{"topic_id":"i","partitions":"{_SCATTERED}"}}',
    "contribution": f'{{"incarnation":"i","reset":1,"offsets":{{{_TOPICS}}}}}',
    "registration": f'{{"incarnation":"i","subscription":{{{_THREADS}}}}}',
    "policy": f'{{"acl":"open","regions":[{_NAMES}]}}',
    "segment": f'{{"topics":{{{_TOPICS}}},"ranges":{{{_TOPICS}}},"file":"f"}}'[:FULL],
}


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(WORST))
def test_largest_record_of_ranges_costs_no_more_than_its_bytes(kind: str) -> None:
    data = WORST[kind].encode()

    assert 200_000 < len(data) < MAX_ZNODE_BYTES
    measured(kind if kind in PARSERS else kind.split()[-1], data)


def test_stray_channels_of_64_bytes_cost_a_few_kilobytes_each() -> None:
    """30 of them had a coordinator of 674 MB."""
    data = b'{"incarnation":"x","refused":{"a":"0-999999"}}'

    with in_proportion(data * 1_000):
        found = [Channel.parse("where", data) for _ in range(1_000)]
    assert {len(channel.refused) for channel in found} == {1_000_000}


def test_command_of_more_partitions_than_a_session_can_own_is_bad_data() -> None:
    data = (
        b'{"option":"start-fetcher","epoch":1,"generation":1,"incarnation":"i","ownershipMap":{"c-0":{"t":"0-10000"}}}'
    )

    with pytest.raises(BadData, match="10000 partitions at most"):
        Command.parse("where", data)
    assert len(Command.parse("where", data.replace(b"0-10000", b"0-9999")).started) == 10_000
