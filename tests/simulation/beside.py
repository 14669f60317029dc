"""Faults that are drawn besides the others, in every eleventh run (`Profile.beside`); they draw from `world.beside`.

Two that follow each other on one session: the answer to a commit is lost, and to what asks for its outcome. A query
that lists its segments at a server that lags: what a newer run of it has planned is not there yet. An operator's hand
beside something that takes its time: a collection, or a member that is to stop.
"""

from __future__ import annotations

import json

from tests.simulation.actors import QueryActor
from tests.simulation.faults import consumer_joins
from tests.simulation.links import LinkRequest
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.servers import SimulatedServer
from tests.simulation.store import Loss, SimStore, is_commit, is_sync
from tests.simulation.watching import SOON_S, Commit, World, consumer_of, group_of, is_command, kinds, on
from tests.simulation.world import POOL_GROUP, STRATEGIES, SimulatedLife
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.store import Delete
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GROUPS, PAUSED, GroupPaths
from zk_group.coordinator.zk.znodes.records import OwnerRecord

MEMBERS_SHARE = 0.8
MOST_SYNCS = 3

BEARS_LOSS = 0.7
"""So many of the queries have `failOnDataLoss=false`."""

LISTED_S = 0.05
"""So long after its sign of life a query has listed, and finished, what there is."""

AGAIN_S = 2.0

# ---- no answer, twice


def _no_answers(world: World, store: SimStore, syncs: int, kind: str) -> None:
    """The next `sync` of a session, or its answer, is lost, and so are those that follow it."""

    def lost() -> None:
        world.fire(kind)
        if syncs > 1:
            _no_answers(world, store, syncs - 1, kind)

    store.lose(Loss(world.beside.choice(("lose-request", "lose-reply")), is_sync, lost))


def reply_then_sync(world: World) -> None:
    """The answer to a commit is lost, and the `sync` that is to tell its outcome has none."""
    kinds = ("consumer", "slot") if world.beside.random() < MEMBERS_SHARE else ()
    lives = world.alive(*kinds)
    stores = world.stores_of(world.beside.choice(lives).process) if lives else []
    if not stores:
        return
    store, syncs = world.beside.choice(stores), world.beside.randint(1, MOST_SYNCS)
    world.note("lose-reply", process=store.process.life)
    store.lose(Loss("lose-reply", is_commit, lambda: _no_answers(world, store, syncs, "reply-then-sync")))


def favour_cooperation(world: World) -> None:
    """What all members have in common is a strategy that stops only what moves."""
    cooperative = [name for name, assignor in sorted(STRATEGIES.items()) if not assignor.is_eager]
    world.common = world.beside.choice(cooperative)


def cooperative_stop_reply(world: World) -> None:
    """A member joins, another stops some of its partitions and gets no answer; nor does its `sync` then, perhaps."""
    is_stop, syncs = is_command("stop-fetcher", f"{GROUPS}/"), world.beside.randint(0, MOST_SYNCS)

    def is_cooperative(op: Commit) -> bool:
        return is_stop(op) and bool(json.loads(op["data"]).get("partitions"))

    def sent(commit: Commit) -> None:
        command = next(op["path"] for op in commit["ops"] if is_cooperative(op))
        name = consumer_of(command)
        lives = [life for life in world.alive("consumer", "slot") if life.actor.names()["consumer"] == name]
        stores = world.stores_of(lives[-1].process) if lives else []
        if not stores or world.is_calm:
            return
        store = stores[-1]

        def is_obeyed(request: LinkRequest) -> bool:
            return is_commit(request) and any(each.path == command for each in request.what)

        def lost() -> None:
            world.fire("cooperative-stop-reply")
            if syncs:
                _no_answers(world, store, syncs, "reply-then-sync")

        world.note("lose-reply", process=store.process.life)
        store.lose(Loss("lose-reply", is_obeyed, lost))

    world.once(is_cooperative, sent, by="node")
    if world.alive("consumer"):
        consumer_joins(world)


