"""Everything that can be done to a world at any moment."""

from __future__ import annotations

from typing import Any

from tests.simulation.actors import ApplicationActor
from tests.simulation.store import SimStore
from tests.simulation.watching import World, a_group, a_topic, kinds, on, one_of, session_of
from tests.simulation.world import POOL_GROUP, SimulatedLife
from zk_group.coordinator.admin import control
from zk_group.coordinator.zk.store import Create, Delete, SetData
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths

STUCK_FOR_GOOD = 0.2
ONLY_COMMITS = 0.7
SLOW_DISKS = 0.5
"""Of the servers that lag; the others lag because their link to the leader is slow."""


# ---- sessions and connections


@on(session_of())
def expire_session(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    if world.ensemble.expire(found[1].session_id):
        world.note("expire-session", process=found[0].process.life)


@on(session_of())
def lose_request(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    found[1].lose_next_request(world.random.random() < ONLY_COMMITS)
    world.note("lose-request", process=found[0].process.life)


@on(session_of())
def lose_reply(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    found[1].lose_next_reply(world.random.random() < ONLY_COMMITS)
    world.note("lose-reply", process=found[0].process.life)


@on(session_of())
def drop_connection(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    world.note("drop-connection", process=found[0].process.life)
    found[1].drop_connection()


@on(session_of())
def slow_connection(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    until = world.lasting("slow-connection", world.random.uniform(0.5, 10), process=found[0].process.life)
    found[1].slow(world.random.choice((0.05, 0.3, 1.5, 20.0)), until)


@on(session_of())
def lose_watches(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    life, store = found
    seconds = world.random.uniform(2, 15)
    world.lasting("lose-watches", seconds, lambda: setattr(store, "lose_watches", 0.0), process=life.process.life)
    store.lose_watches = world.random.choice((0.3, 1.0))


@on(session_of())
def late_watches(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    life, store = found
    seconds = world.random.uniform(2, 10)
    world.lasting("late-watches", seconds, lambda: setattr(store, "late_watches_s", 0.0), process=life.process.life)
    store.late_watches_s = world.random.choice((0.1, 0.5, 2.0))


# ---- servers


def lag_server(world: World) -> None:
    server = world.random.choice(world.followers())
    world.lasting("lag-server", world.random.uniform(1, 8), lambda: server.lag(0.0))
    server.lag(world.random.choice((0.05, 0.3, 1.0)), has_slow_disk=world.disks.random() < SLOW_DISKS)


def cut_server(world: World) -> None:
    server = world.random.choice(world.followers())
    world.cut(server, world.random.uniform(1, 10))


def stop_server(world: World) -> None:
    server = world.random.choice(world.followers())
    world.lasting("stop-server", world.random.uniform(0.5, 8), server.start)
    server.stop()


def change_leader(world: World) -> None:
    world.note("change-leader")
    world.ensemble.change_leader()


def zookeeper_away(world: World) -> None:
    world.lasting("zookeeper-away", world.random.uniform(0.5, 8), world.ensemble.start)
    world.ensemble.stop()


# ---- processes


@on(one_of())
def pause_process(world: World, life: SimulatedLife) -> bool:
    if life.process.is_paused:
        return False
    world.hold(life.process, world.random.uniform(0.2, 2.5) * (world.profile.session_timeout_ms / 1000))
    return True


@on(one_of())
def crash_process(world: World, life: SimulatedLife) -> None:
    """Between any two of its operations; somebody starts it again, sooner or later, or never."""
    if life.process.crash_at:
        return
    more = world.random.randint(1, 150)
    is_needed = life.actor.kind != "consumer" or world.random.random() < 0.6
    delay_s = world.random.uniform(0.05, 2 * world.profile.session_timeout_ms / 1000)
    world.die_soon(life, more, "crash-process", delay_s if is_needed else None)


@on(one_of("consumer", "slot"))
def second_process(world: World, life: SimulatedLife) -> bool:
    world.note("second-process", process=life.process.life)
    world.again(life.process)
    return True


@on(one_of("consumer"))
def stuck_consumer(world: World, life: SimulatedLife) -> bool:
    app = life.actor
    if not isinstance(app, ApplicationActor) or app.is_stuck:
        return False
    until = world.lasting("stuck", world.random.uniform(1, 15), process=life.process.life, **app.names())
    app.is_stuck = True
    if world.random.random() >= STUCK_FOR_GOOD:
        world.scheduler.after(until - world.scheduler.now, lambda: setattr(app, "is_stuck", False))
    return True


@on(one_of("consumer", "slot"))
def hanging_fetcher(world: World, life: SimulatedLife) -> None:
    """Its next read of the log takes longer than it may."""
    until = world.lasting("hang", world.random.uniform(2, 12), process=life.process.life, **life.actor.names())
    world.log.hanging[life.process.life] = until


# ---- churn


def consumer_joins(world: World) -> bool:
    group = f"g{world.random.randrange(world.profile.groups)}"
    if len(world.alive("consumer")) > 2 * world.profile.consumers + 2:
        return False
    world.join(group, f"c{world.random.randrange(8)}")
    return True


@on(one_of("consumer", "slot"))
def consumer_leaves(world: World, life: SimulatedLife) -> bool:
    world.note("leave", process=life.process.life)
    life.actor.stop()
    if life.actor.kind == "slot":
        delay_s = world.random.uniform(0.5, 6)
        number = int(life.process.name.partition("-")[2])
        world.scheduler.after(delay_s, lambda: None if world.is_calm else world.start_slot(number) and None)
    return True


def group_comes(world: World) -> bool:
    group = f"h{world.random.randrange(3)}"
    world.join(group, f"c{world.random.randrange(2)}")
    return True


def topic_comes(world: World) -> bool:
    name = f"t{world.random.randrange(world.profile.topics + 3)}"
    world.note("topic", topic=name)
    return name not in world.topics and world.make_topic(name)


def topic_goes(world: World) -> bool:
    if len(world.topics) < 2:
        return False
    name = world.random.choice(sorted(world.topics))
    world.note("topic", topic=name)
    return world.remove_topic(name)


@on(a_topic)
def topic_made_anew(world: World, name: str) -> bool:
    world.note("topic", topic=name)
    if not world.remove_topic(name):
        return False
    delay_s = world.random.choice((0.0, 0.05, 1.0))
    world.scheduler.after(delay_s, lambda: None if name in world.topics else world.make_topic(name))
    return True


@on(a_topic)
def partitions_added(world: World, name: str) -> bool:
    world.note("topic", topic=name)
    return world.grow_topic(name)


# ---- hands at zkCli


def _child(world: World, path: str) -> str | None:
    names = world.children(path)
    return f"{path}/{world.random.choice(sorted(names))}" if names else None


def _hand(world: World, path: str | None, data: bytes | None) -> bool:
    """Write `data` at `path`, or remove it."""
    if path is None:
        return False
    world.note("hand", path=path)
    return world.by_hand(Delete(path) if data is None else SetData(path, data))


NONSENSE = (b"", b"{", b"[1]", b'{"version":1,"incarnation":7}', b"\xff\xfe")


@on(a_group)
def owner_removed_by_hand(world: World, paths: GroupPaths) -> bool:
    topic = _child(world, paths.owners)
    return _hand(world, _child(world, topic) if topic else None, None)


@on(a_group)
def ids_removed_by_hand(world: World, paths: GroupPaths) -> bool:
    return _hand(world, _child(world, paths.ids), None)


def command_removed_by_hand(world: World) -> None:
    """The next command that is sent: none stands there for long."""

    def look(event: str, fields: dict[str, Any]) -> bool:
        made = [each["path"] for each in fields["ops"] if each["op"] == "create"] if event == "commit" else []
        commands = [path for path in made if "/command-" in path]
        if not commands:
            return False
        world.observers.remove(look)
        world.scheduler.after(0.002 * world.random.random(), lambda: remove(commands[0]))
        return True

    def remove(command: str) -> None:
        if not world.is_calm and _hand(world, command, None):
            world.fire("command-removed-by-hand")

    world.observers.append(look)


@on(a_group)
def command_by_hand(world: World, paths: GroupPaths) -> bool:
    channel = _child(world, paths.channels)
    if channel is None:
        return False
    world.note("hand", path=channel)
    data = world.random.choice((*NONSENSE, b'{"version":1,"option":"stop-fetcher","epoch":1,"generation":1}'))
    return world.by_hand(Create(f"{channel}/command-", data, sequential=True))


@on(a_group)
def channel_removed_by_hand(world: World, paths: GroupPaths) -> bool:
    return _hand(world, _child(world, paths.channels), None)


def channel_scribbled_by_hand(world: World) -> bool:
    paths = a_group(world)
    return _hand(world, _child(world, paths.channels) if paths else None, world.random.choice(NONSENSE))


def state_scribbled_by_hand(world: World) -> bool:
    paths = a_group(world)
    return _hand(world, paths.state if paths else None, world.random.choice(NONSENSE))


def segments_scribbled_by_hand(world: World) -> bool:
    return _hand(world, GroupPaths(POOL_GROUP).segments, world.random.choice(NONSENSE))


def coordinator_removed_by_hand(world: World) -> bool:
    return _hand(world, COORDINATOR, None)


# ---- the log and the disk


def failing_log(world: World) -> None:
    world.log.broken_until = world.lasting("failing-log", world.random.uniform(0.5, 6))


def slow_log(world: World) -> None:
    world.log.slow_until = world.lasting("slow-log", world.random.uniform(0.5, 5))
    world.log.slow_s = world.random.choice((0.1, 0.5))


def full_disk(world: World) -> None:
    world.disk.full_until = world.lasting("full-disk", world.random.uniform(0.5, 6))


# ---- queries


@on(one_of("query"))
def query_restarts(world: World, life: SimulatedLife) -> bool:
    world.note("query", process=life.process.life)
    if world.random.random() < 0.5:
        world.crash(life)
    else:
        life.actor.stop()
    name = life.process.name.partition("-")[2]
    delay_s = world.random.choice((0.1, 2.0, 6.0, 20.0))
    world.scheduler.after(delay_s, lambda: None if world.is_calm else world.start_query(name) and None)
    return True


@on(one_of("query"))
def query_from_old_checkpoint(world: World, life: SimulatedLife) -> bool:
    """Who goes back to an older copy of a checkpoint ends all runs of the query first: one that still writes the newer
    one would deliver, to the same sink, what its successor delivers again."""
    name = life.process.name.partition("-")[2]
    older = world.checkpoints[name].older(world.random.randint(1, 6))
    world.note("query", process=life.process.life)
    for run in world.alive("query"):
        if run.process.name == life.process.name:
            world.crash(run)
    world.start_query(name, older)
    return True


@on(one_of("query"))
def second_query_run(world: World, life: SimulatedLife) -> bool:
    """A newer run from the same checkpoint, while the older one does not know; Spark's sink bears both."""
    name = life.process.name.partition("-")[2]
    world.note("query", process=life.process.life)
    world.start_query(name)
    return True


def query_comes(world: World) -> bool:
    if not world.profile.slots:
        return False
    world.note("query")
    world.start_query(f"q{world.random.randrange(3)}")
    return True


# ---- operators


@on(a_group)
def group_paused(world: World, paths: GroupPaths) -> bool:
    world.pause_group(paths.group, world.random.uniform(1, 8))
    return True


@on(a_group)
def turn_requested(world: World, paths: GroupPaths) -> bool:
    world.note("turn-requested", group=paths.group)
    world.run_tool(lambda store, ms: control.request_turn(store, paths.group, "operator", ms, None))
    return True


FAULTS = kinds(
    *(expire_session, lose_request, lose_reply, drop_connection, slow_connection, lose_watches, late_watches),
    *(lag_server, cut_server, stop_server, change_leader, zookeeper_away),
    *(pause_process, crash_process, second_process, stuck_consumer, hanging_fetcher),
    *(consumer_joins, consumer_leaves, group_comes),
    *(topic_comes, topic_goes, topic_made_anew, partitions_added),
    *(owner_removed_by_hand, ids_removed_by_hand, command_removed_by_hand, command_by_hand),
    *(channel_removed_by_hand, channel_scribbled_by_hand, state_scribbled_by_hand),
    *(coordinator_removed_by_hand, segments_scribbled_by_hand),
    *(failing_log, slow_log, full_disk),
    *(query_restarts, query_from_old_checkpoint, second_query_run, query_comes),
    *(group_paused, turn_requested),
)
