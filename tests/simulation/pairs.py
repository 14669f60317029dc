"""Two faults that follow each other on one session: the answer to a commit is lost, and to what asks for its outcome.

They are drawn besides the others, in every eleventh run (`Profile.beside`); what they draw is from `world.beside`.
"""

from __future__ import annotations

import json

from coordinator.zk.znodes.paths import GROUPS, GroupPaths
from tests.simulation.faults import consumer_joins
from tests.simulation.links import LinkRequest
from tests.simulation.store import Loss, SimStore, is_commit, is_sync
from tests.simulation.watching import Commit, World, consumer_of, is_command, kinds, on
from tests.simulation.world import POOL_GROUP, STRATEGIES, SimulatedLife

MEMBERS_SHARE = 0.8
MOST_SYNCS = 3


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


PAIRS = kinds(reply_then_sync, cooperative_stop_reply)
OF_WORLDS = kinds(registration_reply)
"""Drawn in no stock profile (`rare_worlds.py`)."""
