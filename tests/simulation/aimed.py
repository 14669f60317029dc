"""Faults for a purpose: several changes in a row, and misfortune at the very moment at which it matters.

What the other faults bring about by chance alone takes thousands of runs. A profile that is looking for something may
have these beside them.
"""

from __future__ import annotations

from tests.simulation.actors import ApplicationActor
from tests.simulation.faults import consumer_joins, consumer_leaves, partitions_added, topic_comes
from tests.simulation.moments import MOMENTS
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.store import SimStore
from tests.simulation.watching import (
    Commit,
    Fault,
    World,
    a_topic,
    consumer_of,
    group_of,
    is_command,
    kinds,
    on,
    one_of,
    paths_of,
    session_of,
)
from tests.simulation.world import SimulatedLife
from zk_group.coordinator.zk.store import Delete
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GROUPS, GroupPaths

# ---- slow, and deaf


def slow_nodes(world: World) -> bool:
    """A coordinator's turn takes a while: between its reads, and before its writes, things happen."""
    return _slow(world, world.alive("node"), world.random.choice((0.05, 0.2, 0.5)))


def slow_member(world: World) -> bool:
    """A consumer takes a while between hearing of a command and obeying it."""
    life = world.any_of("consumer", "slot")
    return _slow(world, [life] if life is not None else [], world.random.choice((0.05, 0.2, 0.5)))


def _slow(world: World, lives: list[SimulatedLife], extra_s: float) -> bool:
    for life in lives:
        world.slow_down(life, world.random.uniform(2, 8), extra_s)
    return bool(lives)


def deaf_node(world: World) -> bool:
    """Half of the events that a coordinator waits for get lost."""
    return _deafen(world, world.any_of("node"), 0.5)


def deaf_member(world: World) -> bool:
    """A consumer that polls and renews its lease, and hears of no command."""
    return _deafen(world, world.any_of("consumer", "slot"), 1.0)


def _deafen(world: World, life: SimulatedLife | None, share: float) -> bool:
    """Not up to the calm: who has missed something looks again only once a session timeout."""
    left_s = world.profile.calm_at - world.scheduler.now - 1.2 * world.profile.session_timeout_ms / 1000
    if life is None or left_s <= 0:
        return False
    world.deafen(life, min(world.random.uniform(3, 10), left_s), share)
    return True


# ---- several in a row


def many_topics(world: World) -> bool:
    """Topics come and grow, one after the other."""
    return _in_a_row(world, (topic_comes, partitions_added), world.random.randint(2, 5))


@on(a_topic)
def one_topic_again(world: World, name: str) -> bool:
    """A topic grows, and grows again while whoever looks after it is still reading it."""
    within_s = world.random.choice((0.01, 0.3, 1.0))

    def grow() -> None:
        if not world.is_calm and name in world.topics:
            world.note("topic", topic=name)
            world.grow_topic(name)

    for _ in range(world.random.randint(2, 4)):
        world.scheduler.after(world.random.random() * within_s, grow)
    return True


def many_members(world: World) -> bool:
    """Consumers come and go, one after the other."""
    return _in_a_row(world, (consumer_joins, consumer_joins, consumer_leaves), world.random.randint(2, 4))


def _in_a_row(world: World, kinds: tuple[Fault, ...], count: int) -> bool:
    within_s = world.random.choice((0.005, 0.1, 1.0, 3.0))
    for _ in range(count):
        kind = world.random.choice(kinds)
        world.scheduler.after(world.random.random() * within_s, world.unless_calm(kind))
    return True


# ---- at the moment at which it matters


def claim_then_expiry(world: World) -> None:
    """Somebody who has its password ends the session of the next consumer that claims partitions."""
    delay_s = 0.02 + world.random.choice((0.1, 1.0, 2.0)) * world.random.random()

    def happen(commit: Commit) -> None:
        world.scheduler.after(delay_s, lambda: expire(commit["session"]))

    def expire(session: int) -> None:
        if not world.is_calm and world.ensemble.expire(session):
            world.note("expire-session")
            world.fire("claim-then-expiry")

    world.once(lambda op: op["op"] == "create" and "/owners/" in op["path"], happen)


