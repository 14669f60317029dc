"""Faults in several acts: each step waits for the one before. A profile has them in scenes (`Profile.scenes`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from tests.simulation.actors import ApplicationActor
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.watching import (
    SOON_S,
    Commit,
    World,
    a_group,
    consumer_of,
    group_of,
    is_command,
    kinds,
    on,
    one_of,
    paths_of,
)
from tests.simulation.world import POOL_GROUP, SimulatedLife
from zk_group.coordinator.zk.store import Create, Delete
from zk_group.coordinator.zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, GROUPS, PAUSED, GroupPaths

# ---- coordinators


@on(a_group)
def pause_then_failover(world: World, paths: GroupPaths) -> None:
    """An operator pauses a group, a consumer joins it, and another coordinator is elected meanwhile."""
    name, delay_s = f"c{world.random.randrange(8)}", world.random.uniform(0.05, 0.5)
    paused_s = world.random.uniform(2, 5)

    def paused(_: Commit) -> None:
        if not world.is_calm:
            world.join(paths.group, name)
            world.scheduler.after(delay_s, lambda: world.unseat("pause-then-failover"))

    world.once(lambda op: op["path"] == PAUSED, paused)
    world.pause_group(paths.group, paused_s)


def stale_bid(world: World) -> None:
    """A node stops between its look at the epoch and its bid; another is elected and removed; then it goes on."""
    if len(world.alive("node")) < 2 or world.coordinator() is None:
        return
    seconds = 0.7 * world.profile.session_timeout_ms / 1000

    def bids(process: SimulatedProcess) -> None:
        if not world.is_calm and not process.is_paused:
            world.hold(process, seconds)
            world.once(
                lambda op: op["op"] == "create" and op["path"] == COORDINATOR,
                lambda _: world.scheduler.after(SOON_S, lambda: remove(process)),
            )

    def remove(process: SimulatedProcess) -> None:
        if not world.is_calm and process.is_paused and world.by_hand(Delete(COORDINATOR)):
            world.note("hand", path=COORDINATOR)
            process.resume()
            world.fire("stale-bid")

    world.note("hand", path=COORDINATOR)
    world.once_read(lambda request: {COORDINATOR_EPOCH, CONSUMERS} <= {*paths_of(request)}, bids)
    world.by_hand(Delete(COORDINATOR))


# ---- seats and commands


def seat_made_again(world: World) -> None:
    """A static member has left. While a coordinator is about to give up its seat, its name comes back twice: as a
    dynamic member, which removes the seat, and as a static one, which creates it."""
    some = [life for life in world.alive("consumer") if isinstance(life.actor, ApplicationActor)]
    static = [life for life in some if life.actor.config.group_instance_id]  # type: ignore[attr-defined]
    if not static:
        return
    life = world.random.choice(static)
    config = life.actor.config  # type: ignore[attr-defined]
    session_s = world.profile.session_timeout_ms / 1000
    seat = GroupPaths(config.group).seat(config.consumer)
    due = world.scheduler.now + 0.98 * session_s

    def looks(process: SimulatedProcess) -> None:
        node = world.node_at(seat)
        if not world.is_calm and not process.is_paused and node is not None and node.stat.version == 0:
            world.hold(process, 0.4 * session_s)
            world.once(lambda op: (op["op"], op["path"]) == ("delete", seat), lambda _: start(config.consumer))
            world.once(lambda op: (op["op"], op["path"]) == ("create", seat), lambda _: go_on(process))
            start("")

    def start(instance: str) -> None:
        world.note("join", group=config.group)
        world.again(life.process)
        newest = world.of_name(life.process.name)
        if newest is not None and isinstance(newest.actor, ApplicationActor):
            newest.actor.config = replace(newest.actor.config, group_instance_id=instance)

    def go_on(process: SimulatedProcess) -> None:
        world.scheduler.after(SOON_S, process.resume)
        world.fire("seat-made-again")

    world.note("leave", process=life.process.life)
    life.actor.stop()
    world.once_read(lambda request: seat in paths_of(request) and world.scheduler.now >= due, looks)


def old_command_by_hand(world: World) -> None:
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
        world.hold(life.process, 0.7 * session_s)
        world.note("hand", path=COORDINATOR)
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

        world.once(is_next, lambda _: world.scheduler.after(SOON_S, life.process.resume), by="node")
        by = life.actor.kind  # a hand may write there too, and no JSON
        world.once(is_done, lambda _: world.scheduler.after(SOON_S, lambda: make(channel, op["data"])), by=by)

    def make(channel: str, data: str) -> None:
        if not world.is_calm and world.by_hand(Create(f"{channel}/command-", data.encode(), sequential=True)):
            world.note("hand", path=channel)
            world.fire("old-command-by-hand")

    world.once(is_sent, sent, by="node")


def failover_while_asked(world: World) -> None:
    """A leader hangs when it is asked; another coordinator is elected, and another member leaves, before it answers."""
    is_asked, session_s = is_command("assign", f"{GROUPS}/g"), world.profile.session_timeout_ms / 1000
    name, later_s = f"c{world.random.randrange(8)}", world.random.uniform(0.3, 0.5) * session_s

    def asked(commit: Commit) -> None:
        path = next(op["path"] for op in commit["ops"] if is_asked(op))
        group, consumer = group_of(path), consumer_of(path)
        life = world.of_name(consumer)
        if world.is_calm or life is None or not life.is_alive or life.process.is_paused:
            return
        world.hold(life.process, 0.7 * session_s)
        world.note("hand", path=COORDINATOR)
        world.scheduler.after(SOON_S, lambda: world.by_hand(Delete(COORDINATOR)))
        world.scheduler.after(later_s, lambda: leave(group, consumer))

    def leave(group: str, leader: str) -> None:
        others = [one for one in world.alive("consumer") if one.actor.names()["group"] == group]
        others = [one for one in others if one.process.name != leader]
        if world.is_calm or not others:
            return
        life = world.random.choice(others)
        world.note("leave", process=life.process.life)
        life.actor.stop()
        world.fire("failover-while-asked")

    world.once(is_asked, asked, by="node")
    world.join(f"g{world.random.randrange(world.profile.groups)}", name)


# ---- consumers


def register_then_cut(world: World) -> None:
    """A consumer hangs when it has just registered; as soon as it goes on, its server is cut off from the leader."""
    session_s = world.profile.session_timeout_ms / 1000
    seconds = world.random.uniform(0.75, 0.93) * session_s
    later_s = world.random.uniform(0.003, world.profile.tick_s / 6)
    group, name = f"g{world.random.randrange(world.profile.groups)}", f"c{world.random.randrange(8)}"

    def registered(commit: Commit) -> None:
        life = world.life_of_session(commit["session"])
        stores = world.stores_of(life.process) if life is not None else []
        if world.is_calm or life is None or not stores or life.process.is_paused:
            return
        world.hold(life.process, seconds)
        world.scheduler.after(seconds + later_s, lambda: isolate(life))

    def isolate(life: SimulatedLife) -> None:
        server = next((store.server for store in world.stores_of(life.process)), None)
        if world.is_calm or server is None or server is world.ensemble.leader or server.is_cut:
            return
        world.cut(server, session_s)
        world.fire("register-then-cut")

    world.once(lambda op: op["op"] == "create" and "/ids/" in op["path"], registered)
    world.join(group, name)


@on(one_of("consumer"))
def publish_then_take_over(world: World, life: SimulatedLife) -> None:
    """A consumer hangs at a commit behind which it publishes its offsets; another process of the name goes on there."""
    session_s = world.profile.session_timeout_ms / 1000
    if not isinstance(life.actor, ApplicationActor):
        return
    config = life.actor.config
    paths = GroupPaths(config.group)
    channel, interval_s = paths.channel(config.consumer), 1.02 * config.offsets_interval_ms / 1000
    own = [event for event in world.history if event["who"] == life.process.life and event["event"] == "commit"]
    last = [each["at"] for each in own if any(op["path"].startswith(f"{paths.offsets}/") for op in each["ops"])]
    published = [last[-1] if last else world.scheduler.now]

    def look(event: str, commit: Commit) -> bool:
        if event != "commit" or world.life_of_session(commit["session"]) is not life:
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
        world.hold(life.process, 0.9 * session_s)
        world.note("second-process", process=life.process.life)
        world.again(life.process)
        newest = world.of_name(life.process.name)

        def went_on(event: str, commit: Commit) -> bool:
            if event == "commit" and newest is not None and world.life_of_session(commit["session"]) is newest:
                now = _offsets(commit, channel)
                if life.process.is_paused and any(before.get(each, offset) < offset for each, offset in now.items()):
                    life.process.resume()
                    world.fire("publish-then-take-over")
            return False

        world.observers.append(went_on)

    world.observers.append(look)


def _offsets(commit: Commit, channel: str) -> dict[str, int]:
    """The offsets of a commit that does nothing but write the channel; none of another one."""
    written = [op for op in commit["ops"] if op["op"] != "check"]
    if [(op["op"], op["path"]) for op in written] != [("set", channel)]:
        return {}
    running = json.loads(written[0]["data"])["running"]
    return {f"{topic}-{number}": offset for topic, some in running.items() for number, offset in some.items() if offset}


# ---- queries


def query_registers_late(world: World) -> None:
    """A new query hangs just before it registers, while others go on and segments are removed."""
    names = [name for name in (f"q{number}" for number in range(9)) if name not in world.checkpoints]
    if not world.profile.slots or not names:
        return
    own, name = GroupPaths(POOL_GROUP).query(names[0]), names[0]
    seconds = world.random.uniform(0.4, 0.8) * world.profile.session_timeout_ms / 1000

    def registers(process: SimulatedProcess) -> None:
        if not world.is_calm and not process.is_paused:
            world.hold(process, seconds)
            world.fire("query-registers-late")

    world.once_read(lambda request: own in paths_of(request), registers, by=f"query-{name}")
    world.note("query")
    world.start_query(name)


SCENES = kinds(
    *(pause_then_failover, stale_bid, seat_made_again, old_command_by_hand, failover_while_asked),
    *(register_then_cut, publish_then_take_over, query_registers_late),
)
