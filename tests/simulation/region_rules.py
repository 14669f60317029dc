"""The rules of consistent regions of plain consumers, broken one by one (seed 002, `S10`, `S11` and `L6`).

Those of the model (`tests/model/region.py`, `NEEDED` in `test_region_model.py`) are among them, except for `later`: who
leaves or comes back while a checkpoint is open is a generation, which aborts it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import consumer.membership.contributor
import consumer.membership.member
import coordinator.planning.plan
import coordinator.planning.regional
import coordinator.rebalance.rebalancer
import coordinator.regions.plan
import coordinator.regions.region_reader
import coordinator.regions.turns
from consumer.membership.contributor import Contributor
from consumer.operator.region import CutReader, RegionMember
from coordinator.planning.reconciliation import Step
from coordinator.regions.region_reader import RegionReader
from coordinator.regions.turns import Regions, RegionTurns
from coordinator.zk.errors import Refused
from coordinator.zk.store import Check, Create, SetData
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import START_FETCHER
from coordinator.zk.znodes.regions import Progress
from tests.simulation.fences import NO_SWEEP
from tests.simulation.links import COMMIT
from tests.simulation.mutation import Mutation, Patch, constant, of, replaced
from tests.simulation.zookeeper import SimulatedEnsemble

regional = coordinator.planning.regional
region_plan = coordinator.regions.plan


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


RESENT: tuple[Patch, ...] = (replaced(SimulatedEnsemble, "receive_late", _late_contributions),)


# ---- the member


def _moves_offsets(original: Any) -> Any:
    """Whatever it writes next has what it has taken in."""

    def tend(self: Any, store: Any, fenced: Any) -> None:
        original(self, store, fenced)
        if self.is_ready and not self._paused_for:
            running = fenced.channel.running
            positions = self._application._polling.positions
            now = {part: position.offset for part, position in positions.items() if part in running}
            fenced.channel = replace(fenced.channel, running={**running, **now})

    return tend


def _takes_at_once(original: Any) -> Any:
    return property(lambda self: not self.is_in_checkpoint)


def _goes_on(original: Any) -> Any:
    def look_for_the_end(self: Any, store: Any, channel: Any) -> None:
        self._paused_for = 0

    return look_for_the_end


def _by_name(original: Any) -> Any:
    """A member that is told to start has its state back when it has claimed."""
    return lambda paths, name, command, is_last: original(paths, name, command, True)


class _Alone:
    """A fenced channel whose contributions go in a multi of their own."""

    def __init__(self, fenced: Any, store: Any) -> None:
        self._fenced = fenced
        self._store = store

    def commit(self, after: Any, operations: Any = ()) -> None:
        made = [each for each in operations if isinstance(each, Check | Create)]
        self._store.commit(made)
        self._fenced.commit(after, [each for each in operations if each not in made])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fenced, name)


def _contributes_alone(original: Any) -> Any:
    return lambda self, store, fenced, *rest: original(self, store, _Alone(fenced, store), *rest)


def _reads_offsets(original: Any) -> Any:
    def read(self: Any, store: Any, channel: Any, partitions: Any, record: Any) -> Any:
        self.reloads = False
        return self._offsets.read(store, channel, partitions, record)

    return read


def _keeps_offsets(original: Any) -> Any:
    """One topic is as good as another of its name."""

    def offsets_of(self: Any, cut: Any, channel: Any, wanted: Any) -> Any:
        some = {name: replace(given, topics=channel.topics) for name, given in cut.items()}
        return original(self, some, channel, wanted)

    return offsets_of


def _any_version(path: str, version: int) -> Check:
    return Check(path, -1)


def _by_what_is_named(original: Any) -> Any:
    """A start has been applied only while no other command is named behind it."""

    def is_applied(self: Any, channel: Any, name: str, command: Any) -> bool:
        order, reset = command.region, channel.region.reset if channel.region is not None else 0
        return (order, name, order.reset) == (self._cut.order, channel.command, reset)

    return is_applied


APPLIED_AGAIN: tuple[Patch, ...] = (replaced(RegionMember, "is_applied", _by_what_is_named),)
COMMITS: tuple[Patch, ...] = (replaced(RegionMember, "tend", _moves_offsets),)
TAKES_AT_ONCE: tuple[Patch, ...] = (replaced(RegionMember, "may_take", _takes_at_once),)
GOES_ON: tuple[Patch, ...] = (replaced(Contributor, "_look_for_the_end", _goes_on),)
REMOVED_AT_ONCE: tuple[Patch, ...] = (replaced(consumer.membership.member, "acknowledgement", _by_name),)
CONTRIBUTES_ALONE: tuple[Patch, ...] = (replaced(Contributor, "drain", _contributes_alone),)
END_UNCHECKED: tuple[Patch, ...] = (constant(consumer.membership.contributor, "Check", _any_version),)
NOT_RECORDED: tuple[Patch, ...] = (constant(CutReader, "_record", lambda *_: None),)
OFFSETS_READ: tuple[Patch, ...] = (replaced(CutReader, "read", _reads_offsets),)
TOPICS_NOT_COMPARED: tuple[Patch, ...] = (replaced(CutReader, "_offsets_of", _keeps_offsets),)


# ---- generations, starts and resets


def _no_reset(original: Any) -> Any:
    """A generation leaves the region alone; another incarnation does not."""

    def region_step(snapshot: Any, membership: Any, want: Any, is_new: bool) -> Any:
        found = original(snapshot, membership, want, is_new)
        if found is None or found.before is None or not found.before.groups or not is_new or not found.is_reset:
            return found
        return original(snapshot, membership, want, False)

    return region_step


def _left_open(original: Any) -> Any:
    def region_step(*args: Any) -> Any:
        found = original(*args)
        if found is None or not found.aborted:
            return found
        return replace(found, after=replace(found.after, open=found.aborted), aborted=0)

    return region_step


def _without_gone(original: Any) -> Any:
    return lambda *args: replace(original(*args), inherited=())


def _gone_to_all(original: Any) -> Any:
    def start_order(found: Any, name: str, region: Any) -> Any:
        heirs = original(found, min(found.want.target), region).inherited
        return replace(original(found, name, region), inherited=heirs)

    return start_order


def _in_part(original: Any) -> Any:
    """A start has what is free of what its member shall run."""

    def regional_moves(now: Any, region: Any) -> Any:
        found, is_settled = original(now, region)
        steps = dict(found.steps)
        for name, blocked in found.waiting.items():
            command = regional._wanted(now, name, region)
            threads = {thread: parts - blocked for thread, parts in command.threads.items()}
            if command.option == START_FETCHER and any(threads.values()):
                steps[name] = Step(replace(command, threads=threads), blocked=blocked)
        return replace(found, steps=steps), is_settled

    return regional_moves


_present = [0]


def _any_reset(original: Any) -> Any:
    """Whatever reset a member says is the present one."""

    def regional_moves(now: Any, region: Any) -> Any:
        _present[0] = region.reset
        return original(now, region)

    return regional_moves


def _said_reset(original: Any) -> Any:
    def progress(view: Any) -> Progress:
        found: Progress = original(view)
        now = _present[0]
        return Progress(now if found.reset else 0, now if found.ready else 0, found.drained)

    return progress


GENERATION_IS_NO_RESET: tuple[Patch, ...] = (replaced(coordinator.planning.plan, "region_step", _no_reset),)
BOUNCE_IS_NO_RESET: tuple[Patch, ...] = (constant(regional, "_has_bounced", lambda *_: False),)
LEFT_OPEN: tuple[Patch, ...] = (replaced(coordinator.planning.plan, "region_step", _left_open),)
GONE_FORGOTTEN: tuple[Patch, ...] = (replaced(regional, "_start_order", _without_gone),)
GONE_TO_ALL: tuple[Patch, ...] = (replaced(regional, "_start_order", _gone_to_all),)
IN_PART: tuple[Patch, ...] = (replaced(coordinator.planning.plan, "regional_moves", _in_part),)
ANY_RESET: tuple[Patch, ...] = (
    replaced(coordinator.planning.plan, "regional_moves", _any_reset),
    replaced(regional, "_progress", _said_reset),
)


# ---- checkpoints


def _incomplete(original: Any) -> Any:
    """One that is missing is not waited for."""

    def opened(snapshot: Any, rules: Any) -> Any:
        checkpoint, given = snapshot.checkpoint, snapshot.contributions
        missing = sorted(
            (group, name)
            for group, some in (checkpoint.participants if checkpoint is not None else {}).items()
            for name in some
            if (group, name) not in given
        )
        if not given or len(missing) != 1:
            return original(snapshot, rules)
        participants = {
            group: {name: life for name, life in some.items() if (group, name) != missing[0]}
            for group, some in checkpoint.participants.items()
        }
        group, name = missing[0]
        state = snapshot.groups[group]
        others = {each: one for each, one in state.target.items() if each != name}
        groups = {**snapshot.groups, group: replace(state, target=others)}
        reduced = replace(checkpoint, participants=participants)
        return original(replace(snapshot, checkpoint=reduced, groups=groups), rules)

    return opened


def _only_who_lives(original: Any) -> Any:
    """Who has gone is no member of the target any more, and nobody asks whether all others are ready."""

    def groups(self: Any, region: Any) -> Any:
        checkpoint, states, versions = original(self, region)
        found = {}
        for group, state in states.items():
            listing = self._store.children(GroupPaths(group).ids)
            there = set(listing.names if listing is not None else ())
            target = {name: one for name, one in state.target.items() if name in there}
            found[group] = replace(state, target=target, region=replace(state.region, ready=region.reset))
        return checkpoint, found, versions

    return groups


def _may_wait_for_the_dead(original: Any) -> Any:
    def may_wait(snapshot: Any, membership: Any, region: Any) -> bool:
        return bool(snapshot.state.target) and region.state == regional.RUNNING

    return may_wait


def _retires_all(numbers: Any, complete: Any, ended: Any, stands_on: int, kept: int) -> list[int]:
    """Also the cut that the region stands on."""
    return [number for number in numbers if number <= stands_on]


def _unfenced(original: Any) -> Any:
    """Without a look at the epoch."""

    def write(self: Any, operations: Any) -> bool:
        self._store.commit(list(operations))
        return True

    return write


def _any_region(operations: Any) -> list[Any]:
    """The operations, with a region's own znode set whatever version it has."""
    return [
        replace(each, version=-1) if isinstance(each, SetData) and each.path.startswith("/consumers/regions/") else each
        for each in operations
    ]


