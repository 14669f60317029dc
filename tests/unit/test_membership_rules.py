"""Membership where a turn's reads matter, these reads, and the choice of a strategy. All else is in `turns/`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.property.group_world import GROUP, PATHS, SESSION_S, GroupWorld, MemberProcess, act_between
from tests.property.test_convergence import settle
from tests.property.tree import MemoryTreeStore
from tests.support.terms import a_term
from zk_group.coordinator.assignors import Assignor, RangeAssignor
from zk_group.coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from zk_group.coordinator.planning.agreement import ESTABLISHED, NEWCOMER, Candidate, choose
from zk_group.coordinator.planning.membership import GroupRules
from zk_group.coordinator.planning.plan import plan
from zk_group.coordinator.planning.snapshot import Snapshot
from zk_group.coordinator.rebalance.group_reader import NO_MEMORY, GroupReader
from zk_group.coordinator.rebalance.observation import Memory, written
from zk_group.coordinator.term.reading import Problems
from zk_group.coordinator.zk.store import Create, Delete, Listing, Node, SetData, Watch
from zk_group.coordinator.zk.znodes.group_state import PREPARING, STABLE
from zk_group.coordinator.zk.znodes.json_fields import MAX_COUNT
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER, Channel, Command, OwnerRecord
from zk_group.coordinator.zk.znodes.segments import Pool

T = {"t": 1}
KNOWN = {name: RangeAssignor() for name in ("range", "roundrobin", "sticky")}


def a_world(**rules: float) -> GroupWorld:
    world = GroupWorld(RangeAssignor(), rules=GroupRules(**rules))  # type: ignore[arg-type]
    world.topic("t", 4)
    return world


def running(world: GroupWorld) -> dict[str, list[int]]:
    channels = world.channels().items()
    return {name: sorted(part.partition for part in one.running) for name, one in channels if one.is_live}


def run_turns(world: GroupWorld, turns: int = 3) -> None:
    """Some turns in no time, in which every member polls."""
    for _ in range(turns):
        world.turn()
        for process in list(world.processes):
            process.tend()


# ---- choice of the strategy


@pytest.mark.parametrize(
    ("members", "current", "chosen", "refused"),
    [
        ("range", "", "range", []),
        ("roundrobin,range range", "range", "range", []),
        ("roundrobin,range roundrobin,range", "range", "roundrobin", []),
        ("roundrobin roundrobin,range", "roundrobin", "roundrobin", []),
        ("range,sticky sticky,range", "range", "range", []),
        ("range,sticky sticky,range", "sticky", "sticky", []),
        ("range,sticky sticky,range", "", "range", []),
        ("range,sticky sticky,range sticky,range", "range", "sticky", []),
        ("unheard-of,sticky,range range,sticky sticky", "range", "sticky", []),
        pytest.param("range +sticky range,sticky", "range", "range", ["c1"], id="a newcomer without one is refused"),
        pytest.param("+sticky +range", "", "sticky", ["c1"], id="first of newcomers without one is admitted"),
        pytest.param("range mine", "range", "range", ["c1"], id="incompatible member is removed"),
    ],
)
def test_strategy_that_most_prefer_is_chosen(members: str, current: str, chosen: str, refused: list[str]) -> None:
    """Members in the order of registration, newcomers with a +."""
    candidates = [
        Candidate(f"c{n}", tuple(each.strip("+").split(",")), NEWCOMER if each[0] == "+" else ESTABLISHED, n)
        for n, each in enumerate(members.split())
    ]

    for found in (choose(candidates, current, KNOWN), choose(reversed(candidates), current, KNOWN)):
        assert found.offer is not None
        assert (found.offer.name, list(found.refused)) == (chosen, refused)


# ---- static members


def two_static() -> tuple[GroupWorld, MemberProcess, MemberProcess]:
    world = a_world()
    first, second = (world.start(name, T, is_static=True) for name in "ab")
    settle(world)
    return world, first, second


def test_fenced_static_member_hands_all_partitions_to_the_newer_process() -> None:
    world, first, second = two_static()
    generation = world.state.generation

    world.start("a", T, is_static=True)
    first.tend()
    run_turns(world)

    assert first.gone
    assert running(world) == {"a": [0, 1], "b": [2, 3]}
    assert (world.state.generation, second.stopped) == (generation, [])


def test_a_seat_outlives_the_coordinators_failover() -> None:
    world, first, _ = two_static()
    generation = world.state.generation
    first.leave()
    world.turn()
    world.tick(SESSION_S - 0.1)
    world.elect()
    run_turns(world)

    world.tick(SESSION_S - 0.1)  # for the new coordinator its absence begins with its own election
    world.start("a", T, is_static=True)
    run_turns(world)

    assert world.state.generation == generation
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


def test_reclaimed_seat_survives_a_turn_that_saw_it_empty() -> None:
    world, first, _ = two_static()
    first.leave()
    world.turn()
    world.tick(SESSION_S)
    has_come = act_between(world, 12, lambda: world.start("a", T, is_static=True))  # before the turn's commit

    world.turn()

    assert has_come()
    settle(world)
    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert running(world) == {"a": [0, 1], "b": [2, 3]}


@pytest.mark.parametrize("nth", range(1, 16))
def test_turn_during_a_restart_of_a_static_member_keeps_its_partitions(nth: int) -> None:
    world, first, second = two_static()
    generation = world.state.generation
    first.leave()
    world.turn()
    act_between(world, nth, lambda: world.start("a", T, is_static=True))
    world.turn()

    run_turns(world)

    assert sorted(world.tree.children(PATHS.seats)) == ["a", "b"]
    assert (world.state.generation, second.stopped) == (generation, [])
    assert "b" in running(world)


# ---- a group's start


@pytest.mark.parametrize("nth", range(1, 16))
def test_static_member_registering_during_a_turn_does_not_end_the_initial_delay(nth: int) -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("a", T)
    world.turn()
    act_between(world, nth, lambda: world.start("s", T, is_static=True))
    world.turn()

    world.turn()

    assert (world.state.generation, world.state.state) == (0, PREPARING)


@pytest.mark.parametrize(
    ("data", "generation"),
    [(Pool(1, "run").to_bytes(), 1), (Pool(0, "run").to_bytes(), 0), (Pool(10_000, "run").to_bytes(), 0), (b"no", 0)],
    ids=["its one slot has joined", "no slots", "more slots than a pool may have", "unreadable"],
)
def test_pool_without_slots_to_wait_for_does_not_end_the_initial_delay(data: bytes, generation: int) -> None:
    world = a_world(initial_delay_s=0.5)
    world.start("p-slot-0", T)
    world.tree.put(PATHS.pools, b"")
    world.tree.put(PATHS.pool("p"), data)

    world.turn()

    assert world.state.generation == generation


# ---- threads of one member; how partitions move between members is in `turns/reconciliation.txt`


def threads_of(world: GroupWorld) -> dict[str, str]:
    """Partition -> the thread in its owner znode."""
    found = {}
    for partition in world.snapshot().partitions.owners:
        node = world.session().get(PATHS.owner(*partition))
        assert node is not None
        found[str(partition)] = OwnerRecord.parse("", node.data).thread
    return found


def in_target(world: GroupWorld) -> dict[str, str]:
    threads = [item for target in world.state.target.values() for item in target.threads.items()]
    return {str(part): thread for thread, parts in threads for part in parts}


STRATEGIES: tuple[Assignor, ...] = (CooperativeStickyAssignor(), RangeAssignor(), StickyAssignor())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=[each.name for each in STRATEGIES])
def test_partition_that_goes_to_another_thread_of_its_member_is_stopped_and_started(strategy: Assignor) -> None:
    world = GroupWorld(strategy)
    world.topic("t", 4)
    member = world.start("j1", {"t": 1})
    settle(world)
    assert set(threads_of(world).values()) == {"j1-0"}

    for count in (2, 4, 1):
        member.change_threads(count)
        settle(world)

        assert world.state.state == STABLE
        assert len(set(in_target(world).values())) == count
        assert threads_of(world) == in_target(world)


def test_partition_that_stays_on_its_thread_is_not_stopped() -> None:
    world = GroupWorld(CooperativeStickyAssignor())
    world.topic("t", 4)
    member = world.start("j1", {"t": 1})
    settle(world)

    member.change_threads(2)
    settle(world)

    (stopped,) = member.stopped
    assert len(stopped) == 2


# ---- reads of a turn in the order of the protocol, and first-seen times


class Recorded(MemoryTreeStore):
    """A store that records its reads, in order."""

    def __init__(self, world: GroupWorld) -> None:
        super().__init__(world.tree, 99, lambda: None, 3.0)
        self.read: list[str] = []

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self.read.append(f"data {path}")
        return super().get(path, watch)

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        self.read.append(f"children {path}")
        return super().children(path, watch)


@pytest.fixture
def world() -> GroupWorld:
    """A stable group of two."""
    world = GroupWorld(RangeAssignor())
    world.topic("t", 4)
    world.start("a", {"t": 1})
    world.start("b", {"t": 1})
    settle(world)
    return world


def reader(world: GroupWorld, store: MemoryTreeStore | None = None) -> GroupReader:
    return reader_with_problems(world, store)[0]


def reader_with_problems(world: GroupWorld, store: MemoryTreeStore | None = None) -> tuple[GroupReader, Problems]:
    term = a_term(store or world.tree.open(), world.runtime, world.epoch)
    return GroupReader(term, GROUP, lambda path: None), term.problems


def read(world: GroupWorld, some: GroupReader, memory: Memory = NO_MEMORY) -> Snapshot:
    found = some.read(world.topics, memory)
    assert found is not None
    return found.snapshot


def test_a_turn_reads_state_then_commands_then_channels_then_ids_then_owners(world: GroupWorld) -> None:
    """A model of the protocol finds two owners when a channel is read before its commands, or the state after them."""
    world.tree.put(f"{PATHS.command_prefix('a')}0000000099", b"{}")
    store = Recorded(world)

    read(world, reader(world, store))

    def at(what: str) -> int:
        return store.read.index(what)

    def last(what: str) -> int:
        return len(store.read) - 1 - store.read[::-1].index(what)

    # b has no command: the read without one also counts. a has one, and is read again after it.
    assert at(f"data {PATHS.state}") < min(at(f"data {PATHS.channel(name)}") for name in ("a", "b"))
    assert f"children {PATHS.channel('b')}" not in store.read
    assert at(f"children {PATHS.channel('a')}") < at(f"data {PATHS.command('a', 'command-0000000099')}")
    assert at(f"data {PATHS.command('a', 'command-0000000099')}") < last(f"data {PATHS.channel('a')}")
    for name in ("a", "b"):
        assert last(f"data {PATHS.channel(name)}") < at(f"children {PATHS.ids}") < at(f"data {PATHS.id(name)}")
    assert at(f"data {PATHS.id('b')}") < at(f"children {PATHS.owners_of('t')}")


def test_ages_count_from_the_first_read_by_the_coordinator(world: GroupWorld) -> None:
    """Of a command, of a member and of an empty seat."""
    some = reader(world)
    read(world, some)
    world.tree.commit([Create(PATHS.command_prefix("a"), b"{}", sequential=True)], 0)
    world.start("c", {"t": 1})
    world.start("s", {"t": 1}, is_static=True).leave()

    ages = []
    for _ in range(3):
        found = read(world, some)
        (sent,) = found.members.channels["a"].commands
        ages.append((sent.age_s, found.members.registered["c"].age_s, found.members.seats["s"].away_s))
        world.runtime.now += 1.5

    assert ages == [(0.0,) * 3, (1.5,) * 3, (3.0,) * 3]
    (sent,) = read(world, reader(world)).members.channels["a"].commands
    assert sent.age_s == 0.0  # another coordinator, another epoch: every member gets the whole time again


def test_child_of_a_channel_with_another_name_is_no_command(world: GroupWorld) -> None:
    world.tree.put(f"{PATHS.channel('a')}/other-0000000001", Command(STOP_FETCHER, 1, 1, "a-1").to_bytes())

    (sent,) = read(world, reader(world)).members.channels["a"].commands

    assert (sent.name, sent.command) == ("other-0000000001", None)


def test_sign_of_life_is_timed_by_the_observed_change_of_the_channel(world: GroupWorld) -> None:
    some = reader(world)
    read(world, some)
    world.runtime.now += 2.0
    assert read(world, some).members.channels["a"].idle_s == 2.0
    data = world.tree.data(PATHS.channel("a")) or b""

    world.tree.commit([SetData(PATHS.channel("a"), data)], 0)

    assert read(world, some).members.channels["a"].idle_s == 0.0
    assert read(world, some).members.channels["b"].idle_s == 2.0


def test_lost_state_restarts_at_the_generation_of_the_history_or_written_here(world: GroupWorld) -> None:
    some = reader(world)
    found = some.read(world.topics)
    assert found is not None
    memory = written(Memory(), plan(found.snapshot, world.assignors), found.znodes.czxid, 0.0)
    before = world.state.generation
    world.tree.commit([SetData(PATHS.state, b"{")], 0)
    assert read(world, reader(world)).state.generation == before, "that of the history"

    for name in world.tree.children(PATHS.history) or ():
        world.tree.commit([Delete(f"{PATHS.history}/{name}")], 0)

    assert read(world, some, memory).state.generation == before
    assert read(world, reader(world)).state.generation == 0  # a later epoch: its commands are newer all the same


@pytest.mark.parametrize("said", [10**6, MAX_COUNT, MAX_COUNT + 1, 2**63 - 1])
def test_no_generation_that_a_member_writes_raises_the_groups(world: GroupWorld, said: int) -> None:
    before = world.state
    channel = world.channels()["a"]
    world.tree.commit([SetData(PATHS.channel("a"), replace(channel, generation=said).to_bytes())], 0)

    found = read(world, reader(world))

    assert (found.state.generation, found.state.marks) == (before.generation, ())
    assert plan(found, world.assignors).state.generation <= before.generation + 1
    assert (found.members.channels["a"].channel is None) == (said > MAX_COUNT)


def test_lost_state_hands_no_partition_on_while_earlier_evictions_are_unknown(world: GroupWorld) -> None:
    world.tree.commit([SetData(PATHS.state, b"{")], 0)
    world.processes[0].expire()
    some = reader(world)

    first = read(world, some)
    world.runtime.now += 39.9
    last = read(world, some)
    world.runtime.now += 0.2
    after = read(world, some)

    every = {TopicPartition("t", number) for number in range(4)}
    for found in (first, last):
        decided = plan(found, world.assignors)
        assert {part for mark in decided.state.marks for part in mark.partitions} == every
        assert all(command.started <= found.members.channels[name].running for name, command in decided.starts)
    assert "unknown" not in {mark.consumer for mark in plan(after, world.assignors).state.marks}


def test_state_that_is_lost_again_is_waited_for_again(world: GroupWorld) -> None:
    """An eviction between the two losses has its mark in neither."""
    some = reader(world)
    for _ in range(2):
        world.tree.commit([SetData(PATHS.state, b"{")], 0)
        found = read(world, some)
        world.runtime.now += 39.9
        assert "unknown" in {mark.consumer for mark in plan(read(world, some), world.assignors).state.marks}
    (mark,) = found.state.marks
    assert mark.partitions


def test_partition_running_without_an_owner_znode_is_not_reassigned(world: GroupWorld) -> None:
    held = sorted(world.channels()["a"].running)
    world.tree.commit([Delete(PATHS.owner(*partition)) for partition in held], 0)
    world.tree.commit([SetData(PATHS.id("a"), b"{")], 0)  # it cannot be asked to stop, but it lives

    for _ in range(20):
        world.turn()
        world.processes[1].tend()
        world.tick(0.1)

    assert set(world.channels()["a"].running) == set(held)
    assert not set(world.channels()["b"].running) & set(held)


def test_invalid_names_are_ignored(world: GroupWorld) -> None:
    world.tree.put(f"{PATHS.channels}/with space", b"{}")
    world.tree.put(f"{PATHS.ids}/with space", b"{}")
    world.tree.put(f"{PATHS.owners}/with space", b"")
    world.tree.put(f"{PATHS.owners_of('t')}/x", b"")
    some, problems = reader_with_problems(world)

    found = read(world, some)

    assert (set(found.members.channels), set(found.members.registered)) == ({"a", "b"}, {"a", "b"})
    assert found.partitions.owners == {TopicPartition("t", number) for number in range(4)}
    assert any("with space" in path for path in problems.current())


def test_unreadable_znode_is_ignored_and_reported_once_until_it_is_repaired(world: GroupWorld) -> None:
    data = world.tree.data(PATHS.channel("a")) or b""
    world.tree.commit([SetData(PATHS.channel("a"), b"{")], 0)
    world.tree.commit([SetData(PATHS.id("b"), b"[]")], 0)
    world.tree.commit([Create(PATHS.command_prefix("b"), b"\xff", sequential=True)], 0)
    some, problems = reader_with_problems(world)

    found = read(world, some)
    read(world, some)

    (sent,) = found.members.channels["b"].commands
    assert (found.members.channels["a"].channel, found.members.registered["b"].registration, sent.command) == (
        None,
        None,
        None,
    )
    assert problems.count == 3 and PATHS.channel("a") in problems.current()
    world.tree.commit([SetData(PATHS.channel("a"), data)], 0)
    assert isinstance(read(world, some).members.channels["a"].channel, Channel)
    assert PATHS.channel("a") not in problems.current()
