"""Everything that can be done to a world. Each returns whether there was anything to do it to.

What takes effect later, or perhaps never (a reply that shall be lost needs a request), is counted where it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.admin import control
from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.paths import COORDINATOR, GROUPS, GroupPaths
from tests.simulation.actors import ApplicationActor
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.store import SimStore
from tests.simulation.world import POOL_GROUP, SimulatedLife, SimulatedWorld

Fault = Callable[[SimulatedWorld], bool]

NODES_SHARE = 0.3
STUCK_FOR_GOOD = 0.2
SLOW_DISKS = 0.5
"""Of the servers that lag; the others lag because their link to the leader is slow."""


def _any(world: SimulatedWorld, *kinds: str) -> SimulatedLife | None:
    """A process that lives; where any will do, often a node, of which there are few."""
    if not kinds and world.random.random() < NODES_SHARE:
        kinds = ("node",)
    some = world.alive(*kinds)
    return world.random.choice(some) if some else None


def _lasting(world: SimulatedWorld, kind: str, seconds: float, **fields: object) -> float:
    """Note a fault that lasts; until when it does, which is not after the calm begins."""
    until = min(world.scheduler.now + seconds, world.profile.calm_at)
    world.record("server", "fault", {"kind": kind, "until": round(until, 6), **fields})
    return until


def _note(world: SimulatedWorld, kind: str, **fields: object) -> None:
    world.record("server", "fault", {"kind": kind, **fields})


# ---- sessions and connections


def _store(world: SimulatedWorld, *kinds: str) -> tuple[SimulatedLife, SimStore] | None:
    life = _any(world, *kinds)
    stores = world.stores_of(life.process) if life else []
    return (life, world.random.choice(stores)) if life and stores else None


def expire_session(world: SimulatedWorld) -> bool:
    found = _store(world)
    if found is None or not world.ensemble.expire(found[1].session_id):
        return False
    _note(world, "expire-session", process=found[0].process.life)
    return False  # counted where it takes effect


def lose_request(world: SimulatedWorld) -> bool:
    return _arm(world, "lose-request")


def lose_reply(world: SimulatedWorld) -> bool:
    return _arm(world, "lose-reply")


def _arm(world: SimulatedWorld, kind: str) -> bool:
    found = _store(world)
    if found is None:
        return False
    store = found[1]
    only_commit = world.random.random() < 0.7
    if kind == "lose-reply":
        store.lose_next_reply(only_commit)
    else:
        store.lose_next_request(only_commit)
    _note(world, kind, process=found[0].process.life)
    return False  # counted when it fires


def drop_connection(world: SimulatedWorld) -> bool:
    found = _store(world)
    if found is None:
        return False
    _note(world, "drop-connection", process=found[0].process.life)
    found[1].drop_connection()
    return False  # counted where it takes effect


def slow_connection(world: SimulatedWorld) -> bool:
    found = _store(world)
    if found is None:
        return False
    until = _lasting(world, "slow-connection", world.random.uniform(0.5, 10), process=found[0].process.life)
    found[1].slow(world.random.choice((0.05, 0.3, 1.5, 20.0)), until)
    return False


def lose_watches(world: SimulatedWorld) -> bool:
    found = _store(world)
    if found is None:
        return False
    until = _lasting(world, "lose-watches", world.random.uniform(2, 15), process=found[0].process.life)
    found[1].lose_watches = world.random.choice((0.3, 1.0))
    world.scheduler.after(until - world.scheduler.now, lambda: setattr(found[1], "lose_watches", 0.0))
    return False


def late_watches(world: SimulatedWorld) -> bool:
    found = _store(world)
    if found is None:
        return False
    until = _lasting(world, "late-watches", world.random.uniform(2, 10), process=found[0].process.life)
    found[1].late_watches_s = world.random.choice((0.1, 0.5, 2.0))
    world.scheduler.after(until - world.scheduler.now, lambda: setattr(found[1], "late_watches_s", 0.0))
    return False


# ---- servers


def lag_server(world: SimulatedWorld) -> bool:
    server = world.random.choice(world.followers())
    until = _lasting(world, "lag-server", world.random.uniform(1, 8))
    server.lag(world.random.choice((0.05, 0.3, 1.0)), has_slow_disk=world.disks.random() < SLOW_DISKS)
    world.scheduler.after(until - world.scheduler.now, lambda: server.lag(0.0))
    return False  # counted where it takes effect


def cut_server(world: SimulatedWorld) -> bool:
    server = world.random.choice(world.followers())
    until = _lasting(world, "cut-server", world.random.uniform(1, 10))
    world.ensemble.cut(server)
    world.scheduler.after(until - world.scheduler.now, lambda: world.ensemble.heal(server))
    return False  # counted where it takes effect


def stop_server(world: SimulatedWorld) -> bool:
    server = world.random.choice(world.followers())
    until = _lasting(world, "stop-server", world.random.uniform(0.5, 8))
    server.stop()
    world.scheduler.after(until - world.scheduler.now, server.start)
    return False  # counted where it takes effect


def change_leader(world: SimulatedWorld) -> bool:
    _note(world, "change-leader")
    world.ensemble.change_leader()
    return False  # counted where it takes effect


def zookeeper_away(world: SimulatedWorld) -> bool:
    until = _lasting(world, "zookeeper-away", world.random.uniform(0.5, 8))
    world.ensemble.stop()
    world.scheduler.after(until - world.scheduler.now, world.ensemble.start)
    return False  # counted where it takes effect


# ---- processes


def pause_process(world: SimulatedWorld) -> bool:
    life = _any(world)
    if life is None or life.process.is_paused:
        return False
    session_s = world.profile.session_timeout_ms / 1000
    until = _lasting(world, "pause", world.random.uniform(0.2, 2.5) * session_s, process=life.process.life)
    life.process.pause()
    world.scheduler.after(until - world.scheduler.now, life.process.resume)
    return True


def crash_process(world: SimulatedWorld) -> bool:
    """Between any two of its operations; somebody starts it again, sooner or later, or never."""
    life = _any(world)
    if life is None or life.process.crash_at:
        return False
    life.process.crash_at = life.process.operations + world.random.randint(1, 150)
    _note(world, "crash", process=life.process.life)
    is_needed = life.actor.kind != "consumer" or world.random.random() < 0.6
    delay_s = world.random.uniform(0.05, 2 * world.profile.session_timeout_ms / 1000)

    def restart() -> None:
        if not world.is_calm and not life.is_alive and world.of_name(life.process.name) is life:
            again(world, life.process)

    def changed() -> None:
        if life.process.is_dead and life.process.operations == life.process.crash_at:
            world.fire("crash-process")
            if is_needed:
                world.scheduler.after(delay_s, restart)

    life.process.observers.append(changed)
    return False


def again(world: SimulatedWorld, process: SimulatedProcess) -> None:
    """A new process under the name, as whoever started the last one starts it."""
    name = process.name
    kind, _, number = name.partition("-")
    if kind == "node":
        world.start_node(int(number))
    elif kind == "slot":
        world.start_slot(int(number))
    elif kind == "query":
        world.start_query(number)
    elif kind == "driver":
        world.start_driver()
    elif number:  # members that lie come once
        world.start_application(kind, number)


def second_process(world: SimulatedWorld) -> bool:
    life = _any(world, "consumer", "slot")
    if life is None:
        return False
    _note(world, "second-process", process=life.process.life)
    again(world, life.process)
    return True


def stuck_consumer(world: SimulatedWorld) -> bool:
    life = _any(world, "consumer")
    if life is None or not isinstance(life.actor, ApplicationActor) or life.actor.is_stuck:
        return False
    app = life.actor
    until = _lasting(world, "stuck", world.random.uniform(1, 15), process=life.process.life, **app.names())
    app.is_stuck = True
    if world.random.random() < STUCK_FOR_GOOD:
        return True
    world.scheduler.after(until - world.scheduler.now, lambda: setattr(app, "is_stuck", False))
    return True


def hanging_fetcher(world: SimulatedWorld) -> bool:
    """Its next read of the log takes longer than it may."""
    life = _any(world, "consumer", "slot")
    if life is None:
        return False
    until = _lasting(world, "hang", world.random.uniform(2, 12), process=life.process.life, **life.actor.names())
    world.log.hanging[life.process.life] = until
    return False


# ---- churn


def consumer_joins(world: SimulatedWorld) -> bool:
    group = f"g{world.random.randrange(world.profile.groups)}"
    if len(world.alive("consumer")) > 2 * world.profile.consumers + 2:
        return False
    _note(world, "join", group=group)
    world.start_application(group, f"c{world.random.randrange(8)}")
    return True


def consumer_leaves(world: SimulatedWorld) -> bool:
    life = _any(world, "consumer", "slot")
    if life is None:
        return False
    _note(world, "leave", process=life.process.life)
    life.actor.stop()
    if life.actor.kind == "slot":
        delay_s = world.random.uniform(0.5, 6)
        number = int(life.process.name.partition("-")[2])
        world.scheduler.after(delay_s, lambda: None if world.is_calm else world.start_slot(number) and None)
    return True


def group_comes(world: SimulatedWorld) -> bool:
    group = f"h{world.random.randrange(3)}"
    _note(world, "join", group=group)
    world.start_application(group, f"c{world.random.randrange(2)}")
    return True


def topic_comes(world: SimulatedWorld) -> bool:
    name = f"t{world.random.randrange(world.profile.topics + 3)}"
    _note(world, "topic", topic=name)
    return name not in world.topics and world.make_topic(name)


def topic_goes(world: SimulatedWorld) -> bool:
    if len(world.topics) < 2:
        return False
    name = world.random.choice(sorted(world.topics))
    _note(world, "topic", topic=name)
    return world.remove_topic(name)


def topic_made_anew(world: SimulatedWorld) -> bool:
    if not world.topics:
        return False
    name = world.random.choice(sorted(world.topics))
    _note(world, "topic", topic=name)
    if not world.remove_topic(name):
        return False
    delay_s = world.random.choice((0.0, 0.05, 1.0))
    world.scheduler.after(delay_s, lambda: None if name in world.topics else world.make_topic(name) and None)
    return True


def partitions_added(world: SimulatedWorld) -> bool:
    if not world.topics:
        return False
    name = world.random.choice(sorted(world.topics))
    _note(world, "topic", topic=name)
    return world.grow_topic(name)


# ---- hands at zkCli


def _group(world: SimulatedWorld) -> GroupPaths | None:
    names = world.children(GROUPS)
    return GroupPaths(world.random.choice(sorted(names))) if names else None


def _child(world: SimulatedWorld, path: str) -> str | None:
    names = world.children(path)
    return f"{path}/{world.random.choice(sorted(names))}" if names else None


def _hand(world: SimulatedWorld, kind: str, path: str | None, data: bytes | None) -> bool:
    """Write `data` at `path`, or remove it."""
    if path is None:
        return False
    _note(world, kind, path=path)
    return world.by_hand(Delete(path) if data is None else SetData(path, data))


NONSENSE = (b"", b"{", b"[1]", b'{"version":1,"incarnation":7}', b"\xff\xfe")


def owner_removed(world: SimulatedWorld) -> bool:
    paths = _group(world)
    topic = _child(world, paths.owners) if paths else None
    return _hand(world, "hand", _child(world, topic) if topic else None, None)


def ids_removed(world: SimulatedWorld) -> bool:
    paths = _group(world)
    return _hand(world, "hand", _child(world, paths.ids) if paths else None, None)


def command_removed(world: SimulatedWorld) -> bool:
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
        if not world.is_calm and _hand(world, "hand", command, None):
            world.fire("command-removed-by-hand")

    world.observers.append(look)
    return False


def command_made(world: SimulatedWorld) -> bool:
    paths = _group(world)
    channel = _child(world, paths.channels) if paths else None
    if channel is None:
        return False
    _note(world, "hand", path=channel)
    data = world.random.choice((*NONSENSE, b'{"version":1,"option":"stop-fetcher","epoch":1,"generation":1}'))
    return world.by_hand(Create(f"{channel}/command-", data, sequential=True))


def channel_removed(world: SimulatedWorld) -> bool:
    paths = _group(world)
    return _hand(world, "hand", _child(world, paths.channels) if paths else None, None)


def channel_scribbled(world: SimulatedWorld) -> bool:
    paths = _group(world)
    return _hand(world, "hand", _child(world, paths.channels) if paths else None, world.random.choice(NONSENSE))


def state_scribbled(world: SimulatedWorld) -> bool:
    paths = _group(world)
    return _hand(world, "hand", paths.state if paths else None, world.random.choice(NONSENSE))


def segments_scribbled(world: SimulatedWorld) -> bool:
    return _hand(world, "hand", GroupPaths(POOL_GROUP).segments, world.random.choice(NONSENSE))


def coordinator_removed(world: SimulatedWorld) -> bool:
    return _hand(world, "hand", COORDINATOR, None)


# ---- the log and the disk


def failing_log(world: SimulatedWorld) -> bool:
    world.log.broken_until = _lasting(world, "failing-log", world.random.uniform(0.5, 6))
    return False


def slow_log(world: SimulatedWorld) -> bool:
    world.log.slow_until = _lasting(world, "slow-log", world.random.uniform(0.5, 5))
    world.log.slow_s = world.random.choice((0.1, 0.5))
    return False


def full_disk(world: SimulatedWorld) -> bool:
    world.disk.full_until = _lasting(world, "full-disk", world.random.uniform(0.5, 6))
    return False


# ---- queries


def query_restarts(world: SimulatedWorld) -> bool:
    life = _any(world, "query")
    if life is None:
        return False
    _note(world, "query", process=life.process.life)
    if world.random.random() < 0.5:
        world.crash(life)
    else:
        life.actor.stop()
    name = life.process.name.partition("-")[2]
    delay_s = world.random.choice((0.1, 2.0, 6.0, 20.0))
    world.scheduler.after(delay_s, lambda: None if world.is_calm else world.start_query(name) and None)
    return True


def query_from_old_checkpoint(world: SimulatedWorld) -> bool:
    """Who goes back to an older copy of a checkpoint ends all runs of the query first: one that still writes the newer
    one would deliver, to the same sink, what its successor delivers again."""
    life = _any(world, "query")
    if life is None:
        return False
    name = life.process.name.partition("-")[2]
    older = world.checkpoints[name].older(world.random.randint(1, 6))
    _note(world, "query", process=life.process.life)
    for run in world.alive("query"):
        if run.process.name == life.process.name:
            world.crash(run)
    world.start_query(name, older)
    return True


def second_query_run(world: SimulatedWorld) -> bool:
    """A newer run from the same checkpoint, while the older one does not know; Spark's sink bears both."""
    life = _any(world, "query")
    if life is None:
        return False
    name = life.process.name.partition("-")[2]
    _note(world, "query", process=life.process.life)
    world.start_query(name)
    return True