UNCHECKED_REGION: tuple[Patch, ...] = (
    replaced(
        coordinator.rebalance.rebalancer,
        "_region",
        lambda original: lambda *args: [_any_region(unit) for unit in original(*args)],
    ),
    replaced(RegionTurns, "_write", lambda original: lambda self, some: original(self, _any_region(some))),
)
INCOMPLETE: tuple[Patch, ...] = (replaced(region_plan, "_open", _incomplete),)
DEPARTED: tuple[Patch, ...] = (
    replaced(RegionReader, "_groups", _only_who_lives),
    replaced(regional, "_may_wait", _may_wait_for_the_dead),
)
UNCOPIED: tuple[Patch, ...] = (constant(RegionTurns, "_copy", lambda *_: True),)
RETIRED: tuple[Patch, ...] = (constant(coordinator.regions.turns, "to_retire", _retires_all),)
NO_EPOCH: tuple[Patch, ...] = (replaced(RegionTurns, "_write", _unfenced),)
NEVER_PERIODIC: tuple[Patch, ...] = (constant(region_plan, "PERIODIC", ""),)


def _without_its_own(original: Any) -> Any:
    return lambda given, partitions: replace(original(given, partitions), member_state="", file=None)


STATELESS: tuple[Patch, ...] = (replaced(coordinator.regions.region_reader, "_only", _without_its_own),)
HEIRLESS: tuple[Patch, ...] = (constant(regional, "_is_heir_away", lambda *_: False),)


