"""Permitted writes of a term, and ZooKeeper's wall clock as a coordinator counts it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.term.term import LeaseLapsed, ServerClock, Term
from coordinator.zk.errors import EpochOver, Refused
from coordinator.zk.lease import Lease
from coordinator.zk.store import Create, Delete, Node, Operation, SetData, Watch
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GROUPS, GroupPaths
from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.support.stores import FrontStore
from tests.support.terms import a_term, with_store
from tests.unit.manual import ManualRuntime

PATH = "/written"
G = GroupPaths("g")


def a_tree() -> MemoryTree:
    tree = MemoryTree()
    tree.ensure(COORDINATOR_EPOCH)
    return tree


def elected(tree: MemoryTree) -> Term:
    node = tree.node(COORDINATOR_EPOCH)
    assert node is not None
    return a_term(tree.open(), ManualRuntime(), 1, node.stat.version)


def test_commit_succeeds_while_the_epoch_is_that_of_the_term() -> None:
    tree = a_tree()

    elected(tree).commit([Create(PATH, b"x")])

    assert tree.data(PATH) == b"x"


def test_a_commit_after_another_election_ends_the_term_and_writes_nothing() -> None:
    tree = a_tree()
    term = elected(tree)
    tree.put(COORDINATOR_EPOCH, b"2")

    with pytest.raises(EpochOver, match="epoch 1 is over"):
        term.commit([Create(PATH, b"x")])
    with pytest.raises(EpochOver, match="epoch 1 is over"):
        term.collect([Create(PATH, b"x")], "a test")
    assert tree.data(PATH) is None


class Overloaded(FrontStore):
    """A session whose server refuses each multi as a whole, without the operation at fault."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        raise Refused(0, COORDINATOR_EPOCH, "ThrottledOpException")


def test_refusal_of_a_whole_multi_does_not_end_a_term_with_a_valid_epoch() -> None:
    tree = a_tree()
    term = elected(tree)
    term.store.commit([Create(COORDINATOR, b"", ephemeral=True)])
    overloaded = with_store(term, Overloaded(term.store))

    with pytest.raises(Refused):
        overloaded.commit([Create(PATH, b"x")])
    assert not overloaded.collect([Create(PATH, b"x")], "a test")
    tree.put(COORDINATOR_EPOCH, b"2")
    with pytest.raises(EpochOver):
        overloaded.commit([Create(PATH, b"x")])


def test_other_refusal_is_raised_to_the_caller_and_delays_a_collector() -> None:
    tree = a_tree()
    term = elected(tree)
    tree.put(PATH, b"x")

    with pytest.raises(Refused):
        term.commit([SetData(PATH, b"y", 7)])
    assert not term.collect([SetData(PATH, b"y", 7)], "a test")
    assert tree.data(PATH) == b"x"


def test_nothing_is_sent_while_the_lease_is_not_held() -> None:
    tree = a_tree()
    term = elected(tree)
    term.lease = Lease(term.store, term.runtime, lambda: None, "coordinator")

    with pytest.raises(LeaseLapsed):
        term.commit([Create(PATH, b"x")])
    assert not term.collect([Create(PATH, b"x")], "a test")
    assert tree.data(PATH) is None


def test_turn_restarts_after_the_parents_of_a_refused_write_are_made() -> None:
    tree = a_tree()
    term = elected(tree)
    tree.ensure(G.root)
    refused: list[str] = []

    def write() -> bool:
        return term.write([Create(G.offset("t", 0), b"x")], lambda why: refused.append(why.path if why else ""))

    assert not write()
    assert write()
    assert refused == [G.offset("t", 0)]
    assert tree.data(G.offset("t", 0)) == b"x"


def test_parents_of_a_refused_write_are_not_made_in_a_deleted_group() -> None:
    tree = a_tree()
    term = elected(tree)
    tree.ensure(GROUPS)

    for _ in range(2):
        assert not term.write([Create(G.rebalance(1), b"x")], lambda why: None)
    assert tree.data(G.root) is None


def test_problem_of_a_znode_in_the_way_ends_when_it_is_removed() -> None:
    tree = a_tree()
    term = elected(tree)
    tree.ensure(f"{PATH}/by-hand/below")

    assert not term.write([Delete(PATH)], lambda why: None)
    assert term.problems.current() == {}
    assert term.write([Delete(PATH)], lambda why: None)


# ---- ZooKeeper's wall clock


ELECTED_MS = 1_800_000_000_000


class ElectedNow(MemoryTreeStore):
    """The epoch was written at `ELECTED_MS` by the server's clock."""

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        node = super().get(path, watch)
        return Node(node.data, node.stat._replace(mtime_ms=ELECTED_MS)) if node else None


def clock_of(runtime: ManualRuntime, with_epoch: bool = True) -> ServerClock:
    tree = MemoryTree()
    tree.ensure("/consumers")
    if with_epoch:
        tree.commit([Create(COORDINATOR_EPOCH, b"{}")], session=0)
    return ServerClock(ElectedNow(tree, 1, lambda: None, 3.0), runtime)


def test_clock_runs_from_the_election_without_being_read_for_days() -> None:
    runtime = ManualRuntime()
    clock = clock_of(runtime)
    clock.begin()

    runtime.now += 10 * 86_400

    assert clock.now_ms() == ELECTED_MS + 10 * 86_400_000


def test_without_an_epoch_nothing_is_old() -> None:
    clock = clock_of(ManualRuntime(), with_epoch=False)
    clock.begin()

    assert clock.now_ms() == 0
