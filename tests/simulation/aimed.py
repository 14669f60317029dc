"""Faults for a purpose: several changes in a row, and misfortune at the very moment at which it matters.

What the other faults bring about by chance alone takes thousands of runs. A profile that is looking for something may
have these beside them.
"""

from __future__ import annotations

from typing import Any

from coordinator.zk.store import Delete
from coordinator.zk.znodes.paths import COORDINATOR, GROUPS, GroupPaths
from tests.simulation.actors import ApplicationActor
from tests.simulation.faults import (
    Fault,
    _any,
    _lasting,
    _note,
    _store,
    consumer_joins,
    consumer_leaves,
    partitions_added,
    topic_comes,
)
from tests.simulation.links import LinkRequest
from tests.simulation.moments import MOMENTS
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.servers import SimulatedServer
from tests.simulation.watching import is_command, once, paths_of, sessions_of, unless_calm
from tests.simulation.world import SimulatedLife, SimulatedWorld

# ---- slow, and deaf


def slow_nodes(world: SimulatedWorld) -> bool:
    """A coordinator's turn takes a while: between its reads, and before its writes, things happen."""
    return _slow(world, world.alive("node"), world.random.choice((0.05, 0.2, 0.5)))


def slow_member(world: SimulatedWorld) -> bool:
    """A consumer takes a while between hearing of a command and obeying it."""
    life = _any(world, "consumer", "slot")
    return _slow(world, [life] if life is not None else [], world.random.choice((0.05, 0.2, 0.5)))


def _slow(world: SimulatedWorld, lives: list[SimulatedLife], extra_s: float) -> bool:
    for life in lives:
        until = _lasting(world, "slow-connection", world.random.uniform(2, 8), process=life.process.life)
        for store in world.stores_of(life.process):
            store.slow(extra_s, until)
    return bool(lives)


def deaf_node(world: SimulatedWorld) -> bool:
    """Half of the events that a coordinator waits for get lost."""
    return _deafen(world, _any(world, "node"), 0.5)


def deaf_member(world: SimulatedWorld) -> bool:
    """A consumer that polls and renews its lease, and hears of no command."""
    return _deafen(world, _any(world, "consumer", "slot"), 1.0)


def _deafen(world: SimulatedWorld, life: SimulatedLife | None, share: float) -> bool:
    """Not up to the calm: who has missed something looks again only once a session timeout."""
    left_s = world.profile.calm_at - world.scheduler.now - 1.2 * world.profile.session_timeout_ms / 1000
    if life is None or left_s <= 0:
        return False
    seconds = min(world.random.uniform(3, 10), left_s)
    until = _lasting(world, "lose-watches", seconds, process=life.process.life)
    for store in world.stores_of(life.process):
        store.lose_watches = share
        world.scheduler.after(until - world.scheduler.now, lambda store=store: setattr(store, "lose_watches", 0.0))
    return True


# ---- several in a row


def many_topics(world: SimulatedWorld) -> bool:
    """Topics come and grow, one after the other."""
    return _in_a_row(world, (topic_comes, partitions_added), world.random.randint(2, 5))


def one_topic_again(world: SimulatedWorld) -> bool:
    """A topic grows, and grows again while whoever looks after it is still reading it."""
    if not world.topics:
        return False
    name, within_s = world.random.choice(sorted(world.topics)), world.random.choice((0.01, 0.3, 1.0))

    def grow() -> None:
        if not world.is_calm and name in world.topics:
            _note(world, "topic", topic=name)
            world.grow_topic(name)

    for _ in range(world.random.randint(2, 4)):
        world.scheduler.after(world.random.random() * within_s, grow)
    return True


def many_members(world: SimulatedWorld) -> bool:
    """Consumers come and go, one after the other."""
    return _in_a_row(world, (consumer_joins, consumer_joins, consumer_leaves), world.random.randint(2, 4))


def _in_a_row(world: SimulatedWorld, kinds: tuple[Fault, ...], count: int) -> bool:
    within_s = world.random.choice((0.005, 0.1, 1.0, 3.0))
    for _ in range(count):
        kind = world.random.choice(kinds)
        world.scheduler.after(world.random.random() * within_s, unless_calm(world, kind))
    return True


# ---- at the moment at which it matters


def claim_then_expiry(world: SimulatedWorld) -> bool:
    """Somebody who has its password ends the session of the next consumer that claims partitions."""
    delay_s = 0.02 + world.random.choice((0.1, 1.0, 2.0)) * world.random.random()

    def happen(commit: dict[str, Any]) -> None:
        world.scheduler.after(delay_s, lambda: expire(commit["session"]))

    def expire(session: int) -> None:
        if not world.is_calm and world.ensemble.expire(session):
            _note(world, "expire-session")
            world.fire("claim-then-expiry")

    once(world, lambda op: op["op"] == "create" and "/owners/" in op["path"], happen)
    return False