def _only_binds(original: Any) -> Any:
    def after_turn(self: Any, group: str, step: Any, *rest: Any) -> None:
        with self._lock:
            self._bound[group] = step.name

    return after_turn


UNASKED: tuple[Patch, ...] = (replaced(Regions, "after_turn", _only_binds),)


_REGIONAL = ("regional", "aimed")

REGION_RULES = (
    Mutation("an offset moves outside of a drain", "Consistent regions", COMMITS, of("S11"), _REGIONAL),
    Mutation(
        "a record is taken in before the state is back",
        "Consistent regions",
        TAKES_AT_ONCE,
        of("S10"),
        _REGIONAL,
    ),
    Mutation("who has drained goes on by itself", "Consistent regions", GOES_ON, of("S11"), _REGIONAL),
    Mutation(
        "a contribution does not look at its checkpoint",
        "Consistent regions",
        END_UNCHECKED,
        of("S11"),
        _REGIONAL,
        RESENT,
    ),
    Mutation(
        "a contribution is in another multi than its channel",
        "Consistent regions",
        CONTRIBUTES_ALONE,
        of("S11"),
        _REGIONAL,
    ),
    Mutation(
        "a start is removed before the state is back",
        "Consistent regions",
        REMOVED_AT_ONCE,
        of("S10"),
        _REGIONAL,
    ),
    Mutation(
        "a start that stands is applied again behind an ask",
        "Consistent regions",
        APPLIED_AGAIN,
        of("S3"),
        _REGIONAL,
    ),
    Mutation("an initial offset is not recorded", "Consistent regions", NOT_RECORDED, of("S10"), _REGIONAL),
    Mutation(
        "a member begins at the offsets of its group",
        "Consistent regions",
        OFFSETS_READ,
        of("S10"),
        _REGIONAL,
    ),
    Mutation(
        "the offset of a topic made again is kept",
        "Consistent regions",
        TOPICS_NOT_COMPARED,
        of("S10"),
        _REGIONAL,
    ),
    Mutation("a generation is no reset", "Consistent regions", GENERATION_IS_NO_RESET, of("S10"), _REGIONAL),
    Mutation("another incarnation is no reset", "Consistent regions", BOUNCE_IS_NO_RESET, of("S10"), _REGIONAL),
    Mutation("a reset leaves a checkpoint open", "Consistent regions", LEFT_OPEN, of("S11"), _REGIONAL),
    Mutation(
        "states of names that are gone are given to nobody",
        "Consistent regions",
        GONE_FORGOTTEN,
        of("S10"),
        _REGIONAL,
    ),
    Mutation(
        "states of names that are gone are given to all",
        "Consistent regions",
        GONE_TO_ALL,
        of("S10"),
        _REGIONAL,
    ),
    Mutation(
        "a start has a part of what its member shall run",
        "Consistent regions",
        IN_PART,
        of("S10"),
        _REGIONAL,
    ),
    Mutation("a member of an earlier reset counts", "Consistent regions", ANY_RESET, of("S10"), _REGIONAL),
    Mutation(
        "a checkpoint is complete without one contribution",
        "Consistent regions",
        INCOMPLETE,
        of("S11"),
        _REGIONAL,
    ),
    Mutation(
        "a checkpoint does without a member that has gone",
        "Consistent regions",
        DEPARTED,
        of("S10", "S11"),
        _REGIONAL,
    ),
    Mutation("what has no contributor is not copied", "Consistent regions", UNCOPIED, of("S11"), _REGIONAL),
    Mutation(
        "of a member that is away only partitions are copied",
        "Consistent regions",
        STATELESS,
        of("S10", "S11"),
        _REGIONAL,
    ),
    Mutation(
        "states of the gone wait for an heir that is away",
        "Consistent regions",
        HEIRLESS,
        of("S10"),
        _REGIONAL,
    ),
    Mutation("a region is written over", "Consistent regions", UNCHECKED_REGION, of("S10", "S11"), _REGIONAL),
    Mutation(
        "a region is written without the epoch",
        "Consistent regions",
        NO_EPOCH,
        of("S4", "S10", "S11"),
        _REGIONAL,
    ),
    Mutation("the cut that a region stands on is retired", "Consistent regions", RETIRED, of("S11"), _REGIONAL),
    Mutation("no checkpoint comes by itself", "Consistent regions", NEVER_PERIODIC, of("L6"), _REGIONAL),
    Mutation(
        "a region does not hear of its groups' turns",
        "Consistent regions",
        UNASKED,
        of("L6"),
        _REGIONAL,
        NO_SWEEP,
        "the sweep",
    ),
)
