"""A coordinator's term and its listeners: permitted writes, ZooKeeper's clock, counted log lines, events and groups."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.support.stores import FrontStore
from tests.support.terms import a_term, with_store
from tests.unit.manual import Forever, ManualRuntime
from zk_group.consumer.membership.registration import heartbeat_s
from zk_group.coordinator.listeners.listeners import Agenda, Event
from zk_group.coordinator.service import CoordinatorService, _Session
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.directory import Directory
from zk_group.coordinator.term.reading import Findings, Problems
from zk_group.coordinator.term.request_queue import GroupTurn, RegionTurn
from zk_group.coordinator.term.term import LeaseLapsed, ServerClock, Term
from zk_group.coordinator.zk.errors import EpochOver, Refused, SessionLost
from zk_group.coordinator.zk.lease import Lease
from zk_group.coordinator.zk.runtime import INTERVAL_S, MOST_LINES, FirstLines
from zk_group.coordinator.zk.store import Create, Delete, Node, Operation, SessionState, SetData, StateListener, Watch
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GROUPS, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST, Registration

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


def test_a_commit_after_another_election_ends_the_term_and_writes_nothing(tree: MemoryTree, term: Term) -> None:
    term.commit([Create("/before", b"x")])
    tree.put(COORDINATOR_EPOCH, b"2")

    with pytest.raises(EpochOver, match="epoch 1 is over"):
        term.commit([Create(PATH, b"x")])
    with pytest.raises(EpochOver, match="epoch 1 is over"):
        term.collect([Create(PATH, b"x")], "a test")
    assert (tree.data("/before"), tree.data(PATH)) == (b"x", None)


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
    without = clock_of(runtime, with_epoch=False)
    without.begin()
    assert without.now_ms() == 0, "without an epoch nothing is old"


# ---- log lines whose number others decide: the first few of a kind, then a count


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
    paths = [G.id(f"m{number}") for number in range(10_000)]

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

    assert list(findings.usable(G.ids, ["c1", "a" * 1_000_000, "b\nlevel=error"])) == ["c1"]

    assert all(len(line) < 500 and line.isprintable() for line in logged(caplog))


# ---- listeners: their events, each once and before long work


def taken(agenda: Agenda, count: int) -> list[str]:
    return [agenda.take().kind for _ in range(count)]


def test_equal_changes_are_one_event() -> None:
    agenda = Agenda(ManualRuntime())
    for _ in range(3):
        agenda.put(Event("a"))
    agenda.put(Event("a", "of another group"))

    assert [agenda.take(), agenda.take()] == [Event("a"), Event("a", "of another group")]
    with pytest.raises(Forever):
        agenda.take()


def test_changes_wait_for_one_piece_of_long_work_at_most() -> None:
    agenda = Agenda(ManualRuntime())
    for number in range(4):
        agenda.put_long(Event(f"long{number}"))
    agenda.put(Event("a"))
    agenda.put(Event("b"))

    first = taken(agenda, 3)
    agenda.put(Event("c"))

    assert first in (["a", "b", "long0"], ["long0", "a", "b"])
    assert taken(agenda, 2).index("c") <= 1


def test_group_that_changes_all_the_time_delays_neither_others_nor_long_work() -> None:
    agenda = Agenda(ManualRuntime())
    agenda.put_long(Event("long"))
    agenda.put(Event("noisy"))
    order = []
    for turn in range(8):
        if turn == 2:
            agenda.put(Event("other"))
        order.append(event := agenda.take().kind)
        if event == "noisy":
            agenda.put(Event("noisy"))

    assert order.index("long") <= 2
    assert order.index("other") <= 5


def test_change_that_is_put_off_is_taken_at_its_time_and_once() -> None:
    runtime = ManualRuntime()
    agenda, began = Agenda(runtime), runtime.monotonic()
    agenda.put_at(Event("late"), began + 2)
    agenda.put_at(Event("late"), began + 1)
    agenda.put(Event("a"))

    assert (taken(agenda, 1), runtime.monotonic()) == (["a"], began)
    assert (taken(agenda, 1), runtime.monotonic()) == (["late"], began + 1)
    with pytest.raises(Forever):
        agenda.take()


# ---- the groups that a topic concerns (sources D7)


def registrations(text: str) -> list[Registration]:
    """A member for each word: `t,u` names topics, `+w.*` has a white list and `-w.*` a black list."""
    kinds = {"+": WHITE_LIST, "-": BLACK_LIST}
    return [
        Registration("1", {word[1:]: 1}, kinds[word[0]])
        if word[0] in kinds
        else Registration("1", dict.fromkeys(word.split(","), 1))
        for word in text.split()
    ]


@pytest.fixture
def directory() -> Directory:
    return Directory(ManualRuntime())


CONCERNED: dict[str, tuple[str, dict[str, str]]] = {
    "a topic concerns the groups whose members name it": ("g: t t,u; h: u", {"t": "g", "u": "g h"}),
    "topic without subscribers affects no group": ("g: t", {"other": ""}),
    "a wildcard concerns topics that do not exist yet": (
        "g: +flights.*; h: -flights.*",
        {"flights-2013": "g", "weather": "h"},
    ),
    "joiners topics and wildcards are added": ("g: t; g: t u +w.*", {"u": "g", "weather": "g"}),  # sources H8
    "topic of a departed last subscriber affects no group": ("g: t u +w.*; g: u", {"t": "", "weather": "", "u": "g"}),
    "subscription changed in place is detected": ("g: t; g: u", {"t": "", "u": "g"}),
    "invalid pattern does not affect the others": ("g: +( t +w.*", {"t": "g", "weather": "g"}),
}
"""Updates of groups, and the groups that topics concern then."""


@pytest.mark.parametrize("title", CONCERNED)
def test_groups_that_a_topic_concerns(directory: Directory, title: str) -> None:
    updates, concerned = CONCERNED[title]

    for group, _, members in (update.strip().partition(": ") for update in updates.split(";")):
        directory.update(group, registrations(members))

    assert {topic: directory.groups_of(topic) for topic in concerned} == {
        topic: set(groups.split()) for topic, groups in concerned.items()
    }


def test_groups_are_known_by_topic_until_they_leave(directory: Directory) -> None:
    directory.update("g", registrations("t t,u"))
    directory.update("h", registrations("u"))
    assert directory.consumer_groups_per_topic == {"t": {"g"}, "u": {"g", "h"}}

    directory.update("g", registrations("t u +w.*"))
    directory.update("g", registrations("u"))
    assert directory.consumer_groups_per_topic == {"u": {"g", "h"}}
    assert directory.groups_with_wildcard_topics == {}

    directory.update("g", registrations("t +.*"))
    directory.forget("g")
    assert directory.consumer_groups_per_topic == {"u": {"h"}}
    assert directory.groups_with_wildcard_topics == {}


def test_group_is_idle_while_it_has_no_member_once_all_groups_are_read(directory: Directory) -> None:
    assert directory.listed(["g", "h"]) == (["g", "h"], [])
    assert not directory.is_idle(GroupTurn("h")), "its members may be unread"

    directory.is_complete = True
    directory.update("g", [None])  # a member with an unreadable registration
    assert [directory.is_idle(key) for key in (GroupTurn("g"), GroupTurn("h"), RegionTurn("h"))] == [False, True, False]

    directory.update("g", [])
    assert directory.is_idle(GroupTurn("g"))
    assert directory.listed(["g", "i"]) == (["i"], ["h"])
    assert not directory.is_idle(GroupTurn("h")), "it is gone"


class Unlooked(dict[str, set[str]]):
    """Topics that must not be looked through."""

    def __iter__(self) -> Any:
        raise AssertionError("looks at every topic")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_a_change_looks_only_at_the_topics_that_changed(directory: Directory) -> None:
    directory.update("big", registrations(",".join(f"invented-{number}" for number in range(1000))))
    directory.consumer_groups_per_topic = Unlooked(directory.consumer_groups_per_topic)

    directory.update("g", registrations("t"))
    directory.update("g", registrations("u"))
    directory.forget("g")

    assert directory.groups_of("u") == set()
    assert directory.groups_of("invented-7") == {"big"}


def test_equal_wildcards_of_many_members_are_matched_once(directory: Directory) -> None:
    directory.update("g", registrations("+fl.* " * 50))

    assert len(directory.groups_with_wildcard_topics["g"]) == 1


# ---- health: a node is elected with its lease, or stands by with a session


def a_node(runtime: ManualRuntime) -> CoordinatorService:
    def unopened() -> Any:
        raise AssertionError

    return CoordinatorService(CoordinatorConfig("z:1"), unopened, runtime, {})


def test_a_node_stands_by_while_its_session_lives() -> None:
    node, listeners = a_node(runtime := ManualRuntime()), list[StateListener]()
    assert node.unhealthy() == "no session with ZooKeeper"
    store: Any = SimpleNamespace(negotiated_timeout_s=10.0, lost=False, add_listener=listeners.append)
    node._session = _Session(store, runtime)
    (listen,) = listeners
    assert node.unhealthy() == ""

    listen(SessionState.SUSPENDED)
    runtime.now += 9
    assert node.unhealthy() == ""
    runtime.now += 2
    assert node.unhealthy() == "the session with ZooKeeper is over"
    listen(SessionState.CONNECTED)
    assert node.unhealthy() == ""
    store.lost = True
    assert node.unhealthy() == "the session with ZooKeeper is over"


def test_an_elected_node_is_at_work_while_it_holds_its_lease() -> None:
    node, term = a_node(ManualRuntime()), cast(Any, SimpleNamespace(lease=SimpleNamespace(is_held=True)))
    node.term = term
    assert node.unhealthy() == ""

    term.lease.is_held = False

    assert node.unhealthy() == "elected, and its lease has expired"


# ---- the lease: when it ends is in `test_zk_paths_of_members.py`, for any renewals


TIMEOUT_S = 6.0


class Server:
    """Answers a sync after `takes_s` seconds, or not at all."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.takes_s = 0.0
        self.errors: dict[str, Exception] = {}
        self.asked: list[str] = []
        store = MemoryTree().open(lambda: self._answer("sync", self.takes_s), TIMEOUT_S)
        self.lease = Lease(store, self.runtime, lambda: self._answer("fence"), "consumer")

    def _answer(self, what: str, takes_s: float = 0.0) -> None:
        self.asked.append(what)
        self.runtime.now += takes_s
        if what in self.errors:
            raise self.errors[what]


