"""Faults of client-side assignment: leaders and coordinators that fail at each of its points, changes while an ask is
out, and hands below `sync`.

They draw from a stream of their own (`world.sides`), so that what is drawn beside them is the same with and without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.simulation.actors import ApplicationActor
from tests.simulation.assignors import LIES, MIXED, SIDES
from tests.simulation.faults import NONSENSE
from tests.simulation.watching import Commit, World, group_of, kinds, on
from tests.simulation.world import SimulatedLife
from zk_group.coordinator.zk.store import Create, Delete, SetData
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths, ask_number

BROKEN_FOR_GOOD = 0.15


def _led(world: World) -> list[str]:
    """Groups that a member assigns, or may."""
    return sorted(group for group, manner in world.manners.items() if manner.common)


def _members(world: World, group: str) -> list[SimulatedLife]:
    return [
        life
        for life in world.alive("consumer")
        if isinstance(life.actor, ApplicationActor) and life.actor.config.group == group
    ]


def _leader(world: World, group: str) -> SimulatedLife | None:
    """Mostly the leader of the newest ask, else any member."""
    members = _members(world, group)
    leader = str((_newest_ask(world, group) or {}).get("leader", ""))
    mine = [life for life in members if life.process.name == leader]
    if mine and world.sides.random() < 0.8:
        return mine[-1]
    return world.sides.choice(members) if members else None


def _newest_ask(world: World, group: str) -> dict[str, Any] | None:
    paths = GroupPaths(group)
    names = sorted(world.children(paths.sync), key=ask_number)
    node = world.node_at(paths.ask(names[-1])) if names else None
    try:
        values = json.loads(node.data) if node is not None else None
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _nudge(world: World, group: str) -> None:
    """Something that the group must be assigned anew for, soon."""
    sides = world.sides
    delay_s, lot = sides.choice((0.0, 0.5, 2.0)) * sides.random(), sides.random()
    name, number = f"c{sides.randrange(8)}", sides.random()

    def happen() -> None:
        if world.is_calm:
            return
        if lot < 0.4 and len(world.alive("consumer")) < 2 * world.profile.consumers + 3:
            world.join(group, name)
        elif lot < 0.7:
            _resubscribe(world, group)
        else:
            _change_a_topic(world, number)

    world.scheduler.after(delay_s, happen)


def _change_a_topic(world: World, number: float) -> None:
    names = sorted(world.topics)
    if not names:
        return
    topic = names[int(number * len(names))]
    world.note("topic", topic=topic)
    if number * 100 % 1 < 0.4:
        world.grow_topic(topic)
    elif number * 100 % 1 < 0.6 and len(names) > 1:
        world.remove_topic(topic)
    elif number * 100 % 1 < 0.8 and world.remove_topic(topic):
        world.make_topic(topic)
    else:
        new = next((f"t{n}" for n in range(world.profile.topics + 3) if f"t{n}" not in world.topics), None)
        if new is not None:
            world.make_topic(new)


# ---- assignors


def _armed(world: World) -> tuple[str, ApplicationActor] | None:
    groups = _led(world)
    group = world.sides.choice(groups) if groups else ""
    life = _leader(world, group) if group else None
    return (group, life.actor) if life is not None and isinstance(life.actor, ApplicationActor) else None


@on(_armed)
def leader_hangs(world: World, found: tuple[str, ApplicationActor]) -> None:
    """For less than it has, or longer, or so long that its consumer leaves."""
    group, app = found
    longest_s = world.profile.assignment_timeout_ms / 1000
    app.troubles.hangs.append(world.sides.choice((0.4, 0.9, 1.1, 1.5, 2.5)) * longest_s)
    _nudge(world, group)


@on(_armed)
def leader_raises(world: World, found: tuple[str, ApplicationActor]) -> None:
    group, app = found
    app.troubles.raises += world.sides.randint(1, 4)
    app.troubles.is_broken = app.troubles.is_broken or world.sides.random() < BROKEN_FOR_GOOD
    _nudge(world, group)


@on(_armed)
def leader_lies(world: World, found: tuple[str, ApplicationActor]) -> None:
    group, app = found
    app.troubles.lies.extend(world.sides.choice(sorted(LIES)) for _ in range(world.sides.randint(1, 2)))
    _nudge(world, group)


# ---- death at each point


def _below(what: str) -> Callable[[Commit], bool]:
    return lambda op: op["op"] == "create" and "/sync/ask-" in op["path"] and what in op["path"].rpartition("/sync/")[2]


def _is_ask(op: Commit) -> bool:
    return op["op"] == "create" and str(op["path"]).rpartition("/")[0].endswith("/sync")


def _is_start_of_an_ask(op: Commit) -> bool:
    data = op.get("data") or ""
    return op["op"] == "create" and "/command-" in op["path"] and '"start-fetcher"' in data and '"ask"' in data


POINTS: tuple[Callable[[Commit], bool], ...] = (
    _is_ask,
    _below("/member-"),
    _below("/answer"),
    _is_start_of_an_ask,
)
"""The ask, the midst of an answer, the answer, its adoption."""


@on(_led)
def leader_dies(world: World, groups: list[str]) -> None:
    """After so many more of its operations, behind the ask or in the midst of its answer."""
    sides = world.sides
    is_it, more, delay_s = sides.choice(POINTS[:2]), sides.randint(1, 9), sides.uniform(0.05, 10)
    is_needed = sides.random() < 0.6

    def die(commit: Commit) -> None:
        group = group_of(next(op["path"] for op in commit["ops"] if is_it(op)))
        leader = str((_newest_ask(world, group) or {}).get("leader", ""))
        life = next((one for one in reversed(_members(world, group)) if one.process.name == leader), None)
        if not world.is_calm and life is not None and not life.process.crash_at:
            world.die_soon(life, more, "leader-dies", delay_s if is_needed else None)

    world.once(is_it, die)
    _nudge(world, sides.choice(groups))


@on(_led)
def coordinator_dies_asking(world: World, groups: list[str]) -> None:
    """The coordinator ends, or is replaced, right behind one of the four points."""
    coordinator_ends_behind(world, world.sides, POINTS, "coordinator-dies-asking")
    _nudge(world, world.sides.choice(groups))


def coordinator_ends_behind(world: World, sides: Random, points: Sequence[Callable[[Commit], bool]], kind: str) -> None:
    """Soon behind one of these, the coordinator is killed, and comes again; or its znode is removed."""
    is_it, more, is_killed = sides.choice(points), sides.randint(1, 6), sides.random() < 0.6
    delay_s, restart_s = sides.choice((0.0, 0.01, 0.3)) * sides.random(), sides.uniform(0.05, 8)

    def end() -> None:
        if world.is_calm or world.node_at(COORDINATOR) is None:
            return
        if not is_killed:
            world.unseat(kind)
            return
        found = world.coordinator()
        if found is None or found[0].process.crash_at:
            return
        process = found[0].process
        process.crash_at = process.operations + more
        world.note("crash", process=process.life)
        world.fire(kind)
        world.again_later(found[0], restart_s)

    world.once(is_it, lambda _: world.scheduler.after(delay_s, end))


# ---- changes


def _resubscribe(world: World, group: str) -> bool:
    life = _leader(world, group)
    if life is None or not isinstance(life.actor, ApplicationActor):
        return False
    world.note("resubscribed", process=life.process.life)
    life.actor.wanted = world.drawn_subscription(world.sides)
    return True


@on(_led)
def resubscribes(world: World, groups: list[str]) -> bool:
    """A member, mostly the leader, subscribes to something else in place."""
    return _resubscribe(world, world.sides.choice(groups))


@on(_led)
def topic_while_asked(world: World, groups: list[str]) -> None:
    """A topic changes while an ask is out: before the leader reads it, or before its answer is judged."""
    sides = world.sides
    is_it, number = sides.choice(POINTS[:3]), sides.random()
    delay_s = sides.choice((0.0, 0.01, 0.5)) * sides.random()

    def change() -> None:
        if not world.is_calm:
            _change_a_topic(world, number)
            world.fire("topic-while-asked")

    world.once(is_it, lambda _: world.scheduler.after(delay_s, change))
    _nudge(world, sides.choice(groups))


@on(_led)
def joins_while_asked(world: World, groups: list[str]) -> None:
    """Several members come, one after the other, behind an ask."""
    if len(world.alive("consumer")) > 2 * world.profile.consumers + 2:
        return
    sides = world.sides
    group = sides.choice(groups)
    delays = sorted(sides.choice((0.1, 1.0, 3.0)) * sides.random() for _ in range(sides.randint(2, 4)))
    names = [f"c{sides.randrange(8)}" for _ in delays]

    def come(name: str) -> None:
        if not world.is_calm:
            world.join(group, name)
            world.fire("joins-while-asked")

    def happen(_: object) -> None:
        for delay_s, name in zip(delays, names, strict=True):
            world.scheduler.after(delay_s, lambda name=name: come(name))  # type: ignore[misc]

    world.once(_is_ask, happen)
    _nudge(world, group)


def group_changes_side(world: World) -> bool:
    """A rolling change to the side beside the one that the group is on: each of its processes is started anew."""
    groups = [group for group in _led(world) if world.manners[group].side != MIXED]
    if not groups:
        return False
    sides = world.sides
    group = sides.choice(groups)
    at = SIDES.index(world.manners[group].side)
    to = sides.choice([n for n in (at - 1, at + 1) if 0 <= n < len(SIDES)])
    world.note("side", group=group, to=SIDES[to])
    world.manners[group] = replace(world.manners[group], side=SIDES[to])
    for life in _members(world, group):
        delay_s = sides.uniform(0.2, 4)
        world.scheduler.after(delay_s, lambda life=life: _restarted(world, life))  # type: ignore[misc]
    return True


def _restarted(world: World, life: SimulatedLife) -> None:
    if not world.is_calm and life.is_alive:
        life.actor.stop()
        world.scheduler.after(0.5, lambda: None if world.is_calm else world.again(life.process))


# ---- hands below `sync`


def _asked(world: World) -> list[str]:
    """Groups with asks."""
    return [group for group in _led(world) if world.children(GroupPaths(group).sync)]


@on(_asked)
def ask_scribbled_by_hand(world: World, groups: list[str]) -> bool:
    """An ask, an entry or an answer holds nonsense, or is gone."""
    sides = world.sides
    paths = GroupPaths(sides.choice(groups))
    ask = paths.ask(sides.choice(world.children(paths.sync)))
    below = [f"{ask}/{child}" for child in world.children(ask)]
    path = sides.choice([ask, *below])
    world.note("hand", path=path)
    if path in below and sides.random() < 0.4:
        return world.by_hand(Delete(path))
    return world.by_hand(SetData(path, sides.choice(NONSENSE)))


@on(_asked)
def sync_removed_by_hand(world: World, groups: list[str]) -> bool:
    """Everything below `sync`, and itself."""
    paths = GroupPaths(world.sides.choice(groups))
    asks = [paths.ask(name) for name in world.children(paths.sync)]
    below = [f"{ask}/{child}" for ask in asks for child in world.children(ask)]
    world.note("hand", path=paths.sync)
    return world.by_hand(*(Delete(path) for path in (*below, *asks, paths.sync)))


@on(_led)
def state_removed_by_hand(world: World, groups: list[str]) -> bool:
    """The state of a group that a member assigns is scribbled over, or removed."""
    paths = GroupPaths(world.sides.choice(groups))
    world.note("hand", path=paths.state)
    data = world.sides.choice((None, *NONSENSE))
    return world.by_hand(Delete(paths.state) if data is None else SetData(paths.state, data))


@on(_led)
def sync_requested_by_hand(world: World, groups: list[str]) -> bool:
    """A request that nobody has made, or that holds nonsense."""
    path = GroupPaths(world.sides.choice(groups)).sync_request
    world.note("hand", path=path)
    return world.by_hand(Create(path, world.sides.choice((*NONSENSE, b'{"version":1,"reason":"a hand"}'))))


@on(_led)
def deaf_leader(world: World, groups: list[str]) -> bool:
    """Events that the leader of a group waits for get lost, for a while."""
    life = _leader(world, world.sides.choice(groups))
    left_s = world.profile.calm_at - world.scheduler.now - 1.2 * world.profile.session_timeout_ms / 1000
    if life is None or left_s <= 0:
        return False
    world.deafen(life, min(world.sides.uniform(2, 8), left_s), 1.0)
    return True


LEADERS = kinds(
    *(leader_hangs, leader_raises, leader_lies, leader_dies, deaf_leader, coordinator_dies_asking),
    *(resubscribes, topic_while_asked, joins_while_asked, group_changes_side),
    *(ask_scribbled_by_hand, sync_removed_by_hand, state_removed_by_hand, sync_requested_by_hand),
)
