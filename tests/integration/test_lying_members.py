"""Members that lie, on real coordinators and consumers: a lie is bounded and timed, and moves nothing of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from coordinator.zk.errors import Refused
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.json_fields import MAX_COUNT
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER
from tests.support.hand import ManualStage
from tests.support.liar import Liar
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import World, parts

PATHS = GroupPaths("g")
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


def said(numbers: range, offset: int) -> dict[TopicPartition, int | None]:
    return {TopicPartition("t", number): offset for number in numbers}


# ---- what it says it runs


def honest(stage: ManualStage) -> Any:
    """A member that runs the four partitions of `t`, at offset 50."""
    hand = stage.hand()
    stage.topic("t", 4)
    one = stage.puppet("g", "c1", {"t": 1})
    hand.settle("g", one)
    for partition in sorted(one.running):
        one.move(partition, 50)
    return hand, one


def test_eviction_of_a_member_moves_no_offset_and_no_owner_of_another(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand, one = honest(stage)
    before = world.owners("g")
    bad = lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"}, max_poll_interval_ms=300)

    def is_evicted() -> bool:
        hand.turn("g")
        one.touch()
        return bad.is_evicted

    eventually(is_evicted, 10, "it is evicted")

    assert world.owners("g") == before
    assert set(world.offsets("g").values()) == {50}


def test_session_end_of_a_member_moves_no_offset_of_what_another_runs(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand, one = honest(stage)
    bad = lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"})
    hand.turn("g")  # what one is to stop, it runs still

    bad.close()
    eventually(lambda: hand.turn("g") and world.channel("g", "bad").ended, 40, "it is ended")

    hand.settle("g", one)
    one.read_offsets()
    assert set(one.fenced.channel.running.values()) == {50}


def test_process_that_takes_a_name_over_writes_no_offset_of_what_another_owns(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    honest(stage)
    before = world.owners("g")
    lying(running=said(range(4), 90), topic_ids={"t": "id-of-t"})

    stage.puppet("g", "bad", {"t": 1})

    assert world.owners("g") == before
    assert set(world.offsets("g").values()) == {50}


def test_progress_of_a_member_whose_partition_moves_is_kept_when_its_session_ends(
    world: World, stage: ManualStage
) -> None:
    """The target names another member already."""
    hand, one = honest(stage)
    two = stage.puppet("g", "c2", {"t": 1})
    hand.turn("g")
    moving = one.running - world.state("g").target["c1"].partitions
    assert moving

    one.close()

    eventually(lambda: hand.turn("g") and world.channel("g", "c1").ended, 40, "it is ended")
    hand.settle("g", two)
    two.read_offsets()
    assert set(two.fenced.channel.running.values()) == {50}
    assert two.running == parts("t", 0, 1, 2, 3)


# ---- what it says of numbers


@pytest.mark.parametrize("number", [10**6, MAX_COUNT, MAX_COUNT + 1, 2**63 - 1, 2**63])
def test_generation_in_a_channel_delays_nobody_and_raises_nothing(world: World, lying: MakeLiar, number: int) -> None:
    log = MemoryLog(10)
    world.coordinator()
    world.topic("t", 4)
    good = world.consumer("g", "good", {"t": 1}, log=log)
    world.stable("g", 1)
    before = world.state("g").generation
    bad = lying(topics={"u": 1})

    bad.says(generation=number, epoch=number)
    world.more_partitions("t", 5)

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3, 4), 10, "the good member goes on")
    assert world.state("g").generation <= before + 4


# ---- what it does with commands


def runs_what_it_is_told(bad: Liar, *, owns: bool) -> bool:
    """Acknowledge a start with all that it names running, a stop with nothing changed."""
    return bad.acknowledges(claims=True, owns=owns)


DISOBEYS: dict[str, Callable[[Liar], bool]] = {
    "acknowledges without claiming": lambda bad: bad.acknowledges(),
    "removes commands without applying them": lambda bad: bad.acknowledges(is_named=False),
    "refuses what is free": lambda bad: bad.acknowledges(refused=parts("t", 0, 1, 2, 3)),
    "keeps what it has stopped": lambda bad: runs_what_it_is_told(bad, owns=True),
}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("how", DISOBEYS)
def test_member_that_carries_out_no_command_is_evicted_by_the_clock(
    world: World, lying: MakeLiar, how: str, strategy: str
) -> None:
    log = MemoryLog(10)
    world.coordinator()
    world.topic("t", 4)
    bad = lying(protocols=(strategy,), max_poll_interval_ms=4000)
    runtime = ThreadRuntime()

    def acts(is_over: Callable[[], object]) -> Callable[[], object]:
        return lambda: (DISOBEYS[how](bad) and False) or is_over()

    began = runtime.monotonic()
    if how == "keeps what it has stopped":
        eventually(acts(lambda: len(bad.channel.running) == 4), 5, "it has all")
    else:
        eventually(acts(lambda: world.created_commands("g", "bad")), 5, "it has disobeyed alone")
    good = world.consumer("g", "good", {"t": 1}, log=log, protocols=(strategy,))

    eventually(acts(lambda: bad.is_evicted), 8, "it is evicted")

    assert (bad.channel.ended or "").startswith("evicted: it carried out no command for 4000 ms")
    assert 3 <= runtime.monotonic() - began <= 8
    assert world.created_commands("g", "bad") <= 14
    assert world.state("g").generation <= 6
    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 5, "the good member has all")


def test_starts_whose_free_partitions_a_member_refuses_are_sent_once_a_second(world: World, lying: MakeLiar) -> None:
    """Another session may have made the owner znodes, and removed them again: it is kept for its poll interval."""
    world.coordinator()
    world.topic("t", 4)
    bad = lying()

    runtime = ThreadRuntime()
    end = runtime.monotonic() + 10

    def refuses() -> bool:
        bad.acknowledges(refused=parts("t", 0, 1, 2, 3))
        return runtime.monotonic() > end

    eventually(refuses, 20, "10 s are over")

    assert not bad.is_evicted
    assert 8 <= world.created_commands("g", "bad") <= 14


def test_member_that_refuses_free_partitions_for_its_poll_interval_is_evicted(world: World, lying: MakeLiar) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = lying(max_poll_interval_ms=5000)
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))

    def refuses() -> bool:
        bad.acknowledges(refused=parts("t", 0, 1, 2, 3))
        return bad.is_evicted

    eventually(refuses, 8, "it is evicted")

    assert "evicted: it carried out no command" in (bad.channel.ended or "")
    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 8, "the good member has all")


@pytest.mark.parametrize("limit_ms", [3000, 15000])
def test_unacknowledged_start_evicts_within_a_second_of_the_limit(world: World, lying: MakeLiar, limit_ms: int) -> None:
    runtime = ThreadRuntime()
    world.coordinator()
    world.topic("t", 4)
    bad = lying(max_poll_interval_ms=limit_ms)
    eventually(bad.commands, 5, "a start is sent")
    began = runtime.monotonic()

    def is_evicted() -> bool:
        if not bad.is_evicted:
            with suppress(Refused):
                bad.says(touched=bad.channel.touched + 1)  # only the command is late
        return bad.is_evicted

    eventually(is_evicted, limit_ms / 1000 + 5, "it is evicted")

    assert limit_ms / 1000 - 0.2 <= runtime.monotonic() - began <= limit_ms / 1000 + 1
    assert "carried out no command" in (bad.channel.ended or "")


def test_acknowledgement_alone_does_not_stop_the_eviction_clock(world: World, lying: MakeLiar) -> None:
    runtime = ThreadRuntime()
    world.coordinator()
    world.topic("t", 4)
    bad = lying(max_poll_interval_ms=3000)
    eventually(lambda: bad.acknowledges(), 5, "it has removed a start")
    began = runtime.monotonic()

    eventually(lambda: bad.is_evicted, 8, "it is evicted")

    assert runtime.monotonic() - began <= 4
    assert "carried out no command" in (bad.channel.ended or "")


def test_generations_for_owners_that_a_member_loses_again_come_every_two_seconds(world: World, lying: MakeLiar) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = lying()
    runtime = ThreadRuntime()
    end = runtime.monotonic() + 20

    def removes_its_owners() -> bool:
        stops = any(command.option == "stop-fetcher" for command in bad.commands().values())
        with suppress(Refused):
            if bad.acknowledges(claims=True, owns=True, **({"running": {}} if stops else {})):
                bad.store.commit([SetData(PATHS.id("bad"), bad.registration.to_bytes())])
            owned = [PATHS.owner("t", int(number)) for number in world.names(PATHS.owners_of("t"))]
            if len(owned) == 4 and world.state("g").state == "Stable":
                bad.store.commit([Delete(path) for path in owned])
                bad.store.commit([SetData(PATHS.id("bad"), bad.registration.to_bytes())])
        return runtime.monotonic() > end

    eventually(removes_its_owners, 30, "20 s are over")

    assert not bad.is_evicted
    assert 3 <= world.state("g").generation <= 12


# ---- what it says of its lease


def test_member_with_a_longer_lease_than_any_session_is_refused_and_nothing_waits(
    world: World, lying: MakeLiar
) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = lying(lease_ms=86_400_000)
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 5, "the good member has all")

    assert (bad.channel.ended or "").startswith("refused: its lease_ms of 86400000 is over 40000, ")
    assert bad.channel.error == "InconsistentGroupProtocol"
    assert world.created_commands("g", "bad") == 0
    assert world.state("g").marks == ()


def test_lease_that_is_raised_in_place_is_not_waited_for(world: World, lying: MakeLiar) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = lying(lease_ms=700)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    world.stable("g", 1)
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))

    bad.store.commit([SetData(PATHS.id("bad"), replace(bad.registration, lease_ms=86_400_000).to_bytes())])

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 5, "the good member has all")


def test_longer_sessions_are_admitted_where_the_nodes_know_of_them(world: World, lying: MakeLiar) -> None:
    world.coordinator(max_session_timeout_ms=120_000)
    world.topic("t", 4)
    bad = lying(lease_ms=80_000)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    world.stable("g", 1)

    eventually(lambda: bad.acknowledges() or world.state("g").state == "Stable", 5, "it stays")
    assert not bad.is_evicted


# ---- honest members beside others, and what a lie leaves behind


def obeys(*members: Liar) -> None:
    """Each obeys its commands, as an honest member."""
    for each in members:
        if any(command.option == STOP_FETCHER for command in each.commands().values()):
            owned = list(each.channel.running)
            each.acknowledges(running={})
            each.store.commit([Delete(PATHS.owner(*partition)) for partition in owned])
        else:
            each.acknowledges(claims=True, owns=True)


@pytest.mark.parametrize("how", ["its start is removed by another", "it was refused by an owner that has gone"])
def test_member_that_waits_for_a_straggler_is_not_evicted(stage: ManualStage, lying: MakeLiar, how: str) -> None:
    hand = stage.hand()
    stage.topic("t", 2)
    slow = lying("slow", max_poll_interval_ms=60_000)

    def settled() -> bool:
        hand.turn("g")
        obeys(slow)
        return len(slow.channel.running) == 2 and not slow.commands()

    eventually(settled, 10, "slow runs both")
    good = lying("good", max_poll_interval_ms=3000)

    def is_sent() -> bool:
        hand.turn("g")
        obeys(slow)
        return any(command.option == START_FETCHER for command in good.commands().values())

    eventually(is_sent, 10, "a start is sent")
    if how.startswith("its start"):
        good.store.commit([Delete(PATHS.command("good", name)) for name in good.commands()])
    else:
        good.acknowledges(refused=parts("t", 0))
    lying("a0", max_poll_interval_ms=60_000)  # its join moves partitions that slow does not give up
    runtime = ThreadRuntime()
    end = runtime.monotonic() + 12

    def waits() -> bool:
        hand.turn("g")
        obeys(good)
        with suppress(Refused):
            good.says(touched=good.channel.touched + 1)
        return good.is_evicted or runtime.monotonic() > end

    eventually(waits, 30, "it has waited for four times its poll interval")

    assert not good.is_evicted, good.channel.ended


def test_member_that_drops_what_it_runs_is_sent_it_again_once_a_second(world: World, lying: MakeLiar) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = lying(max_poll_interval_ms=60_000)
    runtime = ThreadRuntime()
    end = runtime.monotonic() + 10

    def drops() -> bool:
        with suppress(Refused):
            if not bad.acknowledges(claims=True, owns=True) and len(bad.channel.running) == 4:
                gone = [Delete(PATHS.owner("t", number)) for number in range(4)]
                bad.store.commit([SetData(bad.path, replace(bad.channel, running={}).to_bytes()), *gone])
                bad.store.commit([SetData(PATHS.id("bad"), bad.registration.to_bytes())])  # asks for a turn
        return runtime.monotonic() > end

    eventually(drops, 20, "10 s are over")

    assert 8 <= world.created_commands("g", "bad") <= 14


def test_registration_made_again_with_a_longer_lease_is_waited_for_no_longer(world: World, lying: MakeLiar) -> None:
    world.coordinator()
    world.topic("t", 4)
    bad = lying(lease_ms=700)
    eventually(lambda: bad.acknowledges(claims=True, owns=True), 5, "it runs all")
    world.stable("g", 1)
    good = world.consumer("g", "good", {"t": 1}, log=MemoryLog(10))

    longer = replace(bad.registration, lease_ms=86_400_000).to_bytes()
    bad.store.commit([Delete(PATHS.id("bad")), Create(PATHS.id("bad"), longer, ephemeral=True)])

    eventually(lambda: good.held == parts("t", 0, 1, 2, 3), 10, "the good member has all")


def test_generation_goes_on_after_many_evictions_and_a_lost_state(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand = stage.hand()
    topic = "t" * 200
    stage.topic(topic, 40)
    names = [f"b{number:02}" + "x" * 200 for number in range(20)]
    bad = [lying(name, {topic: 1}, incarnation=name[:3], max_poll_interval_ms=2000) for name in names]

    def evicted() -> bool:
        hand.turn("g")
        for each in bad:
            if not each.is_evicted:
                each.acknowledges()
        return all(each.is_evicted for each in bad)

    eventually(evicted, 60, "all are evicted")
    hand.turn("g")
    before = world.state("g").generation
    hand.close()
    world.remove(PATHS.state)
    stage.puppet("g", "c1", {topic: 1})
    stage.hand("other").turn("g")

    assert world.state("g").generation > before > 0
    assert all(len(record.trigger) <= 1000 for record in world.history("g"))


def test_eviction_of_a_member_makes_nothing_for_partitions_that_do_not_exist(
    world: World, stage: ManualStage, lying: MakeLiar
) -> None:
    hand, one = honest(stage)
    odd = {TopicPartition("t", number): 7 for number in range(100_001, 190_001, 2)}
    bad = lying(running=odd, topic_ids={"t": "id-of-t"}, max_poll_interval_ms=1000)

    def is_evicted() -> bool:
        hand.turn("g")
        one.obey()
        return bad.is_evicted

    eventually(is_evicted, 10, "it is evicted")

    assert bad.channel.running == {}
    assert [mark.partitions for mark in world.state("g").marks if mark.consumer == "bad"] in ([], [frozenset()])
    assert set(world.names(PATHS.offsets_of("t"))) <= {"0", "1", "2", "3"}