def claim_then_hand(world: SimulatedWorld) -> bool:
    """Somebody at zkCli removes the owner znodes that were made last."""
    delay_s = world.random.choice((0.01, 0.3, 1.0)) * world.random.random()

    def happen(commit: dict[str, Any]) -> None:
        owners = [op["path"] for op in commit["ops"] if op["op"] == "create" and "/owners/" in op["path"]]
        world.scheduler.after(delay_s, lambda: remove(owners))

    def remove(owners: list[str]) -> None:
        if not world.is_calm and world.by_hand(*(Delete(path) for path in owners)):
            _note(world, "hand", paths=owners)
            world.fire("claim-then-hand")

    once(world, lambda op: op["op"] == "create" and "/owners/" in op["path"], happen)
    return False


def stop_then_silence(world: SimulatedWorld) -> bool:
    """A consumer hangs from the moment at which it is told to stop, perhaps for longer than its session lasts."""
    life = _any(world, "consumer", "slot")
    if life is None or life.process.is_paused:
        return False
    session_s = world.profile.session_timeout_ms / 1000
    seconds, below = world.random.uniform(0.5, 1.6) * session_s, f"/channel/{life.actor.names()['consumer']}/"

    def pause(_: object) -> None:
        if not world.is_calm and life.is_alive and not life.process.is_paused:
            world.fire("stop-then-silence")
            until = _lasting(world, "pause", seconds, process=life.process.life)
            life.process.pause()
            world.scheduler.after(until - world.scheduler.now, life.process.resume)

    once(world, is_command("stop-fetcher", below), pause)
    return False


def command_then_join(world: SimulatedWorld) -> bool:
    """A consumer joins while others of its group are about to obey what they were sent."""
    delay_s, name = world.random.choice((0.01, 0.1, 1.0)) * world.random.random(), f"c{world.random.randrange(8)}"
    is_start = is_command("start-fetcher", f"{GROUPS}/g")

    def happen(commit: dict[str, Any]) -> None:
        group = next(op["path"] for op in commit["ops"] if is_start(op))[len(GROUPS) + 1 :].partition("/")[0]
        world.scheduler.after(delay_s, lambda: join(group))

    def join(group: str) -> None:
        if not world.is_calm:
            _note(world, "join", group=group)
            world.start_application(group, name)
            world.fire("command-then-join")

    once(world, is_start, happen)
    return False


def pause_between_reads(world: SimulatedWorld) -> bool:
    """A coordinator hangs, for less than its lease, when it has just read channels to which it has sent commands.

    Meanwhile the commands are obeyed, and somebody joins.
    """
    name, is_start = f"c{world.random.randrange(8)}", is_command("start-fetcher", f"{GROUPS}/g")
    seconds = world.random.uniform(0.2, 0.5) * world.profile.session_timeout_ms / 1000

    def sent(commit: dict[str, Any]) -> None:
        path = next(op["path"] for op in commit["ops"] if is_start(op))
        group, consumer = path[len(GROUPS) + 1 :].split("/")[0:3:2]
        channel = GroupPaths(group).channel(consumer)

        def look(request: LinkRequest) -> None:
            process = request.link.client.process
            if process.name.startswith("node") and channel in paths_of(request):
                world.ensemble.on_read.remove(look)
                hang(process, group)

        world.ensemble.on_read.append(look)

    def hang(process: SimulatedProcess, group: str) -> None:
        if world.is_calm or process.is_paused or process.is_dead:
            return
        until = _lasting(world, "pause", seconds, process=process.life)
        process.pause()
        world.scheduler.after(until - world.scheduler.now, process.resume)
        world.start_application(group, name)
        world.fire("pause-between-reads")

    once(world, is_start, sent)
    return False


def unheard_command(world: SimulatedWorld) -> bool:
    """An application hangs just after a command of which it has not heard; its consumer goes on renewing its lease."""
    life = _any(world, "consumer")
    if life is None or not _deafen(world, life, 1.0) or not isinstance(life.actor, ApplicationActor):
        return False
    app, below = life.actor, f"/channel/{life.actor.names()['consumer']}/"
    delay_s, seconds = world.random.uniform(0.1, 1.5), world.random.uniform(4, 10)

    def hang() -> None:
        if not world.is_calm and life.is_alive and not app.is_stuck:
            world.fire("unheard-command")
            until = _lasting(world, "stuck", seconds, process=life.process.life, **app.names())
            app.is_stuck = True
            world.scheduler.after(until - world.scheduler.now, lambda: setattr(app, "is_stuck", False))

    once(world, lambda op: op["op"] == "create" and below in op["path"], lambda _: world.scheduler.after(delay_s, hang))
    return False


