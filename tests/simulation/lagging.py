"""A query that lists its segments at a server that lags: what a newer run of it has planned is not there yet.

Drawn besides the others, in every eleventh run (`Profile.beside`); what it draws is from `world.beside`.
"""

from __future__ import annotations

from coordinator.zk.znodes.paths import GroupPaths
from tests.simulation.actors import QueryActor
from tests.simulation.servers import SimulatedServer
from tests.simulation.watching import SOON_S, Commit, World, kinds, on
from tests.simulation.world import POOL_GROUP, SimulatedLife

BEARS_LOSS = 0.7
"""So many of the queries have `failOnDataLoss=false`."""

LISTED_S = 0.05
"""So long after its sign of life a query has listed, and finished, what there is."""

AGAIN_S = 2.0


@on(lambda world: world.alive("query"))
def listing_lags(world: World, running: list[SimulatedLife]) -> None:
    """A query's server falls behind, and the query hangs; a newer run plans a batch of newer segments, and dies. The
    older one, which has not heard of it, goes on with that batch. Somebody starts the query again later."""
    session_s = world.profile.session_timeout_ms / 1000
    lag_s, seconds = world.beside.choice((3.0, 6.0)), world.beside.uniform(0.5, 0.8) * session_s
    old = world.beside.choice(running)
    name = old.process.name.partition("-")[2]
    path = GroupPaths(POOL_GROUP).query(name)
    world.note("query", process=old.process.life)
    world.crash(old)
    older = world.start_query(name, is_strict=world.beside.random() >= BEARS_LOSS)

    def is_sign(op: Commit) -> bool:
        """Whether it is one of its signs of life; a set of its znode begins with that of the queries' to register."""
        return op["op"] == "set" and op["path"] == path

    def seen(commit: Commit) -> None:
        if len(commit["ops"]) > 1 or world.life_of_session(commit["session"]) is not older:
            wait()
        elif not world.is_calm:
            world.scheduler.after(LISTED_S, lag)

    def wait() -> None:
        if not world.is_calm and older.is_alive:
            world.once(is_sign, seen, by="query")

    def lag() -> None:
        server = next((store.server for store in world.stores_of(older.process)), None)
        if world.is_calm or server is None or older.process.is_paused or not older.is_alive:
            return
        if server is world.ensemble.leader:
            for store in world.stores_of(older.process):
                store.hosts = world.followers()
                store.drop_connection()
            wait()
            return
        _lag(world, server, lag_s)
        world.hold(older.process, seconds)
        newer = world.start_query(name)
        if isinstance(newer.actor, QueryActor):
            newer.actor.at_point = lambda point: die(newer) if point == "logged" else None

    def die(newer: SimulatedLife) -> None:
        world.scheduler.after(0.0, lambda: world.crash(newer))
        world.scheduler.after(SOON_S, older.process.resume)
        world.scheduler.after(lag_s + AGAIN_S, come_again)
        if not world.is_calm and older.is_alive:
            world.fire("listing-lags")

    def come_again() -> None:
        newest = world.of_name(older.process.name)
        if not world.is_calm and newest is not None and not newest.is_alive:
            world.start_query(name)

    wait()


def _lag(world: World, server: SimulatedServer, lag_s: float) -> None:
    def end() -> None:
        server.lag(0.0)
        if server.is_able:
            server.hurry()

    world.lasting("lag-server", lag_s, end)
    server.lag(lag_s)


LAGGING = kinds(listing_lags)
