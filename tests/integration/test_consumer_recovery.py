"""A consumer recovers by itself from unusual failures of its requests, and does nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.client_side import Fronts, creates
from tests.support.hand import Wrap
from tests.support.hand_polled import Polling
from tests.support.memlog import MemoryLog
from tests.support.stores import FrontStore, Reads
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, expire, parts
from zk_group.coordinator.zk.errors import ConnectionLost, OutcomeUnknown, Refused, StoreError, ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import Event, ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Delete, Operation, Store
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import OffsetRecord

SESSION_MS = 2000
PATHS = GroupPaths("g")
BOTH = parts("t", 0, 1)


@pytest.fixture
def world(world: World) -> World:
    """With a coordinator, and topic `t` of two partitions."""
    world.topic("t", 2)
    world.coordinator()
    return world


def in_keeper() -> bool:
    return threading.current_thread().name.startswith("keeper")


def joins(world: World, wrap: Wrap, **options: Any) -> PollingConsumer:
    """Consumer c1, with a store of the test's in front of each of its sessions."""
    opener = kazoo_factory(world.zk, SESSION_MS)
    return world.consumer("g", "c1", {"t": 1}, opener=lambda: wrap(opener()), **options)


# ---- registering


class UnawareOfRegistering(FrontStore):
    """Once `armed`, the next registration happens, and its reply and the answer to what is asked next are lost.

    A keeper's questions are not meant.
    """

    def __init__(self, store: Store, armed: Event) -> None:
        super().__init__(store)
        self._armed = armed
        self._loses_answer = False

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        done = self.behind.commit(operations)
        if self._armed.is_set() and creates(PATHS.ids)(operations):
            self._armed.clear()
            self._loses_answer = True
            raise OutcomeUnknown("the reply is lost")
        return done

    def sync(self) -> None:
        if self._loses_answer and not in_keeper():
            self._loses_answer = False
            raise ConnectionLost("the answer is lost")
        self.behind.sync()


@pytest.mark.parametrize("ends_again", [False, True])
def test_consumer_unaware_of_its_second_registration_is_not_fenced_by_itself(world: World, ends_again: bool) -> None:
    armed = ThreadRuntime().event()
    fronts = Fronts(lambda store: UnawareOfRegistering(store, armed))
    one = joins(world, fronts)
    world.stable("g", 1)

    armed.set()
    expire(fronts[0].behind)
    eventually(lambda: not armed.is_set(), 10, "a registration whose reply is lost")
    if ends_again:
        expire(fronts[-1].behind)

    eventually(lambda: one.error or one.consumer.member.registrations >= 2, 10, "it knows that it is registered")
    assert one.error is None
    eventually(lambda: one.held == BOTH, 10, "it has its partitions back")
    two = world.consumer("g", "c1", {"t": 1})
    eventually(lambda: one.error, 10, "another process that takes the name still fences it")
    assert two.error is None


def test_consumer_whose_channel_is_removed_in_an_outage_registers_again(world: World) -> None:
    opener, fronts, opened = kazoo_factory(world.zk, SESSION_MS), Fronts(Reads), list[bool]()

    def opens() -> Store:
        opened.append(True)
        if len(opened) == 2:
            raise ZooKeeperUnreachable("no server answers")
        front = fronts(opener())
        return front.after(PATHS.channel("c1"), lambda: world.remove(PATHS.channel("c1"))) if fronts[1:] else front

    one = world.consumer("g", "c1", {"t": 1}, opener=opens)
    before = world.stable("g", 1)

    expire(fronts[0].behind)

    world.stable("g", 1, above=before.generation)
    assert one.error is None and len(opened) == 3
    eventually(lambda: one.held == BOTH, 10, "it has its partitions back")


# ---- the keeper


