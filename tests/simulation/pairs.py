"""Two faults that follow each other on one session: the answer to a commit is lost, and to what asks for its outcome.

They are drawn besides the others, in every eleventh run (`Profile.beside`); what they draw is from `world.beside`.
"""

from __future__ import annotations

import json

from coordinator.zk.znodes.paths import GROUPS, GroupPaths
from tests.simulation.faults import Fault, _note, consumer_joins
from tests.simulation.links import LinkRequest
from tests.simulation.store import Loss, SimStore, is_commit, is_sync
from tests.simulation.watching import Commit, is_command, once
from tests.simulation.world import POOL_GROUP, STRATEGIES, SimulatedWorld

MEMBERS_SHARE = 0.8
MOST_SYNCS = 3


def _no_answers(world: SimulatedWorld, store: SimStore, syncs: int, kind: str) -> None:
    """The next `sync` of a session, or its answer, is lost, and so are those that follow it."""

    def lost() -> None:
        world.fire(kind)
        if syncs > 1:
            _no_answers(world, store, syncs - 1, kind)

    store.lose(Loss(world.beside.choice(("lose-request", "lose-reply")), is_sync, lost))


def reply_then_sync(world: SimulatedWorld) -> bool:
    """The answer to a commit is lost, and the `sync` that is to tell its outcome has none."""
    kinds = ("consumer", "slot") if world.beside.random() < MEMBERS_SHARE else ()
    lives = world.alive(*kinds)
    stores = world.stores_of(world.beside.choice(lives).process) if lives else []
    if not stores:
        return False
    store, syncs = world.beside.choice(stores), world.beside.randint(1, MOST_SYNCS)
    _note(world, "lose-reply", process=store.process.life)
    store.lose(Loss("lose-reply", is_commit, lambda: _no_answers(world, store, syncs, "reply-then-sync")))
    return False


def favour_cooperation(world: SimulatedWorld) -> None:
    """What all members have in common is a strategy that stops only what moves."""
    cooperative = [name for name, assignor in sorted(STRATEGIES.items()) if not assignor.is_eager]
    world.common = world.beside.choice(cooperative)


def stop_reply(world: SimulatedWorld) -> bool:
    """A member joins, another stops some of its partitions and gets no answer; nor does its `sync` then, perhaps."""
    is_stop, syncs = is_command("stop-fetcher", f"{GROUPS}/"), world.beside.randint(0, MOST_SYNCS)

    def is_cooperative(op: Commit) -> bool:
        return is_stop(op) and bool(json.loads(op["data"]).get("partitions"))

    def sent(commit: Commit) -> None:
        command = next(op["path"] for op in commit["ops"] if is_cooperative(op))
        name = command.partition("/channel/")[2].partition("/")[0]
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

        _note(world, "lose-reply", process=store.process.life)
        store.lose(Loss("lose-reply", is_obeyed, lost))

    once(world, is_cooperative, sent, by="node")
    if world.alive("consumer"):
        consumer_joins(world)
    return False


def registration_reply(world: SimulatedWorld) -> bool:
    """A newer run of a query gets no answer to its registration, nor to `sync`, and meanwhile a third one registers."""
    queries = world.alive("query")
    if not queries:
        return False
    name = world.beside.choice(queries).process.name.partition("-")[2]
    path, syncs = GroupPaths(POOL_GROUP).query(name), world.beside.randint(2, 8)
    _note(world, "query", process=queries[-1].process.life)
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


PAIRS: dict[str, Fault] = {"reply-then-sync": reply_then_sync, "cooperative-stop-reply": stop_reply}
OF_WORLDS: dict[str, Fault] = {"registration-reply": registration_reply}
"""Drawn in no stock profile (`rare_worlds.py`)."""
