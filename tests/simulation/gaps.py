"""Faults after which a query finds a gap, or records twice: the log loses records, offsets are reset, a file changes.

Queries end at every point of a batch, and somebody starts them again.
They draw from a stream of their own (`world.gaps`), in some of the runs (`Profile.gaps`); the others have none of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.actors import POINTS, QueryActor, SlotTask
from tests.simulation.watching import Commit, World, kinds, on
from tests.simulation.world import BROKERS, POOL_GROUP, SimulatedLife
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.offsets import OffsetReset, write_offsets
from zk_group.coordinator.admin.reset_offsets import ResetRequest
from zk_group.coordinator.admin.topics import usable_topics
from zk_group.coordinator.cli.groups import bounds_in
from zk_group.coordinator.zk.store import SetData, Store
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import OffsetRecord, Topic

WITHOUT_MERCY = 0.2
"""So many of the pools that stop are killed: their sessions have to expire."""

LENIENT = 0.15
"""So many of the queries that are started again have `failOnDataLoss=false`."""

LOOKS_S = 1.0
TRIES_S = 0.5
RESTARTS_EVERY = 12


# ---- the pool, and who starts queries again


def _stop_pool(world: World) -> None:
    """All slots end, for good: their seats are free."""
    for life in world.alive("slot"):
        world.note("leave", process=life.process.life)
        if world.gaps.random() < WITHOUT_MERCY:
            world.crash(life)
        elif isinstance(life.actor, SlotTask) and life.actor.slot is not None:
            life.actor.slot.stop("the pool stops", for_good=True)


def _start_pool(world: World) -> None:
    """All slots that are not there begin."""
    names = {life.process.name for life in world.alive("slot")}
    for number in range(world.profile.slots):
        if f"slot-{number}" not in names:
            world.start_slot(number)


def _pool_comes_back(world: World) -> None:
    """The pool starts; soon, perhaps before there is anything to seal, a slot ends, or loses its name."""
    if world.is_calm:
        return
    _start_pool(world)

    def trouble() -> None:
        lives = world.alive("slot")
        if not world.is_calm and lives:
            _end_slot(world, world.gaps.choice(lives))

    for _ in range(world.gaps.randint(0, 2)):
        world.scheduler.after(world.gaps.uniform(0.3, 4), trouble)


def _end_slot(world: World, life: SimulatedLife) -> None:
    """A slot leaves, dies, or loses its name; another one comes under it, before its session ends or after that."""
    lot = world.gaps.randrange(3)
    world.note(("leave", "crash", "second-process")[lot], process=life.process.life)
    if lot == 1:
        world.crash(life)
    elif lot == 0:
        life.actor.stop()
    delay_s = 0.0 if lot == 2 else world.gaps.choice((0.1, 1.5, 1.5)) * world.profile.session_timeout_ms / 1000
    world.scheduler.after(delay_s, lambda: None if world.is_calm else world.again(life.process))


def _while_pool_is_away(world: World, happen: Callable[[], bool], kind: str) -> bool:
    """Stop the pool, let something happen, and start the pool; or let it happen while that runs."""
    if world.gaps.random() < 0.3:
        return happen()
    _stop_pool(world)

    def go_on() -> None:
        if not world.is_calm:
            if happen():
                world.fire(kind)
            world.scheduler.after(world.gaps.uniform(0, 1), lambda: _pool_comes_back(world))

    world.scheduler.after(world.gaps.uniform(2, 6), go_on)
    return False


def supervise(world: World) -> None:
    """Somebody looks after queries: one that has ended is started again, one of some is bounced now and then, and every
    one when the faults are over, when a new one comes, too. Some do not fail on data loss."""

    def look() -> None:
        for name in sorted(world.checkpoints.keys() - world.held_back):
            life = world.of_name(f"query-{name}")
            if life is not None and not life.is_alive:
                world.start_query(name, is_strict=world.gaps.random() >= LENIENT)
            elif life is not None and world.gaps.randrange(RESTARTS_EVERY) == 0:
                life.actor.stop()
        if world.scheduler.now < world.profile.seconds - 2.0:
            world.scheduler.after(LOOKS_S, look)

    def bounce() -> None:
        for life in world.alive("query"):
            life.actor.stop()
        world.start_query("late")

    world.scheduler.after(LOOKS_S, look)
    world.scheduler.after(world.profile.calm_at + world.gaps.uniform(2, 6), bounce)


# ---- the log


def _topic(world: World) -> Topic | None:
    return world.topics[world.gaps.choice(sorted(world.topics))] if world.topics else None


def _begins(world: World, topic: Topic, partition: int, offset: int) -> None:
    """The records before `offset` are gone. Whoever has looked before may still begin at the first of them."""
    place = {"topic": topic.name, "topic_id": topic.id, "partition": partition}
    for each in (world.log.starts.get((topic.name, topic.id, partition), 0), offset):
        world.record("server", "earliest", {**place, "offset": each})
    world.log.begin_at(topic.name, topic.id, partition, offset)


def _end(world: World, topic: Topic) -> int:
    return world.log.topics[topic.name, topic.id].latest(world.scheduler.now)


def _of_log(world: World, change: Callable[[Topic, int], None]) -> Callable[[], bool]:
    """Changes a topic that has records, given its end."""

    def happen() -> bool:
        topic = _topic(world)
        end = _end(world, topic) if topic is not None else 0
        if topic is None or not end:
            return False
        world.note("log", topic=topic.name)
        change(topic, end)
        return True

    return happen


def log_start_moves(world: World) -> bool:
    """The first records of some partitions of a topic are removed, perhaps some that the group has not read."""

    def move(topic: Topic, end: int) -> None:
        for partition in world.gaps.sample(topic.partitions, world.gaps.randint(1, len(topic.partitions))):
            before = world.log.starts.get((topic.name, topic.id, partition), 0)
            if before < end:
                _begins(world, topic, partition, world.gaps.choice((end, end - 1, world.gaps.randint(before, end))))

    return _while_pool_is_away(world, _of_log(world, move), "log-start-moves")


def log_restored(world: World) -> bool:
    """An older copy of a topic is restored: it ends earlier, and may begin earlier."""

    def restore(topic: Topic, end: int) -> None:
        copy = world.gaps.randrange(end)
        world.log.restore(topic.name, topic.id, copy)
        for partition in topic.partitions:
            before = world.log.starts.get((topic.name, topic.id, partition), 0)
            _begins(world, topic, partition, world.gaps.randint(0, min(before, copy)))

    return _while_pool_is_away(world, _of_log(world, restore), "log-restored")


@on(_topic)
def later_partition_loses(world: World, topic: Topic) -> None:
    """A topic grows, or is made anew, and has lost its first records before anybody has fetched them."""

    def lose() -> None:
        now = world.topics.get(topic.name)
        end = _end(world, now) if now is not None else 0
        for partition in now.partitions if now is not None and end else ():
            if now is not None and (now.id != topic.id or partition not in topic.partitions):
                _begins(world, now, partition, world.gaps.choice((end, world.gaps.randint(0, end))))
                world.fire("later-partition-loses")

    world.note("topic", topic=topic.name)
    if world.gaps.random() < 0.7:
        if world.grow_topic(topic.name):
            lose()
        return
    _stop_pool(world)
    if world.remove_topic(topic.name) and world.make_topic(topic.name):

        def go_on() -> None:
            lose()
            _pool_comes_back(world)

        world.scheduler.after(world.gaps.uniform(3, 6), go_on)


# ---- an operator


def _request(world: World) -> ResetRequest:
    topic = world.gaps.choice([*sorted(world.topics), ""])
    to: dict[str, Any] = world.gaps.choice(
        (
            {"shift_by": -world.gaps.randint(1, 60)},
            {"shift_by": world.gaps.randint(1, 60)},
            {"to_earliest": True},
            {"to_latest": True},
            {"to_current": True},
            {"to_offset": world.gaps.randint(0, 120)},
        )
    )
    return ResetRequest(topics=(topic,) if topic else (), all_topics=not topic, execute=True, **to)


def offsets_reset(world: World) -> None:
    """An operator stops the pool, resets the offsets and starts the pool; queries are stopped meanwhile, or not.

    The pool is stopped again until the reset has happened: others may have started slots.
    """
    if not world.profile.slots:
        return
    request, done = _request(world), [False]
    stopped = [life for life in world.alive("query")] if world.gaps.random() < 0.65 else []
    names = {life.process.name.partition("-")[2] for life in stopped}
    world.held_back |= names
    for life in stopped:
        life.actor.stop()

    def reset(store: Store, _: int) -> None:
        topics = usable_topics(Reading(store), BROKERS)
        tool = OffsetReset(store, bounds_in(world.log), topics, request, None, lambda warning: None)
        new = tool.plan(POOL_GROUP)
        if new and not done[0]:
            write_offsets(store, POOL_GROUP, new, topics)
            done[0] = True
            world.fire("offsets-reset")

    def attempt() -> None:
        if world.is_calm or done[0]:
            world.held_back -= names
            world.scheduler.after(world.gaps.uniform(0, 2), lambda: _pool_comes_back(world))
            return
        if not any(life.is_alive for life in stopped):
            _stop_pool(world)
            world.run_tool(reset)
        world.scheduler.after(TRIES_S, attempt)

    world.note("reset", group=POOL_GROUP)
    _stop_pool(world)
    world.scheduler.after(world.gaps.uniform(1, 3), attempt)


def offset_set_by_hand(world: World) -> bool:
    """Somebody at zkCli sets an offset of the pool's group, and says nothing of why."""
    paths = GroupPaths(POOL_GROUP)

    def set_it() -> bool:
        parents = [paths.offsets_of(topic) for topic in world.children(paths.offsets)]
        some = [f"{parent}/{name}" for parent in parents for name in world.children(parent)]
        path = world.gaps.choice(some) if some else ""
        node = world.node_at(path) if path else None
        if node is None:
            return False
        record, moved = OffsetRecord.parse(path, node.data), world.gaps.choice((-18, -5, 5, 18))
        world.note("hand", path=path)
        return world.by_hand(
            SetData(path, replace(record, offset=max(0, record.offset + moved), discontinuity=None).to_bytes())
        )

    return _while_pool_is_away(world, set_it, "offset-set-by-hand")


