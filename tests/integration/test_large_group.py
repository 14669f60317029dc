"""Large groups: a thousand partitions on one consumer, and eight consumers that join one after another."""

from __future__ import annotations

import threading

import pytest

from tests.support.memlog import MemoryLog
from tests.support.multis import MultiStep, steps_of
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts
from zk_group.coordinator.zk.store import MAX_COMMIT_BYTES, MAX_OPERATIONS
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import START_FETCHER
from zk_group.drills.faults.proxy import CREATE, DELETE, SET_DATA

PATHS = GroupPaths("g")
MANY = 1000


class Multis:
    """Every multi that has gone through a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._lock = threading.Lock()
        self._seen: list[tuple[int, list[MultiStep]]] = []
        proxy.drop_reply(self._note)

    def _note(self, body: bytes) -> bool:
        if steps := steps_of(body):
            with self._lock:
                self._seen.append((len(body), steps))
        return False  # nothing is lost

    def within_limits(self) -> None:
        assert self._seen
        assert max(len(steps) for _, steps in self._seen) <= MAX_OPERATIONS
        assert max(size for size, _ in self._seen) <= MAX_COMMIT_BYTES

    def count(self, code: int, path: str) -> int:
        """How many operations there were on such a path."""
        return sum(step.code == code and path in step.path for _, steps in self._seen for step in steps)


@pytest.fixture
def multis(zookeeper_proxy: Proxy) -> Multis:
    return Multis(zookeeper_proxy)


def test_thousand_partitions_are_claimed_moved_and_ended_in_multis_within_limits(
    zookeeper_proxy: Proxy, multis: Multis, world: World
) -> None:
    through = f"{zookeeper_proxy.hosts}/{world.zk.split('/')[1]}"
    every, log = parts("t", *range(MANY)), MemoryLog(end=1)
    world.coordinator(zk=through, session_timeout_ms=6000)
    world.topic("t", MANY)

    def member(name: str) -> PollingConsumer:
        return world.consumer("g", name, {"t": 1}, zk=through, log=log, session_timeout_ms=4000)

    one = member("c1")
    first = world.stable("g", 1, timeout_s=30)
    eventually(lambda: one.held == every, 10, "it holds all")
    assert multis.count(CREATE, f"{PATHS.owners_of('t')}/") == MANY, "each owner was made once"
    eventually(lambda: len(one.records) == MANY, 20, "all is read")

    two = member("c2")
    second = world.stable("g", 2, above=first.generation, timeout_s=30)
    eventually(lambda: (len(one.held), len(two.held)) == (500, 500), 10, "they share")
    assert not one.held & two.held
    assert multis.count(DELETE, f"{PATHS.owners_of('t')}/") == MANY, "all were given up, each once"

    two.vanish()
    third = world.stable("g", 1, above=second.generation, timeout_s=30)
    eventually(lambda: one.held == every, 20, "it holds all again")
    assert third.generation == second.generation + 1
    log.end = 2
    eventually(lambda: len(one.records) + len(two.records) == 2 * MANY, 20, "all is read")
    world.delivered_once("t", MANY, 2)
    assert set(world.owners("g")) == every
    one.close()
    eventually(lambda: world.state("g").state == "Empty", 10, "no member is left")
    eventually(lambda: not world.channel("g", "c1").running, 10, "what it ran is written out")
    assert world.owners("g") == {}
    assert len(world.names(PATHS.offsets_of("t"))) == MANY
    multis.within_limits()


def test_eight_consumers_joining_in_turn_share_fairly_with_few_transactions(
    zookeeper_proxy: Proxy, multis: Multis, world: World
) -> None:
    through = f"{zookeeper_proxy.hosts}/{world.zk.split('/')[1]}"
    log = MemoryLog(end=20)
    world.coordinator(zk=through, session_timeout_ms=6000)
    world.topic("t", 32)
    consumers: list[PollingConsumer] = []
    generation = 0
    for number in range(8):
        consumers.append(world.consumer("g", f"c{number}", {"t": 1}, log=log))
        generation = world.stable("g", number + 1, above=generation).generation
        log.end += 5

    assert generation == 8, "one rebalance a joiner"
    eventually(lambda: [len(c.held) for c in consumers] == [4] * 8, 5, "four each")
    eventually(lambda: sum(len(c.records) for c in consumers) == 32 * log.end, 10, "all is read")
    world.delivered_once("t", 32, log.end)
    # Each of the coordinator's transactions sets the state. A rebalance with n members sends a stop to n - 1 and a
    # start to n of them; its cost is 2 transactions, and at most one for each command and each wave of starts.
    commands = sum(world.created_commands("g", consumer.name) for consumer in consumers)
    assert commands == sum((n - 1) + n for n in range(1, 9))
    assert multis.count(SET_DATA, PATHS.state) <= 8 * 2 + 2 * commands
    starts = [c for consumer in consumers for c in world.commands("g", consumer.name) if c.option == START_FETCHER]
    assert starts == []
    multis.within_limits()
