"""What faults have in common: what they are done to, what they do, and how they wait for their moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar

from tests.simulation.actors import ApplicationActor
from tests.simulation.links import GET, LIST, READ, LinkRequest
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.servers import SimulatedServer
from tests.simulation.store import SimStore
from tests.simulation.world import POOL_GROUP, SimulatedLife, SimulatedWorld
from zk_group.coordinator.admin import control
from zk_group.coordinator.zk.store import Delete, Node
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GROUPS, GroupPaths

T = TypeVar("T")

Commit = dict[str, Any]
"""A `commit` of the history; its `ops` are dictionaries too."""

NODES_SHARE = 0.3
SOON_S = 0.001


class World(SimulatedWorld):
    """A world, with what faults have in common: what they do, and how they wait for their moment."""

    def any_of(self, *kinds: str) -> SimulatedLife | None:
        """A process that lives; where any will do, often a node, of which there are few."""
        if not kinds and self.random.random() < NODES_SHARE:
            kinds = ("node",)
        some = self.alive(*kinds)
        return self.random.choice(some) if some else None

    def note(self, kind: str, **fields: object) -> None:
        self.record("server", "fault", {"kind": kind, **fields})

    def lasting(self, kind: str, seconds: float, end: Callable[[], object] | None = None, /, **fields: object) -> float:
        """Note a fault that lasts; until when it does, which is not after the calm begins. `end` is called then."""
        until = min(self.scheduler.now + seconds, self.profile.calm_at)
        self.note(kind, until=round(until, 6), **fields)
        if end is not None:
            self.scheduler.after(until - self.scheduler.now, end)
        return until

    def hold(self, process: SimulatedProcess, seconds: float) -> float:
        """Stop a process; until when, at most: `resume` ends it earlier."""
        until = self.lasting("pause", seconds, process.resume, process=process.life)
        process.pause()
        return until

    def hang(self, life: SimulatedLife, app: ApplicationActor, seconds: float) -> None:
        """Let an application neither poll nor end."""
        self.lasting(
            "stuck", seconds, lambda: setattr(app, "is_stuck", False), process=life.process.life, **app.names()
        )
        app.is_stuck = True

    def cut(self, server: SimulatedServer, seconds: float) -> None:
        """Cut a server off from the others."""
        self.lasting("cut-server", seconds, lambda: self.ensemble.heal(server))
        self.ensemble.cut(server)

    def deafen(self, life: SimulatedLife, seconds: float, share: float) -> None:
        """Let so many of the events that a process waits for get lost."""
        until = self.lasting("lose-watches", seconds, process=life.process.life)
        for store in self.stores_of(life.process):
            store.lose_watches = share
            self.scheduler.after(until - self.scheduler.now, partial(setattr, store, "lose_watches", 0.0))

    def slow_down(self, life: SimulatedLife, seconds: float, extra_s: float) -> None:
        """Let the connections of a process be slow."""
        until = self.lasting("slow-connection", seconds, process=life.process.life)
        for store in self.stores_of(life.process):
            store.slow(extra_s, until)

    def again(self, process: SimulatedProcess) -> None:
        """A new process under the name, as whoever started the last one starts it."""
        name = process.name
        kind, _, number = name.partition("-")
        if kind == "node":
            self.start_node(int(number))
        elif kind == "slot":
            self.start_slot(int(number))
        elif kind == "query":
            self.start_query(number)
        elif kind == "driver":
            self.start_driver()
        elif number:  # members that lie come once
            self.start_application(kind, number)

    def again_later(self, life: SimulatedLife, delay_s: float) -> None:
        """Somebody starts a process again that has ended, while it has no successor."""

        def restart() -> None:
            if not self.is_calm and not life.is_alive and self.of_name(life.process.name) is life:
                self.again(life.process)

        self.scheduler.after(delay_s, restart)

    def die_soon(self, life: SimulatedLife, more: int, kind: str, delay_s: float | None) -> None:
        """A process dies after so many more of its operations, which counts. It is started again, or never (None)."""
        process = life.process
        process.crash_at = process.operations + more
        self.note("crash", process=process.life)

        def changed() -> None:
            if process.is_dead and process.operations == process.crash_at:
                self.fire(kind)
                if delay_s is not None:
                    self.again_later(life, delay_s)

        process.observers.append(changed)

    def join(self, group: str, name: str) -> None:
        """An application joins a group."""
        self.note("join", group=group)
        self.start_application(group, name)

    def unseat(self, kind: str) -> None:
        """Somebody removes the coordinator's znode, which counts."""
        if not self.is_calm and self.by_hand(Delete(COORDINATOR)):
            self.note("hand", path=COORDINATOR)
            self.fire(kind)

    def pause_group(self, group: str, seconds: float) -> None:
        """An operator pauses a group, and resumes it later."""
        until = self.lasting("paused", seconds, group=group)
        self.run_tool(lambda store, ms: control.pause(store, group, "operator", ms, "a drill"))

        def resume() -> None:
            self.run_tool(lambda store, _: control.resume(store, group))

        self.scheduler.after(until - self.scheduler.now, resume)

    def once(self, is_it: Callable[[Commit], bool], happen: Callable[[Commit], object], by: str = "") -> None:
        """Let something happen, once, behind the next commit with an operation for which `is_it` says so.

        Of several that wait for the same, each takes another commit.

        :param by: only a process of this kind is waited for.
        """

        def is_by(session: int) -> bool:
            life = self.life_of_session(session) if by else None
            return not by or (life is not None and life.actor.kind == by)

        def look(event: str, fields: Commit) -> bool:
            is_mine = event == "commit" and is_by(fields["session"]) and any(is_it(each) for each in fields["ops"])
            if is_mine:
                self.observers.remove(look)
                happen(fields)
            return is_mine

        self.observers.append(look)

    def unless_calm(self, kind: Fault) -> Callable[[], None]:
        """A fault to be done later, while faults are done."""

        def happen() -> None:
            if not self.is_calm:
                kind(self)

        return happen

    def sessions_of(self, life: SimulatedLife) -> set[int]:
        """The sessions that a process has open."""
        return {store.session_id for store in self.stores_of(life.process)}

    def life_of_session(self, session: int) -> SimulatedLife | None:
        """The process that has that session, while it lives."""
        return next((one for one in self.alive() if session in self.sessions_of(one)), None)

    def node_at(self, path: str) -> Node | None:
        """A znode as the leader has it; None without one, too."""
        leader = self.ensemble.leader
        return leader.tree.get(path) if leader is not None else None

    def once_read(
        self,
        is_it: Callable[[LinkRequest], bool],
        happen: Callable[[SimulatedProcess], object],
        by: str = "node",
    ) -> None:
        """Let something happen to the process that is the next to read what `is_it` says, once.

        :param by: how its name begins.
        """

        def look(request: LinkRequest) -> None:
            process = request.link.client.process
            if process.name.startswith(by) and is_it(request):
                self.ensemble.on_read.remove(look)
                happen(process)

        self.ensemble.on_read.append(look)

    def once_collecting(self, happen: Callable[[SimulatedProcess], object]) -> None:
        """The same when a coordinator has just read which queries there are, to collect what they have finished."""
        paths = GroupPaths(POOL_GROUP)

        def is_listing(request: LinkRequest) -> bool:
            return request.kind == LIST and paths.queries in request.what and bool(self.children(paths.segments))

        self.once_read(is_listing, lambda process: self.scheduler.after(0.0, lambda: happen(process)))

    def coordinator(self) -> tuple[SimulatedLife, SimStore] | None:
        """The node whose znode stands, by its session."""
        node = self.node_at(COORDINATOR)
        for life in self.alive("node") if node is not None else []:
            for store in self.stores_of(life.process):
                if store.session_id == node.stat.ephemeral_owner:  # type: ignore[union-attr]
                    return life, store
        return None


