"""An operator's hand beside something that takes its time: a collection, or a member that is to stop.

Drawn besides the others, in every eleventh run (`Profile.beside`); what they draw is from `world.beside`.
"""

from __future__ import annotations

from coordinator.admin import control
from coordinator.zk.errors import BadData
from coordinator.zk.store import Delete
from coordinator.zk.znodes.paths import COORDINATOR, GROUPS, PAUSED, GroupPaths
from coordinator.zk.znodes.records import OwnerRecord
from tests.simulation.faults import Fault, _lasting, _note, _operator
from tests.simulation.links import LIST, LinkRequest
from tests.simulation.scenes import SOON_S, _hold
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.watching import Commit, is_command, once
from tests.simulation.world import POOL_GROUP, SimulatedWorld


def pause_while_collecting(world: SimulatedWorld) -> bool:
    """A coordinator has read what there is to collect, and hangs; an operator pauses the group. Then it goes on, or
    another one is elected; slots end and begin meanwhile."""
    if not world.profile.slots:
        return False
    paths, random, session_s = GroupPaths(POOL_GROUP), world.beside, world.profile.session_timeout_ms / 1000
    seconds, paused_s = random.uniform(0.02, 0.6) * session_s, random.uniform(1, 6)
    is_deposed, slot = random.random() < 0.4, random.randrange(world.profile.slots)

    def look(request: LinkRequest) -> None:
        process = request.link.client.process
        is_listing = request.kind == LIST and paths.queries in request.what
        if is_listing and process.name.startswith("node") and world.children(paths.segments):
            world.ensemble.on_read.remove(look)
            world.scheduler.after(0.0, lambda: pause(process))

    def pause(process: SimulatedProcess) -> None:
        if world.is_calm or process.is_paused or process.is_dead:
            return
        _hold(world, process, seconds)
        until = _lasting(world, "paused", paused_s, group=POOL_GROUP)
        once(world, lambda op: op["path"] == PAUSED, lambda _: world.scheduler.after(SOON_S, lambda: go_on(process)))
        _operator(world, lambda store, ms: control.pause(store, POOL_GROUP, "operator", ms, "a drill"))
        world.scheduler.after(
            until - world.scheduler.now, lambda: _operator(world, lambda store, ms: control.resume(store, POOL_GROUP))
        )

    def go_on(process: SimulatedProcess) -> None:
        if world.is_calm:
            return
        world.fire("pause-while-collecting")
        life = world.of_name(f"slot-{slot}")
        if life is not None and life.is_alive:
            _note(world, "leave", process=life.process.life)
            life.actor.stop()
            world.scheduler.after(1.0, lambda: None if world.is_calm else world.start_slot(slot) and None)
        if is_deposed:
            _note(world, "hand", path=COORDINATOR)
            world.by_hand(Delete(COORDINATOR))
        process.resume()

    world.ensemble.on_read.append(look)
    return False


def owners_removed_beside_stop(world: SimulatedWorld) -> bool:
    """A member that is to stop is slow, or hangs; somebody at zkCli removes owner znodes of its partitions."""
    random, session_s = world.beside, world.profile.session_timeout_ms / 1000
    delay_s, extra_s = random.choice((0.0, 0.01, 0.3)) * random.random(), random.choice((0.05, 0.2, 0.5))
    hangs_s, some = random.choice((0.0, random.uniform(0.2, 1.2) * session_s)), random.random()

    def sent(commit: Commit) -> None:
        command = next(op["path"] for op in commit["ops"] if is_stop(op))
        group, consumer = command[len(GROUPS) + 1 :].split("/")[0:3:2]
        lives = [life for life in world.alive("consumer", "slot") if life.actor.names()["consumer"] == consumer]
        if world.is_calm or not lives or lives[-1].process.is_paused:
            return
        process = lives[-1].process
        if hangs_s:
            _hold(world, process, hangs_s)
        else:
            until = _lasting(world, "slow-connection", 2.0, process=process.life)
            for store in world.stores_of(process):
                store.slow(extra_s, until)
        world.scheduler.after(delay_s, lambda: remove(group, consumer))

    def remove(group: str, consumer: str) -> None:
        owned = _owned(world, GroupPaths(group), consumer)
        gone = [path for path in owned if random.random() < max(0.3, some)]
        if gone and not world.is_calm and world.by_hand(*(Delete(path) for path in gone)):
            _note(world, "hand", paths=gone)
            world.fire("owners-removed-beside-stop")

    is_stop = is_command("stop-fetcher", f"{GROUPS}/")
    once(world, is_stop, sent, by="node")
    return False


def _owned(world: SimulatedWorld, paths: GroupPaths, consumer: str) -> list[str]:
    """The owner znodes of a member."""
    leader, found = world.ensemble.leader, []
    for topic in world.children(paths.owners) if leader is not None else ():
        for name in world.children(paths.owners_of(topic)):
            path = f"{paths.owners_of(topic)}/{name}"
            node = leader.tree.get(path) if leader is not None else None
            try:
                owner = OwnerRecord.parse(path, node.data).consumer if node is not None else ""
            except BadData:
                continue
            if owner == consumer:
                found.append(path)
    return found


HANDS: dict[str, Fault] = {
    "pause-while-collecting": pause_while_collecting,
    "owners-removed-beside-stop": owners_removed_beside_stop,
}
