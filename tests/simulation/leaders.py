"""Faults of client-side assignment: leaders and coordinators that fail at each of its points, changes while an ask is
out, and hands below `sync`.

They draw from a stream of their own (`world.sides`), so that what is drawn beside them is the same with and without.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.paths import COORDINATOR, GROUPS, GroupPaths, ask_number
from tests.simulation.actors import ApplicationActor
from tests.simulation.assignors import LIES, MIXED, SIDES
from tests.simulation.faults import NONSENSE, Fault, _lasting, _note, again
from tests.simulation.watching import once
from tests.simulation.world import SimulatedLife, SimulatedWorld

BROKEN_FOR_GOOD = 0.15


def _led(world: SimulatedWorld) -> list[str]:
    """Groups that a member assigns, or may."""
    return sorted(group for group, manner in world.manners.items() if manner.common)


def _members(world: SimulatedWorld, group: str) -> list[SimulatedLife]:
    return [
        life
        for life in world.alive("consumer")
        if isinstance(life.actor, ApplicationActor) and life.actor.config.group == group
    ]


def _leader(world: SimulatedWorld, group: str) -> SimulatedLife | None:
    """Mostly the leader of the newest ask, else any member."""
    members = _members(world, group)
    leader = str((_newest_ask(world, group) or {}).get("leader", ""))
    mine = [life for life in members if life.process.name == leader]
    if mine and world.sides.random() < 0.8:
        return mine[-1]
    return world.sides.choice(members) if members else None


def _newest_ask(world: SimulatedWorld, group: str) -> dict[str, Any] | None:
    paths = GroupPaths(group)
    names = sorted(world.children(paths.sync), key=ask_number)
    node = world.ensemble.leader.tree.get(paths.ask(names[-1])) if names and world.ensemble.leader else None
    try:
        values = json.loads(node.data) if node is not None else None
    except ValueError:
        return None
    return values if isinstance(values, dict) else None


def _nudge(world: SimulatedWorld, group: str) -> None:
    """Something that the group must be assigned anew for, soon."""
    sides = world.sides
    delay_s, lot = sides.choice((0.0, 0.5, 2.0)) * sides.random(), sides.random()
    name, number = f"c{sides.randrange(8)}", sides.random()

    def happen() -> None:
        if world.is_calm:
            return
        if lot < 0.4 and len(world.alive("consumer")) < 2 * world.profile.consumers + 3:
            _note(world, "join", group=group)
            world.start_application(group, name)
        elif lot < 0.7:
            _resubscribe(world, group)
        else:
            _change_a_topic(world, number)

    world.scheduler.after(delay_s, happen)


def _change_a_topic(world: SimulatedWorld, number: float) -> None:
    names = sorted(world.topics)
    if not names:
        return
    topic = names[int(number * len(names))]
    _note(world, "topic", topic=topic)
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


def _armed(world: SimulatedWorld) -> tuple[str, ApplicationActor] | None:
    groups = _led(world)
    group = world.sides.choice(groups) if groups else ""
    life = _leader(world, group) if group else None
    return (group, life.actor) if life is not None and isinstance(life.actor, ApplicationActor) else None


def leader_hangs(world: SimulatedWorld) -> bool:
    """For less than it has, or longer, or so long that its consumer leaves."""
    found = _armed(world)
    if found is None:
        return False
    group, app = found
    longest_s = world.profile.assignment_timeout_ms / 1000
    app.troubles.hangs.append(world.sides.choice((0.4, 0.9, 1.1, 1.5, 2.5)) * longest_s)
    _nudge(world, group)
    return False  # counted when it does


def leader_raises(world: SimulatedWorld) -> bool:
    found = _armed(world)
    if found is None:
        return False
    group, app = found
    app.troubles.raises += world.sides.randint(1, 4)
    app.troubles.is_broken = app.troubles.is_broken or world.sides.random() < BROKEN_FOR_GOOD
    _nudge(world, group)
    return False


def leader_lies(world: SimulatedWorld) -> bool:
    found = _armed(world)
    if found is None:
        return False
    group, app = found
    app.troubles.lies.extend(world.sides.choice(sorted(LIES)) for _ in range(world.sides.randint(1, 2)))
    _nudge(world, group)
    return False


# ---- death at each point


def _below(what: str) -> Callable[[dict[str, Any]], bool]:
    return lambda op: op["op"] == "create" and "/sync/ask-" in op["path"] and what in op["path"].rpartition("/sync/")[2]


def _is_ask(op: dict[str, Any]) -> bool:
    return op["op"] == "create" and op["path"].rpartition("/")[0].endswith("/sync")


def _is_start_of_an_ask(op: dict[str, Any]) -> bool:
    data = op.get("data") or ""
    return op["op"] == "create" and "/command-" in op["path"] and '"start-fetcher"' in data and '"ask"' in data


POINTS: tuple[Callable[[dict[str, Any]], bool], ...] = (
    _is_ask,
    _below("/member-"),
    _below("/answer"),
    _is_start_of_an_ask,
)
"""The ask, the midst of an answer, the answer, its adoption."""


def _group_of(commit: dict[str, Any], is_it: Callable[[dict[str, Any]], bool]) -> str:
    path: str = next(op["path"] for op in commit["ops"] if is_it(op))
    return path[len(GROUPS) + 1 :].partition("/")[0]


def leader_dies(world: SimulatedWorld) -> bool:
    """After so many more of its operations, behind the ask or in the midst of its answer."""
    groups = _led(world)
    if not groups:
        return False
    sides = world.sides
    is_it, more, delay_s = sides.choice(POINTS[:2]), sides.randint(1, 9), sides.uniform(0.05, 10)
    is_needed = sides.random() < 0.6

    def die(commit: dict[str, Any]) -> None:
        group = _group_of(commit, is_it)
        leader = str((_newest_ask(world, group) or {}).get("leader", ""))
        life = next((one for one in reversed(_members(world, group)) if one.process.name == leader), None)
        if world.is_calm or life is None or life.process.crash_at:
            return
        life.process.crash_at = life.process.operations + more
        _note(world, "crash", process=life.process.life)
        life.process.observers.append(lambda: changed(life))

    def changed(life: SimulatedLife) -> None:
        if life.process.is_dead and life.process.operations == life.process.crash_at:
            world.fire("leader-dies")
            if is_needed:
                world.scheduler.after(delay_s, lambda: restart(life))

    def restart(life: SimulatedLife) -> None:
        if not world.is_calm and world.of_name(life.process.name) is life:
            again(world, life.process)

    once(world, is_it, die)
    _nudge(world, sides.choice(groups))
    return False


def coordinator_dies_asking(world: SimulatedWorld) -> bool:
    """The coordinator ends, or is replaced, right behind one of the four points."""
    groups = _led(world)
    if not groups:
        return False
    sides = world.sides
    is_it, more, is_killed = sides.choice(POINTS), sides.randint(1, 6), sides.random() < 0.6
    delay_s, restart_s = sides.choice((0.0, 0.01, 0.3)) * sides.random(), sides.uniform(0.05, 8)

    def happen(commit: dict[str, Any]) -> None:
        world.scheduler.after(
            delay_s, lambda: coordinator_ends(world, "coordinator-dies-asking", more, is_killed, restart_s)
        )

    once(world, is_it, happen)
    _nudge(world, sides.choice(groups))
    return False


def coordinator_ends(world: SimulatedWorld, kind: str, more: int, is_killed: bool, restart_s: float) -> None:
    """The coordinator is killed after `more` operations, and comes again; or its znode is removed."""
    leader = world.ensemble.leader
    node = leader.tree.get(COORDINATOR) if leader is not None else None
    if world.is_calm or node is None:
        return
    if not is_killed:
        if world.by_hand(Delete(COORDINATOR)):
            _note(world, "hand", path=COORDINATOR)
            world.fire(kind)
        return
    life = next(
        (
            one
            for one in world.alive("node")
            if any(store.session_id == node.stat.ephemeral_owner for store in world.stores_of(one.process))
        ),
        None,
    )
    if life is None or life.process.crash_at:
        return
    life.process.crash_at = life.process.operations + more
    _note(world, "crash", process=life.process.life)
    world.fire(kind)

    def restart() -> None:
        if not world.is_calm and not life.is_alive and world.of_name(life.process.name) is life:
            again(world, life.process)

    world.scheduler.after(restart_s, restart)


# ---- changes


def _resubscribe(world: SimulatedWorld, group: str) -> bool:
    life = _leader(world, group)
    if life is None or not isinstance(life.actor, ApplicationActor):
        return False
    _note(world, "resubscribed", process=life.process.life)
    life.actor.wanted = world.drawn_subscription(world.sides)
    return True


def resubscribes(world: SimulatedWorld) -> bool:
    """A member, mostly the leader, subscribes to something else in place."""
    groups = _led(world)
    return _resubscribe(world, world.sides.choice(groups)) if groups else False


def topic_while_asked(world: SimulatedWorld) -> bool:
    """A topic changes while an ask is out: before the leader reads it, or before its answer is judged."""
    groups = _led(world)
    if not groups:
        return False
    sides = world.sides
    is_it, number = sides.choice(POINTS[:3]), sides.random()
    delay_s = sides.choice((0.0, 0.01, 0.5)) * sides.random()

    def change() -> None:
        if not world.is_calm:
            _change_a_topic(world, number)
            world.fire("topic-while-asked")

    once(world, is_it, lambda _: world.scheduler.after(delay_s, change))
    _nudge(world, sides.choice(groups))
    return False


def joins_while_asked(world: SimulatedWorld) -> bool:
    """Several members come, one after the other, behind an ask."""
    groups = _led(world)
    if not groups or len(world.alive("consumer")) > 2 * world.profile.consumers + 2:
        return False
    sides = world.sides
    group = sides.choice(groups)
    delays = sorted(sides.choice((0.1, 1.0, 3.0)) * sides.random() for _ in range(sides.randint(2, 4)))
    names = [f"c{sides.randrange(8)}" for _ in delays]

    def join(name: str) -> None:
        if not world.is_calm:
            _note(world, "join", group=group)
            world.start_application(group, name)
            world.fire("joins-while-asked")

    def happen(_: object) -> None:
        for delay_s, name in zip(delays, names, strict=True):
            world.scheduler.after(delay_s, lambda name=name: join(name))  # type: ignore[misc]

    once(world, _is_ask, happen)
    _nudge(world, group)
    return False


def group_changes_side(world: SimulatedWorld) -> bool:
    """A rolling change to the side beside the one that the group is on: each of its processes is started anew."""
    groups = [group for group in _led(world) if world.manners[group].side != MIXED]
    if not groups:
        return False
    sides = world.sides
    group = sides.choice(groups)
    at = SIDES.index(world.manners[group].side)
    to = sides.choice([n for n in (at - 1, at + 1) if 0 <= n < len(SIDES)])
    _note(world, "side", group=group, to=SIDES[to])
    world.change_side(group, SIDES[to])
    for life in _members(world, group):
        delay_s = sides.uniform(0.2, 4)
        world.scheduler.after(delay_s, lambda life=life: _restarted(world, life))  # type: ignore[misc]
    return True


def _restarted(world: SimulatedWorld, life: SimulatedLife) -> None:
    if not world.is_calm and life.is_alive:
        life.actor.stop()
        world.scheduler.after(0.5, lambda: None if world.is_calm else again(world, life.process))


# ---- hands below `sync`


def ask_scribbled(world: SimulatedWorld) -> bool:
    """An ask, an entry or an answer holds nonsense, or is gone."""
    groups = [group for group in _led(world) if world.children(GroupPaths(group).sync)]
    if not groups:
        return False
    sides = world.sides
    paths = GroupPaths(sides.choice(groups))
    ask = paths.ask(sides.choice(world.children(paths.sync)))
    below = [f"{ask}/{child}" for child in world.children(ask)]
    path = sides.choice([ask, *below])
    _note(world, "hand", path=path)
    if path in below and sides.random() < 0.4:
        return world.by_hand(Delete(path))
    return world.by_hand(SetData(path, sides.choice(NONSENSE)))


def sync_removed(world: SimulatedWorld) -> bool:
    """Everything below `sync`, and itself."""
    groups = [group for group in _led(world) if world.children(GroupPaths(group).sync)]
    if not groups:
        return False
    paths = GroupPaths(world.sides.choice(groups))
    asks = [paths.ask(name) for name in world.children(paths.sync)]
    below = [f"{ask}/{child}" for ask in asks for child in world.children(ask)]
    _note(world, "hand", path=paths.sync)
    return world.by_hand(*(Delete(path) for path in (*below, *asks, paths.sync)))


def state_removed(world: SimulatedWorld) -> bool:
    """The state of a group that a member assigns is scribbled over, or removed."""
    groups = _led(world)
    if not groups:
        return False
    paths = GroupPaths(world.sides.choice(groups))
    _note(world, "hand", path=paths.state)
    data = world.sides.choice((None, *NONSENSE))
    return world.by_hand(Delete(paths.state) if data is None else SetData(paths.state, data))


def sync_requested(world: SimulatedWorld) -> bool:
    """A request that nobody has made, or that holds nonsense."""
    groups = _led(world)
    if not groups:
        return False
    path = GroupPaths(world.sides.choice(groups)).sync_request
    _note(world, "hand", path=path)
    return world.by_hand(Create(path, world.sides.choice((*NONSENSE, b'{"version":1,"reason":"a hand"}'))))


def deaf_leader(world: SimulatedWorld) -> bool:
    """Events that the leader of a group waits for get lost, for a while."""
    found = _led(world)
    life = _leader(world, world.sides.choice(found)) if found else None
    left_s = world.profile.calm_at - world.scheduler.now - 1.2 * world.profile.session_timeout_ms / 1000
    if life is None or left_s <= 0:
        return False
    until = _lasting(world, "lose-watches", min(world.sides.uniform(2, 8), left_s), process=life.process.life)
    for store in world.stores_of(life.process):
        store.lose_watches = 1.0
        world.scheduler.after(until - world.scheduler.now, lambda store=store: setattr(store, "lose_watches", 0.0))
    return True


LEADERS: dict[str, Fault] = {
    "leader-hangs": leader_hangs,
    "leader-raises": leader_raises,
    "leader-lies": leader_lies,
    "leader-dies": leader_dies,
    "deaf-leader": deaf_leader,
    "coordinator-dies-asking": coordinator_dies_asking,
    "resubscribes": resubscribes,
    "topic-while-asked": topic_while_asked,
    "joins-while-asked": joins_while_asked,
    "group-changes-side": group_changes_side,
    "ask-scribbled-by-hand": ask_scribbled,
    "sync-removed-by-hand": sync_removed,
    "state-removed-by-hand": state_removed,
    "sync-requested-by-hand": sync_requested,
}
