"""Znode data as the checker reads it: the fast parser agrees with the strict records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.errors import BadData
from coordinator.zk.znodes.group_state import GroupState, Mark, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER, Channel, Command, OffsetRecord, parsed_channel
from coordinator.zk.znodes.segments import SealedRange, Segment
from drills.checker.replay.channel_data import ChannelData, read_channel
from drills.checker.replay.reading import (
    StateData,
    read_command,
    read_offset,
    read_segment,
    read_state,
)

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
CHANNEL = Channel("c1-a", 7, 12, "command-0000000003", {P0: 10, P1: None}, {"flights": "T1"})
CHANNELS = {
    "whole": CHANNEL,
    "sealed": replace(CHANNEL, sealed="g/c1/c1-a-0000000001.arrow"),
    "sealed and touched": replace(CHANNEL, sealed="g/c1/c1-a-0000000002.arrow", touched=4),
    "touched": replace(CHANNEL, touched=5),
    "other offsets": replace(CHANNEL, running={P0: 11, P1: 0, P2: 2}),
    "nothing runs": replace(CHANNEL, running={}, topics={}),
    "ended": replace(CHANNEL, ended='he said "running":{}'),
    "refused": replace(CHANNEL, refused=frozenset({P2})),
    "another incarnation": replace(CHANNEL, incarnation="c1-b"),
    "another command": replace(CHANNEL, command="command-0000000004", generation=13),
}
ODD = [
    b"{",
    b"[]",
    b"null",
    b'"running":',
    b'{"incarnation":7}',
    b'{"incarnation":"a","running":{"flights":{"x":1}}}',
    b'{"incarnation":"a","running":{"flights":{"0":-1}}}',
    b'{"incarnation":"a","running":{"flights":{"0":1.5}}}',
    b'{"incarnation":"a","running":[]}',
    b'{"incarnation":"a","epoch":true}',
    b'{"incarnation":"a"}',
    b'{"incarnation":"a","epoch":null,"running":null,"extra":{}}',
    b' {"incarnation":"a","epoch":1,"generation":1,"command":"","running":{"t":{"0":1}},"topics":{},"ended":null} ',
    CHANNEL.to_bytes() + b"x",
    CHANNEL.to_bytes().replace(b'"ended":null', b'"ended":null,"running":{"flights":{"2":5}}'),
    CHANNEL.to_bytes().replace(b"}}", b'}},"refused":{"flights":"2"}', 1),
    b"{" * 100_000,
]


def shown(channel: ChannelData | Channel | None) -> object:
    if channel is None:
        return None
    return (
        channel.incarnation, channel.epoch, channel.generation, channel.command, dict(channel.running),
        dict(channel.topics), channel.ended, channel.refused,
    )  # fmt: skip


def strictly(data: bytes) -> object:
    try:
        channel = parsed_channel("p", data)
    except BadData:
        return None
    return shown(channel)


@pytest.mark.parametrize("name", CHANNELS)
def test_channel_is_parsed_like_its_record_after_any_previous_one(name: str) -> None:
    data = CHANNELS[name].to_bytes()

    for before in [None, *CHANNELS.values()]:
        known = None if before is None else read_channel("p", before.to_bytes().decode())
        assert shown(read_channel("p", data.decode(), known)) == strictly(data), before


@pytest.mark.parametrize("data", ODD, ids=lambda data: repr(data[:40]))
def test_irregular_channel_data_is_parsed_like_its_record(data: bytes) -> None:
    known = read_channel("p", CHANNEL.to_bytes().decode())

    assert shown(read_channel("p", data.decode(), known)) == strictly(data)
    after = read_channel("p", data.decode())
    assert shown(read_channel("p", CHANNEL.to_bytes().decode(), after)) == strictly(CHANNEL.to_bytes())


def test_channel_without_data_has_no_incarnation() -> None:
    assert shown(read_channel("p", "")) == strictly(b"")


STATE = GroupState(
    "Stable", 3, 2, "range", {"c1": Target("c1-a", {"c1-0": frozenset({P0, P1}), "c1-1": frozenset({P2})})},
    {"flights": "T1"}, (Mark("c2", "c2-a", frozenset({P2}), 4000, "evicted"),), None, {"cities": "no such topic (yet)"},
)  # fmt: skip


def fields(state: StateData | None) -> object:
    assert state is not None
    target = {name: (share.incarnation, share.partitions) for name, share in state.target.items()}
    return (
        state.state, state.generation, state.epoch, state.strategy, target, dict(state.topics), dict(state.marks),
        dict(state.left_out), state.twice,
    )  # fmt: skip


def test_state_is_read_in_every_form() -> None:
    wanted = (
        "Stable", 3, 2, "range", {"c1": ("c1-a", {P0, P1, P2})}, {"flights": "T1"}, {("c2", "c2-a"): {P2}},
        {"cities": "no such topic (yet)"}, None,
    )  # fmt: skip
    text = STATE.to_bytes().decode()
    whole = read_state("p", text, None)

    assert fields(whole) == wanted
    assert fields(read_state("p", text.replace('"Stable"', '"Empty"'), whole))[1:] == wanted[1:]  # type: ignore[index]
    assert fields(read_state("p", text.replace('"reason":null,', "").replace('"version":1,', ""), None)) == wanted
    assert fields(read_state("p", '{"generation":3}', whole))[:2] == ("Empty", 3)  # type: ignore[index]
    assert fields(read_state("p", text.replace('"left_out"', '"left"'), None))[4] == wanted[4]  # type: ignore[index]
    assert read_state("p", "?", whole) is None
    assert read_state("p", text.replace('"0-1"', '"1-0"'), None) is None


def test_target_that_assigns_a_partition_twice_is_reported_with_the_partition() -> None:
    twice = replace(STATE, target={**STATE.target, "c2": Target("c2-a", {"c2-0": frozenset({P2})})})
    state = read_state("p", twice.to_bytes().decode(), None)

    assert state is not None and state.twice == P2


def test_only_commands_offsets_and_segments_are_read() -> None:
    start = Command(START_FETCHER, 7, 12, "c1-a", {"c1-0": frozenset({P0}), "c1-1": frozenset({P1})})
    stop = Command(STOP_FETCHER, 7, 12, "c1-a", {}, frozenset({P2}))
    segment = Segment("g/c1/f.arrow", "/s", 5, 50, (SealedRange("flights", "T1", 2, 5, 10),), "c1", "c1-a", 3)
    commands = [read_command("p", command.to_bytes().decode()) for command in (start, stop)]
    offset = read_offset("p", OffsetRecord(5, "T1", 3).to_bytes().decode())

    assert [(c.is_start, set(c.partitions)) for c in commands if c] == [(True, {P0, P1}), (False, {P2})]
    assert offset is not None and (offset.offset, offset.topic_id) == (5, "T1")
    assert read_segment("p", segment.to_bytes().decode()) == ("c1", segment.ranges)
    assert [read_command("p", '{"option":"dance"}'), read_offset("p", "{}"), read_segment("p", "[]")] == [None] * 3
    assert read_segment("p", segment.to_bytes().decode().replace("[5,10]", "[5]")) is None