def query_comes(world: SimulatedWorld) -> bool:
    if not world.profile.slots:
        return False
    _note(world, "query")
    world.start_query(f"q{world.random.randrange(3)}")
    return True


# ---- operators


def group_paused(world: SimulatedWorld) -> bool:
    paths = _group(world)
    if paths is None:
        return False
    until = _lasting(world, "paused", world.random.uniform(1, 8), group=paths.group)
    _operator(world, lambda store, ms: control.pause(store, paths.group, "operator", ms, "a drill"))
    world.scheduler.after(
        until - world.scheduler.now, lambda: _operator(world, lambda store, ms: control.resume(store, paths.group))
    )
    return True


def turn_requested(world: SimulatedWorld) -> bool:
    paths = _group(world)
    if paths is None:
        return False
    _note(world, "turn-requested", group=paths.group)
    _operator(world, lambda store, ms: control.request_turn(store, paths.group, "operator", ms, None))
    return True


def _operator(world: SimulatedWorld, action: Callable[..., object]) -> None:
    """An admin command in a process of its own."""
    world.run_tool(action)


FAULTS: dict[str, Fault] = {
    "expire-session": expire_session,
    "lose-request": lose_request,
    "lose-reply": lose_reply,
    "drop-connection": drop_connection,
    "slow-connection": slow_connection,
    "lose-watches": lose_watches,
    "late-watches": late_watches,
    "lag-server": lag_server,
    "cut-server": cut_server,
    "stop-server": stop_server,
    "change-leader": change_leader,
    "zookeeper-away": zookeeper_away,
    "pause-process": pause_process,
    "crash-process": crash_process,
    "second-process": second_process,
    "stuck-consumer": stuck_consumer,
    "hanging-fetcher": hanging_fetcher,
    "consumer-joins": consumer_joins,
    "consumer-leaves": consumer_leaves,
    "group-comes": group_comes,
    "topic-comes": topic_comes,
    "topic-goes": topic_goes,
    "topic-made-anew": topic_made_anew,
    "partitions-added": partitions_added,
    "owner-removed-by-hand": owner_removed,
    "ids-removed-by-hand": ids_removed,
    "command-removed-by-hand": command_removed,
    "command-by-hand": command_made,
    "channel-removed-by-hand": channel_removed,
    "channel-scribbled-by-hand": channel_scribbled,
    "state-scribbled-by-hand": state_scribbled,
    "coordinator-removed-by-hand": coordinator_removed,
    "segments-scribbled-by-hand": segments_scribbled,
    "failing-log": failing_log,
    "slow-log": slow_log,
    "full-disk": full_disk,
    "query-restarts": query_restarts,
    "query-from-old-checkpoint": query_from_old_checkpoint,
    "second-query-run": second_query_run,
    "query-comes": query_comes,
    "group-paused": group_paused,
    "turn-requested": turn_requested,
}
