"""What happens between any two requests of a consumer, or of a `ConsumerOperator`, or of the coordinator of its region,
costs no record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.support.memlog import MemoryLog
from tests.support.points import Point, at_points, reply_is_lost, request_is_lost, session_ends
from tests.support.region import PATHS as REGION
from tests.support.region import Operating, RegionBench
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, PollingConsumer, World, a_world, parts
from zk_group.consumer.errors import Closed, FencedInstanceId
from zk_group.consumer.operator.consumer_operator import ConsumerOperator
from zk_group.coordinator.admin.control import remove_seats
from zk_group.coordinator.zk.errors import Refused
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Create, Delete, StoreFactory
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths, checkpoint_number
from zk_group.coordinator.zk.znodes.records import Seat, TurnRequest
from zk_group.coordinator.zk.znodes.regions import COMPLETED, Region

PATHS = GroupPaths("g")
ALL = parts("t", 0, 1, 2, 3)

# ---- a consumer joins, is rebalanced and leaves; as a leader it answers, too


class Scene:
    """Group `g`: c1, whose requests are the sequence, joins beside c0.

    :ivar is_static: whether c1 is a static member.  :ivar fenced: a c1 whose name another process has taken.
    """

    def __init__(self, world: World, point: Point, assignment: str, is_static: bool) -> None:
        self.world = world
        self.point = point
        self.assignment = assignment
        self.is_static = is_static
        self.log = MemoryLog(end=20)
        self.members: dict[str, PollingConsumer] = {}
        self.fenced: list[PollingConsumer] = []

    def joins(self, name: str, is_static: bool = False, opener: StoreFactory | None = None) -> PollingConsumer:
        options: dict[str, Any] = {"group_instance_id": name} if is_static else {}
        self.members[name] = self.world.consumer(
            "g", name, {"t": 1}, log=self.log, opener=opener, assignment=self.assignment, **options
        )
        return self.members[name]

    def is_settled(self) -> bool:
        world, state = self.world, self.world.state("g")
        assert (state.state, sorted(state.target)) == ("Stable", sorted(self.members)), state
        held = sorted(part for each in self.members.values() for part in each.held)
        assert held == sorted(ALL) and world.owners("g").keys() == ALL, held
        seats = [Seat.parse("", world.data(PATHS.seat(name)) or b"").registration for name in world.names(PATHS.seats)]
        lives = [world.channel("g", "c1").incarnation] if self.is_static else []
        assert [seat.incarnation for seat in seats] == lives
        for name, each in self.members.items():
            assert world.commands("g", name) == []
            running = frozenset(world.channel("g", name).running)
            assert running == state.target[name].partitions == each.held
        return True

    def is_fenced(self) -> bool:
        return all(isinstance(each.error, FencedInstanceId) for each in self.fenced)

    def reads_on(self) -> None:
        self.log.end += 5
        wanted = {(part, offset) for part in ALL for offset in range(self.log.end)}

        def polled() -> bool:
            return {item for each in self.world.consumers for item in each.polled.copy()} >= wanted

        eventually(polled, 10, "all records are delivered")

    def another_process_takes_the_name(self) -> None:
        """Each is fenced by the later one; a process that has not registered yet would take the name itself."""
        if self.world.data(PATHS.id("c1")) is not None:
            self.fenced.append(self.members["c1"])
            taker = self.joins("c1", self.is_static)
            eventually(lambda: taker.consumer.member.registrations, 10, "it has registered")

    def dynamic_process_takes_the_name(self) -> None:
        """It has no seat."""
        if self.world.data(PATHS.id("c1")) is not None:
            self.is_static = False
            self.another_process_takes_the_name()

    def operator_removes_the_seat(self) -> None:
        """The member comes back on a seat of its own."""
        if self.world.data(PATHS.seat("c1")) is not None:
            remove_seats(self.world.store, "g", ["c1"], "a test")
            self.world.put(PATHS.request, TurnRequest("ann", 0).to_bytes())

    def other_member_leaves(self) -> None:
        if "c0" in self.members:
            self.members.pop("c0").close()

    def another_joins(self) -> None:
        self.joins("c2")
        eventually(lambda: self.world.data(PATHS.id("c2")), 10, "it has registered")

    def hand_removes_the_channel(self) -> None:
        if self.world.data(PATHS.channel("c1")) is not None:
            self.world.remove(PATHS.channel("c1"))

    def coordinator_is_deposed(self) -> None:
        if self.world.data(COORDINATOR) is not None:
            self.world.store.commit([Delete(COORDINATOR)])


CLEAN: dict[str, Callable[[Scene], object]] = {
    "a reply is lost": reply_is_lost,
    "a request is lost": request_is_lost,
    "the other member leaves": Scene.other_member_leaves,
    "another joins": Scene.another_joins,
    "the coordinator is deposed": Scene.coordinator_is_deposed,
}
OF_ANY: dict[str, Callable[[Scene], object]] = {
    "its session ends": session_ends,
    "another process takes the name": Scene.another_process_takes_the_name,
}
"""After all but the clean ones records may come again."""
CHANGES = CLEAN | OF_ANY | {"a hand removes the channel": Scene.hand_removes_the_channel}
OF_STATIC_MEMBERS = OF_ANY | {
    "a reply is lost": reply_is_lost,
    "a dynamic process takes the name": Scene.dynamic_process_takes_the_name,
    "an operator removes the seat": Scene.operator_removes_the_seat,
}


@pytest.mark.parametrize(
    ("change", "assignment", "is_static"),
    [
        *((change, side, False) for side in ("coordinator", "client") for change in CHANGES),
        *((change, "coordinator", True) for change in OF_STATIC_MEMBERS),
    ],
)
@at_points(over=10, answers=False)
def test_change_costs_a_member_no_record(zk: str, point: Point, change: str, assignment: str, is_static: bool) -> None:
    with a_world(zk) as world:
        scene = Scene(world, point, assignment, is_static)
        world.topic("t", 4)
        world.coordinator()
        with point.sequence(lambda: (CHANGES | OF_STATIC_MEMBERS)[change](scene)):
            scene.joins("c1", is_static, lambda: point.wrap(kazoo_factory(zk, SESSION_MS)()))
            eventually(lambda: world.data(PATHS.id("c1")), 10, "c1 has registered")
            scene.joins("c0")
            eventually(scene.is_settled, 20, "the group has settled", ignoring=(KeyError, RuntimeError))
        eventually(scene.is_settled, 20, "the group has settled again", ignoring=(KeyError, RuntimeError))
        eventually(scene.is_fenced, 10, "the first c1 is fenced")
        scene.reads_on()
        if change == "a reply is lost":
            assert world.registrations("g") == 2, "each has registered once"
        if change in CLEAN:
            world.delivered_once("t", 4, scene.log.end)
            assert [each.error for each in world.consumers] == [None] * len(world.consumers)


# ---- in a region: each record is counted once after a checkpoint, or a reset; no request is lost


class Regional(RegionBench[Operating]):
    """Region `r` of operators c1 and c2; the sequence's requests are those of c1, or of the coordinator."""

    def __init__(self, world: World, point: Point, is_members: bool, checkpoints_kept: int = 10) -> None:
        super().__init__(world, Operating)
        self.log.end = 20
        self.topic(2)
        self.point = point
        self._opener = kazoo_factory(world.zk, SESSION_MS)
        self._is_members = is_members
        wrap = lambda store: store if is_members else point.wrap(store)  # noqa: E731
        world.coordinator(wrap=wrap, checkpoints_kept=checkpoints_kept)
        self.member("c1")
        self.member("c2")
        self.runs("the region runs")
        self.exact()

    def member(self, name: str, **options: Any) -> Operating:
        is_pointed = name == "c1" and self._is_members
        open_store = (lambda: self.point.wrap(self._opener())) if is_pointed else self._opener
        return super().member(name, open_store=open_store, **options)

    def requests(self, what: str) -> None:
        """As an operator does, beside a request that is there."""
        with suppress(Refused):
            self.asks(what)

    def is_settled(self) -> bool:
        state = self.world.state("g")
        assert (state.state, sorted(state.target)) == ("Stable", sorted(one.name for one in self.alive)), state
        return self.now.state == "Running" and self.world.data(REGION.request) is None

    def runs(self, what: str) -> None:
        eventually(self.is_settled, 20, what)

    @property
    def alive(self) -> list[Operating]:
        return self.groups()["g"]

    def asked(self, request: Callable[[ConsumerOperator], None], is_done: Callable[[], bool]) -> None:
        """c1 asks for something once; its next life, too: a request ends with its process."""
        asked: list[Operating] = []

        def is_carried_out() -> bool:
            one = self.members["c1"]
            if one not in asked:
                request(one.operator)
                asked.append(one)
            return is_done()

        eventually(is_carried_out, 20, "the request is carried out", ignoring=(Closed,))

    def completes_one(self) -> None:
        """One more checkpoint, beside what others ask for."""
        before = self.now.sequence

        def is_complete() -> bool:
            self.requests("checkpoint")
            return self.now.sequence > before

        eventually(is_complete, 20, "a checkpoint is complete")

    def member_dies(self) -> None:
        """And is started again."""
        dies = self.members["c1"]
        store = dies.consumer.member.store
        if store is not None:
            store.close()
        ThreadRuntime().spawn(dies.vanish, "the end of c1")
        self.member("c1")

    def records_come(self) -> None:
        self.log.end += 5

    def member_contributes_late(self) -> None:
        """To the oldest checkpoint."""
        oldest = checkpoint_number(min(self.world.names(REGION.checkpoints)))
        self.world.store.commit([Create(REGION.contribution(oldest, "g", "late"), b"{}")])

    def another_is_elected(self) -> None:
        self.world.coordinator(checkpoints_kept=1)
        session_ends(self)


