"""Slips that remember something from call to call, and so are no edits of the source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.spark.source.planner
from consumer.spark.source.planner import Planner
from consumer.spark.source.segment_index import joined
from coordinator.listeners.members import MemberListener
from tests.simulation.fences import NO_SWEEP
from tests.simulation.mutation import Mutation, nothing, of, replaced


def _without_ends(original: Any) -> Any:
    return lambda *args: replace(original(*args), ends={})


def _in_memory(original: Any) -> Any:
    """The ends of the last plan, if that was of the batch before."""

    def plan(self: Planner, store: Any, start: Any, end: Any) -> Any:
        at, ends = self.__dict__.get("remembered", (-1, {}))
        begun = end.begun if start.begun != end.begun else start.czxid
        known = ends if at == begun else {}
        planned = original(self, store, replace(start, ends=known), end)
        batch = self._segments.between(begun, end.czxid)
        self.__dict__["remembered"] = end.czxid, joined(known, batch)[1]
        return planned

    return plan


def _forgets_when_it_plans_again(original: Any) -> Any:
    def plan(self: Planner, store: Any, start: Any, end: Any) -> Any:
        self.__dict__["twice"] = self.__dict__.get("planned") == end.czxid
        self.__dict__["planned"] = end.czxid
        return original(self, store, start, end)

    return plan


def _forgotten(original: Any) -> Any:
    def latest(self: Planner, store: Any, start: Any, max_rows: int) -> Any:
        if not self.__dict__.get("twice") or start == self._initial_offset:
            return original(self, store, start, max_rows)
        batch = self._segments.between(start.czxid - 1, start.czxid)
        found = original(self, store, replace(start, ends=joined({}, batch)[1]), max_rows)
        return start if found.czxid == start.czxid else found

    return latest


def _watches_data_once(original: Any) -> Any:
    watched: set[tuple[int, str]] = set()

    def read_some(self: MemberListener, paths: Any, group: Any, consumers: Any, members: Any) -> None:
        new = [name for name in consumers if (id(self), paths.id(name)) not in watched]
        watched.update((id(self), paths.id(name)) for name in new)
        original(self, paths, group, new, members)
        watch, self._on_members = self._on_members, nothing
        try:
            original(self, paths, group, [name for name in consumers if name not in new], members)
        finally:
            self._on_members = watch

    return read_some


REMEMBERING: tuple[Mutation, ...] = (
    Mutation(
        "ends are kept from plan to plan",
        "A query reads 3",
        (
            replaced(consumer.spark.source.planner, "delivered", _without_ends),
            replaced(Planner, "_plan", _in_memory),
        ),
        of("S5"),
        ("sealing",),
    ),
    Mutation(
        "a batch that is planned again forgets the ends before it",
        "A query reads 3",
        (
            replaced(Planner, "_plan", _forgets_when_it_plans_again),
            replaced(Planner, "_latest", _forgotten),
        ),
        of("S5"),
        ("sealing",),
    ),
    Mutation(
        "a watch on a registration is set once only",
        "Rebalance",
        (replaced(MemberListener, "_read_some", _watches_data_once),),
        of("L1", "L2", "S2"),
        ("watchful", "led"),
        NO_SWEEP,
        "the sweep",
    ),
)
