"""More faults for a purpose: hands at the fences, answers that come too late, processes that stop at an operation."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.simulation.actors import ApplicationActor
from tests.simulation.faults import SLOW_DISKS
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.store import SimStore
from tests.simulation.turnovers import TURNOVERS
from tests.simulation.watching import (
    Commit,
    World,
    a_group,
    group_of,
    is_command,
    kinds,
    on,
    paths_of,
    session_of,
)
from tests.simulation.world import SimulatedLife
from zk_group.coordinator.zk.lease import LEASE_SHARE
from zk_group.coordinator.zk.store import Create, Delete, Operation
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, GROUPS, GroupPaths
from zk_group.coordinator.zk.znodes.records import OwnerRecord

# ---- hands at the fences


def epoch_removed_by_hand(world: World) -> None:
    """Somebody removes the epoch, perhaps with the coordinator's znode; perhaps a commit is on its way just then.

    The next epoch's znode begins at version 0 again, which an old commit may carry.
    """
    gone: list[Operation] = [Delete(COORDINATOR_EPOCH)]
    if world.random.random() < 0.5:
        gone.append(Delete(COORDINATOR))
    found = world.coordinator()

    def remove() -> None:
        if not world.is_calm and world.by_hand(*gone):
            world.note("hand", paths=[each.path for each in gone])
            world.fire("epoch-removed-by-hand")

    if found is not None and world.random.random() < 0.5:
        world.note("late-commit", process=found[0].process.life)
        found[1].delay_next_commit(remove)
    else:
        remove()


STRANGER = OwnerRecord("stranger-0", "stranger", "0123456789abcdef0123456789abcdef", 1).to_bytes()


def owner_made_by_hand(world: World) -> None:
    """Somebody makes the owner znode of a partition that is free, or that a member has just been told to fetch."""
    is_ephemeral, seconds = world.random.random() < 0.5, world.random.uniform(0.3, 6)
    data = world.random.choice((STRANGER, b""))

    def make(group: str, topic: str, partition: int) -> None:
        paths = GroupPaths(group)
        path = paths.owner(topic, partition)
        wanted: list[Operation] = [] if world.children(paths.owners_of(topic)) else [Create(paths.owners_of(topic))]
        made = Create(path, data, is_ephemeral)
        if world.is_calm or not (world.by_hand(made) or (wanted and world.by_hand(*wanted, made))):
            return
        world.lasting("hand", seconds, lambda: unmake(path), path=path)
        world.fire("owner-made-by-hand")

    def is_free(owners: str, number: int) -> bool:
        return str(number) not in world.children(owners)

    def unmake(path: str) -> None:
        leader = world.ensemble.leader
        if leader is None:
            world.scheduler.after(0.05, lambda: unmake(path))
            return
        node = leader.tree.get(path)
        if node is not None and node.data == data:
            world.by_hand(Delete(path))

    free = _free_partition(world)
    if free is not None and world.random.random() < 0.4:
        make(*free)
        return
    is_start = is_command("start-fetcher", f"{GROUPS}/")

    def told(commit: Commit) -> None:
        op = next(op for op in commit["ops"] if is_start(op))
        group, owners = group_of(op["path"]), GroupPaths(group_of(op["path"])).owners_of
        named = [(topic, number) for topic, number in _named_in(op["data"]) if is_free(owners(topic), number)]
        if named:
            topic, partition = world.random.choice(named)
            world.scheduler.after(0.001 * world.random.random(), lambda: make(group, topic, partition))

    world.once(lambda op: is_start(op) and bool(_named_in(op["data"])), told)


def _free_partition(world: World) -> tuple[str, str, int] | None:
    """One of a topic that there is, without an owner in a group; None when there is none."""
    paths = a_group(world)
    if paths is None:
        return None
    free = [
        (paths.group, name, partition)
        for name, topic in sorted(world.topics.items())
        for partition in topic.partitions
        if str(partition) not in world.children(paths.owners_of(name))
    ]
    return world.random.choice(free) if free else None


def _named_in(data: str) -> list[tuple[str, int]]:
    """The partitions that a command names: thread -> topic -> ranges."""
    ownership = json.loads(data).get("ownershipMap") or {}
    named = []
    for topics in ownership.values():
        for topic, ranges in topics.items():
            for one in filter(None, str(ranges).split(",")):
                first, _, last = one.partition("-")
                named += [(topic, number) for number in range(int(first), int(last or first) + 1)]
    return sorted(set(named))


# ---- answers that are slow, and then none


@on(session_of())
def slow_then_cut(world: World, found: tuple[SimulatedLife, SimStore]) -> None:
    """A commit is done, its answer takes a while, and the connection breaks before that comes, or just behind it.

    At the latest it breaks when the client has heard nothing for longer than it bears.
    """
    life, store = found
    session_s = world.profile.session_timeout_ms / 1000
    patience_s = world.random.uniform(1 / 3, 2 / 3) * session_s
    is_below = world.random.random() < 0.6
    reply_s = world.random.uniform(0.02, 0.95) * patience_s if is_below else world.random.uniform(1.0, 2.0) * session_s
    cut_s = reply_s + 0.01 if world.random.random() < 0.2 else world.random.uniform(0.3, 0.999) * reply_s
    world.note("slow-then-cut", process=life.process.life)
    store.slow_next_commit(reply_s, min(cut_s, patience_s))


# ---- names that come back


def static_bounce(world: World) -> None:
    """A static member leaves or crashes, and its name comes back as another process, perhaps before it has expired."""
    apps = [life for life in world.alive("consumer") if isinstance(life.actor, ApplicationActor)]
    static = [life for life in apps if life.actor.config.group_instance_id]  # type: ignore[attr-defined]
    some = [*static, *world.alive("slot")] or apps
    if not some:
        return
    life = world.random.choice(some)
    delay_s = world.random.uniform(0, 1.2) * world.profile.session_timeout_ms / 1000

    def come_back() -> None:
        if world.is_calm or world.of_name(life.process.name) is not life:
            return
        world.again(life.process)
        newest = world.of_name(life.process.name)
        if newest is not None and isinstance(newest.actor, ApplicationActor) and life in static:
            config = newest.actor.config
            newest.actor.config = replace(config, group_instance_id=config.consumer)
        world.fire("static-bounce")

    world.note("leave", process=life.process.life)
    if world.random.random() < 0.5:
        world.crash(life)
    else:
        life.actor.stop()
    world.scheduler.after(delay_s, come_back)


# ---- at an operation


def pause_at(world: World) -> None:
    """A process stops exactly at one of its next operations, for less than its lease, about as long, or longer.

    Mostly it is a coordinator that has just read a group's channels, and is about to commit what follows from them.
    """
    of_lease = world.random.choice(((0.2, 0.6), (0.9, 1.1), (1.2, 2.5)))
    seconds = world.random.uniform(*of_lease) * LEASE_SHARE * world.profile.session_timeout_ms / 1000
    if world.random.random() < 0.3:
        if (life := world.any_of()) is not None:
            _stop_at(world, life.process, world.random.randint(1, 150), seconds)
        return
    count = world.random.randint(1, 8)
    world.once_read(
        lambda request: any("/channel/" in path for path in paths_of(request)),
        lambda process: _stop_at(world, process, count, seconds),
    )


def _stop_at(world: World, process: SimulatedProcess, count: int, seconds: float) -> None:
    """Pause the process at its operation of that number from now; counted when that happens."""
    if world.is_calm or process.pause_at > process.operations or process.is_dead:
        return
    at = process.pause_at = process.operations + count

    def changed() -> None:
        if process.is_paused and process.operations == at == process.pause_at:
            process.pause_at = 0
            process.observers.remove(changed)
            world.lasting("pause", seconds, process.resume, process=process.life)
            world.fire("pause-at")

    process.observers.append(changed)


# ---- far behind


def long_lag(world: World) -> bool:
    """A follower is several seconds behind the leader: about as long as a lease lasts, or a session."""
    server, lag_s = world.random.choice(world.followers()), world.random.choice((3.0, 6.0))
    until = world.lasting("lag-server", world.random.uniform(2, 10))

    def end() -> None:
        server.lag(0.0)
        if server.is_able:
            server.hurry()

    if server.lag(lag_s, has_slow_disk=world.disks.random() < SLOW_DISKS):
        world.scheduler.after(until - world.scheduler.now, end)
        return True
    server.lag(0.0)
    return False


MOMENTS = TURNOVERS | kinds(
    *(epoch_removed_by_hand, owner_made_by_hand, slow_then_cut, static_bounce, pause_at, long_lag)
)
