"""One group's data delays no other group: what a group costs, it waits for behind the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import pytest

from coordinator.listeners.listeners import Listeners
from coordinator.listeners.members import REGISTRATIONS_AT_ONCE
from coordinator.listeners.topics import Interests
from coordinator.rebalance.group_reader import GroupReader
from coordinator.term.operator_requests import Asked
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, Delete, Node, Operation, SetData, Store, Watch
from coordinator.zk.update import ensure
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.paths import GROUPS, TURN_TIMES, GroupPaths
from coordinator.zk.znodes.records import Registration, Topic, TurnTimes
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.cli import run_json
from tests.support.clients import connected
from tests.support.stores import FrontStore, Reads
from tests.support.terms import a_term
from tests.support.wait import eventually
from tests.support.world import World

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
        note = lambda group, why: asked.setdefault(f"{group}: {why}", store.count)  # noqa: E731
        listeners = Listeners(term, Interests(ThreadRuntime()), note, Asked(term))
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
    eventually(
        lambda: world.store.get(GroupPaths(names[-1]).state) is not None, 60, "they have their turns all the same"
    )


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

    snapshot = reader.read({"t": Topic("t", "id", (0,))})

    assert snapshot is not None
    assert len(snapshot.owner_parents) == 501
    assert [path for path in store.paths if path.startswith((SMALL.owners_of(""), SMALL.offsets_of("")))] == [
        SMALL.owners_of("t")
    ]
