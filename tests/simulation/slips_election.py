"""Slips of the election, and of a coordinator's term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import coordinator.term.elector
from coordinator.listeners.listeners import Listeners
from coordinator.service import Coordinator
from coordinator.term.elector import Elector
from coordinator.term.term import Term
from coordinator.zk.errors import OutcomeUnknown, Refused
from coordinator.zk.store import Create, SetData
from coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH
from coordinator.zk.znodes.records import CoordinatorRecord, EpochRecord
from tests.simulation.mutation import Mutation, Patch, of, replaced

# ---- what would hide a slip: with these alone the product is still right


def _checks_the_epoch_only(original: Any) -> Any:
    def check(self: Term) -> None:
        epoch = self.store.get(COORDINATOR_EPOCH)
        if epoch is None or epoch.stat.version != self.fence:
            raise self._over()

    return check


def _looks_at_no_znode(original: Any) -> Any:
    return lambda self: self._look_at_znode.clear()


OWN_ZNODE_NOT_CHECKED: tuple[Patch, ...] = (
    replaced(Term, "check", _checks_the_epoch_only),
    replaced(Coordinator, "_watch_own_znode", _looks_at_no_znode),
)
"""A coordinator goes on until the epoch moves, also when the znode of the coordinator is another node's."""


# ---- the election


def _any_owner_is_oneself(original: Any) -> Any:
    def elect(self: Elector) -> Any:
        node = self._store.get(COORDINATOR, watch=self._on_coordinator)
        if node is not None:
            return self._won(CoordinatorRecord.parse(COORDINATOR, node.data).epoch)
        return original(self)

    return elect


def _epoch_without_version(original: Any) -> Any:
    def bid(self: Elector) -> Any:
        epoch, operations = original(self)
        return epoch, [replace(op, version=-1) if isinstance(op, SetData) else op for op in operations]

    return bid


def _same_epoch(original: Any) -> Any:
    def bid(self: Elector) -> Any:
        epoch, operations = original(self)
        if any(isinstance(op, Create) for op in operations):
            return epoch, operations
        return epoch - 1, [replace(op, data=EpochRecord(epoch - 1).to_bytes()) for op in operations]

    return bid


def _at_version_zero(original: Any) -> Any:
    def bid(self: Elector) -> Any:
        epoch, operations = original(self)
        made = [op for op in operations if isinstance(op, Create)]
        return epoch, made or operations

    return bid


def _none_of_consumers(original: Any) -> Any:
    return lambda path, node: 0 if path == CONSUMERS else original(path, node)


def _unknown_is_won(original: Any) -> Any:
    def elect(self: Elector) -> Any:
        if self._store.get(COORDINATOR, watch=self._on_coordinator) is not None:
            return original(self)
        epoch, operations = self._bid()
        record = CoordinatorRecord(self._node, self._host, epoch)
        try:
            self._store.commit([Create(COORDINATOR, record.to_bytes(), ephemeral=True), *operations])
        except Refused:
            self._wake.set()
            return None
        except OutcomeUnknown:
            self._store.sync()
        return self._won(epoch)

    return elect


# ---- the term


def _starts_without_pauses(original: Any) -> Any:
    def start(self: Listeners) -> None:
        self.region_change()
        self._topics.topic_change()
        self.group_change()
        for group in self.groups():
            self._ask(group, "coordinator elected")

    return start


ELECTION: tuple[Mutation, ...] = (
    Mutation(
        "another node's coordinator znode is taken for one's own",
        "Election 1",
        (replaced(Elector, "_elect", _any_owner_is_oneself),),
        of("S4"),
        ("aimed", "storm"),
        OWN_ZNODE_NOT_CHECKED,
    ),
    Mutation(
        "the epoch is set without its version",
        "Election 2",
        (replaced(Elector, "_bid", _epoch_without_version),),
        of("S4"),
        ("aimed", "storm"),
    ),
    Mutation(
        "an election does not raise the epoch",
        "Election 2",
        (replaced(Elector, "_bid", _same_epoch),),
        of("S3", "S4", "S6", "L1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a new epoch znode stays at version 0",
        "Election 3",
        (replaced(Elector, "_bid", _at_version_zero),),
        of("S4"),
        ("aimed",),
        OWN_ZNODE_NOT_CHECKED,
    ),
    Mutation(
        "a new epoch znode does not go by the epoch in `/consumers`",
        "Election 3",
        (replaced(coordinator.term.elector, "_epoch_or_zero", _none_of_consumers),),
        of("S3", "S4", "L1"),
        ("aimed",),
    ),
    Mutation(
        "a lost reply is an election won",
        "Election 4",
        (replaced(Elector, "_elect", _unknown_is_won),),
        of("S4"),
        ("aimed", "storm"),
        OWN_ZNODE_NOT_CHECKED,
    ),
    Mutation(
        "pauses are not read before the first turns",
        "Election 5",
        (replaced(Listeners, "start", _starts_without_pauses),),
        of("S4"),
        ("aimed", "storm"),
    ),
)
