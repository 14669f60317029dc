"""`zk-consumer run` on a real broker, as processes: one is killed, and so is the broker while the other takes over."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.zk.znodes.partitions import TopicPartition
from tests.support.kafka import Kafka
from tests.support.kafka_group import Writing
from tests.support.processes import ProjectProcess, consumer_process
from tests.support.wait import eventually
from tests.support.world import World, a_world

pytestmark = [pytest.mark.full("each way to run a broker"), pytest.mark.timeout(180)]

PARTITIONS = 4
AUTO_COMMIT = ("--enable-auto-commit", "--auto-commit-interval-ms", "1000")
Record = tuple[int, int, str]


@pytest.fixture
def world(kafka: Kafka) -> Iterator[World]:
    """A coordinator in the chroot in which the broker registers."""
    with a_world(kafka.zk) as world:
        world.elected(world.coordinator())
        yield world


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
