"""Changing a znode by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from coordinator.admin.regions import request
from coordinator.admin.topics import create_topic, delete_topic
from coordinator.zk.errors import OutcomeUnknown, StoreError
from coordinator.zk.store import Delete, Node, Operation, SetData
from coordinator.zk.update import TRIES, Change, update
from coordinator.zk.znodes.paths import REGIONS, Brokers, RegionPaths
from coordinator.zk.znodes.regions import RESET, Region, RegionRequest
from tests.property.tree import MemoryTree, MemoryTreeStore

PATH = "/counter"
Hook = Callable[[int], object]


class Disturbed(MemoryTreeStore):
    """Calls `before` and `after` with its number at each commit; their errors take the place of the reply."""

    def __init__(self, tree: MemoryTree, before: Hook | None = None, after: Hook | None = None) -> None:
        super().__init__(tree, 1, lambda: None, 3.0)
        self._before, self._after = before, after
        self.commits = 0

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.commits += 1
        if self._before is not None:
            self._before(self.commits)
        made = super().commit(operations)
        if self._after is not None:
            self._after(self.commits)
        return made


def reply_lost(tree: MemoryTree, meanwhile: Callable[[], object] = lambda: None) -> Disturbed:
    """Loses the reply of the first commit that did happen; then `meanwhile` runs, before anything is read again."""

    def lose(nth: int) -> None:
        if nth == 1:
            meanwhile()
            raise OutcomeUnknown("the reply was lost")

    return Disturbed(tree, after=lose)


def a_tree() -> MemoryTree:
    tree = MemoryTree()
    tree.put(PATH, b"1")
    return tree


def counted(node: Node | None) -> Change[int]:
    assert node is not None
    number = int(node.data) + 1
    return Change([SetData(PATH, str(number).encode(), node.stat.version)], number)


def test_znode_changed_by_another_client_is_read_again() -> None:
    tree = a_tree()

    def disturb(nth: int) -> None:
        if nth == 1:
            tree.commit([SetData(PATH, b"10")], 0)

    assert update(Disturbed(tree, disturb), PATH, counted) == 11
    assert tree.data(PATH) == b"11"


def test_a_commit_whose_reply_was_lost_is_not_sent_again_once_it_has_happened() -> None:
    tree = a_tree()
    store = reply_lost(tree)

    assert update(store, PATH, counted) == 2
    assert (tree.data(PATH), store.commits) == (b"2", 1)


def test_a_commit_that_was_lost_is_sent_again() -> None:
    tree = a_tree()

    def disturb(nth: int) -> None:
        if nth == 1:
            raise OutcomeUnknown("it was never sent")

    assert update(Disturbed(tree, disturb), PATH, counted) == 2
    assert tree.data(PATH) == b"2"


def test_a_znode_that_keeps_changing_ends_the_update() -> None:
    tree = a_tree()
    store = Disturbed(tree, lambda nth: tree.commit([SetData(PATH, b"10")], 0))

    with pytest.raises(StoreError, match="/counter keeps changing"):
        update(store, PATH, counted)
    assert store.commits == TRIES


def test_update_without_a_change_commits_nothing() -> None:
    store = Disturbed(a_tree())

    assert update(store, PATH, lambda node: Change((), node is not None))
    assert store.commits == 0


def test_deletion_with_a_lost_reply_leaves_a_successor_of_the_same_name_alone() -> None:
    tree = a_tree()
    store = reply_lost(tree, lambda: tree.put(PATH, b"1"))

    def removed(node: Node | None) -> Change[None]:
        assert node is not None
        return Change([Delete(PATH, node.stat.version)], None)

    update(store, PATH, removed)

    assert (tree.data(PATH), store.commits) == (b"1", 1)


def test_topic_deletion_with_a_lost_reply_leaves_a_topic_created_again_alone() -> None:
    tree, brokers = MemoryTree(), Brokers("/brokers")
    tree.ensure(brokers.topics)
    create_topic(tree.open(), brokers, "t", 2)
    store = reply_lost(tree, lambda: create_topic(tree.open(), brokers, "t", 3))

    delete_topic(store, brokers, "t")

    assert tree.data(brokers.topic("t")) is not None and store.commits == 1


def test_region_request_with_a_lost_reply_is_not_sent_again_once_it_may_be_answered() -> None:
    tree, paths = MemoryTree(), RegionPaths("r")
    tree.ensure(REGIONS)
    tree.put(paths.root, Region(groups=("g",)).to_bytes())
    store = reply_lost(tree, lambda: tree.commit([Delete(paths.request)], 0))

    with pytest.raises(StoreError, match="the reply to the request for region r was lost: look at"):
        request(store, "r", RegionRequest(RESET, "ann"))

    assert (tree.data(paths.request), store.commits) == (None, 1)
