"""Leftovers of ended consumers, as a drill finds them."""

from __future__ import annotations

from dataclasses import replace

from coordinator.admin.groups import ShownCommand, ShownGroup, ShownMember, ShownPartition
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import STOP_FETCHER, Channel, Command
from drills.testbed.commands import has_remnants

PART = TopicPartition("t", 0)
LIVE = Channel(incarnation="i2", running={PART: 5}, topics={"t": "id"})
OVER = replace(LIVE, running={}, ended="its session ended")
STOP = Command(STOP_FETCHER, 1, 3, "i2")


def group(channel: Channel, *commands: Command, owner: str | None = None) -> ShownGroup:
    sent = tuple(ShownCommand("c1", f"command-{number}", command) for number, command in enumerate(commands))
    owned = (ShownPartition(PART, "id", None, owner, 5),)
    return ShownGroup("g", GroupState(), (ShownMember("c1", None, channel, sent),), owned)


def test_live_consumer_has_no_leftovers() -> None:
    assert not has_remnants(group(LIVE, STOP, owner="c1"))


def test_consumer_that_left_has_no_leftovers() -> None:
    assert not has_remnants(group(OVER))


def test_command_for_an_ended_consumer_is_a_leftover() -> None:
    assert has_remnants(group(OVER, STOP))


def test_command_for_an_earlier_incarnation_is_a_leftover() -> None:
    assert has_remnants(group(LIVE, STOP, replace(STOP, incarnation="i1")))


def test_running_partition_in_an_ended_channel_is_a_leftover() -> None:
    assert has_remnants(group(replace(LIVE, ended="evicted")))


def test_owner_of_a_partition_that_it_does_not_run_is_a_leftover() -> None:
    assert has_remnants(group(OVER, owner="c1"))
    assert has_remnants(group(LIVE, owner="c2"))
