"""Scenarios: topics that change, and znodes that others have overwritten."""

from __future__ import annotations

from coordinator.admin.topics import alter_topic, delete_topic
from coordinator.zk.batching import ensure
from coordinator.zk.store import Create, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import BegunRecord, OffsetRecord

from .bench import TOPIC, Bench, Scenario
from .event_lines import LOST, require

ZERO = TopicPartition(TOPIC, 0)


def restarts_a_recreated_topic(bench: Bench) -> None:
    """A topic is removed and created again: another topic, which begins at its beginning."""
    trial, _ = bench.consuming()
    former = bench.topics[TOPIC].id
    delete_topic(bench.store, Brokers(), TOPIC)
    bench.wait(lambda: not trial.events().held, "c1 gives up the partitions of a topic that is gone")
    bench.topic()
    topic_id = bench.topics[TOPIC].id
    require(topic_id != former, "the ids are the same")
    bench.trials.forget()
    bench.settled("c1")
    bench.produce(10)
    bench.consumed()
    require(min(each.first for each in trial.batches()) == 0, "c1 does not begin the new topic at its beginning")
    require(dict(bench.channel("c1").topics) == {TOPIC: topic_id}, "the channel has the id of the removed topic")


def takes_added_partitions(bench: Bench) -> None:
    """A topic has more partitions: they are claimed, and begin at their beginning."""
    bench.settled("c1")
    count = bench.scenario.partitions
    alter_topic(bench.store, Brokers(), TOPIC, count + 2)
    bench.produce(20, partitions=range(count + 2))
    bench.consumed()
    added = {TopicPartition(TOPIC, count), TopicPartition(TOPIC, count + 1)}
    require(added <= set(bench.channel("c1").running), "the channel does not run the added partitions")


def ignores_offsets_of_another_topic(bench: Bench) -> None:
    """offsets/ has an offset under another topic id: it does not count."""
    _write_offsets(bench, OffsetRecord(999, "AAAAAAAAAAAAAAAAAAAAAA", 1).to_bytes(), "AAAAAAAAAAAAAAAAAAAAAA")
    bench.produce()
    bench.settled("c1")
    bench.consumed()


def waits_for_an_unreadable_offset(bench: Bench) -> None:
    """An offset in offsets/ cannot be read: its partition waits, the others are fetched."""
    topic_id = bench.topics[TOPIC].id
    _write_offsets(bench, b"\xff{", topic_id)
    bench.produce()
    trial = bench.consumer("c1")
    rest = bench.partitions() - {ZERO}
    bench.wait(lambda: rest <= trial.events().at_end(bench.written), "the others are consumed")
    bench.stand_still(1.0, lambda: require(ZERO not in trial.events().ends, f"{ZERO} is fetched without an offset"))
    bench.store.commit([SetData(bench.paths.offset(*ZERO), OffsetRecord(0, topic_id, 1).to_bytes())])
    bench.consumed()


def survives_an_overwritten_channel(bench: Bench) -> None:
    """The channel is overwritten: it drops everything, and registers again."""
    trial, incarnation = bench.consuming()
    bench.store.commit([SetData(bench.paths.channel("c1"), b"\xff scribbled")])
    bench.wait(lambda: trial.events().given_up(LOST) == bench.partitions(), "c1 prints that its partitions are lost")
    bench.settled("c1", timeout_s=60.0)
    require(bench.channel("c1").incarnation != incarnation, "c1 goes on under the incarnation that was overwritten")
    bench.flow()


def _write_offsets(bench: Bench, data: bytes, topic_id: str) -> None:
    """The group's offsets as an earlier life of it may have left them."""
    ensure(bench.store, bench.paths.skeleton)
    begun = BegunRecord(topic_id, frozenset(range(bench.scenario.partitions))).to_bytes()
    bench.store.commit([Create(bench.paths.offsets_of(TOPIC), begun), Create(bench.paths.offset(*ZERO), data)])


TOPICS = (
    Scenario("recreated-topic", "begins a topic that was created again", restarts_a_recreated_topic),
    Scenario("topic-grows", "takes partitions that were added", takes_added_partitions),
    Scenario("offset-of-another-topic", "ignores offsets of another topic id", ignores_offsets_of_another_topic),
    Scenario("unreadable-offset", "waits for an offset that cannot be read", waits_for_an_unreadable_offset),
    Scenario(
        "overwritten-channel", "registers again when its channel was overwritten", survives_an_overwritten_channel,
        repeats=True,
    ),
)  # fmt: skip
