"""Members that lie, on real coordinators and consumers: a lie is bounded and timed, and moves nothing of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.support.hand import ManualStage
from tests.support.liar import Liar
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import PollingConsumer, World, parts
from zk_group.coordinator.zk.errors import Refused
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import Create, Delete, Operation, SetData
from zk_group.coordinator.zk.znodes.paths import GroupPaths

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)
MakeLiar = Callable[..., Liar]


@pytest.fixture
def lying(zk: str) -> Iterator[MakeLiar]:
    """Makes members that lie; their sessions end with the test."""
    with ExitStack() as closing:

        def make(name: str = "bad", topics: dict[str, int] | None = None, **options: Any) -> Liar:
            made = Liar(zk, "g", name, topics or {"t": 1}, **options)
            closing.callback(made.close)
            return made

        yield make


def honest(world: World, **options: Any) -> PollingConsumer:
    return world.consumer("g", "good", {"t": 1}, log=MemoryLog(10), **options)


def has_all(good: PollingConsumer, timeout_s: float = 5.0) -> None:
    eventually(lambda: good.held == ALL, timeout_s, "the good member has all")


def until_evicted(bad: Liar, acts: Callable[[], object], timeout_s: float) -> None:
    """Meanwhile this happens all the time."""
    eventually(lambda: [acts()] and bad.is_evicted, timeout_s, "it is evicted")


def touches(liar: Liar) -> None:
    """A sign of life: only its commands are late."""
    with suppress(Refused):
        liar.says(touched=liar.channel.touched + 1)


# ---- what it says it runs


@pytest.mark.parametrize("how", ["is evicted", "its name is taken over"])
def test_eviction_of_a_member_moves_no_offset_and_no_owner_of_another(
    world: World, stage: ManualStage, lying: MakeLiar, how: str
) -> None:
    hand = stage.hand()
    stage.topic("t", 4)
    one = stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", one)
    for partition in sorted(one.running):
        one.move(partition, 50)
    before = world.owners("g")
    bad = lying(running=dict.fromkeys(ALL, 90), topic_ids={"t": "id-of-t"}, max_poll_interval_ms=300)

    if how == "is evicted":
        until_evicted(bad, lambda: (hand.turn("g"), one.touch()), 10)
    else:
        stage.puppet("g", "bad", {"t": 1})

    assert world.owners("g") == before
    assert set(world.offsets("g").values()) == {50}


# ---- what it does with commands


DISOBEYS: dict[str, Callable[[Liar], bool]] = {
    "acknowledges without claiming": lambda bad: bad.acknowledges(),
    "removes commands without applying them": lambda bad: bad.acknowledges(is_named=False),
    "refuses what is free": lambda bad: bad.acknowledges(refused=ALL),
    "keeps what it has stopped": lambda bad: bad.acknowledges(claims=True, owns=True),
}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("how", DISOBEYS)
def test_member_that_carries_out_no_command_is_evicted_by_the_clock(
    served: World, lying: MakeLiar, how: str, strategy: str
) -> None:
    bad = lying(protocols=(strategy,), max_poll_interval_ms=4000)
    runtime = ThreadRuntime()

    disobeys = partial(DISOBEYS[how], bad)

    def has_begun() -> bool:
        disobeys()
        has_all = len(bad.channel.running) == 4
        return has_all if how == "keeps what it has stopped" else served.created_commands("g", "bad") > 0

    began = runtime.monotonic()
    eventually(has_begun, 5, "it has disobeyed alone, or has all")
    good = honest(served, protocols=(strategy,))

    until_evicted(bad, disobeys, 8)

    assert (bad.channel.ended or "").startswith("evicted: it carried out no command for 4000 ms")
    assert 3 <= runtime.monotonic() - began <= 8
    assert served.created_commands("g", "bad") <= 14
    assert served.state("g").generation <= 6
    has_all(good)


@pytest.mark.parametrize("limit_ms", [3000, 15000])
def test_unacknowledged_start_evicts_within_a_second_of_limit(served: World, lying: MakeLiar, limit_ms: int) -> None:
    runtime = ThreadRuntime()
    bad = lying(max_poll_interval_ms=limit_ms)
    eventually(bad.commands, 5, "a start is sent")
    began = runtime.monotonic()

    until_evicted(bad, lambda: None if bad.is_evicted else touches(bad), limit_ms / 1000 + 5)

    assert limit_ms / 1000 - 0.2 <= runtime.monotonic() - began <= limit_ms / 1000 + 1
    assert "carried out no command" in (bad.channel.ended or "")


# ---- what it says of its lease


def test_member_with_longer_lease_than_any_session_is_refused_and_nothing_waits(served: World, lying: MakeLiar) -> None:
    bad = lying(lease_ms=86_400_000)

    has_all(honest(served))

    assert (bad.channel.ended or "").startswith("refused: its lease_ms of 86400000 is over 40000, ")
    assert bad.channel.error == "InconsistentGroupProtocol"
    assert served.created_commands("g", "bad") == 0
    assert served.state("g").marks == ()


LONGER: dict[str, Callable[[bytes], list[Operation]]] = {
    "raised in place": lambda data: [SetData(PATHS.id("bad"), data)],
    "registration made again": lambda data: [Delete(PATHS.id("bad")), Create(PATHS.id("bad"), data, ephemeral=True)],
}


@pytest.mark.parametrize("how", LONGER)
def test_longer_lease_than_was_registered_is_not_waited_for(served: World, lying: MakeLiar, how: str) -> None:
    bad = lying(lease_ms=700)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    served.stable("g", 1)
    good = honest(served)

    bad.store.commit(LONGER[how](replace(bad.registration, lease_ms=86_400_000).to_bytes()))

    has_all(good, 10)


def test_longer_sessions_are_admitted_where_the_nodes_know_of_them(world: World, lying: MakeLiar) -> None:
    world.coordinator(max_session_timeout_ms=120_000)
    world.topic("t", 4)
    bad = lying(lease_ms=80_000)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    world.stable("g", 1)

    eventually(lambda: bad.acknowledges() or world.state("g").state == "Stable", 5, "it stays")
    assert not bad.is_evicted


def test_generation_goes_on_after_evictions_and_a_lost_state(world: World, stage: ManualStage, lying: MakeLiar) -> None:
    hand = stage.hand()
    topic = "t" * 200
    stage.topic(topic, 40)
    names = [f"b{number:02}" + "x" * 200 for number in range(20)]
    bad = [lying(name, {topic: 1}, incarnation=name[:3], max_poll_interval_ms=2000) for name in names]

    def evicted() -> bool:
        hand.turn("g")
        left = [each for each in bad if not each.is_evicted]
        for each in left:
            each.acknowledges()
        return left == []

    eventually(evicted, 60, "all are evicted")
    hand.turn("g")
    before = world.state("g").generation
    hand.close()
    world.remove(PATHS.state)
    stage.puppet("g", "c1", {topic: 1})
    stage.hand("other").turn("g")

    assert world.state("g").generation > before > 0
    assert all(len(record.trigger) <= 1000 for record in world.history("g"))