def claim_then_hand(world: World) -> None:
    """Somebody at zkCli removes the owner znodes that were made last."""
    delay_s = world.random.choice((0.01, 0.3, 1.0)) * world.random.random()

    def happen(commit: Commit) -> None:
        owners = [op["path"] for op in commit["ops"] if op["op"] == "create" and "/owners/" in op["path"]]
        world.scheduler.after(delay_s, lambda: remove(owners))

    def remove(owners: list[str]) -> None:
        if not world.is_calm and world.by_hand(*(Delete(path) for path in owners)):
            world.note("hand", paths=owners)
            world.fire("claim-then-hand")

    world.once(lambda op: op["op"] == "create" and "/owners/" in op["path"], happen)


@on(one_of("consumer", "slot"))
def stop_then_silence(world: World, life: SimulatedLife) -> None:
    """A consumer hangs from the moment at which it is told to stop, perhaps for longer than its session lasts."""
    if life.process.is_paused:
        return
    session_s = world.profile.session_timeout_ms / 1000
    seconds, below = world.random.uniform(0.5, 1.6) * session_s, f"/channel/{life.actor.names()['consumer']}/"

    def pause(_: object) -> None:
        if not world.is_calm and life.is_alive and not life.process.is_paused:
            world.fire("stop-then-silence")
            world.hold(life.process, seconds)

    world.once(is_command("stop-fetcher", below), pause)


def command_then_join(world: World) -> None:
    """A consumer joins while others of its group are about to obey what they were sent."""
    delay_s, name = world.random.choice((0.01, 0.1, 1.0)) * world.random.random(), f"c{world.random.randrange(8)}"
    is_start = is_command("start-fetcher", f"{GROUPS}/g")

    def happen(commit: Commit) -> None:
        group = group_of(next(op["path"] for op in commit["ops"] if is_start(op)))
        world.scheduler.after(delay_s, lambda: come(group))

    def come(group: str) -> None:
        if not world.is_calm:
            world.join(group, name)
            world.fire("command-then-join")

    world.once(is_start, happen)


def pause_between_reads(world: World) -> None:
    """A coordinator hangs, for less than its lease, when it has just read channels to which it has sent commands.

    Meanwhile the commands are obeyed, and somebody joins.
    """
    name, is_start = f"c{world.random.randrange(8)}", is_command("start-fetcher", f"{GROUPS}/g")
    seconds = world.random.uniform(0.2, 0.5) * world.profile.session_timeout_ms / 1000

    def sent(commit: Commit) -> None:
        path = next(op["path"] for op in commit["ops"] if is_start(op))
        group = group_of(path)
        channel = GroupPaths(group).channel(consumer_of(path))
        world.once_read(lambda request: channel in paths_of(request), lambda process: stop(process, group))

    def stop(process: SimulatedProcess, group: str) -> None:
        if world.is_calm or process.is_paused or process.is_dead:
            return
        world.hold(process, seconds)
        world.start_application(group, name)
        world.fire("pause-between-reads")

    world.once(is_start, sent)


def unheard_command(world: World) -> None:
    """An application hangs just after a command of which it has not heard; its consumer goes on renewing its lease."""
    life = world.any_of("consumer")
    if life is None or not _deafen(world, life, 1.0) or not isinstance(life.actor, ApplicationActor):
        return
    app, below = life.actor, f"/channel/{life.actor.names()['consumer']}/"
    delay_s, seconds = world.random.uniform(0.1, 1.5), world.random.uniform(4, 10)

    def stop() -> None:
        if not world.is_calm and life.is_alive and not app.is_stuck:
            world.fire("unheard-command")
            world.hang(life, app, seconds)

    world.once(lambda op: op["op"] == "create" and below in op["path"], lambda _: world.scheduler.after(delay_s, stop))