@on(lambda world: world.alive("query"))
def registration_reply(world: World, queries: list[SimulatedLife]) -> bool:
    """A newer run of a query gets no answer to its registration, nor to `sync`, and meanwhile a third one registers."""
    name = world.beside.choice(queries).process.name.partition("-")[2]
    path, syncs = GroupPaths(POOL_GROUP).query(name), world.beside.randint(2, 8)
    world.note("query", process=queries[-1].process.life)
    life = world.start_query(name)

    def registers(request: LinkRequest) -> bool:
        return is_commit(request) and any(each.path == path for each in request.what)

    def lost() -> None:
        world.fire("registration-reply")
        for store in world.stores_of(life.process):
            _no_answers(world, store, syncs, "registration-reply")
        if not world.is_calm:
            world.start_query(name)

    def arm() -> None:
        for store in world.stores_of(life.process):
            store.lose(Loss("lose-reply", registers, lost))
            return
        if life.is_alive:
            world.scheduler.after(0.001, arm)

    arm()
    return True


# ---- a server that lags


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
        return (op["op"], op["path"]) == ("set", path)

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


# ---- hands


def pause_while_collecting(world: World) -> None:
    """A coordinator has read what there is to collect, and hangs; an operator pauses the group. Then it goes on, or
    another one is elected; slots end and begin meanwhile."""
    if not world.profile.slots:
        return
    random, session_s = world.beside, world.profile.session_timeout_ms / 1000
    seconds, paused_s = random.uniform(0.02, 0.6) * session_s, random.uniform(1, 6)
    is_deposed, slot = random.random() < 0.4, random.randrange(world.profile.slots)

    def pause(process: SimulatedProcess) -> None:
        if world.is_calm or process.is_paused or process.is_dead:
            return
        world.hold(process, seconds)
        world.once(lambda op: op["path"] == PAUSED, lambda _: world.scheduler.after(SOON_S, lambda: go_on(process)))
        world.pause_group(POOL_GROUP, paused_s)

    def go_on(process: SimulatedProcess) -> None:
        if world.is_calm:
            return
        world.fire("pause-while-collecting")
        life = world.of_name(f"slot-{slot}")
        if life is not None and life.is_alive:
            world.note("leave", process=life.process.life)
            life.actor.stop()
            world.scheduler.after(1.0, lambda: None if world.is_calm else world.start_slot(slot))
        if is_deposed:
            world.note("hand", path=COORDINATOR)
            world.by_hand(Delete(COORDINATOR))
        process.resume()

    world.once_collecting(pause)


def owners_removed_beside_stop(world: World) -> None:
    """A member that is to stop is slow, or hangs; somebody at zkCli removes owner znodes of its partitions."""
    random, session_s = world.beside, world.profile.session_timeout_ms / 1000
    delay_s, extra_s = random.choice((0.0, 0.01, 0.3)) * random.random(), random.choice((0.05, 0.2, 0.5))
    hangs_s, some = random.choice((0.0, random.uniform(0.2, 1.2) * session_s)), random.random()

    def sent(commit: Commit) -> None:
        command = next(op["path"] for op in commit["ops"] if is_stop(op))
        group, consumer = group_of(command), consumer_of(command)
        lives = [life for life in world.alive("consumer", "slot") if life.actor.names()["consumer"] == consumer]
        if world.is_calm or not lives or lives[-1].process.is_paused:
            return
        if hangs_s:
            world.hold(lives[-1].process, hangs_s)
        else:
            world.slow_down(lives[-1], 2.0, extra_s)
        world.scheduler.after(delay_s, lambda: remove(group, consumer))

    def remove(group: str, consumer: str) -> None:
        owned = _owned(world, GroupPaths(group), consumer)
        gone = [path for path in owned if random.random() < max(0.3, some)]
        if gone and not world.is_calm and world.by_hand(*(Delete(path) for path in gone)):
            world.note("hand", paths=gone)
            world.fire("owners-removed-beside-stop")

    is_stop = is_command("stop-fetcher", f"{GROUPS}/")
    world.once(is_stop, sent, by="node")


def _owned(world: World, paths: GroupPaths, consumer: str) -> list[str]:
    """The owner znodes of a member."""
    found = []
    for topic in world.children(paths.owners):
        for name in world.children(paths.owners_of(topic)):
            path = f"{paths.owners_of(topic)}/{name}"
            node = world.node_at(path)
            try:
                owner = OwnerRecord.parse(path, node.data).consumer if node is not None else ""
            except BadData:
                continue
            if owner == consumer:
                found.append(path)
    return found


BESIDE = kinds(
    reply_then_sync, cooperative_stop_reply, listing_lags, pause_while_collecting, owners_removed_beside_stop
)
OF_WORLDS = kinds(registration_reply)
"""Drawn in no stock profile (`rare_worlds.py`)."""