Fault = Callable[[World], bool | None]
"""Returns whether it took effect. What does so later, or perhaps never (a reply that shall be lost needs a request),
returns nothing, and is counted where it does."""


def kinds(*faults: Fault) -> dict[str, Fault]:
    """The kinds of these faults, as profiles name them: `lose_reply` is `lose-reply`."""
    return {fault.__name__.replace("_", "-"): fault for fault in faults}


def on(find: Callable[[World], T | None]) -> Callable[[Callable[[World, T], bool | None]], Fault]:
    """A fault of what is found; where there is nothing, it is none."""

    def made(kind: Callable[[World, T], bool | None]) -> Fault:
        @wraps(kind)
        def fault(world: World) -> bool | None:
            found = find(world)
            return kind(world, found) if found else False

        return fault

    return made


def one_of(*kinds: str) -> Callable[[World], SimulatedLife | None]:
    """A process of one of these kinds."""
    return lambda world: world.any_of(*kinds)


def session_of(*kinds: str) -> Callable[[World], tuple[SimulatedLife, SimStore] | None]:
    """A process, of one of these kinds, and a session that it has."""

    def found(world: World) -> tuple[SimulatedLife, SimStore] | None:
        life = world.any_of(*kinds)
        stores = world.stores_of(life.process) if life else []
        return (life, world.random.choice(stores)) if life and stores else None

    return found


def a_group(world: World) -> GroupPaths | None:
    """A group's paths."""
    names = world.children(GROUPS)
    return GroupPaths(world.random.choice(sorted(names))) if names else None


def a_topic(world: World) -> str | None:
    """The name of a topic."""
    return world.random.choice(sorted(world.topics)) if world.topics else None


def is_command(option: str, below: str) -> Callable[[Commit], bool]:
    """Whether an operation sends a command of that kind, with `below` in its path."""
    return lambda op: op["op"] == "create" and below in op["path"] and f'"{option}"' in op["data"]


def group_of(path: str) -> str:
    """The group of a path below it."""
    return path[len(GROUPS) + 1 :].partition("/")[0]


def consumer_of(path: str) -> str:
    """The consumer of a path below its channel."""
    return path.partition("/channel/")[2].partition("/")[0]


def paths_of(request: LinkRequest) -> Sequence[str]:
    """What a request reads the data of."""
    return request.what if request.kind in (GET, READ) else ()