def discontinuity_then_end(world: World) -> None:
    """A slot ends when its channel has just said that a position does not continue, before it has sealed from there."""
    delay_s = world.gaps.choice((0.0, 0.05, 0.3))

    def end(commit: Commit) -> None:
        life = world.life_of_session(commit["session"])
        if not world.is_calm and life is not None and life.actor.kind == "slot":
            world.fire("discontinuity-then-end")
            world.scheduler.after(delay_s, lambda: _end_slot(world, life) if life.is_alive else None)

    world.once(lambda op: "/channel/" in op["path"] and '"discontinuities"' in (op.get("data") or ""), end)


# ---- queries, and what they read


@on(lambda world: world.alive("query"))
def query_dies_at(world: World, queries: list[SimulatedLife]) -> None:
    """A query is killed at a point of a batch."""
    life, point = world.gaps.choice(queries), world.gaps.choice(POINTS)

    def reached(now: str) -> None:
        if now == point and not world.is_calm:
            world.note("crash", process=life.process.life)
            world.scheduler.after(0.0, lambda: world.crash(life))
            world.fire("query-dies-at")

    if isinstance(life.actor, QueryActor):
        life.actor.at_point = reached


def file_replaced(world: World) -> None:
    """The next segment's file becomes another valid one, with as many records of another place."""
    partitions, offsets = world.gaps.choice(((1, 0), (0, 1), (1, 1)))

    def replace(commit: Commit) -> None:
        data = next(op["data"] for op in commit["ops"] if op["op"] == "create" and "/segments/segment-" in op["path"])
        file = json.loads(data)["file"]
        if not world.is_calm and world.disk.replace(file, partitions, offsets):
            world.note("file-replaced", file=file)
            world.fire("file-replaced")

    world.once(lambda op: op["op"] == "create" and "/segments/segment-" in op["path"], replace)


GAPS = kinds(
    *(log_start_moves, log_restored, later_partition_loses),
    *(offsets_reset, offset_set_by_hand, discontinuity_then_end, query_dies_at, file_replaced),
)
