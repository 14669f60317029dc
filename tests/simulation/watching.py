"""How a fault waits for its moment: the next commit of a kind, a read; and what those faults have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coordinator.zk.znodes.paths import COORDINATOR
from tests.simulation.faults import Fault
from tests.simulation.links import GET, READ, LinkRequest
from tests.simulation.store import SimStore
from tests.simulation.world import SimulatedLife, SimulatedWorld

Commit = dict[str, Any]
"""A `commit` of the history; its `ops` are dictionaries too."""


def once(
    world: SimulatedWorld, is_it: Callable[[Commit], bool], happen: Callable[[Commit], object], by: str = ""
) -> None:
    """Let something happen, once, behind the next commit with an operation for which `is_it` says so.

    Of several that wait for the same, each takes another commit.

    :param by: only a process of this kind is waited for.
    """

    def is_by(session: int) -> bool:
        life = life_of_session(world, session) if by else None
        return not by or (life is not None and life.actor.kind == by)

    def look(event: str, fields: Commit) -> bool:
        is_mine = event == "commit" and is_by(fields["session"]) and any(is_it(each) for each in fields["ops"])
        if is_mine:
            world.observers.remove(look)
            happen(fields)
        return is_mine

    world.observers.append(look)


def is_command(option: str, below: str) -> Callable[[Commit], bool]:
    """Whether an operation sends a command of that kind, with `below` in its path."""
    return lambda op: op["op"] == "create" and below in op["path"] and f'"{option}"' in op["data"]


def paths_of(request: LinkRequest) -> Sequence[str]:
    """What a request reads the data of."""
    return request.what if request.kind in (GET, READ) else ()


def unless_calm(world: SimulatedWorld, kind: Fault) -> Callable[[], None]:
    """A fault to be done later, while faults are done."""

    def happen() -> None:
        if not world.is_calm:
            kind(world)

    return happen


def sessions_of(world: SimulatedWorld, life: SimulatedLife) -> set[int]:
    """The sessions that a process has open."""
    return {store.session_id for store in world.stores_of(life.process)}


def life_of_session(world: SimulatedWorld, session: int) -> SimulatedLife | None:
    """The process that has that session, while it lives."""
    return next((one for one in world.alive() if session in sessions_of(world, one)), None)


def coordinator_of(world: SimulatedWorld) -> tuple[SimulatedLife, SimStore] | None:
    """The node whose znode stands, by its session."""
    leader = world.ensemble.leader
    node = leader.tree.get(COORDINATOR) if leader is not None else None
    for life in world.alive("node") if node is not None else []:
        for store in world.stores_of(life.process):
            if store.session_id == node.stat.ephemeral_owner:  # type: ignore[union-attr]
                return life, store
    return None
