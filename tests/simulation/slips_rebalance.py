"""Slips of a coordinator's turns: what it reads, decides and writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import coordinator.planning.membership
import coordinator.planning.plan
import coordinator.planning.reconciliation
import coordinator.rebalance.group_reader
import coordinator.rebalance.rebalancer
from coordinator.planning import reconciliation
from coordinator.rebalance.group_reader import GroupReader
from coordinator.rebalance.rebalancer import Rebalancer, Step
from coordinator.zk.store import SetData
from coordinator.zk.znodes.group_state import COMPLETING, STABLE
from coordinator.zk.znodes.partitions import NONE
from tests.simulation import fences
from tests.simulation.mutation import Mutation, Patch, constant, nothing, of, replaced

# ---- 1: what is read, and in which order


class _ReadBefore:
    """A store that answers for some paths what was there earlier."""

    def __init__(self, store: Any, listings: Any, nodes: Any) -> None:
        self._store = store
        self._listings = listings
        self._nodes = nodes

    def children_many(self, paths: Any, watch: Any = None) -> Any:
        found = self._store.children_many(paths, watch)
        return [self._listings.get(path, each) for path, each in zip(paths, found, strict=True)]

    def get_many(self, paths: Any, watch: Any = None) -> Any:
        found = self._store.get_many(paths, watch)
        return [self._nodes.get(path, each) for path, each in zip(paths, found, strict=True)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _ids_first(original: Any) -> Any:
    def read(self: GroupReader, topics: Any) -> Any:
        store, paths = self._store, self._paths
        listing = store.children(paths.ids)
        ids = [paths.id(name) for name in (listing.names if listing is not None else ())]
        nodes = dict(zip(ids, store.get_many(ids), strict=True))
        self._store = _ReadBefore(store, {paths.ids: listing}, nodes)
        try:
            return original(self, topics)
        finally:
            self._store = store

    return read


def _channels_first(original: Any) -> Any:
    def read(self: GroupReader, *args: Any) -> Any:
        early = self.channels.read()
        self.channels.__dict__["read"] = lambda: early
        try:
            return original(self, *args)
        finally:
            del self.channels.__dict__["read"]

    return read


# ---- 2: who is ended, and how


def _name_is_life(original: Any) -> Any:
    def is_live(member: Any, view: Any) -> bool:
        channel = view.channel if view is not None else None
        return bool(member.registration is not None and channel is not None and channel.is_live and channel.incarnation)

    return is_live


def _end_without_version(original: Any) -> Any:
    def whole_end(*args: Any) -> Any:
        fence, *others = original(*args)
        return [replace(fence, version=-1), *others]

    return whole_end


BY_NAME: tuple[Patch, ...] = (
    replaced(coordinator.planning.membership, "is_live", _name_is_life),
    replaced(coordinator.rebalance.rebalancer, "is_live", _name_is_life),
)


# ---- 3: the generation


def _without_incarnations(original: Any) -> Any:
    def by_seat(target: Any, members: Any) -> Any:
        return {name: replace(one, incarnation="") for name, one in target.items()}

    return by_seat


def _is_stable_too_soon(original: Any) -> Any:
    def state_name(members: Any, moves: Any, asks: Any) -> str:
        found = original(members, moves, asks)
        return STABLE if found == COMPLETING and not asks.waits else str(found)

    return state_name


# ---- 4: commands that are out


def _kept_as_if(change: Any) -> Any:
    """A command is judged as if some of its fields were those of today."""

    def make(original: Any) -> Any:
        def still_right(now: Any, view: Any, sent: Any, revoked: Any) -> bool:
            if sent.command is not None and view.channel is not None:
                sent = replace(sent, command=replace(sent.command, **change(now, view)))
            return bool(original(now, view, sent, revoked))

        return still_right

    return make


def _kept(change: Any) -> tuple[Patch, ...]:
    return (replaced(coordinator.planning.reconciliation, "_still_right", _kept_as_if(change)),)


# ---- 5: what must stop


def _keeps_other_lives(original: Any) -> Any:
    def to_revoke(now: Any, name: str) -> Any:
        view = now.snapshot.channels[name]
        if view.channel is None:
            return NONE
        view = replace(view, channel=replace(view.channel, topics=dict(now.want.topics)))
        snapshot = replace(now.snapshot, channels={**now.snapshot.channels, name: view})
        return original(replace(now, snapshot=snapshot), name)

    return to_revoke


def _keeps_unowned(original: Any) -> Any:
    def to_revoke(now: Any, name: str) -> Any:
        running = now.snapshot.channels[name].running
        return original(replace(now, snapshot=replace(now.snapshot, owners=now.snapshot.owners | running)), name)

    return to_revoke


# ---- 6: what is free, and what may start


def _withdrawn_is_free(original: Any) -> Any:
    def taken(now: Any) -> Any:
        revoked = {name: reconciliation._to_revoke(now, name) for name in reconciliation.addressed(now)}
        kept = {
            name: replace(
                view,
                commands=tuple(sent for sent in view.commands if reconciliation._still_right(now, view, sent, revoked)),
            )
            for name, view in now.snapshot.channels.items()
        }
        return original(replace(now, snapshot=replace(now.snapshot, channels=kept)))

    return taken


def _marks_not_asked(original: Any) -> Any:
    return lambda now: original(replace(now, membership=replace(now.membership, marks=[])))


def _starts_blocked(original: Any) -> Any:
    def step(now: Any, name: str, revoked: Any, sent: Any, taken: Any, is_patient: bool) -> Any:
        found = original(now, name, revoked, sent, taken, is_patient)
        if found.blocked is None or found.due is None:
            return found
        every = now.snapshot.channels[name].running | now.want.target[name].partitions
        return replace(found, due=reconciliation._start(now, name, every))

    return step


# ---- 7: how it is written


def _starts_first(original: Any) -> Any:
    """Of several multis the last one goes out first: no state is older than the one before."""

    def steps(snapshot: Any, plan: Any) -> Any:
        found = list(original(snapshot, plan))
        return [Step(found[-1].state, step.operations) for step in (found[-1], *found[:-1])]

    return steps


def _passes_over(original: Any) -> Any:
    def commit(self: Rebalancer, snapshot: Any, decided: Any) -> bool:
        written = 0
        for step in coordinator.rebalance.rebalancer.steps(snapshot, decided):
            written += self._write(coordinator.rebalance.rebalancer.with_state(snapshot, written, step))
        return written > 0

    return commit


def _fence_last(original: Any) -> Any:
    """A large end: owners and offsets first, the fence with the last of its multis."""

    def torn_end(snapshot: Any, paths: Any, end: Any) -> Any:
        path = paths.channel(end.view.consumer)
        units = [list(unit) for unit in original(snapshot, paths, end)]
        fences_moved = [op for unit in units for op in unit if isinstance(op, SetData) and op.path == path]
        others = [[op for op in unit if op not in fences_moved] for unit in units]
        others[-1].insert(0, replace(fences_moved[-1], version=end.view.version))
        return iter([unit for unit in others if unit])

    return torn_end


REBALANCE: tuple[Mutation, ...] = (
    Mutation(
        "ids are read before channels",
        "Rebalance 1",
        (replaced(GroupReader, "read", _ids_first),),
        of("S1", "S7", "L1", "L2", "L4"),
        ("aimed", "storm"),
    ),
    Mutation(
        "the state is read after the channels",
        "Rebalance 1",
        (replaced(GroupReader, "read", _channels_first),),
        of("S1", "S2", "S3", "S6"),
        ("aimed", "storm"),
        (*fences.RESENT, *fences.OWNERS_NOT_ASKED, *fences.NO_OWNERS_IN_THE_WAY),
    ),
    Mutation(
        "the departed are not ended",
        "Rebalance 2",
        (constant(coordinator.planning.membership, "_end_departed", nothing),),
        of("L1", "L2", "S7"),
        ("aimed", "storm"),
    ),
    Mutation(
        "an end is no compare-and-set",
        "Rebalance 2",
        (replaced(coordinator.rebalance.rebalancer, "_whole_end", _end_without_version),),
        of("S1", "S5", "S6", "S7", "L1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "an end writes no offsets",
        "Rebalance 2",
        (constant(coordinator.rebalance.rebalancer, "_offsets", lambda *_: []),),
        of("S5"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a live member is its name only",
        "Rebalance 2",
        BY_NAME,
        of("L1", "L2", "S2", "S9"),
        ("aimed", "storm"),
    ),
    Mutation(
        "members are compared by name",
        "Rebalance 3",
        (replaced(coordinator.planning.plan, "_by_seat", _without_incarnations),),
        of("L1", "L2", "S2", "S3"),
        ("aimed", "storm"),
    ),
    Mutation(
        "the generation is not raised",
        "Rebalance 3",
        (constant(coordinator.planning.plan, "_needs_new_generation", lambda *_: False),),
        of("L1", "L2", "S2", "S3"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a command of an older epoch is kept",
        "Rebalance 4",
        _kept(lambda now, view: {"epoch": now.snapshot.epoch}),
        of("L1", "S3", "S6"),
        ("aimed", "storm"),
    ),
    Mutation(
        "partitions of a topic made again are kept",
        "Rebalance 5",
        (replaced(coordinator.planning.reconciliation, "_to_revoke", _keeps_other_lives),),
        of("L1", "L2", "S2", "S5"),
        ("storm", "aimed"),
    ),
    Mutation(
        "what has lost its owner is kept",
        "Rebalance 5",
        (replaced(coordinator.planning.reconciliation, "_to_revoke", _keeps_unowned),),
        of("L1", "L2", "L4", "S1", "S2"),
        ("storm", "aimed"),
    ),
    Mutation(
        "what a withdrawn start names is free at once",
        "Rebalance 6",
        (replaced(coordinator.planning.reconciliation, "taken_partitions", _withdrawn_is_free),),
        of("S1"),
        ("aimed", "large"),
        (*fences.OWNERS_NOT_ASKED, *fences.NO_OWNERS_IN_THE_WAY),
    ),
    Mutation(
        "what has an owner is free",
        "Rebalance 6",
        fences.OWNERS_NOT_ASKED,
        of("L1", "L3", "L4", "S1", "S6"),
        ("storm", "aimed"),
    ),
    Mutation(
        "what a mark covers is free",
        "Rebalance 6",
        (replaced(coordinator.planning.reconciliation, "taken_partitions", _marks_not_asked),),
        of("S1"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "a start in part names all",
        "Rebalance 6",
        (replaced(coordinator.planning.reconciliation, "_step", _starts_blocked),),
        of("S1"),
        ("aimed", "pauses"),
        fences.NO_OWNERS_IN_THE_WAY,
    ),
    Mutation(
        "a straggler holds up all",
        "Rebalance 6",
        (constant(coordinator.planning.reconciliation, "_straggles", lambda *_: False),),
        of("L1", "L3"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "starts go out before ends",
        "Rebalance 7",
        (replaced(coordinator.rebalance.rebalancer, "steps", _starts_first),),
        of("S1", "S5", "L1"),
        ("large", "aimed"),
        (*fences.SMALL_STEPS, *fences.NO_OWNERS_IN_THE_WAY),
    ),
    Mutation(
        "a refused multi of a turn is passed over",
        "Rebalance 7",
        (replaced(Rebalancer, "_commit", _passes_over),),
        of("S1", "S2", "S3", "S6", "L1"),
        ("large", "aimed"),
        fences.SMALL_STEPS,
    ),
    Mutation(
        "a torn end does not begin with the fence",
        "Eviction 2",
        (replaced(coordinator.rebalance.rebalancer, "_torn_end", _fence_last),),
        of("S1", "S3", "S5", "S7", "L1", "L2", "L4"),
        ("large", "aimed"),
        fences.SMALL_STEPS,
    ),
    Mutation(
        "a group is Stable while members start",
        "Rebalance 8",
        (replaced(coordinator.planning.plan, "_state_name", _is_stable_too_soon),),
        of("S2", "L1"),
        ("calm", "aimed"),
    ),
)