def eviction_then_election(world: SimulatedWorld) -> bool:
    """Somebody removes the coordinator's znode when it has just evicted a consumer."""
    delay_s = world.random.choice((0.01, 0.3, 1.0)) * world.random.random()

    def remove() -> None:
        if not world.is_calm and world.by_hand(Delete(COORDINATOR)):
            _note(world, "hand", path=COORDINATOR)
            world.fire("eviction-then-election")

    once(
        world,
        lambda op: op["op"] == "set" and "/channel/" in op["path"] and '"ended":"evicted' in op["data"],
        lambda _: world.scheduler.after(delay_s, remove),
    )
    return False


def seal_then_away(world: SimulatedWorld) -> bool:
    """ZooKeeper goes away right behind a seal, whose reply is lost, and for longer than anybody waits for an answer."""
    seconds = 2.5 * world.profile.session_timeout_ms / 1000

    def away(_: object) -> None:
        if not world.is_calm:
            world.fire("seal-then-away")
            world.scheduler.after(0.0, stop)

    def stop() -> None:
        until = _lasting(world, "zookeeper-away", seconds)
        world.ensemble.stop()
        world.scheduler.after(until - world.scheduler.now, world.ensemble.start)

    once(world, lambda op: op["op"] == "create" and "/segments/segment-" in op["path"], away)
    return False


def start_then_crash(world: SimulatedWorld) -> bool:
    """A consumer dies right after it has resolved where the group begins, before it has committed anything."""
    life = _any(world, "consumer", "slot")
    if life is None:
        return False
    below = f"{GroupPaths(life.actor.names()['group']).offsets}/"

    def crash(fields: dict[str, Any]) -> None:
        starter = next((one for one in world.alive() if fields["session"] in sessions_of(world, one)), None)
        if not world.is_calm and starter is not None:
            world.fire("start-then-crash")
            _note(world, "crash-process", process=starter.process.life)
            world.crash(starter)
            world.scheduler.after(world.random.uniform(0, 3), unless_calm(world, consumer_joins))

    once(world, lambda op: op["path"].startswith(below) and '"start":' in (op.get("data") or ""), crash)
    return False


def unheard_election(world: SimulatedWorld) -> bool:
    """Somebody removes the coordinator's znode, of which it does not hear; soon somebody joins, of which it does."""
    leader = world.ensemble.leader
    node = leader.tree.get(COORDINATOR) if leader is not None else None
    if node is None:
        return False
    for _, store in world.stores:
        if store.session_id == node.stat.ephemeral_owner:
            store.lose_watches = 1.0
            world.scheduler.after(0.02, lambda store=store: setattr(store, "lose_watches", 0.0))  # type: ignore[misc]
    _note(world, "hand", path=COORDINATOR)
    world.scheduler.after(0.03 + 0.5 * world.random.random(), unless_calm(world, consumer_joins))
    return world.by_hand(Delete(COORDINATOR))


def late_commit(world: SimulatedWorld) -> bool:
    """A node's connection breaks right behind its next commit, which is still on its way."""
    found = _store(world, "node")
    if found is None:
        return False
    _note(world, "late-commit", process=found[0].process.life)
    found[1].delay_next_commit()
    return False


def silence_then_cut(world: SimulatedWorld) -> bool:
    """A process hangs for most of its session; as soon as it goes on, its server is cut off from the leader."""
    found = _store(world, "consumer", "slot")
    if found is None or found[0].process.is_paused:
        return False
    life, store = found
    session_s = world.profile.session_timeout_ms / 1000
    until = _lasting(world, "pause", world.random.uniform(0.6, 0.95) * session_s, process=life.process.life)
    life.process.pause()
    scheduler = world.scheduler
    scheduler.after(until - scheduler.now, life.process.resume)

    def cut() -> None:
        server = store.server
        if not world.is_calm and server is not None and server is not world.ensemble.leader and not server.is_cut:
            _cut(world, server)

    scheduler.after(until - scheduler.now + world.random.uniform(0.001, world.profile.tick_s / 2), cut)
    return True


def _cut(world: SimulatedWorld, server: SimulatedServer) -> None:
    until = _lasting(world, "cut-server", world.random.uniform(2, 6))
    world.ensemble.cut(server)
    world.scheduler.after(until - world.scheduler.now, lambda: world.ensemble.heal(server))


AIMED: dict[str, Fault] = {
    "slow-nodes": slow_nodes,
    "slow-member": slow_member,
    "deaf-node": deaf_node,
    "deaf-member": deaf_member,
    "many-topics": many_topics,
    "one-topic-again": one_topic_again,
    "many-members": many_members,
    "claim-then-expiry": claim_then_expiry,
    "claim-then-hand": claim_then_hand,
    "stop-then-silence": stop_then_silence,
    "command-then-join": command_then_join,
    "pause-between-reads": pause_between_reads,
    "unheard-command": unheard_command,
    "eviction-then-election": eviction_then_election,
    "seal-then-away": seal_then_away,
    "start-then-crash": start_then_crash,
    "unheard-election": unheard_election,
    "late-commit": late_commit,
    "silence-then-cut": silence_then_cut,
    **MOMENTS,
}
