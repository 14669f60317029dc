"""Faults in several acts: each step waits for the one before. A profile has them in scenes (`Profile.scenes`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from coordinator.admin import control
from coordinator.zk.store import Create, Delete
from coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, GROUPS, PAUSED, GroupPaths
from tests.simulation.actors import ApplicationActor
from tests.simulation.faults import Fault, _any, _group, _lasting, _note, _operator, again
from tests.simulation.links import LinkRequest
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.watching import Commit, coordinator_of, is_command, life_of_session, once, paths_of
from tests.simulation.world import POOL_GROUP, SimulatedLife, SimulatedWorld

SOON_S = 0.001


def _hold(world: SimulatedWorld, process: SimulatedProcess, seconds: float) -> None:
    """Stop a process, at most for so long; `resume` ends it earlier."""
    until = _lasting(world, "pause", seconds, process=process.life)
    process.pause()
    world.scheduler.after(until - world.scheduler.now, process.resume)


# ---- coordinators


def pause_then_failover(world: SimulatedWorld) -> bool:
    """An operator pauses a group, a consumer joins it, and another coordinator is elected meanwhile."""
    paths = _group(world)
    if paths is None:
        return False
    name, delay_s = f"c{world.random.randrange(8)}", world.random.uniform(0.05, 0.5)
    until = _lasting(world, "paused", world.random.uniform(2, 5), group=paths.group)

    def paused(_: Commit) -> None:
        if not world.is_calm:
            _note(world, "join", group=paths.group)
            world.start_application(paths.group, name)
            world.scheduler.after(delay_s, elect)

    def elect() -> None:
        if not world.is_calm and world.by_hand(Delete(COORDINATOR)):
            _note(world, "hand", path=COORDINATOR)
            world.fire("pause-then-failover")

    once(world, lambda op: op["path"] == PAUSED, paused)
    _operator(world, lambda store, ms: control.pause(store, paths.group, "operator", ms, "a drill"))
    world.scheduler.after(
        until - world.scheduler.now, lambda: _operator(world, lambda store, ms: control.resume(store, paths.group))
    )
    return False


def stale_bid(world: SimulatedWorld) -> bool:
    """A node stops between its look at the epoch and its bid; another is elected and removed; then it goes on."""
    if len(world.alive("node")) < 2 or coordinator_of(world) is None:
        return False
    seconds = 0.7 * world.profile.session_timeout_ms / 1000

    def look(request: LinkRequest) -> None:
        process, paths = request.link.client.process, paths_of(request)
        if COORDINATOR_EPOCH in paths and CONSUMERS in paths and process.name.startswith("node"):
            world.ensemble.on_read.remove(look)
            if not world.is_calm and not process.is_paused:
                _hold(world, process, seconds)
                once(
                    world,
                    lambda op: op["op"] == "create" and op["path"] == COORDINATOR,
                    lambda _: world.scheduler.after(SOON_S, lambda: unseat(process)),
                )

    def unseat(process: SimulatedProcess) -> None:
        if not world.is_calm and process.is_paused and world.by_hand(Delete(COORDINATOR)):
            _note(world, "hand", path=COORDINATOR)
            process.resume()
            world.fire("stale-bid")

    _note(world, "hand", path=COORDINATOR)
    world.ensemble.on_read.append(look)
    world.by_hand(Delete(COORDINATOR))
    return False


# ---- seats and commands


def seat_made_again(world: SimulatedWorld) -> bool:
    """A static member has left. While a coordinator is about to give up its seat, its name comes back twice: as a
    dynamic member, which removes the seat, and as a static one, which creates it."""
    some = [life for life in world.alive("consumer") if isinstance(life.actor, ApplicationActor)]
    static = [life for life in some if life.actor.config.group_instance_id]  # type: ignore[attr-defined]
    if not static:
        return False
    life = world.random.choice(static)
    config = life.actor.config  # type: ignore[attr-defined]
    session_s = world.profile.session_timeout_ms / 1000
    seat = GroupPaths(config.group).seat(config.consumer)
    due = world.scheduler.now + 0.98 * session_s

    def look(request: LinkRequest) -> None:
        process, leader = request.link.client.process, world.ensemble.leader
        if seat not in paths_of(request) or not process.name.startswith("node") or world.scheduler.now < due:
            return
        world.ensemble.on_read.remove(look)
        node = leader.tree.get(seat) if leader is not None else None
        if not world.is_calm and not process.is_paused and node is not None and node.stat.version == 0:
            _hold(world, process, 0.4 * session_s)
            once(world, lambda op: (op["op"], op["path"]) == ("delete", seat), lambda _: start(config.consumer))
            once(world, lambda op: (op["op"], op["path"]) == ("create", seat), lambda _: go_on(process))
            start("")

    def start(instance: str) -> None:
        _note(world, "join", group=config.group)
        again(world, life.process)
        newest = world.of_name(life.process.name)
        if newest is not None and isinstance(newest.actor, ApplicationActor):
            newest.actor.config = replace(newest.actor.config, group_instance_id=instance)

    def go_on(process: SimulatedProcess) -> None:
        world.scheduler.after(SOON_S, process.resume)
        world.fire("seat-made-again")

    _note(world, "leave", process=life.process.life)
    life.actor.stop()
    world.ensemble.on_read.append(look)
    return False


def old_command(world: SimulatedWorld) -> bool:
    """Somebody at zkCli makes a command again that an earlier coordinator had sent, from a copy.

    Its member has not heard of it before the next coordinator has withdrawn it and sent its own.
    """
    is_stop, is_start = (is_command(option, f"{GROUPS}/g") for option in ("stop-fetcher", "start-fetcher"))
    session_s = world.profile.session_timeout_ms / 1000

    def is_sent(op: Commit) -> bool:
        return is_stop(op) or is_start(op)

    def sent(commit: Commit) -> None:
        op = next(op for op in commit["ops"] if is_sent(op))
        channel = op["path"].rpartition("/")[0]
        life = world.of_name(channel.rpartition("/")[2])
        old = json.loads(op["data"])
        if world.is_calm or life is None or not life.is_alive or life.process.is_paused:
            return
        _hold(world, life.process, 0.7 * session_s)
        _note(world, "hand", path=COORDINATOR)
        world.scheduler.after(SOON_S, lambda: world.by_hand(Delete(COORDINATOR)))

        def is_next(op: Commit) -> bool:
            return (
                is_sent(op) and op["path"].startswith(f"{channel}/") and json.loads(op["data"])["epoch"] > old["epoch"]
            )

        def is_done(op: Commit) -> bool:
            if (op["op"], op["path"]) != ("set", channel):
                return False
            now = json.loads(op["data"])
            same = (now["incarnation"], now["generation"]) == (old["incarnation"], old["generation"])
            return same and now["ended"] is None and now["epoch"] > old["epoch"]

        once(world, is_next, lambda _: world.scheduler.after(SOON_S, life.process.resume), by="node")
        by = life.actor.kind  # a hand may write there too, and no JSON
        once(world, is_done, lambda _: world.scheduler.after(SOON_S, lambda: make(channel, op["data"])), by=by)

    def make(channel: str, data: str) -> None:
        if not world.is_calm and world.by_hand(Create(f"{channel}/command-", data.encode(), sequential=True)):
            _note(world, "hand", path=channel)
            world.fire("old-command-by-hand")

    once(world, is_sent, sent, by="node")
    return False


def failover_while_asked(world: SimulatedWorld) -> bool:
    """A leader hangs when it is asked; another coordinator is elected, and another member leaves, before it answers."""
    is_asked, session_s = is_command("assign", f"{GROUPS}/g"), world.profile.session_timeout_ms / 1000
    name, later_s = f"c{world.random.randrange(8)}", world.random.uniform(0.3, 0.5) * session_s

    def asked(commit: Commit) -> None:
        path = next(op["path"] for op in commit["ops"] if is_asked(op))
        group, consumer = path[len(GROUPS) + 1 :].split("/")[0:3:2]
        life = world.of_name(consumer)
        if world.is_calm or life is None or not life.is_alive or life.process.is_paused:
            return
        _hold(world, life.process, 0.7 * session_s)
        _note(world, "hand", path=COORDINATOR)
        world.scheduler.after(SOON_S, lambda: world.by_hand(Delete(COORDINATOR)))
        world.scheduler.after(later_s, lambda: leave(group, consumer))

    def leave(group: str, leader: str) -> None:
        others = [one for one in world.alive("consumer") if one.actor.names()["group"] == group]
        others = [one for one in others if one.process.name != leader]
        if world.is_calm or not others:
            return
        life = world.random.choice(others)
        _note(world, "leave", process=life.process.life)
        life.actor.stop()
        world.fire("failover-while-asked")

    once(world, is_asked, asked, by="node")
    group = f"g{world.random.randrange(world.profile.groups)}"
    _note(world, "join", group=group)
    world.start_application(group, name)
    return False


# ---- consumers


def register_then_cut(world: SimulatedWorld) -> bool:
    """A consumer hangs when it has just registered; as soon as it goes on, its server is cut off from the leader."""
    session_s = world.profile.session_timeout_ms / 1000
    seconds, later_s = (
        world.random.uniform(0.75, 0.93) * session_s,
        world.random.uniform(0.003, world.profile.tick_s / 6),
    )
    group, name = f"g{world.random.randrange(world.profile.groups)}", f"c{world.random.randrange(8)}"
    scheduler = world.scheduler

    def registered(commit: Commit) -> None:
        life = life_of_session(world, commit["session"])
        stores = world.stores_of(life.process) if life is not None else []
        if world.is_calm or life is None or not stores or life.process.is_paused:
            return
        _hold(world, life.process, seconds)
        scheduler.after(seconds + later_s, lambda: cut(life))

    def cut(life: SimulatedLife) -> None:
        server = next((store.server for store in world.stores_of(life.process)), None)
        if world.is_calm or server is None or server is world.ensemble.leader or server.is_cut:
            return
        until = _lasting(world, "cut-server", session_s)
        world.ensemble.cut(server)
        scheduler.after(until - scheduler.now, lambda: world.ensemble.heal(server))
        world.fire("register-then-cut")

    once(world, lambda op: op["op"] == "create" and "/ids/" in op["path"], registered)
    _note(world, "join", group=group)
    world.start_application(group, name)
    return False


def publish_then_take_over(world: SimulatedWorld) -> bool:
    """A consumer hangs at a commit behind which it publishes its offsets; another process of the name goes on there."""
    session_s = world.profile.session_timeout_ms / 1000
    life = _any(world, "consumer")
    if life is None or not isinstance(life.actor, ApplicationActor):
        return False
    config = life.actor.config
    paths = GroupPaths(config.group)
    channel, interval_s = paths.channel(config.consumer), 1.02 * config.offsets_interval_ms / 1000
    own = [event for event in world.history if event["who"] == life.process.life and event["event"] == "commit"]
    last = [each["at"] for each in own if any(op["path"].startswith(f"{paths.offsets}/") for op in each["ops"])]
    published = [last[-1] if last else world.scheduler.now]

    def look(event: str, commit: Commit) -> bool:
        if event != "commit" or life_of_session(world, commit["session"]) is not life:
            return False
        if any(op["path"].startswith(f"{paths.offsets}/") for op in commit["ops"]):
            published[0] = world.scheduler.now
        elif _offsets(commit, channel) and world.scheduler.now - published[0] > interval_s and not world.is_calm:
            world.observers.remove(look)
            replace_it(_offsets(commit, channel))
        return False

    def replace_it(before: Mapping[str, int]) -> None:
        if life.process.is_paused:
            return
        _hold(world, life.process, 0.9 * session_s)
        _note(world, "second-process", process=life.process.life)
        again(world, life.process)
        newest = world.of_name(life.process.name)

        def went_on(event: str, commit: Commit) -> bool:
            if event == "commit" and newest is not None and life_of_session(world, commit["session"]) is newest:
                now = _offsets(commit, channel)
                if life.process.is_paused and any(before.get(each, offset) < offset for each, offset in now.items()):
                    life.process.resume()
                    world.fire("publish-then-take-over")
            return False

        world.observers.append(went_on)

    world.observers.append(look)
    return False


def _offsets(commit: Commit, channel: str) -> dict[str, int]:
    """The offsets of a commit that does nothing but write the channel; none of another one."""
    written = [op for op in commit["ops"] if op["op"] != "check"]
    if [(op["op"], op["path"]) for op in written] != [("set", channel)]:
        return {}
    running = json.loads(written[0]["data"])["running"]
    return {
        f"{topic}-{number}": offset for topic, parts in running.items() for number, offset in parts.items() if offset
    }


# ---- queries


def query_registers_late(world: SimulatedWorld) -> bool:
    """A new query hangs just before it registers, while others go on and segments are removed."""
    names = [name for name in (f"q{number}" for number in range(9)) if name not in world.checkpoints]
    if not world.profile.slots or not names:
        return False
    own, name = GroupPaths(POOL_GROUP).query(names[0]), names[0]
    seconds = world.random.uniform(0.4, 0.8) * world.profile.session_timeout_ms / 1000

    def look(request: LinkRequest) -> None:
        process = request.link.client.process
        if own in paths_of(request) and process.name == f"query-{name}":
            world.ensemble.on_read.remove(look)
            if not world.is_calm and not process.is_paused:
                _hold(world, process, seconds)
                world.fire("query-registers-late")

    world.ensemble.on_read.append(look)
    _note(world, "query")
    world.start_query(name)
    return False


SCENES: dict[str, Fault] = {
    "pause-then-failover": pause_then_failover,
    "stale-bid": stale_bid,
    "seat-made-again": seat_made_again,
    "old-command-by-hand": old_command,
    "failover-while-asked": failover_while_asked,
    "register-then-cut": register_then_cut,
    "publish-then-take-over": publish_then_take_over,
    "query-registers-late": query_registers_late,
}