class OddAnswers(FrontStore):
    """Once `armed`, a keeper's next question gets an unexpected answer; counts the later questions."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.armed = ThreadRuntime().event()
        self.odd = 0
        self.asked_since = 0

    def sync(self) -> None:
        if in_keeper() and self.armed.is_set():
            self.armed.clear()
            self.odd += 1
            raise StoreError("ZooKeeper refused to answer: SystemErrorException()")
        self.behind.sync()
        self.asked_since += self.odd and in_keeper()


def test_lease_is_renewed_after_an_unexpected_answer(world: World) -> None:
    stores, log = Fronts(OddAnswers), MemoryLog(100)
    one = joins(world, stores, log=log)
    world.stable("g", 1)

    stores[0].armed.set()

    eventually(lambda: stores[0].asked_since >= 5, 5, "the lease is renewed, longer than it would last")
    log.end = 200
    wanted = {(part, offset) for part in BOTH for offset in range(200)}
    eventually(lambda: one.polled == wanted, 5, "it fetches")
    assert one.consumer.member.registrations == 1


# ---- commands that cannot be obeyed yet


class RefusesCommands(FrontStore):
    """While `armed`, acknowledging a command is refused, as it is when what it needs was removed by hand."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.armed = ThreadRuntime().event()
        self.refused_at: list[float] = []

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        paths = [step.path for step in operations if isinstance(step, Delete)]
        done = [path for path in paths if path.startswith(PATHS.command_prefix("c1"))]
        if self.armed.is_set() and done:
            self.refused_at.append(ThreadRuntime().monotonic())
            raise Refused(0, done[0], "no-node")
        return self.behind.commit(operations)


def test_a_command_that_is_refused_again_and_again_is_not_tried_without_a_pause(world: World) -> None:
    stores = Fronts(RefusesCommands)
    one = joins(world, stores)
    world.stable("g", 1)

    stores[0].armed.set()
    world.consumer("g", "c2", {"t": 1})
    eventually(lambda: len(stores[0].refused_at) > 25, 15, "the command is tried again and again")
    stores[0].armed.clear()

    assert stores[0].refused_at[25] - stores[0].refused_at[0] >= 25 * 0.018
    world.stable("g", 2)
    eventually(lambda: one.held == parts("t", 0), 5, "it has obeyed")


# ---- committing


def test_commit_succeeds_when_the_incarnation_ends_before_offsets_are_published(world: World, polled: Polling) -> None:
    world.topic("u", 1)
    fronts, opener = Fronts(Reads), kazoo_factory(world.zk, SESSION_MS)
    one = polled("c1", MemoryLog(50), ("u",), lambda: fronts(opener()), offsets_interval_ms=1)
    one.has(50)

    def ends() -> None:
        world.remove(PATHS.id("c1"))
        eventually(lambda: world.channel("g", "c1").ended, 10, "the coordinator has ended it")

    fronts[0].after(PATHS.offset("u", 0), ends)

    one.consumer.commit()

    assert world.channel("g", "c1").ended
    assert OffsetRecord.parse("", world.data(PATHS.offset("u", 0)) or b"").offset == 50
    eventually(lambda: [one.poll()] and ("lost", parts("u", 0)) in one.events, 10, "it has heard")
    one.holds(parts("u", 0))
    assert world.offsets("g") == dict.fromkeys(parts("u", 0), 50)


def test_a_stop_whose_callback_raised_is_obeyed_with_the_next_poll(world: World, polled: Polling) -> None:
    one = polled("c1", MemoryLog())
    one.holds(BOTH)

    def fails_once() -> None:
        one.revokes = None
        raise RuntimeError("the application's own trouble")

    one.revokes = fails_once
    other = world.consumer("g", "c2", {"t": 1})

    with pytest.raises(RuntimeError):
        eventually(lambda: one.poll() is None, 10, "the callback raises out of poll")
    assert one.consumer.member.wake.is_set(), "its next poll looks at the channel, though no watch fires"

    one.consumer.poll()
    assert (one.events[1:], one.consumer.assignment()) == ([("revoked", BOTH)] * 2, frozenset())
    eventually(lambda: one.poll() == {} and other.held == parts("t", 1), 10, "both have their share")
