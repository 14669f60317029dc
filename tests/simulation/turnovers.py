"""Faults in the midst of a coordinator's turn: the next coordinator, or a member, finds it half done."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.actors import ApplicationActor
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.store import SimStore
from tests.simulation.watching import Commit, World, consumer_of, is_command, kinds
from tests.simulation.world import SimulatedLife
from zk_group.coordinator.zk.store import Delete
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GROUPS, GroupPaths

_BESIDE_S = (0.0, 0.002, 0.05)
"""So much later, at most, comes what comes at once."""


def failover_in_the_midst(world: World) -> None:
    """A coordinator hangs, is cut off or dies when it has just sent a command or ended somebody.

    The next one finds that half done; and perhaps the one it was done to did not get its next answer.
    """
    is_it = world.random.choice(
        (
            is_command("stop-fetcher", f"{GROUPS}/"),
            is_command("start-fetcher", f"{GROUPS}/"),
            _is_ending("evicted"),
            _is_ending(""),
        )
    )
    session_s = world.profile.session_timeout_ms / 1000
    how, seconds = world.random.choice(("pause", "cut", "kill")), world.random.uniform(1.1, 2.0) * session_s
    delay_s, loses_reply = world.random.choice(_BESIDE_S) * world.random.random(), world.random.random() < 0.5

    def done(commit: Commit) -> None:
        life = world.life_of_session(commit["session"])
        if life is None:
            return
        if loses_reply:
            _lose_reply_of(world, consumer_of(next(op["path"] for op in commit["ops"] if is_it(op))))
        world.scheduler.after(delay_s, lambda: stop(life))

    def stop(life: SimulatedLife) -> None:
        if not world.is_calm and life.is_alive and _take_away(world, life, how, seconds):
            world.fire("failover-in-the-midst")

    world.once(is_it, done, by="node")


def _is_ending(why: str) -> Callable[[Commit], bool]:
    return lambda op: op["op"] == "set" and "/channel/" in op["path"] and f'"ended":"{why}' in op["data"]


def _lose_reply_of(world: World, consumer: str) -> None:
    for life in world.alive("consumer", "slot"):
        if life.actor.names()["consumer"] == consumer:
            for store in world.stores_of(life.process):
                store.lose_next_reply()


def _take_away(world: World, life: SimulatedLife, how: str, seconds: float) -> bool:
    """A node hangs, is cut off from the others, or dies and is started again after that many seconds."""
    process = life.process
    if process.is_paused:
        return False
    stores = world.stores_of(process)
    if how == "kill":
        world.note("crash", process=process.life)
        world.crash(life)
        world.again_later(life, seconds)
    elif how == "cut" and stores:
        _isolate(world, stores[0], seconds)
    else:
        world.hold(process, seconds)
    return True


def _isolate(world: World, store: SimStore, seconds: float) -> Callable[[], object]:
    """Cut a client's server off from the leader, or let its connection be too slow; what ends that before its time."""
    server, scheduler = store.server, world.scheduler
    if server is None or server is world.ensemble.leader or server.is_cut:
        until = world.lasting("slow-connection", seconds, process=store.process.life)
        store.slow(20.0, until)

        def hurry() -> None:
            store.slow_until = min(store.slow_until, scheduler.now)

        return hurry
    world.cut(server, seconds)
    return lambda: world.ensemble.heal(server)


def partition_then_eviction(world: World) -> None:
    """A member that was sent a command hears nothing, so that it is evicted and believes to live; then it hears."""
    delay_s, more_s = 0.001 * world.random.random(), world.random.uniform(0.0, 1.0)

    def sent(commit: Commit) -> None:
        consumer = consumer_of(next(op["path"] for op in commit["ops"] if _is_sent(op)))
        for life in world.alive("consumer"):
            if isinstance(life.actor, ApplicationActor) and life.actor.config.consumer == consumer:
                world.scheduler.after(delay_s, lambda: isolate(life, life.actor))  # type: ignore[arg-type]  # noqa: B023
                return

    def isolate(life: SimulatedLife, app: ApplicationActor) -> None:
        stores = world.stores_of(life.process)
        if world.is_calm or not stores:
            return
        seconds = app.config.max_poll_interval_ms / 1000 + world.profile.session_timeout_ms / 2000 + 1.0
        heal = _isolate(world, stores[0], seconds)
        world.fire("partition-then-eviction")
        channel, is_evicted = GroupPaths(app.config.group).channel(app.config.consumer), _is_ending("evicted")
        world.once(
            lambda op: op["path"] == channel and is_evicted(op),
            lambda _: world.scheduler.after(more_s, heal),
        )

    world.once(_is_sent, sent)


def _is_sent(op: Commit) -> bool:
    """Whether a command is sent to a member that is an application's."""
    return op["op"] == "create" and op["path"].startswith(f"{GROUPS}/g") and "/command-" in op["path"]


def lost_reply_then_failover(world: World) -> None:
    """The answer to a coordinator's turn is lost; at once there is another leader of the servers, or coordinator."""
    how, delay_s = world.random.choice(("leader", "hand", "kill")), world.random.choice(_BESIDE_S)
    delay_s *= world.random.random()

    def done(commit: Commit) -> None:
        life = world.life_of_session(commit["session"])
        if world.is_calm or life is None:
            return
        for store in world.stores_of(life.process):
            store.lose_next_reply(only_commit=True)
        world.scheduler.after(delay_s, lambda: change(life))

    def change(life: SimulatedLife) -> None:
        if world.is_calm:
            return
        if how == "leader":
            world.note("change-leader")
            world.ensemble.change_leader()
        elif how == "hand":
            world.note("hand", path=COORDINATOR)
            world.by_hand(Delete(COORDINATOR))
        elif life.is_alive:
            _take_away(world, life, "kill", 0.5 * world.profile.session_timeout_ms / 1000)
        world.fire("lost-reply-then-failover")

    world.once(lambda op: op["op"] in ("create", "set") and op["path"].endswith("/state"), done, by="node")


def query_beside_collection(world: World) -> None:
    """A query registers when a coordinator has just read which there are, to collect what all of them have finished."""
    if not world.profile.slots:
        return
    name, is_restart = f"q{world.random.randrange(4)}", world.random.random() < 0.5
    seconds = world.random.uniform(0.02, 0.5) * world.profile.session_timeout_ms / 1000

    def register(process: SimulatedProcess) -> None:
        if world.is_calm or process.is_paused or process.is_dead:
            return
        running = world.alive("query")
        query = name
        if is_restart and running:
            life = world.random.choice(running)
            query = life.process.name.partition("-")[2]
            world.crash(life)
        world.hold(process, seconds)
        world.note("query")
        world.start_query(query)
        world.fire("query-beside-collection")

    world.once_collecting(register)


TURNOVERS = kinds(failover_in_the_midst, partition_then_eviction, lost_reply_then_failover, query_beside_collection)
