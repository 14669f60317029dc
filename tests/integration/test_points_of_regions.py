"""A change between any two requests of a `ConsumerOperator`, or of the coordinator of its region, costs no record.

A checkpoint is the sequence, and for the operator a reset. Each record is counted once afterwards; no request is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from consumer.errors import Closed
from consumer.operator.consumer_operator import ConsumerOperator
from coordinator.zk.errors import Refused
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Create
from coordinator.zk.znodes.paths import checkpoint_number
from coordinator.zk.znodes.regions import COMPLETED, Region
from tests.support.points import Point, at_every_point, in_virtual_time, reply_is_lost, request_is_lost, session_ends
from tests.support.region import PATHS, Operating, RegionBench
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World, a_world


class Scene(RegionBench[Operating]):
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
        return self.now.state == "Running" and self.world.data(PATHS.request) is None

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


def is_later(now: Region, before: Region) -> bool:
    """A reset takes the place of a checkpoint."""
    return now.sequence > before.sequence or now.reset > before.reset


# ---- what happens


def member_dies(scene: Scene) -> None:
    """And is started again."""
    dies = scene.members["c1"]
    store = dies.consumer.member.store
    if store is not None:
        store.close()
    ThreadRuntime().spawn(dies.vanish, "the end of c1")
    scene.member("c1")


def other_member_dies(scene: Scene) -> None:
    scene.members["c2"].vanish()


def another_joins(scene: Scene) -> None:
    scene.member("c3")


def application_resets(scene: Scene) -> None:
    scene.members["c2"].operator.request_reset("a test")


def application_asks_for_a_checkpoint(scene: Scene) -> None:
    scene.members["c2"].operator.request_checkpoint()


def records_come(scene: Scene) -> None:
    scene.log.end += 5


CHANGES = [
    session_ends,
    reply_is_lost,
    request_is_lost,
    member_dies,
    other_member_dies,
    another_joins,
    application_resets,
    application_asks_for_a_checkpoint,
    records_come,
]
OF_COORDINATORS = [reply_is_lost, other_member_dies, another_joins, application_resets]
"""They have ten times as many requests."""


@pytest.mark.parametrize(
    ("is_members", "change"),
    [*((True, change) for change in CHANGES), *((False, change) for change in OF_COORDINATORS)],
)
def test_change_between_any_two_requests_costs_no_record(is_members: bool, change: Callable[[Scene], None]) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, closing(Scene(world, point, is_members)) as scene:
            scene.completes_one()
            scene.log.end += 10
            with point.sequence(lambda: change(scene)):
                before = scene.now
                scene.asked(lambda one: one.request_checkpoint(), lambda: is_later(scene.now, before))
                if is_members:
                    scene.asked(lambda one: one.request_reset("a test"), lambda: scene.now.reset > before.reset)
                scene.runs("the region runs")
            if change is application_resets:
                eventually(lambda: scene.now.reset > before.reset, 20, "it is reset")
            scene.runs("the region runs again")
            scene.counts_on(5)
            scene.completes_one()
            for each in scene.alive:
                assert not each.operator.wait(0), "it has not ended"

    assert at_every_point(in_virtual_time(play), answers=False) > 5


def member_contributes_late(scene: Scene) -> None:
    """To the oldest checkpoint."""
    oldest = checkpoint_number(min(scene.world.names(PATHS.checkpoints)))
    scene.world.store.commit([Create(PATHS.contribution(oldest, "g", "late"), b"{}")])


def another_is_elected(scene: Scene) -> None:
    scene.world.coordinator(checkpoints_kept=1)
    session_ends(scene)


@pytest.mark.parametrize(
    "change", [reply_is_lost, request_is_lost, another_is_elected, member_contributes_late, application_resets]
)
def test_change_between_any_two_requests_of_a_retirement_leaves_one_whole_cut(change: Callable[[Scene], None]) -> None:
    def play(zk: str, point: Point) -> None:
        with a_world(zk) as world, closing(Scene(world, point, is_members=False, checkpoints_kept=1)) as scene:
            scene.checkpoint()
            scene.counts_on(10)

            def is_retired() -> bool:
                oldest = f"{PATHS.checkpoints}/{min(world.names(PATHS.checkpoints))}"
                return oldest == PATHS.checkpoint(scene.now.sequence) and COMPLETED in world.names(oldest)

            scene.runs("the region runs")
            before = scene.now
            with point.sequence(lambda: change(scene)):
                scene.requests("checkpoint")
                eventually(lambda: is_later(scene.now, before), 20, "a checkpoint, or a reset")
                eventually(is_retired, 20, "the earlier checkpoint is gone")
            eventually(lambda: scene.is_settled() and is_retired(), 20, "the region runs")
            before = scene.now
            scene.requests("reset")
            eventually(lambda: scene.now.reset > before.reset, 20, "it is reset")
            scene.runs("the region runs again")
            scene.exact()

    assert at_every_point(in_virtual_time(play), answers=False) > 5
