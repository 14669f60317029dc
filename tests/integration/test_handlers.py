"""The request handlers: which turn sees which change, and that no turn ends a handler; and `rebalance G`.

An operator's request for a turn outlives the elected node. One group's data delays no other group: what a group costs,
it waits for behind the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from tests.support.cli import run, run_json
from tests.support.client_side import Hooked
from tests.support.clients import connected
from tests.support.hand import Hand, ManualStage
from tests.support.listening import listeners_of
from tests.support.stores import FrontStore, Reads
from tests.support.terms import RANGE, a_term, directory_of, with_config, with_store
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.coordinator.admin import control
from zk_group.coordinator.assignors import Assignment, RangeAssignor, Subscriber
from zk_group.coordinator.listeners.members import REGISTRATIONS_AT_ONCE
from zk_group.coordinator.rebalance.group_reader import GroupReader
from zk_group.coordinator.rebalance.handlers import Handlers
from zk_group.coordinator.term.directory import Directory
from zk_group.coordinator.term.operator_requests import OperatorRequests
from zk_group.coordinator.term.request_queue import GroupTurn
from zk_group.coordinator.zk.errors import ConnectionLost, EpochOver, StoreError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, Listing, Node, Operation, SetData, Store, Watch
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.paths import GROUPS, TURN_TIMES, GroupPaths
from zk_group.coordinator.zk.znodes.records import Registration, Topic, TurnRequest, TurnTimes
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

PATHS = GroupPaths("g")


@contextmanager
def handlers_of(
    hand: Hand, stage: ManualStage, store: Store, asked: OperatorRequests, late_ms: int = 100
) -> Iterator[Handlers]:
    """One handler without listeners: a test requests every turn."""
    over: list[str] = []
    options = {"group_initial_rebalance_delay_ms": 500, "rebalance_handlers": 1, "rebalance_debounce_ms": late_ms}
    term = with_config(with_store(hand.term, store), **options)
    handlers = Handlers(term, directory_of(term, stage.topics), RANGE, asked, over.append)
    tasks = handlers.start()
    try:
        yield handlers
        assert over == []
    finally:
        handlers.stop()
        for task in tasks:
            task.join(5)


def test_changes_while_a_generation_begins_share_a_turn_with_those_soon_after(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    asked = OperatorRequests(hand.term)

    def joins(name: str) -> None:
        stage.puppet("g", name, {"t": 1})
        handlers.request_turn(GroupTurn("g"), f"joined {name}")

    store = Hooked(hand.store)
    store.before(lambda commit: any(isinstance(each, SetData) for each in commit), lambda: joins("c2"))
    with handlers_of(hand, stage, store, asked, late_ms=1500) as handlers:
        joins("c1")
        eventually(lambda: world.data(PATHS.state) is not None and world.state("g").generation >= 1, 5, "it began")
        joins("c3")
        eventually(lambda: set(world.state("g").target) == {"c1", "c2", "c3"}, 5, "all of them have a part")

    assert world.state("g").generation == 2


def test_a_request_that_cannot_be_answered_does_not_end_the_handler(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    reads = Reads(hand.store)
    asked = OperatorRequests(with_store(hand.term, reads))
    asked.read_requests(["g"], lambda path: None)

    def refused() -> None:
        """As by a server with an ACL on it."""
        raise StoreError("ZooKeeper refused to answer: NoAuthError()")

    reads.after(PATHS.request, refused)

    with handlers_of(hand, stage, hand.store, asked) as handlers:
        handlers.request_turn(GroupTurn("g"), "requested")
        eventually(lambda: handlers.turns == 1, 5, "a turn")
        handlers.request_turn(GroupTurn("g"), "again")
        eventually(lambda: handlers.turns > 1, 5, "the handler lives on")
        assert reads.paths.count(PATHS.request) > 1, "it was refused"


class Deaf(FrontStore):
    """Loses the connection where the channels that were just commanded are to be watched, once, after `before`."""

    def __init__(self, store: Store, before: Callable[[], None]) -> None:
        super().__init__(store)
        self._before = before
        self._has_sent = False
        self.has_lost = False

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        made = self.behind.commit(operations)
        self._has_sent |= any(
            isinstance(o, Create) and o.path.startswith(PATHS.command_prefix("c1")) for o in operations
        )
        return made

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        if self._has_sent and not self.has_lost and paths == [PATHS.channel("c1")]:
            self.has_lost = True
            self._before()
            raise ConnectionLost("ZooKeeper did not answer: the connection was lost")
        return self.behind.children_many(paths, watch)


@pytest.mark.parametrize("is_fast", [True, False])
def test_command_in_an_unwatched_channel_is_followed_up(world: World, stage: ManualStage, is_fast: bool) -> None:
    """No sweep here, and no timer before the eviction: only the retry of the turn can see what became of it."""
    hand = stage.hand()
    stage.topic("t", 4)
    puppet = stage.puppet("g", "c1", {"t": 1})
    store = Deaf(hand.store, puppet.obey if is_fast else lambda: None)
    asked = OperatorRequests(hand.term)
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    asked.read_requests(["g"], lambda path: None)

    with handlers_of(hand, stage, store, asked) as handlers:
        handlers.request_turn(GroupTurn("g"), "joined c1")
        eventually(lambda: store.has_lost, 5, "the connection was lost")
        if not is_fast:
            eventually(lambda: handlers.turns == 2, 5, "the turn is taken again, and one behind the request")
            puppet.obey()
        eventually(lambda: world.state("g").state == "Stable", 5, "the group is Stable")
        eventually(lambda: world.data(PATHS.request) is None, 5, "the request is answered")

    (rebalance,) = world.history("g")
    assert rebalance.trigger == "joined c1" and rebalance.finished_ms is not None


# ---- rebalance G


class Faulty(RangeAssignor):
    """Fails for as long as `fails` is set."""

    def __init__(self) -> None:
        self.fails = False

    def assign(self, members: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        if self.fails:
            raise RuntimeError("the assignor is at fault")
        return super().assign(members, topics)


@pytest.fixture
def assignor(world: World) -> Faulty:
    """That of the coordinator of group `g`, which is Stable."""
    assignor = Faulty()
    world.coordinator(assignor=assignor)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    return assignor


def test_a_requested_turn_cuts_the_wait_after_a_failure_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.coordinator.rebalance.handlers.LONGEST_BACKOFF_S", 600.0)
    assignor = Faulty()
    assignor.fails = True
    world.coordinator(assignor=assignor, max_rebalance_retries=0)
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    eventually(lambda: world.state("g").state == "RebalanceFailed", 10, "it has failed")
    for _ in range(8):  # 0.5 s * 2^9 until the next try
        failed = run(world.zk, "rebalance", "g", "--timeout", "0.2")
        assert failed.exit_code == 1
        assert "it is RebalanceFailed (assignor range failed: RuntimeError: the assignor is at fault)" in failed.stderr
        world.remove(PATHS.request)

    assignor.fails = False
    document = run_json(world.zk, "rebalance", "g", "--reason", "mended")

    assert document["before"]["state"] == "RebalanceFailed"
    assert document["changed"]
    assert "requested by " in world.history("g")[-1].trigger and "mended" in world.history("g")[-1].trigger
    world.stable("g", 1)


def test_request_is_kept_until_a_turn_has_succeeded(world: World, assignor: Faulty) -> None:
    assignor.fails = True

    failed = run(world.zk, "rebalance", "g", "--timeout", "0.5")
    stood = world.data(PATHS.request)
    assignor.fails = False

    assert failed.exit_code == 1 and "the request is kept" in failed.stderr
    assert stood is not None
    eventually(lambda: world.data(PATHS.request) is None, 10, "the next try answers it")


def test_unanswered_request_is_left_to_the_next_coordinator(world: World) -> None:
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    eventually(lambda: world.data(PATHS.id("c1")) is not None, 5, "c1 is registered")
    world.put(PATHS.request, TurnRequest("an operator", 1, "long ago").to_bytes())

    world.coordinator()

    eventually(lambda: world.data(PATHS.request) is None, 10, "it is answered")
    assert "requested by an operator: long ago" in world.history("g")[0].trigger


def test_a_deposed_coordinator_answers_no_request(world: World, stage: ManualStage) -> None:
    deposed = stage.hand()
    deposed.close()
    stage.hand()
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("somebody", 1).to_bytes())
    zombie = OperatorRequests(with_store(deposed.term, world.store))
    request = zombie.read_requests(["g"], lambda path: None)["g"]

    with pytest.raises(EpochOver):
        zombie.answer("g", request)

    assert world.data(PATHS.request) is not None


def test_request_that_was_replaced_is_not_answered_by_the_turn_before(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    stage.puppet("g", "c1", {"t": 1})
    world.put(PATHS.request, TurnRequest("first", 1).to_bytes())
    asked = OperatorRequests(with_store(hand.term, world.store))
    request = asked.read_requests(["g"], lambda path: None)["g"]
    world.remove(PATHS.request)
    world.put(PATHS.request, TurnRequest("second", 2).to_bytes())

    asked.answer("g", request)

    assert b"second" in (world.data(PATHS.request) or b"")


def test_second_requester_waits_for_that_turn(world: World, assignor: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    has_asked, await_turn = ThreadRuntime().event(), control.await_turn

    def noted(*words: Any) -> Any:
        has_asked.set()
        return await_turn(*words)

    monkeypatch.setattr(control, "await_turn", noted)
    assignor.fails = True
    world.put(PATHS.request, TurnRequest("the first", 1).to_bytes())
    results: list[Result] = []
    waiting = ThreadRuntime().spawn(lambda: results.append(run(world.zk, "rebalance", "g")), "waiting")
    assert has_asked.wait(20)

    assignor.fails = False
    waiting.join(40)

    assert [result.exit_code for result in results] == [0]
    assert "already requested by the first" in results[0].stderr


def test_a_request_that_cannot_be_read_is_reported_and_taken_all_the_same(world: World) -> None:
    service = world.coordinator()
    world.topic("t", 2)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)

    world.put(PATHS.request, b"please")

    eventually(lambda: world.data(PATHS.request) is None, 5, "it is answered")
    eventually(lambda: service.problems.current() == {}, 5, "and mended with it")
    assert service.problems.count == 1


# ---- groups that cost much


BIG, SMALL = GroupPaths("big"), GroupPaths("small")


def committed(world: World, operations: Sequence[Operation], size: int = 300) -> None:
    for first in range(0, len(operations), size):
        world.store.commit(operations[first : first + size])


class Slices(FrontStore):
    """Counts the reads of registrations of the big group, and changes the small one behind the first."""

    def __init__(self, world: World) -> None:
        super().__init__(open_kazoo(world.zk, 10_000))
        self.count = 0
        self._world = world

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        found = super().get_many(paths, watch)
        if watch is not None and any(path.startswith(f"{BIG.ids}/") for path in paths):
            if not self.count:
                self._world.put(SMALL.id("c2"), Registration("2", {"t": 1}).to_bytes())
            self.count += sum(node is not None for node in found)
        return found


@pytest.mark.parametrize(
    ("registrations", "data", "before_it"),
    [(6 * REGISTRATIONS_AT_ONCE, b"", REGISTRATIONS_AT_ONCE), (60, b"x" * 200_000, 50)],
)
def test_small_group_is_seen_amid_a_big_one(world: World, registrations: int, data: bytes, before_it: int) -> None:
    for paths in (BIG, SMALL):
        world.put(paths.ids)
    stray = [Create(BIG.id(f"stray-{number}"), data) for number in range(registrations)]
    committed(world, stray, 4 if data else 300)
    asked: dict[str, int] = {}
    with closing(Slices(world)) as store:
        term = a_term(store, ThreadRuntime())
        note = lambda key, why: asked.setdefault(f"{key.name}: {why}", store.count)  # noqa: E731
        listeners = listeners_of(term, Directory(ThreadRuntime()), note)
        listeners.start()
        thread = ThreadRuntime().spawn(listeners.run, "listeners")
        eventually(lambda: any(what.startswith("big: joined stray") for what in asked), 20, "the big group is read")
        eventually(lambda: "small: joined c2" in asked, 20, "the small group is read")
        listeners.stop()
        thread.join(10)

    assert asked["small: joined c2"] <= 3 * before_it
    assert store.count == registrations


@pytest.mark.full("groups of the largest size")
@pytest.mark.real_zookeeper("the time that ZooKeeper's answers take is part of it")
def test_three_thousand_new_empty_groups_delay_no_member_of_another_group(world: World) -> None:
    world.topic("t", 2)
    world.coordinator()
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    names = [f"empty-{number:04}" for number in range(3000)]
    each = [operation for name in names for operation in (Create(f"{GROUPS}/{name}"), Create(GroupPaths(name).ids))]

    committed(world, each)
    world.consumer("g", "c2", {"t": 1})

    eventually(lambda: "c2" in world.state("g").target, 1, "the member is assigned while the empty groups wait")
    waiting = names[1000:-1]
    assert world.data(GroupPaths(waiting[0]).state) is None
    committed(world, [Delete(path) for name in waiting for path in (GroupPaths(name).ids, f"{GROUPS}/{name}")])
    eventually(lambda: world.store.get(GroupPaths(names[-1]).state) is not None, 60, "they have their turns even so")


@pytest.mark.real_zookeeper("the time that ZooKeeper's answers take is part of it")
def test_group_that_changes_a_thousand_times_a_second_delays_no_other_group(world: World) -> None:
    world.topic("t", 2)
    world.coordinator()
    for group in ("small", "big"):
        world.consumer(group, "c1", {"t": 1})
        world.stable(group, 1)
    own = Registration.parse("", world.data(BIG.id("c1")) or b"")
    is_over, changes = ThreadRuntime().event(), 0

    def change() -> None:
        nonlocal changes
        with connected(world.zk) as client:
            while not is_over.is_set():
                others = [replace(own, subscription={"t": 1, f"u{changes + n}": 1}) for n in range(200)]
                sent = [client.set_async(BIG.id("c1"), each.to_bytes()) for each in others]
                changes += sum(answer.get(timeout=10).version > 0 for answer in sent)

    writer = ThreadRuntime().spawn(change, "writer")
    eventually(lambda: changes >= 1000, 10, "it changes")

    world.consumer("small", "c2", {"t": 1})

    eventually(lambda: "c2" in world.state("small").target, 2, "the member is assigned meanwhile")
    eventually(lambda: changes >= 5000, 30, "it goes on changing")
    is_over.set()
    writer.join(20)
    assert set(world.state("big").target) == {"c1"}


def test_registration_that_changes_in_a_loop_is_read_ever_less_often(world: World) -> None:
    stores: list[Reads] = []

    def noted(store: Store) -> Store:
        stores.append(Reads(store))
        return stores[-1]

    world.topic("t", 2)
    world.topic("u", 1)
    world.coordinator(wrap=noted)
    world.consumer("big", "c1", {"t": 1})
    world.stable("big", 1)
    own, runtime, writes = Registration.parse("", world.data(BIG.id("c1")) or b""), ThreadRuntime(), 0
    reads = [0]
    for seconds in (5, 5):
        until = runtime.monotonic() + seconds
        while runtime.monotonic() < until:
            writes += 1
            changed = replace(own, subscription={"t": 1, f"u{writes}": 1})
            world.store.commit([SetData(BIG.id("c1"), changed.to_bytes())])
        reads.append(sum(store.paths.count(BIG.ids) for store in stores))

    assert writes > 1000
    assert reads[2] - reads[1] <= 12, "once a second by the listeners, and once by the turn that follows"
    world.store.commit([SetData(BIG.id("c1"), replace(own, subscription={"t": 1, "u": 1}).to_bytes())])
    eventually(lambda: "u" in world.state("big").topics, 3, "the last change is seen")


def test_ten_thousand_unreadable_registrations_slow_down_no_fetchers_seals(world: World) -> None:
    for name, ids in (("big", 3000), ("small", 1)):
        paths = GroupPaths(name)
        ensure(world.store, [*paths.skeleton, paths.segments, paths.queries])
        world.put(paths.segments, SegmentsRecord().to_bytes())
        committed(world, [Create(paths.id(f"x{n}"), b"no JSON", ephemeral=True) for n in range(ids)])
    for name in ("big", "small"):
        sealing = Registration("1", {"t": 1}, seal_interval_ms=200).to_bytes()
        committed(world, [Create(GroupPaths(name).id("c1"), sealing, ephemeral=True)])
    service = world.coordinator(backlog_interval_ms=50, max_seals_per_s=20)

    eventually(lambda: len(service.problems.current()) >= 3000, 30, "they are reported")
    world.put(GroupPaths("third").root)
    eventually(lambda: world.store.get(GroupPaths("third").root) is not None, 5, "rounds go on")
    for name in ("big", "small"):
        record = SegmentsRecord.parse("", world.data(GroupPaths(name).segments) or b"")
        assert record.seal_interval_ms is None


def test_what_a_group_costs_is_published_and_listed(world: World) -> None:
    world.topic("t", 1)
    service = world.coordinator(sweep_interval_ms=200)
    world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    assert service.term is not None
    eventually(lambda: world.data(TURN_TIMES) is not None, 5, "it is published")

    service.term.turn_times.took("g", 30.0)

    eventually(lambda: TurnTimes.parse("", world.data(TURN_TIMES) or b"").groups.get("g", 0) > 1000, 5, "it is seen")
    assert [int(row["turn_ms_per_s"]) >= 0 for row in run_json(world.zk, "groups", "list")] == [True]
    world.stop_coordinator(service)
    eventually(lambda: world.data(TURN_TIMES) is None, 5, "it ends with the session")


def test_a_turn_lists_no_owners_and_offsets_of_topics_that_do_not_exist(world: World) -> None:
    world.topic("t", 1)
    ensure(world.store, SMALL.skeleton)
    stray = [Create(f"{root}/stray-{number}") for number in range(500) for root in (SMALL.owners, SMALL.offsets)]
    committed(world, [*stray, Create(SMALL.owners_of("t"))])
    store = Reads(world.store)
    term = a_term(store, ThreadRuntime())
    reader = GroupReader(term, "small", lambda path: None)
    world.put(SMALL.state, GroupState().to_bytes())

    read = reader.read({"t": Topic("t", "id", (0,))})

    assert read is not None and len(read.znodes.owner_parents) == 501
    assert [path for path in store.paths if path.startswith((SMALL.owners_of(""), SMALL.offsets_of("")))] == [
        SMALL.owners_of("t")
    ]