def is_later(now: Region, before: Region) -> bool:
    """A reset takes the place of a checkpoint."""
    return now.sequence > before.sequence or now.reset > before.reset


Changes = dict[str, Callable[[Regional], object]]
RESET: Changes = {"an application resets": lambda scene: scene.members["c2"].operator.request_reset("a test")}
OF_COORDINATORS = RESET | {
    "a reply is lost": reply_is_lost,
    "the other member dies": lambda scene: scene.members["c2"].vanish(),
    "another joins": lambda scene: scene.member("c3"),
}
"""They have ten times as many requests."""
OF_OPERATORS = OF_COORDINATORS | {
    "its session ends": session_ends,
    "a request is lost": request_is_lost,
    "it dies": Regional.member_dies,
    "an application asks for a checkpoint": lambda scene: scene.members["c2"].operator.request_checkpoint(),
    "records come": Regional.records_come,
}
OF_RETIREMENTS = RESET | {
    "a reply is lost": reply_is_lost,
    "a request is lost": request_is_lost,
    "another is elected": Regional.another_is_elected,
    "a member contributes late": Regional.member_contributes_late,
}


@pytest.mark.parametrize(
    ("is_members", "change"),
    [*((True, change) for change in OF_OPERATORS), *((False, change) for change in OF_COORDINATORS)],
)
@at_points(over=5, answers=False)
def test_change_beside_a_region_costs_no_record(zk: str, point: Point, is_members: bool, change: str) -> None:
    with a_world(zk) as world, closing(Regional(world, point, is_members)) as scene:
        scene.completes_one()
        scene.log.end += 10
        with point.sequence(lambda: OF_OPERATORS[change](scene)):
            before = scene.now
            scene.asked(lambda one: one.request_checkpoint(), lambda: is_later(scene.now, before))
            if is_members:
                scene.asked(lambda one: one.request_reset("a test"), lambda: scene.now.reset > before.reset)
            scene.runs("the region runs")
        if change in RESET:
            eventually(lambda: scene.now.reset > before.reset, 20, "it is reset")
        scene.runs("the region runs again")
        scene.counts_on(5)
        scene.completes_one()
        for each in scene.alive:
            assert not each.operator.wait(0), "it has not ended"


@pytest.mark.parametrize("change", OF_RETIREMENTS)
@at_points(over=5, answers=False)
def test_change_beside_a_retirement_leaves_one_whole_cut(zk: str, point: Point, change: str) -> None:
    with a_world(zk) as world, closing(Regional(world, point, is_members=False, checkpoints_kept=1)) as scene:
        scene.checkpoint()
        scene.counts_on(10)

        def is_retired() -> bool:
            oldest = f"{REGION.checkpoints}/{min(world.names(REGION.checkpoints))}"
            return oldest == REGION.checkpoint(scene.now.sequence) and COMPLETED in world.names(oldest)

        scene.runs("the region runs")
        before = scene.now
        with point.sequence(lambda: OF_RETIREMENTS[change](scene)):
            scene.requests("checkpoint")
            eventually(lambda: is_later(scene.now, before), 20, "a checkpoint, or a reset")
            eventually(is_retired, 20, "the earlier checkpoint is gone")
        eventually(lambda: scene.is_settled() and is_retired(), 20, "the region runs")
        before = scene.now
        scene.requests("reset")
        eventually(lambda: scene.now.reset > before.reset, 20, "it is reset")
        scene.runs("the region runs again")
        scene.exact()
