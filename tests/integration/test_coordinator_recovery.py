"""A coordinator's writes and state after changes by hand or network failures, and what the next one completes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zk_group.coordinator.term.elector
from tests.support.client_side import Hooked, creates
from tests.support.hand import ManualStage
from tests.support.proxy import Proxy
from tests.support.stores import DeafStore, FrontStore, Reads
from tests.support.terms import RANGE, directory_of, with_config, with_store
from tests.support.wait import eventually
from tests.support.world import World, parts
from zk_group.coordinator.rebalance.handlers import Handlers
from zk_group.coordinator.rebalance.rebalancer import Rebalancer
from zk_group.coordinator.term.elector import Elector
from zk_group.coordinator.term.operator_requests import OperatorRequests
from zk_group.coordinator.term.request_queue import GroupTurn
from zk_group.coordinator.term.term import Term
from zk_group.coordinator.zk.errors import Refused, UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import Event, Task, ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Check, Create, Listing, Store, Watch
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, GroupPaths
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER, CoordinatorRecord, EpochRecord
from zk_group.coordinator.zk.znodes.segments import Query, Segment
from zk_group.drills.faults.proxy import EXISTS

PATHS = GroupPaths("g")


def test_node_waits_for_the_end_of_its_earlier_session(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """As after a reconnect with another session: what the earlier one created goes only when that has ended."""
    earlier = open_kazoo(world.zk, 10_000)
    ensure(earlier, [CONSUMERS])
    elected = Create(COORDINATOR, CoordinatorRecord("a", "host", 1).to_bytes(), ephemeral=True)
    earlier.commit([elected, Create(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())])

    with caplog.at_level("INFO", "zk_group.coordinator"):
        service = world.coordinator("a")
        eventually(lambda: "election joined: node=a" in caplog.text, 10, "it stands for election")
        earlier.close()
        world.elected(service, above=1)

    assert [text for text in caplog.messages if text.startswith("elected")] == ["elected: node=a epoch=2"]


# ---- collecting


def test_the_collector_removes_only_files_that_are_named_as_a_fetcher_names_them(world: World, tmp_path: Path) -> None:
    names = "precious.txt abc-1.arrow abc-00000000012.arrow abc-000000000x.arrow abd-0000000001.arrow"
    others = ["precious.txt", "g/c2/abc-0000000001.arrow", "h/c1/abc-0000000001.arrow"]
    others += [f"g/c1/{name}" for name in (*names.split(), "abc-0000000001.arrow.bak")]
    own = ["g/c1/abc-0000000001.arrow", "g/c1/abc-0000000002.arrow"]
    ensure(world.store, PATHS.skeleton)
    for file in [own[0], *others, own[1]]:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        segment = Segment(file, str(tmp_path), 1, 1, (), "c1", "abc", 1)
        world.store.commit([Create(PATHS.segment_prefix, segment.to_bytes(), sequential=True)])
    world.put(PATHS.query("q"), Query("r", 2**40, ThreadRuntime().wall_ms()).to_bytes())

    world.coordinator(sweep_interval_ms=100, segment_retention_ms=0)

    eventually(lambda: not any((tmp_path / file).exists() for file in own), 10, "the fetcher's files are removed")
    assert world.names(PATHS.segments) == []
    assert [file for file in others if not (tmp_path / file).exists()] == []


# ---- sessions


@pytest.fixture
def nothing_left(zk: str) -> Iterator[None]:
    """After the test there is no thread that was not there before, but for a proxy's: no attempt to connect goes on."""
    before = set(threading.enumerate())
    yield

    def left_over() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before and not t.name.startswith("proxy")]

    eventually(lambda: not left_over(), 3, "nothing is left of it")


@pytest.fixture
def through(zk: str, zookeeper_proxy: Proxy) -> str:
    return f"{zookeeper_proxy.hosts}/{zk.split('/')[1]}"


