"""Znode data as the checker reads it: what the records refuse cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.znodes.group_state import GroupState, Target
from coordinator.zk.znodes.partitions import TopicPartition
from drills.checker.replay.expected_target import given_twice
from drills.checker.replay.reading import read_channel, read_command, read_offset, read_segment, read_state

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))


@pytest.mark.parametrize("text", ["{", "[]", "null", "?", "{" * 100_000, '{"incarnation":"\ud800"}'])
def test_what_is_no_record_cannot_be_read(text: str) -> None:
    assert [read(text) for read in (read_channel, read_command, read_state, read_offset, read_segment)] == [None] * 5


def test_channel_without_data_has_no_incarnation() -> None:
    channel = read_channel("")

    assert channel is not None and (channel.incarnation, channel.is_live) == ("", False)


STATE = GroupState(
    "Stable", 3, 2, "range", {"c1": Target("c1-a", {"c1-0": frozenset({P0, P1}), "c1-1": frozenset({P2})})}
)


@pytest.mark.parametrize(
    "share", [Target("c2-a", {"c2-0": frozenset({P2})}), Target("c2-a", {"0": frozenset({P2}), "1": frozenset({P2})})]
)
def test_target_that_assigns_a_partition_twice_is_reported_with_the_partition(share: Target) -> None:
    state = read_state(replace(STATE, target={**STATE.target, "c2": share}).to_bytes().decode())

    assert state is not None and given_twice(state) == P2 and given_twice(STATE) is None
