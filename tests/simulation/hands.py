"""An operator's hand beside something that takes its time: a collection, or a member that is to stop.

Drawn besides the others, in every eleventh run (`Profile.beside`); what they draw is from `world.beside`.
"""

from __future__ import annotations

from coordinator.zk.errors import BadData
from coordinator.zk.store import Delete
from coordinator.zk.znodes.paths import COORDINATOR, GROUPS, PAUSED, GroupPaths
from coordinator.zk.znodes.records import OwnerRecord
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.watching import SOON_S, Commit, World, consumer_of, group_of, is_command, kinds
from tests.simulation.world import POOL_GROUP


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
            world.scheduler.after(1.0, lambda: None if world.is_calm else world.start_slot(slot) and None)
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


HANDS = kinds(pause_while_collecting, owners_removed_beside_stop)
