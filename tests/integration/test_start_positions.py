"""Where a group begins: resolved once for each partition, recorded, and kept by every later owner."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.hand_polled import HandPolled, Polling
from tests.support.memlog import TimedLog
from tests.support.processes import consumer_process
from tests.support.slots import SlotBench
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World, parts
from zk_group.consumer.errors import NoOffsetForPartition
from zk_group.consumer.logs.base import OffsetOutOfRange
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.coordinator.admin.offsets import delete_offsets, write_offsets
from zk_group.coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import BegunRecord, OffsetRecord

PATHS = GroupPaths("g")
T0 = TopicPartition("t", 0)


def refused(app: HandPolled) -> str:
    """Why a poll raises; empty when it does not."""
    try:
        app.poll()
    except (NoOffsetForPartition, OffsetOutOfRange) as error:
        return str(error)
    return ""


@pytest.fixture
def world(world: World) -> World:
    """With a coordinator."""
    world.coordinator()
    return world


def record(world: World, partition: TopicPartition = T0) -> OffsetRecord:
    data = world.data(PATHS.offset(*partition))
    assert data is not None, partition
    return OffsetRecord.parse("", data)


def note(world: World, topic: str = "t") -> BegunRecord:
    return BegunRecord.parse("", world.data(PATHS.offsets_of(topic)) or b"")


@pytest.mark.parametrize(
    ("position", "start"), [("end", 100), ("2026-11-21T10:00:00Z", 100), ("1970-01-01T00:00:40Z", 40), ("40000", 40)]
)
def test_successor_of_dead_owner_starts_where_it_did(world: World, polled: Polling, position: str, start: int) -> None:
    world.topic("t", 2)
    log = TimedLog(end=100)
    first = polled("c1", log, start_position=position)
    first.holds(parts("t", 0, 1))
    standing = record(world)
    first.vanish()
    log.end = 150
    log.asked.clear()

    second = polled("c2", log, start_position="beginning")
    second.holds(parts("t", 0, 1))
    assert log.asked == [], "what is recorded counts, and not the configuration of a later owner"
    second.is_at(150)

    assert (standing.offset, standing.topic_id != "", standing.start != "") == (start, True, True)
    assert second.found == {partition: list(range(start, 150)) for partition in parts("t", 0, 1)}
    second.consumer.commit()
    second.close()
    assert (record(world).offset, record(world).start) == (150, ""), "by now it is an offset like any other"


def test_partition_added_and_topic_created_while_the_group_runs_lose_no_record(world: World, polled: Polling) -> None:
    old = world.topic("t", 2)
    log = TimedLog(end=50)
    app = polled("c1", log, topics=("t", "u"), start_position="end")
    app.holds(parts("t", 0, 1))

    world.more_partitions("t", 3)
    world.topic("u", 1)
    app.holds(parts("t", 0, 1, 2) | parts("u", 0))
    app.is_at(50)

    later = (TopicPartition("t", 2), TopicPartition("u", 0))
    assert app.found == {partition: list(range(50)) for partition in later}
    assert (note(world), note(world, "u").partitions) == (BegunRecord(old.id, frozenset({0, 1})), frozenset())
    assert [record(world, partition).start for partition in later] == ["beginning", "beginning"]


def test_none_without_an_offset_raises_and_partitions_with_offsets_are_held(world: World, polled: Polling) -> None:
    topic = world.topic("t", 2)
    world.put(PATHS.offset("t", 1), OffsetRecord(7, topic.id, 0).to_bytes())
    app = polled("c1", TimedLog(end=50), auto_offset_reset="none")

    why = eventually(lambda: refused(app), 15, "poll raises")
    assert "the group has no offset for t-0, and auto_offset_reset is none" in why
    assert app.consumer.assignment() == parts("t", 1)
    assert world.data(PATHS.offset("t", 0)) is None, "nothing is decided"
    world.put(PATHS.offset("t", 0), OffsetRecord(9, topic.id, 0).to_bytes())
    eventually(lambda: not refused(app), 15, "the start is recorded")
    app.holds(parts("t", 0, 1))
    app.is_at(50)
    assert app.begun == {T0: 9, TopicPartition("t", 1): 7}


def test_topic_with_deleted_offsets_begins_at_the_start_position(world: World, polled: Polling) -> None:
    topic = world.topic("t", 1)
    log = TimedLog(end=50)
    first = polled("c1", log, start_position="beginning")
    first.is_at(50)
    first.close()
    eventually(lambda: world.state("g").state == "Empty", 10, "no member is left")

    delete_offsets(world.store, {"t": topic}, "g", [Scope("t", None)])
    parent = world.data(PATHS.offsets_of("t"))
    second = polled("c1", log, start_position="end")
    second.holds(parts("t", 0))

    assert parent is None
    assert (second.consumer.position(T0), record(world).start) == (50, "end")


def test_offsets_set_before_the_group_ran_leave_the_others_to_start_position(world: World, polled: Polling) -> None:
    topic = world.topic("t", 2)
    new = NewOffset(PartitionOffsets(T0, topic.id, None, None, 0, 50), 7)
    write_offsets(world.store, "g", [new], {"t": topic})
    app = polled("c1", TimedLog(end=50), start_position="end")
    app.holds(parts("t", 0, 1))
    app.is_at(50)

    assert app.begun == {T0: 7}
    assert (note(world).partitions, record(world, TopicPartition("t", 1)).start) == ({0, 1}, "end")


def test_a_slot_seals_from_its_start_position_on_and_a_query_reads_that(world: World, tmp_path: Path) -> None:
    world.topic("t", 2)
    bench, opener = SlotBench(world, tmp_path), kazoo_factory(world.zk, SESSION_MS)
    bench.log = log = TimedLog(end=300)
    config = SourceConfig(zk=world.zk, group="g", query="q", session_timeout_ms=SESSION_MS)
    with closing(bench), closing(Planner(config, opener, ThreadRuntime())) as planner:
        bench.post.keep(1)
        bench.slot(0, driver_gone_ms=60_000, start_position="end")
        begin = planner.initial()
        eventually(lambda: len(world.names(PATHS.offsets_of("t"))) == 2, 15, "it has begun")
        log.end = 400
        eventually(lambda: set(world.offsets("g").values()) == {400}, 15, "all is sealed")
        newest = max(world.names(PATHS.segments))
        end = eventually(
            lambda: found if (found := planner.latest(begin)).segment == newest else None, 5, "the query sees it"
        )
        batch = [sealed.segment for run in planner.plan(begin, end) for sealed in run]

    assert sum(segment.rows for segment in batch) == 2 * 100
    assert min(item.first for segment in batch for item in segment.ranges) == 300


@pytest.mark.real_zookeeper("processes")
def test_a_command_without_an_offset_and_with_none_ends_with_one_clear_sentence(world: World, tmp_path: Path) -> None:
    world.topic("t", 1)

    with consumer_process(tmp_path, world.zk, "g", "c1", tmp_path / "log", "--auto-offset-reset", "none") as consumer:
        code = consumer.ends()

    last = consumer.said().splitlines()[-1]
    assert (code, "Traceback" in consumer.said()) == (1, False), consumer.said()
    assert "the group has no offset for t-0, and auto_offset_reset is none: set one with" in last
    assert world.names(PATHS.ids) == [], "it has left"


# ---- the log does not have the offset any more


@pytest.fixture
def log(world: World, polled: Polling) -> TimedLog:
    """The group has committed 20, and by now there are 40 to 70."""
    world.topic("t", 1)
    log = TimedLog(end=20)
    before = polled("c1", log)
    before.is_at(20)
    before.consumer.commit()
    before.close()
    log.begin, log.end = 40, 70
    return log


@pytest.mark.parametrize(("reset", "first"), [("earliest", 40), ("latest", 70)])
def test_committed_offset_below_the_log_start_follows_auto_offset_reset(
    world: World, polled: Polling, log: TimedLog, reset: str, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    after = polled("c1", log, auto_offset_reset=reset)
    after.is_at(70)
    log.end = 80
    after.is_at(80)
    after.consumer.commit()
    after.close()

    assert after.found == {T0: list(range(first, 80))}
    assert record(world).offset == 80
    said = f"offset out of range: partition=t-0 offset=20 goes_on_at={first} auto_offset_reset={reset} reason=offset 20"
    assert said in caplog.text


def test_a_log_that_was_cut_below_the_committed_offset_is_an_error_with_none(
    world: World, polled: Polling, log: TimedLog
) -> None:
    after = polled("c1", log, auto_offset_reset="none")

    assert "auto_offset_reset is none, so t-0 waits" in eventually(lambda: refused(after), 15, "poll raises")
    assert refused(after) and not after.found
    after.close()
    assert record(world).offset == 20, "nothing has moved"
