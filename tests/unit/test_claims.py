"""The operations of a consumer's commits, and its channel when its writes are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consumer.errors import UnknownMemberId
from consumer.membership.channel import FencedChannel
from consumer.membership.claims import (
    PARTITIONS_A_STEP,
    acknowledgement,
    after_command,
    chunks,
    claim_operations,
    offset_operations,
    release_operations,
    with_claimed,
)
from coordinator.zk.errors import ConnectionLost, Refused
from coordinator.zk.store import MAX_OPERATIONS, Check, Create, Delete, Node, SetData, Watch
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import START_FETCHER, Channel, Command, OffsetRecord, OwnerRecord
from tests.property.tree import MemoryTree
from tests.support.stores import FrontStore
from tests.unit.manual import ManualRuntime

PATHS = GroupPaths("g")
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
START = Command(START_FETCHER, 5, 3, "a1", {"a-0": frozenset([T0, U0]), "a-1": frozenset([T1])}, topics={"t": "t-1"})
RUNNING = Channel("a1", 4, 2, running={T0: 10, T1: None, U0: 7}, topics={"t": "t-1", "u": "u-1"})


def test_a_claim_makes_an_ephemeral_owner_with_the_thread_that_the_command_names() -> None:
    found = claim_operations(PATHS, "a", START, "a1", [T1, T0])

    assert found == [
        Create(PATHS.owner("t", 0), OwnerRecord("a-0", "a", "a1", 3).to_bytes(), ephemeral=True),
        Create(PATHS.owner("t", 1), OwnerRecord("a-1", "a", "a1", 3).to_bytes(), ephemeral=True),
    ]


def test_known_offsets_are_written_and_never_read_ones_are_left() -> None:
    found = offset_operations(PATHS, RUNNING, [T0, T1, U0], known=frozenset([U0]))

    assert found == [
        Create(PATHS.offset("t", 0), OffsetRecord(10, "t-1", 2).to_bytes()),
        SetData(PATHS.offset("u", 0), OffsetRecord(7, "u-1", 2).to_bytes()),
    ]


def test_release_writes_offsets_first_and_removes_existing_owners() -> None:
    found = release_operations(PATHS, RUNNING, [T0, T1], known=frozenset([T0]), owned=frozenset([T1, U0]))

    assert found == [
        SetData(PATHS.offset("t", 0), OffsetRecord(10, "t-1", 2).to_bytes()),
        Delete(PATHS.owner("t", 1)),
    ]


def test_topic_id_leaves_the_channel_with_its_last_partition() -> None:
    after = RUNNING.without([T0, T1])

    assert dict(after.running) == {U0: 7}
    assert after.topics == {"u": "u-1"}
    assert dict(RUNNING.running) == {T0: 10, T1: None, U0: 7}


def test_claimed_partition_runs_from_an_offset_that_is_not_known_yet() -> None:
    after = with_claimed(Channel("a1", running={U0: 7}, topics={"u": "u-1"}), [T0], {"t": "t-1", "u": "u-1"})

    assert dict(after.running) == {U0: 7, T0: None}
    assert after.topics == {"u": "u-1", "t": "t-1"}


def test_applied_command_is_named_in_the_channel_with_its_refused_partitions() -> None:
    after = after_command(RUNNING, "command-0000000004", START, refused=frozenset([T1]))

    assert (after.epoch, after.generation, after.command) == (5, 3, "command-0000000004")
    assert after.refused == {T1}
    assert after.running == RUNNING.running


def test_last_multi_of_a_command_removes_it_and_earlier_ones_check_it() -> None:
    path = PATHS.command("a", "command-0000000004")

    assert acknowledgement(PATHS, "a", "command-0000000004", is_last=True) == Delete(path)
    assert acknowledgement(PATHS, "a", "command-0000000004", is_last=False) == Check(path, -1)


def test_many_partitions_are_cut_into_multis_that_stay_within_the_limit() -> None:
    many = [TopicPartition("t", number) for number in range(1000)]
    running = Channel("a1", running=dict.fromkeys(many, 1), topics={"t": "t-1"})

    found = chunks(reversed(many))

    assert [part for some in found for part in some] == many
    for some in found:
        given_up = release_operations(PATHS, running, some, frozenset(), frozenset(many))
        assert len(given_up) + 2 <= MAX_OPERATIONS
    assert max(len(some) for some in found) == PARTITIONS_A_STEP


def test_a_command_for_no_partition_is_still_one_multi() -> None:
    assert chunks([]) == [[]]


# ---- the channel, when its writes are refused


G = GroupPaths("g")
LIVE = Channel(incarnation="a")
ENDED = Channel(incarnation="a", ended="left by itself")


class Unanswered(FrontStore):
    """Answers commits, and once `is_armed` no reads."""

    is_armed = False

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        if self.is_armed:
            raise ConnectionLost("no answer")
        return self.behind.get_many(paths, watch)


def a_channel() -> tuple[MemoryTree, Unanswered, FencedChannel]:
    tree = MemoryTree()
    tree.ensure(G.channels)
    tree.put(G.channel("c1"), LIVE.to_bytes())
    store = Unanswered(tree.open())
    return tree, store, FencedChannel(store, ManualRuntime(), G, "c1", LIVE, 0)


def test_missing_parents_are_made_and_the_end_is_tried_again() -> None:
    tree, _, channel = a_channel()
    end = [Create(G.offset("t", 0), b"x")]

    with pytest.raises(Refused):
        channel.end(ENDED, end, UnknownMemberId("left"))
    assert not channel.is_ending
    channel.end(ENDED, end, UnknownMemberId("left"))

    assert tree.data(G.offset("t", 0)) == b"x"


def test_refused_end_is_none_though_its_parents_could_not_be_made() -> None:
    _, store, channel = a_channel()
    store.is_armed = True

    with pytest.raises(Refused):
        channel.end(ENDED, [Create(G.offset("t", 0), b"x")], UnknownMemberId("left"))

    assert not channel.is_ending, "it goes on fetching"