@pytest.mark.usefixtures("nothing_left")
def test_a_session_that_cannot_be_opened_for_a_lost_connection_is_closed(through: str, zookeeper_proxy: Proxy) -> None:
    losses = [zookeeper_proxy.drop_request(EXISTS) for _ in range(100)]

    with pytest.raises(ZooKeeperUnreachable, match="cannot talk to ZooKeeper"):
        open_kazoo(through, 2000, 1.0)

    assert losses[0].lost.is_set()


def test_a_connection_lost_while_a_session_is_opened_is_made_again(through: str, zookeeper_proxy: Proxy) -> None:
    loss = zookeeper_proxy.drop_request(EXISTS)

    store = open_kazoo(through, 2000)

    assert loss.lost.is_set()
    assert store.get("/") is not None
    store.close()


@pytest.mark.real_zookeeper("a chroot")
@pytest.mark.usefixtures("nothing_left")
def test_a_session_without_the_chroot_that_it_wants_is_closed(zk: str) -> None:
    with pytest.raises(UsageError, match="check the chroot"):
        open_kazoo(zk + "/nowhere", 2000, make_chroot=False)


@pytest.mark.usefixtures("nothing_left")
def test_lost_zookeeper_is_unreachable(through: str, zookeeper_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = KazooClient.exists_async

    def ask_late(self: Any, *args: Any, **options: Any) -> Any:
        zookeeper_proxy.refuse()
        zookeeper_proxy.cut()
        eventually(lambda: not self.connected, 5, "the connection is lost")
        return ask(self, *args, **options)

    monkeypatch.setattr(KazooClient, "exists_async", ask_late)

    with pytest.raises(ZooKeeperUnreachable):
        open_kazoo(through, 400)


# ---- elections


class StoppedInBetween:
    """An event that is set, and others woken for it, right after its first read."""

    def __init__(self, event: Event, wake: Event) -> None:
        self._event = event
        self._wake = wake
        self._looks = 0

    def is_set(self) -> bool:
        self._looks += 1
        seen = self._event.is_set()
        if self._looks == 1:
            self._event.set()
            self._wake.set()
        return seen


class Candidate:
    """A candidate of the election in a thread."""

    def __init__(self) -> None:
        self.wake, self.stopping = ThreadRuntime().event(), ThreadRuntime().event()
        self.terms: list[Term | None] = []
        self._task: Task | None = None

    def stand(self, store: Store, stopping: Any = None) -> Task:
        elector = Elector(store, "candidate", "host", self.wake)
        self._task = ThreadRuntime().spawn(
            lambda: self.terms.append(elector.stand(stopping or self.stopping)), "stands"
        )
        return self._task

    def close(self) -> None:
        self.stopping.set()
        task = self._task
        assert task is not None
        eventually(lambda: self.wake.set() or not task.is_alive(), 10, "it has ended")  # type: ignore[func-returns-value]


@pytest.fixture
def candidate(world: World) -> Iterator[Candidate]:
    with closing(Candidate()) as made:
        yield made


def test_stop_while_an_elector_begins_to_look_counts(world: World, stage: ManualStage, candidate: Candidate) -> None:
    stage.hand("elected")
    candidate.stand(world.store, StoppedInBetween(candidate.stopping, candidate.wake)).join(3)
    assert candidate.terms == [None]


def test_refused_election_is_tried_again_after_a_pause(world: World, candidate: Candidate) -> None:
    """Each is refused, as by an overloaded server."""
    store, tries, began = Hooked(world.store), list[float](), ThreadRuntime().monotonic()

    def is_refused() -> None:
        tries.append(ThreadRuntime().monotonic())
        raise Refused(2, CONSUMERS, "ThrottledOpException")

    for _ in range(6):
        store.before(creates(COORDINATOR), is_refused)
    candidate.stand(store)

    eventually(lambda: len(tries) == 6, 10, "it is tried six times")
    assert tries[-1] - began >= 5 * 0.1


def test_an_elector_whose_watch_was_lost_looks_again(
    world: World, stage: ManualStage, candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zk_group.coordinator.term.elector, "_LOOK_AGAIN_S", 0.1)
    elected, has_looked = stage.hand("elected"), ThreadRuntime().event()
    candidate.stand(Reads(DeafStore(world.store)).after(COORDINATOR, has_looked.set))
    assert has_looked.wait(5)

    elected.close()

    eventually(lambda: candidate.terms, 5, "it is elected")
    (term,) = candidate.terms
    assert term is not None and term.epoch == elected.term.epoch + 1


# ---- turns


def test_everything_that_a_turn_makes_for_a_new_group_carries_the_fence(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    recording = Hooked(hand.store)
    hand.term = with_store(hand.term, recording)
    stage.topic("t", 2)
    world.put(PATHS.ids)

    hand.turn("g")

    assert [path for path in PATHS.skeleton if world.data(path) is None] == []
    assert world.data(PATHS.state) is not None
    assert recording.commits != []
    fence = Check(COORDINATOR_EPOCH, hand.term.fence)
    assert [commit for commit in recording.commits if commit[0] != fence] == []


@pytest.mark.parametrize("is_evicted", [False, True], ids=["withdrawn", "with an eviction"])
def test_command_with_child_znodes_is_removed(world: World, stage: ManualStage, is_evicted: bool) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand, max_poll_interval_ms=500 if is_evicted else 300_000)
    three = stage.puppet("g", "c3", {"t": 1})
    hand.turn("g")
    (name,) = world.names(PATHS.channel("c1"))
    assert one.options() == [STOP_FETCHER]
    world.put(f"{PATHS.command('c1', name)}/child")
    world.put(f"{PATHS.command('c1', name)}/another")

    if is_evicted:
        hand.evict(one, two, three)
        hand.term.lease.renew()
        hand.settle("g", two, three)
    else:
        three.close()
        hand.settle("g", one, two)

    assert (three if is_evicted else one).running | two.running == parts("t", 0, 1, 2, 3)
    assert world.names(PATHS.channel("c1")) == []


# ---- groups that are gone


@pytest.fixture
def rebalancers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """How many groups of a name are kept in memory, but for garbage that an exception's frames have left.

    To look for them among all objects takes seconds in a process of many tests: a coordinator's lease lapses meanwhile.
    """
    original, references = Rebalancer.__init__, list[weakref.ref[Rebalancer]]()

    def made(self: Rebalancer, *args: Any) -> None:
        original(self, *args)
        references.append(weakref.ref(self))

    def count(group: str) -> int:
        kept = [reference() for reference in references.copy()]
        return sum(each is not None and each._group == group for each in kept)

    def kept(group: str) -> int:
        if count(group):
            gc.collect()
        return count(group)

    monkeypatch.setattr(Rebalancer, "__init__", made)
    return kept


def test_deleted_group_leaves_no_state_in_memory(world: World, rebalancers: Callable[[str], int]) -> None:
    world.topic("t", 1)
    service = world.coordinator()
    *leaving, _ = [world.consumer(name, "c1", {"t": 1}) for name in ("gone", "gone-too", "stays")]
    for name in ("gone", "gone-too", "stays"):
        world.stable(name, 1)
        assert rebalancers(name) == 1
    bad = GroupPaths("gone").channel("bad")
    world.put(bad, b"{")
    leaving.append(world.consumer("gone", "c2", {"t": 1}))
    eventually(lambda: bad in service.problems.current(), 5, "it is reported")
    for consumer in leaving:
        consumer.close()

    for name in ("gone", "gone-too"):
        world.remove(GroupPaths(name).root)

    eventually(lambda: bad not in service.problems.current(), 5, "nothing is reported of what is gone")
    eventually(lambda: rebalancers("gone") + rebalancers("gone-too") == 0, 5, "they are forgotten", pause_s=0.5)
    assert rebalancers("stays") == 1


def test_removed_group_leaves_nothing(world: World, stage: ManualStage, rebalancers: Callable[[str], int]) -> None:
    group, hand, over = "gone", stage.hand(), list[str]()
    term = with_config(with_store(hand.term, DeafStore(hand.store)), group_initial_rebalance_delay_ms=500)
    handlers = Handlers(term, directory_of(term, stage.topics), RANGE, OperatorRequests(term), over.append)
    stage.puppet(group, "c1", {"t": 1})
    bad = GroupPaths(group).channel("bad")
    world.put(bad, b"{")
    tasks = handlers.start()
    try:
        handlers.request_turn(GroupTurn(group), "joined c1")
        eventually(lambda: bad in hand.problems.current(), 5, "it is reported")
        world.remove(GroupPaths(group).root)

        handlers.forget(group)
        eventually(lambda: bad not in hand.problems.current(), 2, "nothing is reported of what is gone")
        turns = handlers.turns
        handlers.request_turn(GroupTurn(group), "a member is late")
        eventually(lambda: handlers.turns > turns, 5, "one more turn")

        eventually(lambda: rebalancers(group) == 0, 2, "nothing is kept", pause_s=0.5)
        assert over == []
    finally:
        handlers.stop()
        for task in tasks:
            task.join(5)


# ---- the next coordinator


STOP, START = [("stop-fetcher", 2)], [("start-fetcher", 2)]
"""What the second coordinator has sent, in its epoch."""


@pytest.mark.both_zookeepers
@pytest.mark.parametrize(
    ("stopped", "started", "sent"),
    [
        ("c1", "", [START, STOP, []]),  # c3 waits for what c2 still runs
        ("c1 c2", "", [START, START, START]),
        ("c1 c2 c3", "c1", [[], START, START]),
        ("c1 c2 c3", "c1 c2 c3", [[], [], []]),
    ],
    ids=["amid the stops", "between stop and start", "amid the starts", "after the last acknowledgement"],
)
def test_next_coordinator_completes_the_rebalance_that_was_begun(
    stage: ManualStage, world: World, stopped: str, started: str, sent: list[list[tuple[str, int]]]
) -> None:
    first = stage.hand("first")
    puppets = [*stage.stable_pair(first), stage.puppet("g", "c3", {"t": 1})]
    for names in (stopped, started):
        if names:
            first.turn("g")
        for puppet in puppets:
            if puppet.name in names:
                puppet.obey()
    assert world.state("g").state != STABLE
    first.close()

    second = stage.hand("second")
    for _ in range(2):
        second.turn("g")

    assert [[(command.option, command.epoch) for command in puppet.commands()] for puppet in puppets] == sent
    second.settle("g", *puppets)
    assert world.state("g").generation == 2, "the target was decided already"
    assert [len(puppet.gave_up) for puppet in puppets] == [1, 1, 0], "no member stops twice"
    assert [puppet.applied for puppet in puppets] == [3, 3, 1]
    assert frozenset().union(*(puppet.running for puppet in puppets)) == parts("t", 0, 1, 2, 3)
    assert world.history("g")[-1].finished_ms is not None


@pytest.mark.both_zookeepers
def test_group_changed_without_a_coordinator_is_rebalanced_by_the_next(stage: ManualStage, world: World) -> None:
    first = stage.hand("first")
    one, two = stage.stable_pair(first)
    first.close()
    two.close()
    three = stage.puppet("g", "c3", {"t": 1})

    stage.hand("second").settle("g", one, three)

    assert (one.running, three.running) == (parts("t", 0, 1), parts("t", 2, 3))


class BreaksOnDemand(FrontStore):
    """Raises an unexpected error when the topics are listed."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_broken = False

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        if self.is_broken and any(path.endswith("/topics") for path in paths):
            raise ZeroDivisionError("a bug")
        return super().children_many(paths, watch)


@pytest.mark.both_zookeepers
def test_coordinator_whose_thread_crashes_resigns_first(world: World, caplog: pytest.LogCaptureFixture) -> None:
    service = world.coordinator(wrap=BreaksOnDemand)
    world.elected(service)
    session = world.session_of(service)
    assert isinstance(session, BreaksOnDemand)
    session.is_broken = True

    world.topic("t", 2)

    world.elected(service, above=1)
    consumer = world.consumer("g", "c1", {"t": 1})
    world.stable("g", 1)
    eventually(lambda: consumer.held == parts("t", 0, 1), 5, "it coordinates")
    assert "ZeroDivisionError" in caplog.text
