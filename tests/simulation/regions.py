"""Faults of consistent regions: members and coordinators that fail at each step of a checkpoint and a reset, requests
for either, changes in their midst, and hands below a region.

They draw from a stream of their own (`world.regional`), so that what is drawn beside them is the same with and without.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.simulation.faults import NONSENSE
from tests.simulation.leaders import coordinator_ends_behind
from tests.simulation.stateful import Stateful
from tests.simulation.store import SimStore
from tests.simulation.watching import Commit, World, consumer_of, kinds, on
from tests.simulation.world import REGION, SimulatedLife
from zk_group.coordinator.admin.regions import request
from zk_group.coordinator.zk.store import Create, SetData
from zk_group.coordinator.zk.znodes.paths import RegionPaths, checkpoint_number
from zk_group.coordinator.zk.znodes.regions import (
    CHECKPOINT,
    COMPLETED,
    ENDS,
    INITIAL,
    RESET,
    RESETTING,
    RUNNING,
    Region,
    RegionRequest,
)

PATHS = RegionPaths(REGION)
Operation = dict[str, Any]
Is = Callable[[Operation], bool]

_CHECKPOINT = re.compile(re.escape(PATHS.checkpoints) + "/checkpoint-[0-9]+")


def _is_begun(op: Operation) -> bool:
    return op["op"] == "create" and _CHECKPOINT.fullmatch(op["path"]) is not None


def _is_contribution(op: Operation) -> bool:
    return op["op"] == "create" and op["path"].startswith(PATHS.checkpoints) and "~" in op["path"]


def _is_completed(op: Operation) -> bool:
    return op["op"] == "create" and op["path"].startswith(PATHS.root) and str(op["path"]).endswith(f"/{COMPLETED}")


def _becomes(state: str) -> Is:
    return lambda op: op["op"] == "set" and op["path"] == PATHS.root and f'"state":"{state}"' in op["data"]


def _command(option: str) -> Is:
    def is_it(op: Operation) -> bool:
        data = op.get("data") or ""
        return op["op"] == "create" and "/command-" in op["path"] and f'"{option}"' in data and '"region"' in data

    return is_it


def _is_ready(op: Operation) -> bool:
    data = op.get("data") or ""
    return op["op"] == "set" and "/channel/" in op["path"] and '"ready":' in data and '"ready":0' not in data


_is_drain = _command("drain")

STEPS: tuple[Is, ...] = (
    _is_begun, _is_drain, _is_contribution, _is_completed,
    _becomes(RESETTING), _command("stop-fetcher"), _command("start-fetcher"), _is_ready, _becomes(RUNNING),
)  # fmt: skip
"""Of a checkpoint and of a reset, in order."""


def _region(world: World) -> Region | None:
    node = world.node_at(PATHS.root)
    return Region.parse(PATHS.root, node.data) if node is not None else None


def _members(world: World) -> list[SimulatedLife]:
    return [life for life in world.alive("consumer") if isinstance(life.actor, Stateful)]


def _any_member(world: World) -> tuple[SimulatedLife, Stateful] | None:
    members = _members(world)
    life = world.regional.choice(members) if members else None
    return (life, life.actor) if life is not None and isinstance(life.actor, Stateful) else None


def _groups(world: World) -> list[str]:
    return sorted(group for group, is_in in world.in_region.items() if is_in)


# ---- who asks


def _ask_operator(world: World, what: str, sequence: int | None = None) -> None:
    asked = RegionRequest(what, "operator", "a drill", sequence)
    world.run_tool(lambda store, _: request(store, REGION, asked))


def checkpoint_wanted(world: World) -> bool:
    """By the application, by an operator, or by hand."""
    found, lot = _any_member(world), world.regional.random()
    if found is None or _region(world) is None:
        return False
    if lot < 0.5:
        found[1].asks.append(CHECKPOINT)
    elif lot < 0.8:
        _ask_operator(world, CHECKPOINT)
    else:
        data = world.regional.choice((RegionRequest(CHECKPOINT, "a hand").to_bytes(), *NONSENSE))
        world.note("hand", path=PATHS.request)
        return world.by_hand(Create(PATHS.request, data))
    world.note("checkpoint-wanted", process=found[0].process.life)
    return True


def reset_wanted(world: World) -> bool:
    """By the application, to the last cut; by an operator, to any that is kept, or to the initial state."""
    found, sides = _any_member(world), world.regional
    if found is None or _region(world) is None:
        return False
    world.note("reset-wanted", process=found[0].process.life)
    if sides.random() < 0.5:
        found[1].asks.append(RESET)
        return True
    numbers = [checkpoint_number(name) for name in world.children(PATHS.checkpoints)]
    cuts = [number for number in numbers if COMPLETED in world.children(PATHS.checkpoint(number))]
    _ask_operator(world, RESET, sides.choice((None, *cuts, *cuts, INITIAL)))
    return True


def _nudge(world: World) -> None:
    """Let the region take a checkpoint, or be reset, soon."""
    sides = world.regional
    delay_s, lot, name = sides.random(), sides.random(), f"c{sides.randrange(8)}"

    def happen() -> None:
        groups = _groups(world)
        if world.is_calm or not groups:
            return
        if lot < 0.6:
            checkpoint_wanted(world)
        elif lot < 0.8 and len(world.alive("consumer")) < 2 * world.profile.consumers + 3:
            world.join(sides.choice(groups), name)
        else:
            reset_wanted(world)

    world.scheduler.after(delay_s, happen)


# ---- death at each step


@on(_groups)
def member_dies_in_region(world: World, _: list[str]) -> None:
    """Whoever has just done a step, or any other member, after so many more of its operations."""
    sides = world.regional
    is_it, more, delay_s = sides.choice(STEPS), sides.randint(1, 7), sides.uniform(0.05, 8)
    is_its, is_needed, number = sides.random() < 0.6, sides.random() < 0.6, sides.random()

    def die(commit: Commit) -> None:
        members = _members(world)
        mine = [life for life in members if commit["session"] in world.sessions_of(life)]
        some = mine if mine and is_its else members
        life = some[int(number * len(some))] if some else None
        if not world.is_calm and life is not None and not life.process.crash_at:
            world.die_soon(life, more, "member-dies-in-region", delay_s if is_needed else None)

    world.once(is_it, die)
    _nudge(world)


@on(_groups)
def coordinator_dies_in_region(world: World, _: list[str]) -> None:
    """The coordinator ends, or is replaced, right behind a step."""
    coordinator_ends_behind(world, world.regional, STEPS, "coordinator-dies-in-region")
    _nudge(world)


# ---- at the moment at which it matters


def _drained(world: World, kind: str, happen: Callable[[SimulatedLife], bool]) -> None:
    """Something happens to a member when it has just been sent `drain`."""
    if not _groups(world):
        return

    def sent(commit: Commit) -> None:
        life = world.of_name(consumer_of(next(op["path"] for op in commit["ops"] if _is_drain(op))))
        if not world.is_calm and life is not None and life.is_alive and happen(life):
            world.fire(kind)

    world.once(_is_drain, sent)
    _nudge(world)


def contribution_is_late(world: World) -> None:
    """Its connection breaks right behind its next commit, which is still on its way; mostly an operator resets the
    region meanwhile."""
    delay_s, is_reset = 0.5 * world.regional.random(), world.regional.random() < 0.6

    def reset() -> None:
        if not world.is_calm:
            _ask_operator(world, RESET)

    def happen(store: SimStore) -> None:
        store.delay_next_commit()
        if is_reset:
            world.scheduler.after(delay_s, reset)

    _unanswered(world, "contribution-is-late", "late-commit", happen)


def contribution_is_lost(world: World) -> None:
    """The reply to its next commit does not come."""
    _unanswered(world, "contribution-is-lost", "lose-reply", lambda store: store.lose_next_reply(True))


def _unanswered(world: World, kind: str, what: str, happen: Callable[[SimStore], object]) -> None:
    """Something happens to the newest session of a member when it has just been sent `drain`."""

    def drained(life: SimulatedLife) -> bool:
        stores = world.stores_of(life.process)
        if stores:
            world.note(what, process=life.process.life)
            happen(stores[-1])
        return bool(stores)

    _drained(world, kind, drained)


def hangs_draining(world: World) -> None:
    """It neither polls nor ends for a while, perhaps for longer than a drain may take."""
    seconds = world.regional.uniform(1, 8)

    def happen(life: SimulatedLife) -> bool:
        app = life.actor
        if not isinstance(app, Stateful) or app.is_stuck:
            return False
        world.hang(life, app, seconds)
        return True

    _drained(world, "hangs-draining", happen)


@on(_groups)
def change_while_draining(world: World, _: list[str]) -> None:
    """Somebody joins, leaves or comes again, or a topic grows or is made anew, while a checkpoint is open."""
    sides = world.regional
    delay_s, lot, number = sides.choice((0.0, 0.02, 0.3)) * sides.random(), sides.random(), sides.random()

    def change() -> None:
        members, names = _members(world), sorted(world.topics)
        if world.is_calm or not members or not names:
            return
        life, topic = members[int(number * len(members))], names[int(number * len(names))]
        world.fire("change-while-draining")
        if lot < 0.3:
            world.join(life.actor.names()["group"], f"c{int(number * 8)}")
        elif lot < 0.5:
            world.note("leave", process=life.process.life)
            life.actor.stop()
        elif lot < 0.75:
            world.note("second-process", process=life.process.life)
            world.again(life.process)
        else:
            world.note("topic", topic=topic)
            if lot < 0.9:
                world.grow_topic(topic)
            elif world.remove_topic(topic):
                world.make_topic(topic)

    world.once(sides.choice((_is_begun, _is_contribution)), lambda _: world.scheduler.after(delay_s, change))
    _nudge(world)


# ---- hands


def region_scribbled_by_hand(world: World) -> bool:
    """A request that is none, something below a checkpoint, or nonsense for a contribution that is not complete."""
    region, sides = _region(world), world.regional
    if region is None:
        return False
    numbers = [checkpoint_number(name) for name in world.children(PATHS.checkpoints)]
    opened = [f"{PATHS.checkpoint(region.open)}/{name}" for name in world.children(PATHS.checkpoint(region.open))]
    given = [path for path in opened if "~" in path] if region.open else []
    lot = sides.random()
    if given and lot < 0.5 and not any(path.endswith(ENDS) for path in opened):
        path = sides.choice(given)
        world.note("hand", path=path)
        return world.by_hand(SetData(path, sides.choice(NONSENSE)))
    if numbers and lot < 0.7:
        path = f"{PATHS.checkpoint(sides.choice(numbers))}/notes"
        world.note("hand", path=path)
        return world.by_hand(Create(path, sides.choice(NONSENSE)))
    world.note("hand", path=PATHS.request)
    return world.by_hand(Create(PATHS.request, sides.choice(NONSENSE)))


REGIONS = kinds(
    *(checkpoint_wanted, reset_wanted, member_dies_in_region, coordinator_dies_in_region),
    *(contribution_is_late, contribution_is_lost, hangs_draining, change_while_draining),
    region_scribbled_by_hand,
)
