"""Two releases side by side, as in a rolling upgrade: each reads what the other writes, and nothing is lost.

The next release is this one with a higher `version` and unknown fields in all that it writes (`NextRelease`).
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.hand import ManualStage
from tests.support.memlog import MemoryLog, TimedLog
from tests.support.next_release import RELEASES, NextRelease, as_next_release
from tests.support.slots import SlotBench
from tests.support.wait import eventually, within
from tests.support.world import SESSION_MS, PollingConsumer, World, parts
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

PATHS = GroupPaths("g")
EVERYTHING = parts("t", 0, 1, 2, 3)
in_both_directions = pytest.mark.parametrize(
    "first, second", [("this", "next"), ("next", "this")], ids=["upgrade", "downgrade"]
)


@pytest.fixture
def world(world: World) -> World:
    """With topic `t` of four partitions."""
    world.topic("t", 4)
    return world


def fronted(world: World, release: str) -> StoreFactory:
    opener = kazoo_factory(world.zk, SESSION_MS)
    return lambda: RELEASES[release](opener())


def version_of(world: World, path: str) -> int:
    data = world.data(path)
    assert data is not None, path
    return int(json.loads(data)["version"])


def all_came(consumers: list[PollingConsumer], end: int) -> None:
    wanted = {(part, offset) for part in EVERYTHING for offset in range(end)}

    def look() -> bool:
        assert [consumer.error for consumer in consumers] == [None] * len(consumers)
        return wanted <= {item for consumer in consumers for item in consumer.polled.copy()}

    eventually(look, 15, f"{end} records of each partition")


# ---- (i) and (ii): a coordinator of the one, consumers of the other, and both among each other


@pytest.mark.parametrize("node", RELEASES)
@pytest.mark.parametrize("members", [("this", "this"), ("next", "next"), ("this", "next")], ids="-".join)
def test_group_starts_and_rebalances_in_any_mix_of_releases(world: World, node: str, members: tuple[str, str]) -> None:
    world.coordinator(wrap=RELEASES[node])
    log = MemoryLog(300)
    one = world.consumer("g", "c1", {"t": 1}, log=log, opener=fronted(world, members[0]))
    generation = world.stable("g", 1).generation

    two = world.consumer("g", "c2", {"t": 1}, log=log, opener=fronted(world, members[1]))
    generation = world.stable("g", 2, above=generation).generation
    eventually(lambda: (one.held | two.held, len(one.held)) == (EVERYTHING, 2), 10, "each has its half")
    log.end = 600
    all_came([one, two], 600)
    one.close()
    world.stable("g", 1, above=generation)
    eventually(lambda: two.held == EVERYTHING, 10, "c2 has all")
    log.end = 900
    all_came([one, two], 900)

    world.delivered_once("t", 4, 900)
    assert (version_of(world, PATHS.state) > 1) == (node == "next")
    assert (version_of(world, PATHS.id("c2")) > 1) == (members[1] == "next")
    assert (one.consumer.member._drain.stale, two.consumer.member._drain.stale) == (0, 0)


@in_both_directions
def test_replacement_consumer_of_the_other_release_takes_over_the_offsets(
    world: World, first: str, second: str
) -> None:
    world.coordinator()
    log = MemoryLog(300)
    old = world.consumer("g", "c1", {"t": 1}, log=log, opener=fronted(world, first))
    generation = world.stable("g", 1).generation
    all_came([old], 300)
    eventually(lambda: set(world.offsets("g").values()) == {300}, 10, "all is committed")

    new = world.consumer("g", "c1", {"t": 1}, log=log, opener=fronted(world, second))

    eventually(lambda: type(old.error).__name__ == "FencedInstanceId", 10, "the newer process has the name")
    world.stable("g", 1, above=generation)
    log.end = 400
    eventually(lambda: set(world.offsets("g").values()) == {400}, 10, "it continues")
    assert len(new.polled) == 4 * 100
    world.delivered_once("t", 4, 400)


# ---- failover between the two, in both directions


def test_coordinators_of_both_releases_fail_over_and_keep_a_stable_group(world: World) -> None:
    node = world.coordinator("a")
    world.elected(node)
    log = MemoryLog(200)
    consumers = [
        world.consumer("g", "c1", {"t": 1}, log=log),
        world.consumer("g", "c2", {"t": 1}, log=log, opener=fronted(world, "next")),
    ]
    generation = world.stable("g", 2).generation
    revoked = sum(what != "assigned" for consumer in consumers for what, _ in consumer.events)

    for epoch, release in enumerate(["next", "this", "next", "this"], 2):
        standby = world.coordinator(f"{release}-{epoch}", wrap=RELEASES[release])
        world.stop_coordinator(node)
        world.elected(standby)
        node, log.end = standby, log.end + 100
        all_came(consumers, log.end)
        world.consumer(f"probe-{epoch}", "p", {"t": 1}, opener=fronted(world, "next"))
        world.stable(f"probe-{epoch}", 1)  # it acts; of `g` it took a turn before

    state = world.state("g")
    assert (state.state, state.generation, state.marks) == (STABLE, generation, ())
    assert sum(what != "assigned" for consumer in consumers for what, _ in consumer.events) == revoked
    world.consumer("g", "c3", {"t": 1}, log=log)
    world.stable("g", 3, above=generation)
    world.delivered_once("t", 4, 600)


@in_both_directions
def test_a_rebalance_that_one_release_began_is_finished_by_the_other(
    stage: ManualStage, world: World, first: str, second: str
) -> None:
    begins = stage.hand("first", wrap=RELEASES[first])
    one, two = stage.stable_pair(begins)
    one.move(next(iter(one.running)), 17)
    three = stage.puppet("g", "c3", {"t": 1}, wrap=NextRelease)
    begins.turn("g")
    one.obey()
    begins.close()

    ends = stage.hand("second", wrap=RELEASES[second])
    ends.settle("g", one, two, three)

    assert (one.gave_up, len(two.gave_up)) == ([parts("t", 0, 1)], 1), "no member stops twice"
    assert one.running | two.running | three.running == EVERYTHING
    assert world.state("g").generation == 2
    assert 17 in world.offsets("g").values()
    assert [record.generation for record in world.history("g") if record.finished_ms] == [1, 2]


@in_both_directions
def test_an_eviction_that_one_release_made_is_waited_for_by_the_other(
    stage: ManualStage, world: World, first: str, second: str
) -> None:
    begins = stage.hand("first", wrap=RELEASES[first])
    stuck, other = stage.stable_pair(begins, lease_ms=1000, max_poll_interval_ms=1000)
    three = stage.puppet("g", "c3", {"t": 1})
    begins.evict(stuck, other, three)
    begins.close()
    assert [mark.consumer for mark in world.state("g").marks] == ["c1"]

    ends = stage.hand("second", wrap=RELEASES[second])
    began = ThreadRuntime().monotonic()
    ends.settle("g", other, three)

    assert ThreadRuntime().monotonic() - began >= 0.9, "its lease counts from when this coordinator read the mark"
    assert other.running | three.running == EVERYTHING


def test_group_in_a_state_that_the_next_release_knows_is_not_taken_for_lost(stage: ManualStage, world: World) -> None:
    later = stage.hand("later", wrap=NextRelease)
    one, two = stage.stable_pair(later)
    later.close()
    values = json.loads(world.data(PATHS.state) or b"")
    world.put(PATHS.state, json.dumps({**values, "state": "Settling"}).encode())

    now = stage.hand("now")
    now.turn("g")

    state = world.state("g")
    assert (state.state, state.generation, state.marks) == (STABLE, 1, ())
    assert now.problems.current() == {}
    assert (one.gave_up, two.gave_up) == ([], [])


# ---- what a release does with what it cannot know


def test_command_of_the_next_release_is_removed_and_not_named_as_applied(stage: ManualStage, world: World) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    applied = one.fenced.channel.command
    command = {"version": 2, "option": "warm-up", "epoch": 1, "generation": 1, "incarnation": one.fenced.incarnation}
    world.put(PATHS.command("c1", "command-0000000099"), json.dumps(command).encode())

    one.obey()

    assert (one.commands(), one.stale, one.running) == ([], 1, parts("t", 0, 1))
    assert world.channel("g", "c1").command == applied
    hand.settle("g", one, two)
    assert world.state("g").generation == 1


def test_unknown_znodes_of_the_next_release_are_kept_and_disturb_no_member(stage: ManualStage, world: World) -> None:
    news = ["/consumers/audit", "/consumers/audit/a", f"{PATHS.root}/audit", f"{PATHS.root}/audit/x"]
    for path in news:
        world.put(path, as_next_release(b'{"version":1}'))

    hand = stage.hand()
    one, two = stage.stable_pair(hand)

    assert (one.running | two.running, hand.problems.current()) == (EVERYTHING, {})
    assert all(world.data(path) for path in news)


# ---- segments, queries and pools


@pytest.mark.parametrize("node", RELEASES)
@pytest.mark.parametrize("slot, query", [("this", "next"), ("next", "this")], ids=["new query", "new slot"])
def test_segments_of_one_release_are_read_by_queries_of_the_other_and_collected(
    world: World, tmp_path: Path, node: str, slot: str, query: str
) -> None:
    """The slot's driver is of the query's release."""
    world.coordinator(wrap=RELEASES[node], sweep_interval_ms=100, segment_retention_ms=0)
    bench = SlotBench(world, tmp_path, wrap=RELEASES[query])
    config = SourceConfig(zk=world.zk, group="g", query="q", session_timeout_ms=SESSION_MS)
    with closing(bench), closing(Planner(config, fronted(world, query), ThreadRuntime())) as planner:
        bench.end(300)
        bench.post.keep(1)
        bench.slot(0, wrap=RELEASES[slot], driver_gone_ms=60_000)
        start = planner.initial()
        eventually(lambda: sum(s.rows for s in bench.segments()) == 4 * 300, 15, "all is sealed")
        sealed = [PATHS.segment(name) for name in world.names(PATHS.segments)]
        assert all((version_of(world, path) > 1) == (slot == "next") for path in sealed)

        newest = max(world.names(PATHS.segments))
        end = within(
            lambda: found if (found := planner.latest(start)).segment == newest else None, 5, "its watch was called"
        )
        assert sum(sealed.segment.rows for run in planner.plan(start, end) for sealed in run) == 4 * 300
        # Each trigger publishes the query's finished segments, once a second at most.
        eventually(lambda: planner.latest(end) == end and not bench.segments(), 10, "what is finished is collected")
        record = SegmentsRecord.parse("", world.data(PATHS.segments) or b"")
        assert record.collected == end.czxid
        assert bench.results == {}


# ---- where a group begins


@in_both_directions
@pytest.mark.parametrize("node", RELEASES)
def test_group_begins_where_the_other_release_began_it(world: World, node: str, first: str, second: str) -> None:
    world.coordinator(wrap=RELEASES[node])
    log = TimedLog(end=300)
    one = world.consumer("g", "c1", {"t": 1}, log=log, opener=fronted(world, first), start_position="end")
    eventually(lambda: one.held == EVERYTHING, 10, "it has begun")
    one.vanish()
    log.end = 350

    two = world.consumer("g", "c2", {"t": 1}, log=log, opener=fronted(world, second), start_position="end")

    eventually(lambda: len(two.polled) >= 4 * 50, 15, "records after the start")
    assert two.polled == {(part, offset) for part in EVERYTHING for offset in range(300, 350)}
    assert [(version_of(world, PATHS.offsets_of("t")) > 1), two.error] == [node == "next", None]
