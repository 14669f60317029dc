"""Whole groups on a real broker: the coordinator watches the topics that Kafka itself keeps in ZooKeeper."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer as Client
from confluent_kafka import ConsumerGroupTopicPartitions

from tests.support import cli
from tests.support.kafka import Kafka
from tests.support.kafka_group import Writing, all_delivered, joins, numbered, rows_of, segments, two_slots
from tests.support.processes import ProjectProcess, consumer_process
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World, a_world
from zk_group.consumer.config import Subscription
from zk_group.consumer.logs import open_log
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import PoolPost, Slot
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.znodes.partitions import TopicPartition


@pytest.fixture
def world(kafka: Kafka) -> Iterator[World]:
    """A coordinator in the chroot in which the broker registers."""
    with a_world(kafka.zk) as world:
        world.elected(world.coordinator("a"))
        yield world


def write(kafka: Kafka, topic: str, first: int, count: int = 300, partitions: int = 4) -> None:
    """Numbers, into each partition."""
    for number in range(partitions):
        kafka.write(topic, numbered(first, count), partition=number)


def test_records_are_delivered_once_while_the_broker_restarts_and_the_topic_grows(kafka: Kafka, world: World) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    topic_id = kafka.topic(topic, 4)
    consumers = [joins(world, group, name, topic) for name in ("c1", "c2")]
    world.stable(group, members=2)
    write(kafka, topic, 0)
    eventually(lambda: any(consumer.polled for consumer in consumers), 30, "records come")

    write(kafka, topic, 300)
    kafka.broker.stop()
    kafka.broker.start()
    kafka.broker.wait_ready()
    kafka.wait_ready()
    kafka.more_partitions(topic, 6)
    write(kafka, topic, 600, 100, partitions=6)
    all_delivered(kafka, consumers, topic, 6)

    assert [consumer.error for consumer in consumers] == [None, None]
    assert {part for consumer in consumers for part in consumer.held} == {TopicPartition(topic, n) for n in range(6)}
    assert set(world.channel(group, "c1").topics.values()) == {topic_id}

    described = cli.run_json(world.zk, "groups", "describe", group, "--log-dir", kafka.url)
    ends = {row["partition"]: row["log_end_offset"] for row in described}
    assert ends == {number: 700 if number < 4 else 100 for number in range(6)}


def test_the_command_line_reads_kafka_with_options_for_librdkafka(kafka: Kafka, world: World, tmp_path: Path) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    kafka.topic(topic)
    kafka.write(topic, numbered(0, 5))
    place = ["--zk", world.zk, "--group", group, "--topics", topic, "--log-dir", "kafka:", "--max-records", "5"]

    with ProjectProcess(
        tmp_path, "c1", "zk_group.consumer.cli", "run", *place, "--kafka", "fetch.min.bytes=1"
    ) as reader:
        assert reader.ends(30) == 0
        assert len(reader.out.read_text().splitlines()) == 5
    with ProjectProcess(tmp_path, "c2", "zk_group.consumer.cli", "run", *place, "--kafka", "group.id=mine") as refused:
        assert refused.ends(30) == 2
        assert "kafka.group.id cannot be set" in refused.said()


def test_recreated_topic_is_consumed_from_its_first_record(kafka: Kafka, world: World) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    kafka.topic(topic, 2)
    kafka.write(topic, numbered(0, 5))
    consumer = joins(world, group, "c1", topic)
    eventually(lambda: len(consumer.records) == 5, 30, "the old one is consumed")

    kafka.delete(topic)
    new = kafka.topic(topic, 2)
    kafka.write(topic, numbered(100, 20))

    eventually(lambda: world.channel(group, "c1").topics.get(topic) == new, 30, "the new one is taken over")
    wanted = [(TopicPartition(topic, 0), offset) for offset in [*range(5), *range(20)]]
    eventually(lambda: consumer.records == wanted, 30, "the new one is consumed from its first record")


def test_slots_seal_exactly_the_committed_records_of_transactions(kafka: Kafka, world: World, tmp_path: Path) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    kafka.topic(topic)
    folder = SegmentFolder(str(tmp_path))
    config = SlotConfig(
        zk=world.zk, group=group, pool="p", log_dir="kafka:", segments_dir=folder.url, session_timeout_ms=SESSION_MS
    )
    spec = SlotSpec(config, Subscription({topic: 1}), 0, "run-1", "0")
    opener = kazoo_factory(world.zk, SESSION_MS)
    post = PoolPost(opener, ThreadRuntime(), group, "p", "run-1")
    post.keep(10)
    source = open_log("kafka:", config.consumer_config(0).kafka_place)
    slot = Slot(spec, source, opener, ThreadRuntime())
    thread = threading.Thread(target=slot.run, daemon=True)
    thread.start()
    try:
        kafka.transaction(topic, numbered(0, 3))
        kafka.transaction(topic, numbered(3, 3), commit=False)
        kafka.transaction(topic, numbered(6, 3))
        there = [(read.offset, read.value) for read in kafka.read_all(topic, 1)[0]]

        def is_sealed() -> bool:
            return [(row["offset"], row["value"]) for row in rows_of(world, group, folder)] == there

        eventually(is_sealed, 30, "what was committed is sealed")
        assert len(there) == 6
        missing = sum(each.offsets for segment in segments(world, group) for each in segment.missing)
        assert missing in (5, 6), "three aborted ones, two markers before the last record, and perhaps the one after it"
    finally:
        slot.stop("the test is over")
        thread.join(20)
        post.close()
        source.close()

    checked = cli.run(world.zk, "segments", "verify", group)
    assert checked.exit_code == 0, checked.output


def test_slots_seal_every_record_when_broker_and_slot_are_killed(kafka: Kafka, world: World, tmp_path: Path) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    kafka.topic(topic, 4)
    folder = SegmentFolder(str(tmp_path / "segments"))
    with two_slots(tmp_path, world, group, topic, folder.url) as slots:
        write(kafka, topic, 0)
        eventually(lambda: segments(world, group), 30, "something is sealed")
        kafka.broker.kill()
        kafka.restart()
        write(kafka, topic, 300)
        slots[0].kill()
        write(kafka, topic, 600)
        there = {part: [(r.offset, r.value) for r in rows] for part, rows in kafka.read_all(topic, 4).items()}
        assert [len(rows) for rows in there.values()] == [900] * 4

        def is_whole() -> bool:
            found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(4)}
            for row in rows_of(world, group, folder):
                found[row["partition"]].append((row["offset"], row["value"]))
            assert found == there, {number: len(rows) for number, rows in found.items()}
            return True

        eventually(is_whole, 60, "every record is sealed, once and in order", pause_s=0.1)


def exported(world: World, kafka: Kafka, group: str) -> dict[int, tuple[int, str]]:
    rows = cli.run_json(world.zk, "groups", "export-offsets", group, "--bootstrap-servers", kafka.servers)
    return {row["partition"]: (row["offset"], row["status"]) for row in rows}


def test_exported_offsets_are_visible_in_kafka_unless_the_group_is_active_there(kafka: Kafka, world: World) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    kafka.topic(topic, 2)
    kafka.write(topic, numbered(0, 7))
    consumer = joins(world, group, "c1", topic)
    eventually(lambda: len(consumer.records) == 7, 30, "all is consumed")

    assert exported(world, kafka, group) == {0: (7, "Successful"), 1: (0, "Successful")}
    asked = kafka.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
    assert {part.partition: part.offset for part in asked.topic_partitions} == {0: 7, 1: 0}

    member = Client({"bootstrap.servers": kafka.servers, "group.id": group, "session.timeout.ms": 6000})
    member.subscribe([topic])
    try:
        eventually(lambda: member.poll(0.1) is not None or member.assignment(), 30, "Kafka's own group has a member")
        result = cli.run(world.zk, "groups", "export-offsets", group, "--bootstrap-servers", kafka.servers)
        assert result.exit_code == 2
        assert "1 members in Kafka" in result.stderr
    finally:
        member.close()


# ---- processes


PARTITIONS = 4
AUTO_COMMIT = ("--enable-auto-commit", "--auto-commit-interval-ms", "1000")
Record = tuple[int, int, str]


def printed(*consumers: ProjectProcess) -> Counter[Record]:
    """Every record that these have printed, and how often."""
    return Counter((line["partition"], line["offset"], line["value"]) for c in consumers for line in c.printed())


def uncommitted(consumer: ProjectProcess, committed: Mapping[TopicPartition, int | None]) -> set[Record]:
    """Its printed records of these partitions, from the committed offsets on."""
    upto = {partition.partition: offset or 0 for partition, offset in committed.items()}
    return {record for record in printed(consumer) if record[1] >= upto.get(record[0], record[1] + 1)}


def in_the_middle(world: World, group: str, consumer: ProjectProcess) -> bool:
    """Stop it if it has committed something and not all; else let it continue."""
    consumer.pause()
    left = uncommitted(consumer, world.channel(group, consumer.name).running)
    if left and len(printed(consumer)) > len(left):
        return True
    consumer.resume()
    return False


def all_printed(wanted: set[Record], *consumers: ProjectProcess) -> bool:
    missing = wanted - set(printed(*consumers))
    assert not missing, f"{len(missing)} of {len(wanted)} are missing: {sorted(missing)[:3]}"
    return True


@pytest.mark.full("each way to run a broker")
@pytest.mark.timeout(180)
def test_every_record_is_printed_though_a_process_and_a_broker_die(kafka: Kafka, world: World, tmp_path: Path) -> None:
    topic, group = kafka.name("orders"), kafka.name("group")
    kafka.topic(topic, PARTITIONS)
    options = ["--topics", topic, *AUTO_COMMIT]
    with ExitStack() as processes:
        writing = Writing(kafka, topic, PARTITIONS)
        processes.callback(writing.stop)
        dies, stays = (
            processes.enter_context(consumer_process(tmp_path, kafka.zk, group, name, Path("kafka:"), *options))
            for name in ("c1", "c2")
        )
        world.stable(group, 2, timeout_s=30)
        eventually(lambda: printed(stays), 30, "both have begun")

        eventually(lambda: in_the_middle(world, group, dies), 30, "it has not committed all", pause_s=0.1)
        had = world.channel(group, dies.name).running
        dies.kill()
        kafka.broker.kill()
        world.stable(group, 1, timeout_s=30)  # it takes over what it cannot fetch just now
        offsets = world.offsets(group)  # a last commit may have been on its way
        comes_again = uncommitted(dies, {partition: offsets[partition] for partition in had})
        kafka.restart()
        before = len(printed(stays))
        eventually(lambda: len(printed(stays)) > before, 30, "fetching resumed", pause_s=0.1)
        writing.stop()

        there = kafka.read_all(topic, PARTITIONS)
        wanted = {(part, read.offset, (read.value or b"").decode()) for part, reads in there.items() for read in reads}
        eventually(lambda: all_printed(wanted, dies, stays), 60, "every record is printed", pause_s=0.2)
        stays.signal(signal.SIGTERM)
        assert stays.ends() == 0, stays.said()

    counts = printed(dies, stays)
    twice = {record for record, times in counts.items() if times > 1}
    assert set(counts) == wanted
    assert twice == comes_again
    assert max(counts.values()) == 2
    assert max(printed(stays).values()) == 1, "a broker's death loses and repeats no record"
    assert stays.said().count("all Kafka brokers down, retrying") == 1
    assert "Traceback" not in stays.said()
    ended = {partition.partition: offset for partition, offset in world.offsets(group).items()}
    assert ended == {part: reads[-1].offset + 1 for part, reads in there.items()}
