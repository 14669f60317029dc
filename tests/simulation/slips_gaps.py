"""Slips of what queries remember, and of why a position does not continue where the last sealed range ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.membership.registration
import consumer.sealing.segment_files
import consumer.spark.source.planner
import coordinator.rebalance.rebalancer
from consumer.membership.offsets import CommittedOffsets
from consumer.spark.source.planner import Planner
from consumer.spark.source.query_znode import QueryPost
from consumer.spark.source.segment_index import NEVER, joined
from coordinator.zk.znodes.records import Channel, OffsetRecord
from tests.simulation.mutation import Mutation, Patch, constant, nothing, of, replaced

_PLANNER = consumer.spark.source.planner
LATE = 1 << 62
"""A zxid after all of a run."""


# ---- ends


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


# ---- resets, and the runs that they are meant for


def _registered(zxid: int) -> Any:
    return lambda original: lambda ends, batch, began=NEVER, registered=0: original(ends, batch, began, zxid)


def _as_of_whoever_plans(original: Any) -> Any:
    def plan(self: Planner, store: Any, start: Any, end: Any) -> Any:
        begin = replace(end, czxid=end.begun, segment="", ends={}) if start.begun != end.begun else start
        post = self._begin(store, end.query, begin, is_new=False)
        return original(self, store, start, replace(end, registered=post.registered(store)))

    return plan


def _with_each_sign_of_life(original: Any) -> Any:
    def registered(self: QueryPost, store: Any) -> int:
        self._registered_at = 0
        return int(original(self, store))

    return registered


def _forgets_what_it_replaced(original: Any) -> Any:
    def check(self: QueryPost, node: Any) -> None:
        replaced_run, self._replaced = self._replaced, None
        try:
            original(self, node)
        finally:
            self._replaced = replaced_run

    return check


def _without_zxid(original: Any) -> Any:
    def standing(self: CommittedOffsets, partition: Any, channel: Any, node: Any) -> OffsetRecord | None:
        found = original(self, partition, channel, node)
        return found and OffsetRecord.parse("", node.data)

    return standing


# ---- discontinuities


def _unmarked(channel: Channel) -> Channel:
    return replace(channel, discontinuities={})


def _coordinator_forgets(original: Any) -> Any:
    return lambda snapshot, paths, channel, partitions: original(snapshot, paths, _unmarked(channel), partitions)


def _successor_forgets(original: Any) -> Any:
    return lambda paths, channel, *rest: original(paths, _unmarked(channel), *rest)


def _owner_forgets(original: Any) -> Any:
    return lambda self, store, channel, partitions: original(self, store, _unmarked(channel), partitions)


def _kept(original: Any) -> Any:
    def advanced(self: Channel, offsets: Any, lost: Any, sealed: str = "") -> Channel:
        after = original(self, offsets, lost, sealed)
        return replace(after, discontinuities={**self.discontinuities, **after.discontinuities})

    return advanced


def _no_loss(original: Any) -> Any:
    return lambda self, offsets, lost, sealed="": original(self, offsets, {}, sealed)


def _begins_well(original: Any) -> Any:
    def found(self: CommittedOffsets, *args: Any) -> Any:
        return {part: replace(start, discontinuity=None) for part, start in original(self, *args).items()}

    return found


NO_ENDS: tuple[Patch, ...] = (replaced(_PLANNER, "delivered", _without_ends),)


def _gap(name: str, rule: str, *patches: Patch) -> Mutation:
    return Mutation(name, rule, patches, of("S5"), ("sealing",))


GAP_RULES: tuple[Mutation, ...] = (
    _gap("a checkpoint has no ends", "A query reads 2", *NO_ENDS),
    _gap("ends are kept from plan to plan", "A query reads 3", *NO_ENDS, replaced(Planner, "_plan", _in_memory)),
    _gap(
        "a batch that is planned again forgets the ends before it",
        "A query reads 3",
        replaced(Planner, "_plan", _forgets_when_it_plans_again),
        replaced(Planner, "_latest", _forgotten),
    ),
    _gap(
        "a reader takes any file of the right size",
        "A query reads 3",
        constant(consumer.sealing.segment_files, "_check_offsets", nothing),
    ),
    _gap(
        "a reset under a query that runs is meant", "A query reads 3", replaced(_PLANNER, "joined", _registered(LATE))
    ),
    _gap("no reset is meant", "A query reads 3", replaced(_PLANNER, "joined", _registered(0))),
    _gap(
        "a reset is meant by whoever plans the batch",
        "A query reads 3",
        replaced(Planner, "_plan", _as_of_whoever_plans),
    ),
    _gap(
        "a run registers with each sign of life",
        "A query reads 2",
        replaced(QueryPost, "registered", _with_each_sign_of_life),
    ),
    _gap(
        "a registration without a reply replaces a newer run",
        "A query reads 2",
        replaced(QueryPost, "_check_run", _forgets_what_it_replaced),
    ),
    _gap("a reset has no time", "offsets/[topic]/[partition]", replaced(CommittedOffsets, "_standing", _without_zxid)),
    _gap(
        "the end of an incarnation by a coordinator forgets discontinuities",
        "offsets/[topic]/[partition]",
        replaced(coordinator.rebalance.rebalancer, "_offsets", _coordinator_forgets),
    ),
    _gap(
        "a take-over forgets discontinuities",
        "offsets/[topic]/[partition]",
        replaced(consumer.membership.registration, "release_operations", _successor_forgets),
    ),
    _gap(
        "a release forgets discontinuities",
        "offsets/[topic]/[partition]",
        replaced(CommittedOffsets, "release", _owner_forgets),
    ),
    _gap("a seal keeps discontinuities", "channel/[consumer]", replaced(Channel, "advanced", _kept)),
    _gap("an offset out of range leaves no trace", "channel/[consumer]", replaced(Channel, "advanced", _no_loss)),
    _gap(
        "a later partition begins anywhere",
        "offsets/[topic]/[partition]",
        replaced(CommittedOffsets, "_found", _begins_well),
    ),
)
