"""A coordinator's term: permitted writes, ZooKeeper's clock as it counts it, and lines whose number others decide."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from coordinator.term.reading import Findings, Problems
from coordinator.term.term import LeaseLapsed, ServerClock, Term
from coordinator.zk.errors import EpochOver, Refused
from coordinator.zk.lease import Lease
from coordinator.zk.runtime import INTERVAL_S, MOST_LINES, FirstLines
from coordinator.zk.store import Create, Delete, Node, Operation, SetData, Watch
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GROUPS, Brokers, GroupPaths
from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.support.stores import FrontStore
from tests.support.terms import a_term, with_store
from tests.unit.manual import ManualRuntime

PATH = "/written"
G = GroupPaths("g")


@pytest.fixture
def tree() -> MemoryTree:
    tree = MemoryTree()
    tree.ensure(COORDINATOR_EPOCH)
    return tree


@pytest.fixture
def term(tree: MemoryTree) -> Term:
    node = tree.node(COORDINATOR_EPOCH)
    assert node is not None
    return a_term(tree.open(), ManualRuntime(), 1, node.stat.version)


def test_commit_succeeds_while_the_epoch_is_that_of_the_term(tree: MemoryTree, term: Term) -> None:
    term.commit([Create(PATH, b"x")])

    assert tree.data(PATH) == b"x"


def test_a_commit_after_another_election_ends_the_term_and_writes_nothing(tree: MemoryTree, term: Term) -> None:
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


def test_refusal_of_a_whole_multi_does_not_end_a_term_with_a_valid_epoch(tree: MemoryTree, term: Term) -> None:
    term.store.commit([Create(COORDINATOR, b"", ephemeral=True)])
    overloaded = with_store(term, Overloaded(term.store))

    with pytest.raises(Refused):
        overloaded.commit([Create(PATH, b"x")])
    assert not overloaded.collect([Create(PATH, b"x")], "a test")
    tree.put(COORDINATOR_EPOCH, b"2")
    with pytest.raises(EpochOver):
        overloaded.commit([Create(PATH, b"x")])


def test_other_refusal_is_raised_to_the_caller_and_delays_a_collector(tree: MemoryTree, term: Term) -> None:
    tree.put(PATH, b"x")

    with pytest.raises(Refused):
        term.commit([SetData(PATH, b"y", 7)])
    assert not term.collect([SetData(PATH, b"y", 7)], "a test")
    assert tree.data(PATH) == b"x"


def test_nothing_is_sent_while_the_lease_is_not_held(tree: MemoryTree, term: Term) -> None:
    term.lease = Lease(term.store, term.runtime, lambda: None, "coordinator")

    with pytest.raises(LeaseLapsed):
        term.commit([Create(PATH, b"x")])
    assert not term.collect([Create(PATH, b"x")], "a test")
    assert tree.data(PATH) is None


def test_turn_restarts_after_the_parents_of_a_refused_write_are_made(tree: MemoryTree, term: Term) -> None:
    tree.ensure(G.root)
    refused: list[str] = []

    def write() -> bool:
        return term.write([Create(G.offset("t", 0), b"x")], lambda why: refused.append(why.path if why else ""))

    assert not write()
    assert write()
    assert refused == [G.offset("t", 0)]
    assert tree.data(G.offset("t", 0)) == b"x"


def test_parents_of_a_refused_write_are_not_made_in_a_deleted_group(tree: MemoryTree, term: Term) -> None:
    tree.ensure(GROUPS)

    for _ in range(2):
        assert not term.write([Create(G.rebalance(1), b"x")], lambda why: None)
    assert tree.data(G.root) is None


def test_problem_of_a_znode_in_the_way_ends_when_it_is_removed(tree: MemoryTree, term: Term) -> None:
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


# ---- log lines whose number others decide: the first few of a kind, then a count


PATHS = GroupPaths("g")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def test_first_lines_of_a_kind_are_taken_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    runtime = ManualRuntime()
    lines = FirstLines(runtime)

    assert [lines.take("a") for _ in range(1_000)] == [True] * MOST_LINES + [False] * (1_000 - MOST_LINES)
    assert lines.take("b")
    assert logged(caplog) == ["further lines counted: kind=a interval_s=60"]

    runtime.sleep(INTERVAL_S - 1)
    lines.settle()
    assert logged(caplog) == []
    runtime.sleep(1)
    lines.settle()
    assert logged(caplog) == [f"lines left out: kind=a count={1_000 - MOST_LINES} interval_s=60"]
    assert lines.take("a")


def test_ten_thousand_bad_znodes_give_a_handful_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runtime = ManualRuntime()
    problems = Problems(runtime)
    findings = Findings(problems)
    paths = [PATHS.id(f"m{number}") for number in range(10_000)]

    for _ in range(3):  # rounds of one reader
        for path in paths:
            findings.report(path, "garbage")
        findings.done()
    findings.report(Brokers().topic("t"), "garbage")

    assert len(problems.current()) == problems.count == 10_001
    lines = logged(caplog)
    assert len(lines) == MOST_LINES + 2 and "topics/t" in lines[-1]

    findings.done()
    findings.done()
    assert len(problems.current()) == 0
    assert len(logged(caplog)) == MOST_LINES + 2
    runtime.sleep(INTERVAL_S)
    findings.done()
    assert sorted(logged(caplog)) == [
        f"lines left out: kind=recovered ids count={10_000 - MOST_LINES} interval_s=60",
        f"lines left out: kind=unreadable ids count={10_000 - MOST_LINES} interval_s=60",
    ]


def test_name_of_a_megabyte_is_cut_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    findings = Findings(Problems(ManualRuntime()))

    assert list(findings.usable(PATHS.ids, ["c1", "a" * 1_000_000, "b\nlevel=error"])) == ["c1"]

    assert all(len(line) < 500 and line.isprintable() for line in logged(caplog))
