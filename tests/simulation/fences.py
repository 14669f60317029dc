"""What would hide a mutation, and fences that are taken away with more than an edit (`fences.txt` has the others)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import consumer.membership.member
import consumer.membership.offsets
import consumer.membership.registration
import coordinator.planning.membership
import coordinator.planning.reconciliation
import coordinator.rebalance.rebalancer
import tests.simulation.tuning
from consumer.consumer import Consumer
from consumer.membership.claims import chunks
from consumer.membership.registration import Keeper
from consumer.sealing.sealer import Sealer
from coordinator.service import Coordinator
from coordinator.zk.errors import CoordinatorError, Refused
from coordinator.zk.znodes.partitions import NONE, TopicPartition
from tests.simulation import znodes
from tests.simulation.callbacks import Watches
from tests.simulation.links import COMMIT
from tests.simulation.mutation import Patch, constant, nothing, replaced
from tests.simulation.zookeeper import SimulatedEnsemble

# ---- what would hide a hole: with these alone the product is still right


def _collects_only(original: Any) -> Any:
    def sweep(self: Coordinator) -> None:
        while not self._ended.wait(self._term.config.sweep_interval_ms / 1000):
            self._collect(self._collector.collect)

    return sweep


NO_SWEEP: tuple[Patch, ...] = (replaced(Coordinator, "_sweep", _collects_only),)
"""Nothing is read again without a reason: where no event is lost, the watches tell of everything."""


def _late_all_the_same(original: Any) -> Any:
    """What a node had on its way is done although its session has another connection by then, as if it were resent."""

    def receive_late(self: SimulatedEnsemble, request: Any) -> None:
        session = request.link.session
        if request.kind != COMMIT or not session.who.startswith("node"):
            original(self, request)
            return

        def happen() -> None:
            if self.leader is not None and not session.is_over:
                with suppress(Refused):
                    self._commit(request.what, session, None)

        self.scheduler.after(3 * self.scheduler.random.random() ** 2, happen)

    return receive_late


RESENT: tuple[Patch, ...] = (replaced(SimulatedEnsemble, "receive_late", _late_all_the_same),)


def _late_contributions(original: Any) -> Any:
    """A contribution whose connection is broken is done all the same, a while later."""

    def receive_late(self: Any, request: Any) -> None:
        if request.kind != COMMIT or not any("/checkpoints/" in each.path for each in request.what):
            original(self, request)
            return
        session = request.link.session

        def happen() -> None:
            if self.leader is not None and not session.is_over:
                with suppress(Refused):
                    self._commit(request.what, session, None)

        self.scheduler.after(2 * self.scheduler.random.random(), happen)

    return receive_late


LATE_CONTRIBUTIONS: tuple[Patch, ...] = (replaced(SimulatedEnsemble, "receive_late", _late_contributions),)


def _asks_no_owners(original: Any) -> Any:
    """A partition may be free while an owner znode stands there: the claim will find it in the way."""

    def taken(moves: Any) -> Any:
        return original(replace(moves, snapshot=replace(moves.snapshot, owners=NONE)))

    return taken


def _claims_over_owners(original: Any) -> Any:
    def create(self: Any, operation: Any) -> Any:
        if operation.ephemeral and "/owners/" in operation.path and self._find(operation.path) is not None:
            self.delete(operation.path, -1)
            self.delta.paths.pop()
            self.delta.versions.pop()
        return original(self, operation)

    return create


NO_OWNERS_IN_THE_WAY: tuple[Patch, ...] = (replaced(znodes._Work, "create", _claims_over_owners),)
"""An owner znode is no second lock: whoever claims has it. What is free is handed on, all the same, only then."""


def _looks_rarely(original: Any) -> Any:
    """Once a session timeout, even where that is later than its eviction."""

    def look_again(self: Keeper, store: Any) -> None:
        now = self._runtime.monotonic()
        if now - self._last_look >= store.negotiated_timeout_s:
            self._last_look = now
            self._wake.set()

    return look_again


def _touches_late(original: Any) -> Any:
    """A sign of life is written under the fence: who gives one hears that it has been evicted. Mostly that is soon."""

    def touch_or_leave(self: Keeper, store: Any, fenced: Any) -> None:
        now, limit_s = self._runtime.monotonic(), self._config.max_poll_interval_ms / 1000
        if now - self.last_poll >= limit_s or now - self.last_commit >= 0.75 * limit_s:
            original(self, store, fenced)

    return touch_or_leave


LOOKS_RARELY: tuple[Patch, ...] = (replaced(Keeper, "_look_again", _looks_rarely),)
TOUCHES_LATE: tuple[Patch, ...] = (replaced(Keeper, "_touch_or_leave", _touches_late),)

OWNERS_NOT_ASKED: tuple[Patch, ...] = (
    replaced(coordinator.planning.reconciliation, "taken_partitions", _asks_no_owners),
)

SMALL_STEPS: tuple[Patch, ...] = (
    constant(consumer.membership.member, "chunks", partial(chunks, size=1)),
    constant(consumer.membership.offsets, "PARTITIONS_A_STEP", 2),
    constant(coordinator.rebalance.rebalancer, "PARTITIONS_A_STEP", 2),
)
"""A command over two partitions is a large one."""

SILENT_LOSSES: tuple[Patch, ...] = (constant(Watches, "fire_all", nothing),)
"""The store calls no watch when its connection is lost, and forgets none: only a second read shows what has changed."""

YOUNG_FILES_TOO: tuple[Patch, ...] = (constant(tests.simulation.tuning, "ORPHAN_AFTER_S", 0.0),)
"""The sweep goes by the channels alone, and not by a file's age."""

SMALL_TAKE_OVERS: tuple[Patch, ...] = (constant(consumer.membership.registration, "PARTITIONS_A_STEP", 2),)


# ---- a consumer's own rules


def _has_polled(original: Any) -> Any:
    def polled(self: Consumer, max_records: int | None) -> Any:
        records = original(self, max_records)
        self.__dict__["_has_polled"] = bool(records)
        return records

    return polled


def _may_fetch_or_has_polled(original: Any) -> Any:
    def may_fetch(self: Consumer) -> bool:
        return self.__dict__.pop("_has_polled", False) or bool(original(self))

    return may_fetch


RETURNED_LATE: tuple[Patch, ...] = (
    replaced(Consumer, "_polled", _has_polled),
    replaced(Consumer, "_may_fetch", _may_fetch_or_has_polled),
)


# ---- sealing and collecting


def _advances_all_the_same(original: Any) -> Any:
    """What cannot be sealed is dropped, and the offsets go past it."""

    def start_over(self: Sealer, reason: str) -> None:
        pending = self._segments.pending
        ranges = [*(pending.ranges if pending is not None else ()), *self._open.ranges]
        offsets = {TopicPartition(item.topic, item.partition): item.next for item in ranges}
        if offsets:
            with suppress(CoordinatorError):
                self._membership.advance(offsets)
        original(self, reason)

    return start_over


PAST_DROPPED: tuple[Patch, ...] = (replaced(Sealer, "_start_over", _advances_all_the_same),)
