"""The channel of a consumer, when its writes are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consumer.errors import UnknownMemberId
from consumer.membership.channel import FencedChannel
from coordinator.zk.errors import ConnectionLost, Refused
from coordinator.zk.store import Create, Node, Watch
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel
from tests.property.tree import MemoryTree
from tests.support.stores import FrontStore
from tests.unit.manual import ManualRuntime

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
