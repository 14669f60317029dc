"""Where a group begins: resolved once for each partition, recorded, and kept by every later owner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import NoOffsetForPartition
from consumer.logs.base import Log, OffsetOutOfRange
from consumer.logs.embedded.log import EmbeddedLog, topic_folder
from consumer.logs.embedded.producer import Appender, stored_batches
from consumer.sealing.segment_files import SegmentFolder
from consumer.spark.fetchers.config import SlotConfig, SlotSpec
from consumer.spark.fetchers.slot import PoolPost, Slot
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import Planner
from coordinator.admin.offsets import delete_offsets, write_offsets
from coordinator.admin.reset_offsets import NewOffset, PartitionOffsets, Scope
from coordinator.admin.topics import delete_topic
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.values import epoch_ms
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import BegunRecord, OffsetRecord, Topic
from tests.support.cli import run_ok
from tests.support.processes import consumer_process
from tests.support.timedlog import TimedLog
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World, parts

PATHS = GroupPaths("g")
T0 = TopicPartition("t", 0)


class Application:
    """A consumer that is polled only by the test."""

    def __init__(self, world: World, name: str, log: Log, topics: tuple[str, ...] = ("t",), **options: object) -> None:
        config = ConsumerConfig(world.zk, "g", name, session_timeout_ms=SESSION_MS, **options)  # type: ignore[arg-type]
        self.consumer = Consumer(config, Subscription(dict.fromkeys(topics, 1)), source=log)
        self.found: dict[TopicPartition, list[int]] = {}

    def poll(self) -> None:
        for partition, records in self.consumer.poll(20).items():
            self.found.setdefault(partition, []).extend(record.offset for record in records)

    def polls_until_holds(self, partitions: frozenset[TopicPartition]) -> None:
        def look() -> bool:
            self.poll()
            return self.consumer.assignment() == partitions

        eventually(look, 15, f"it holds {sorted(map(str, partitions))}")

    def polls_until_at(self, end: int) -> None:
        """Until every partition that it holds has been read up to `end`."""

        def look() -> bool:
            self.poll()
            held = self.consumer.assignment()
            return bool(held) and all(self.consumer.position(partition) == end for partition in held)

        eventually(look, 15, f"all is read up to {end}")

    def firsts(self) -> dict[TopicPartition, int]:
        return {partition: offsets[0] for partition, offsets in self.found.items()}

    def refused(self) -> str:
        """Why a poll raises; empty when it does not."""
        try:
            self.poll()
        except (NoOffsetForPartition, OffsetOutOfRange) as error:
            return str(error)
        return ""

    def vanishes(self) -> None:
        """Its session is closed, and nothing else is written."""
        store = self.consumer.member.store
        assert store is not None
        store.close()


@pytest.fixture
def world(world: World) -> World:
    """With a coordinator."""
    world.coordinator()
    return world


Starting = Callable[..., Application]


@pytest.fixture
def started(world: World) -> Iterator[Starting]:
    """Starts applications, which are closed after the test."""
    made: list[Application] = []

    def start(name: str, log: Log, topics: tuple[str, ...] = ("t",), **options: object) -> Application:
        made.append(Application(world, name, log, topics, **options))
        return made[-1]

    yield start
    for application in made:
        application.consumer.close()


def record(world: World, partition: TopicPartition = T0) -> OffsetRecord:
    data = world.data(PATHS.offset(*partition))
    assert data is not None, partition
    return OffsetRecord.parse("", data)


def note(world: World, topic: str = "t") -> BegunRecord:
    return BegunRecord.parse("", world.data(PATHS.offsets_of(topic)) or b"")


@pytest.mark.parametrize(
    ("position", "start"), [("end", 100), ("2026-11-21T10:00:00Z", 100), ("1970-01-01T00:00:40Z", 40), ("40000", 40)]
)
def test_successor_of_an_owner_that_died_uncommitted_starts_at_the_same_position(
    world: World, started: Starting, position: str, start: int
) -> None:
    world.topic("t", 2)
    log = TimedLog(end=100)
    first = started("c1", log, start_position=position)
    first.polls_until_holds(parts("t", 0, 1))
    standing = record(world)
    first.vanishes()
    log.end = 150

    second = started("c2", log, start_position=position)
    second.polls_until_at(150)

    assert (standing.offset, standing.topic_id != "", standing.start != "") == (start, True, True)
    assert second.found == {partition: list(range(start, 150)) for partition in parts("t", 0, 1)}
    second.consumer.commit()
    second.consumer.close()
    assert (record(world).offset, record(world).start) == (150, ""), "by now it is an offset like any other"


def test_recorded_start_overrides_the_configuration_of_a_later_owner(world: World, started: Starting) -> None:
    world.topic("t", 2)
    log = TimedLog(end=100)
    first = started("c1", log, start_position="end")
    first.polls_until_holds(parts("t", 0, 1))
    first.vanishes()
    log.asked.clear()

    second = started("c2", log, start_position="beginning")
    second.polls_until_holds(parts("t", 0, 1))

    assert (second.consumer.position(T0), log.asked) == (100, [])
    assert record(world).start == "end"


def test_two_consumers_in_succession_start_each_partition_once(world: World, started: Starting) -> None:
    world.topic("t", 4)
    log = TimedLog(end=10)
    first = started("c1", log, start_position="end")
    first.polls_until_holds(parts("t", 0, 1, 2, 3))
    log.end = 30
    second = started("c2", log, start_position="end")

    def share() -> bool:
        first.poll()
        second.poll()
        return len(first.consumer.assignment()) == len(second.consumer.assignment()) == 2

    eventually(share, 15, "two each")
    first.polls_until_at(30)
    second.polls_until_at(30)

    assert [what for what, _ in log.asked] == ["latest"] * 4, "each was resolved once"
    assert {*first.firsts().values(), *second.firsts().values()} == {10}


def test_partition_added_and_topic_created_while_the_group_runs_lose_no_record(world: World, started: Starting) -> None:
    old = world.topic("t", 2)
    log = TimedLog(end=50)
    app = started("c1", log, topics=("t", "u"), start_position="end")
    app.polls_until_holds(parts("t", 0, 1))

    world.more_partitions("t", 3)
    world.topic("u", 1)
    app.polls_until_holds(parts("t", 0, 1, 2) | parts("u", 0))
    app.polls_until_at(50)

    later = (TopicPartition("t", 2), TopicPartition("u", 0))
    assert app.found == {partition: list(range(50)) for partition in later}
    assert (note(world), note(world, "u").partitions) == (BegunRecord(old.id, frozenset({0, 1})), frozenset())
    assert [record(world, partition).start for partition in later] == ["beginning", "beginning"]


def test_recreated_topic_is_read_from_its_beginning(world: World, started: Starting) -> None:
    old = world.topic("t", 1)
    log = TimedLog(end=50)
    app = started("c1", log, start_position="end")
    app.polls_until_holds(parts("t", 0))

    delete_topic(world.store, world.brokers, "t")
    app.polls_until_holds(frozenset())
    new = world.topic("t", 1)
    app.polls_until_holds(parts("t", 0))
    app.polls_until_at(50)

    assert app.found == {T0: list(range(50))}
    assert (record(world).topic_id, note(world).topic_id) == (new.id, old.id)


def test_none_without_an_offset_raises_and_partitions_with_offsets_are_held(world: World, started: Starting) -> None:
    topic = world.topic("t", 2)
    world.put(PATHS.offset("t", 1), OffsetRecord(7, topic.id, 0).to_bytes())
    app = started("c1", TimedLog(end=50), auto_offset_reset="none")

    assert "the group has no offset for t-0, and auto_offset_reset is none" in eventually(
        app.refused, 15, "poll raises"
    )
    assert app.consumer.assignment() == parts("t", 1)
    assert world.data(PATHS.offset("t", 0)) is None, "nothing is decided"
    world.put(PATHS.offset("t", 0), OffsetRecord(9, topic.id, 0).to_bytes())
    eventually(
        lambda: app.refused() == "" and app.consumer.assignment() == parts("t", 0, 1), 15, "the start is recorded"
    )
    app.polls_until_at(50)
    assert app.firsts() == {T0: 9, TopicPartition("t", 1): 7}


def test_partition_started_by_an_earlier_release_starts_at_its_beginning(world: World, started: Starting) -> None:
    world.topic("t", 1)
    world.put(PATHS.offsets_of("t"))

    app = started("c1", TimedLog(end=50), start_position="end")
    app.polls_until_holds(parts("t", 0))

    assert record(world).start == "beginning"


def test_topic_with_deleted_offsets_begins_at_the_start_position(world: World, started: Starting) -> None:
    topic = world.topic("t", 1)
    log = TimedLog(end=50)
    first = started("c1", log, start_position="beginning")
    first.polls_until_at(50)
    first.consumer.close()
    eventually(lambda: world.state("g").state == "Empty", 10, "no member is left")

    delete_offsets(world.store, {"t": topic}, "g", [Scope("t", None)])
    parent = world.data(PATHS.offsets_of("t"))
    second = started("c1", log, start_position="end")
    second.polls_until_holds(parts("t", 0))

    assert parent is None
    assert (second.consumer.position(T0), record(world).start) == (50, "end")


def test_offsets_set_before_the_group_ran_leave_the_others_to_start_position(world: World, started: Starting) -> None:
    topic = world.topic("t", 2)
    new = NewOffset(PartitionOffsets(T0, topic.id, None, None, 0, 50), 7)
    write_offsets(world.store, "g", [new], {"t": topic})
    app = started("c1", TimedLog(end=50), start_position="end")
    app.polls_until_holds(parts("t", 0, 1))
    app.polls_until_at(50)

    assert app.firsts() == {T0: 7}
    assert (note(world).partitions, record(world, TopicPartition("t", 1)).start) == ({0, 1}, "end")


def test_uncommitted_partition_is_shown_at_the_groups_start_position(
    world: World, started: Starting, tmp_path: Path
) -> None:
    topic = world.topic("t", 1)
    write(tmp_path, topic, 5)
    app = started("c1", EmbeddedLog(tmp_path), start_position="end")
    app.polls_until_holds(parts("t", 0))
    write(tmp_path, topic, 3)

    shown = run_ok(world.zk, "groups", "describe", "g", "--log-dir", str(tmp_path), "-o", "json")

    (row,) = json.loads(shown.stdout)
    assert (row["current_offset"], row["log_end_offset"], row["lag"]) == (5, 8, 3)


def test_a_record_of_a_start_is_json_that_an_earlier_release_reads_as_an_offset(
    world: World, started: Starting
) -> None:
    topic = world.topic("t", 1)
    app = started("c1", TimedLog(end=50), start_position="end")
    app.polls_until_holds(parts("t", 0))

    values = json.loads(world.data(PATHS.offset("t", 0)) or b"")

    generation = world.channel("g", "c1").generation
    assert values == {"version": 1, "offset": 50, "topic_id": topic.id, "generation": generation, "start": "end"}


def test_a_slot_seals_from_its_start_position_on_and_a_query_reads_that(world: World, tmp_path: Path) -> None:
    world.topic("t", 2)
    log = TimedLog(end=300)
    config = SlotConfig(
        zk=world.zk, group="g", pool="p", log_dir="m", segments_dir=SegmentFolder(str(tmp_path)).url,
        seal_interval_ms=20, session_timeout_ms=SESSION_MS, start_position="end",
    )  # fmt: skip
    opener, runtime = kazoo_factory(world.zk, SESSION_MS), ThreadRuntime()
    post = PoolPost(opener, runtime, "g", "p", "run")
    slot = Slot(SlotSpec(config, Subscription({"t": 1}), 0, "run", "0"), log, opener, runtime)
    planner = Planner(SourceConfig(zk=world.zk, group="g", query="q", session_timeout_ms=SESSION_MS), opener, runtime)
    post.keep(1)
    task = runtime.spawn(slot.run, "slot")
    try:
        begin = planner.initial()
        eventually(lambda: len(world.names(PATHS.offsets_of("t"))) == 2, 15, "it has begun")
        log.end = 400
        eventually(lambda: set(world.offsets("g").values()) == {400}, 15, "all is sealed")
        newest = max(world.names(PATHS.segments))
        end = eventually(
            lambda: found if (found := planner.latest(begin)).segment == newest else None, 5, "the query sees it"
        )
        batch = [sealed.segment for run in planner.plan(begin, end) for sealed in run]
    finally:
        slot.stop("the test is over")
        task.join(10)
        post.close()
        planner.close()

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


# ---- the embedded log itself


@pytest.mark.parametrize(
    ("position", "offsets"),
    [("beginning", [0, 1, 2, 3, 4, 5, 6]), ("2026-11-21T11:00:00Z", [2, 3, 4, 5, 6]), ("end", [6]), ("0", range(7))],
)
def test_group_starts_in_the_embedded_log_at_the_configured_position(
    world: World, started: Starting, tmp_path: Path, position: str, offsets: list[int]
) -> None:
    topic = world.topic("t", 1)
    for hour in (10, 11, 12):
        write(tmp_path, topic, 2, epoch_ms(f"2026-11-21T{hour}:00:00Z"))
    first = started("c1", EmbeddedLog(tmp_path), start_position=position)
    first.polls_until_holds(parts("t", 0))
    first.vanishes()
    write(tmp_path, topic, 1, epoch_ms("2026-11-21T13:00:00Z"))

    second = started("c2", EmbeddedLog(tmp_path), start_position=position)
    second.polls_until_at(7)

    assert second.found[T0] == list(offsets)


def test_records_removed_at_the_start_of_the_embedded_log_are_skipped_and_logged(
    world: World, started: Starting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.topic("t", 1)
    write(tmp_path, topic, 4)
    write(tmp_path, topic, 3)
    app = started("c1", EmbeddedLog(tmp_path))
    world.put(PATHS.offset("t", 0), OffsetRecord(1, topic.id, 0).to_bytes())
    min((topic_folder(tmp_path, "t", topic.id) / "0").glob("*.arrow")).unlink()

    app.polls_until_at(7)

    assert app.found[T0] == [4, 5, 6]
    assert "offset out of range: partition=t-0 offset=1 goes_on_at=4 auto_offset_reset=earliest" in caplog.text


def write(log_dir: Path, topic: Topic, records: int, time_ms: int | None = None) -> None:
    Appender(log_dir, topic.name, topic.id, 0).append(stored_batches([b"x"] * records, timestamps_ms=time_ms))


# ---- the log does not have the offset any more


@pytest.fixture
def log(world: World, started: Starting) -> TimedLog:
    """The group has committed 20, and by now there are 40 to 70."""
    world.topic("t", 1)
    log = TimedLog(end=20)
    before = started("c1", log)
    before.polls_until_at(20)
    before.consumer.commit()
    before.consumer.close()
    log.begin, log.end = 40, 70
    return log


@pytest.mark.parametrize(("reset", "first"), [("earliest", 40), ("latest", 70)])
def test_committed_offset_below_the_log_start_follows_auto_offset_reset(
    world: World, started: Starting, log: TimedLog, reset: str, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    after = started("c1", log, auto_offset_reset=reset)
    after.polls_until_at(70)
    log.end = 80
    after.polls_until_at(80)
    after.consumer.commit()
    after.consumer.close()

    assert after.found == {T0: list(range(first, 80))}
    assert record(world).offset == 80
    said = f"offset out of range: partition=t-0 offset=20 goes_on_at={first} auto_offset_reset={reset} reason=offset 20"
    assert said in caplog.text


def test_a_log_that_was_cut_below_the_committed_offset_is_an_error_with_none(
    world: World, started: Starting, log: TimedLog
) -> None:
    after = started("c1", log, auto_offset_reset="none")

    assert "auto_offset_reset is none, so t-0 waits" in eventually(after.refused, 15, "poll raises")
    assert after.refused() and not after.found
    after.consumer.close()
    assert record(world).offset == 20, "nothing has moved"