@pytest.fixture
def server() -> Server:
    return Server()


def test_renewal_is_recorded_before_it_takes_effect(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that acts under it is recorded after it."""
    seen: list[tuple[float, bool]] = []

    def record(event: str, **fields: Any) -> None:
        seen.append((fields["until"], server.lease.is_held))

    monkeypatch.setattr(server.runtime, "record", record)
    server.lease.renew()

    assert seen == [(server.runtime.now + 4.0, False)] and server.lease.is_held


def test_a_renewal_syncs_and_then_reads_the_fence(server: Server) -> None:
    server.lease.renew()

    assert server.asked == ["sync", "fence"]
    assert server.lease.left_s == pytest.approx(4.0)


@pytest.mark.parametrize("max_poll_interval_ms", [100, 4000, 5500, 5990, 6000, 300_000])
def test_a_consumers_lease_does_not_lapse_whatever_its_poll_interval(server: Server, max_poll_interval_ms: int) -> None:
    server.takes_s = 0.01
    server.lease.renew()
    wait_s = heartbeat_s(server.lease.due_s, max_poll_interval_ms)
    assert wait_s <= max_poll_interval_ms / 6000

    for _ in range(round(30 / wait_s)):
        server.runtime.now += wait_s
        assert server.lease.left_s > 1.0
        server.lease.renew()


def test_another_lease_of_a_session_continues_the_last_one(server: Server) -> None:
    for _ in range(3):
        server.lease.renew()
        server.runtime.now += 1.0
    store = MemoryTree().open(lambda: None, TIMEOUT_S)

    lease = Lease(store, server.runtime, lambda: None, "consumer", server.lease.heard)
    assert not lease.is_held, "its own fence has not been read"
    lease.renew()

    assert lease.left_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("step", "error"), [("sync", SessionLost("the session is over")), ("fence", EpochOver("another was elected"))]
)
def test_session_or_fence_that_is_over_renews_nothing(server: Server, step: str, error: Exception) -> None:
    server.errors[step] = error

    with pytest.raises(type(error)):
        server.lease.renew()

    assert not server.lease.is_held


def test_a_slow_renewal_never_shortens_a_lease_that_a_later_one_has_renewed(server: Server) -> None:
    lease, runtime = server.lease, server.runtime

    def renewed_meanwhile() -> None:
        runtime.now += 1.0
        lease.renew()
        runtime.now += 1.0

    store = MemoryTree().open(renewed_meanwhile, TIMEOUT_S)
    slow = Lease(store, runtime, lambda: None, "consumer")
    slow.renew()
    assert slow.left_s == pytest.approx(2.0)
    assert lease.left_s == pytest.approx(3.0)