def eviction_then_election(world: World) -> None:
    """Somebody removes the coordinator's znode when it has just evicted a consumer."""
    delay_s = world.random.choice((0.01, 0.3, 1.0)) * world.random.random()

    world.once(
        lambda op: op["op"] == "set" and "/channel/" in op["path"] and '"ended":"evicted' in op["data"],
        lambda _: world.scheduler.after(delay_s, lambda: world.unseat("eviction-then-election")),
    )


def seal_then_away(world: World) -> None:
    """ZooKeeper goes away right behind a seal, whose reply is lost, and for longer than anybody waits for an answer."""
    seconds = 2.5 * world.profile.session_timeout_ms / 1000

    def away(_: object) -> None:
        if not world.is_calm:
            world.fire("seal-then-away")
            world.scheduler.after(0.0, stop)

    def stop() -> None:
        world.lasting("zookeeper-away", seconds, world.ensemble.start)
        world.ensemble.stop()

    world.once(lambda op: op["op"] == "create" and "/segments/segment-" in op["path"], away)


@on(one_of("consumer", "slot"))
def start_then_crash(world: World, life: SimulatedLife) -> None:
    """A consumer dies right after it has resolved where the group begins, before it has committed anything."""
    below = f"{GroupPaths(life.actor.names()['group']).offsets}/"

    def crash(fields: Commit) -> None:
        starter = world.life_of_session(fields["session"])
        if not world.is_calm and starter is not None:
            world.fire("start-then-crash")
            world.note("crash-process", process=starter.process.life)
            world.crash(starter)
            world.scheduler.after(world.random.uniform(0, 3), world.unless_calm(consumer_joins))

    world.once(lambda op: op["path"].startswith(below) and '"start":' in (op.get("data") or ""), crash)


def unheard_election(world: World) -> bool:
    """Somebody removes the coordinator's znode, of which it does not hear; soon somebody joins, of which it does."""
    node = world.node_at(COORDINATOR)
    if node is None:
        return False
    for _, store in world.stores:
        if store.session_id == node.stat.ephemeral_owner:
            store.lose_watches = 1.0
            world.scheduler.after(0.02, lambda store=store: setattr(store, "lose_watches", 0.0))  # type: ignore[misc]
    world.note("hand", path=COORDINATOR)
    world.scheduler.after(0.03 + 0.5 * world.random.random(), world.unless_calm(consumer_joins))
    return world.by_hand(Delete(COORDINATOR))


@on(session_of("node"))
def late_commit(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    """A node's connection breaks right behind its next commit, which is still on its way."""
    world.note("late-commit", process=found[0].process.life)
    found[1].delay_next_commit()


@on(session_of("consumer", "slot"))
def silence_then_cut(world: World, found: tuple[SimulatedLife, SimStore]) -> bool:
    """A process hangs for most of its session; as soon as it goes on, its server is cut off from the leader."""
    life, store = found
    if life.process.is_paused:
        return False
    session_s = world.profile.session_timeout_ms / 1000
    until = world.hold(life.process, world.random.uniform(0.6, 0.95) * session_s)

    def isolate() -> None:
        server = store.server
        if not world.is_calm and server is not None and server is not world.ensemble.leader and not server.is_cut:
            world.cut(server, world.random.uniform(2, 6))

    later_s = world.random.uniform(0.001, world.profile.tick_s / 2)
    world.scheduler.after(until - world.scheduler.now + later_s, isolate)
    return True


AIMED = MOMENTS | kinds(
    *(slow_nodes, slow_member, deaf_node, deaf_member, many_topics, one_topic_again, many_members),
    *(claim_then_expiry, claim_then_hand, stop_then_silence, command_then_join, pause_between_reads),
    *(unheard_command, eviction_then_election, seal_then_away, start_then_crash, unheard_election),
    *(late_commit, silence_then_cut),
)
