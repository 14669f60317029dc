"""Scenarios: stale and unusual commands, changed topics, and overwritten znodes.

For commands the group is paused, so that no coordinator removes them.
"""

from __future__ import annotations

from functools import partial

from zk_group.coordinator.admin.topics import alter_topic, delete_topic
from zk_group.coordinator.zk.store import Create, Delete, SetData
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.coordinator.zk.znodes.records import BegunRecord, Channel, OffsetRecord

from .bench import TOPIC, Bench, Scenario
from .event_lines import LOST, REVOKED, Trial, names_of, require

STOP, START = "stop-fetcher", "start-fetcher"
ZERO = TopicPartition(TOPIC, 0)
MANY, SOME = 600, range(4)
"""A number of partitions for several multis, and the partitions with records."""


@partial(Scenario, "older-commands", "removes commands of an older epoch or generation")
def ignores_older_commands(bench: Bench) -> None:
    trial, channel = _still(bench)
    bench.send("c1", option=STOP, epoch=channel.epoch - 1)
    bench.send("c1", option=STOP, generation=channel.generation - 1)
    bench.send("c1", option=START, ownershipMap={}, topics={}, epoch=channel.epoch - 1, generation=99)
    _require_unapplied(bench, trial, channel)


@partial(Scenario, "commands-for-others", "removes commands for another incarnation")
def ignores_commands_for_others(bench: Bench) -> None:
    trial, channel = _still(bench)
    for incarnation in ("0" * 32, "", "another"):
        bench.send("c1", option=STOP, incarnation=incarnation)
    _require_unapplied(bench, trial, channel)


@partial(Scenario, "unreadable-commands", "removes what it cannot read")
def ignores_what_it_cannot_read(bench: Bench) -> None:
    """Commands that cannot be read, and other znodes in its channel, are removed unapplied."""
    trial, channel = _still(bench)
    bench.send("c1", option="dance")
    bench.send("c1", option=STOP, epoch=2**60)
    for generation in (-1, "many"):
        bench.send("c1", option=STOP, generation=generation)
    bench.send("c1", option=STOP, partitions={TOPIC: "3-0"})
    for parts in ({TOPIC: "0-999999"}, {"../..": "0"}):
        bench.send("c1", option=START, ownershipMap={"c1-0": parts})
    for data in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b"x" * 500_000):
        bench.send_raw("c1", data)
    bench.store.commit([Create(f"{bench.paths.channel('c1')}/stranger", b"{}")])
    _require_unapplied(bench, trial, channel)


@partial(Scenario, "later-release", "applies commands that have unknown fields")
def applies_what_it_knows(bench: Bench) -> None:
    trial, _ = _still(bench)
    later = {"version": 7, "hint": {"a": [1, None]}, "priority": 3}
    bench.send("c1", option=STOP, partitions={TOPIC: "0"}, **later)
    bench.removed("c1")
    running = set(bench.channel("c1").running)
    require(running == bench.partitions() - {ZERO}, f"after a stop of {ZERO} the channel runs {names_of(running)}")
    require(bench.store.get(bench.paths.owner(*ZERO)) is None, f"{ZERO} is stopped, and its owner znode is there")
    bench.wait(lambda: trial.events().given_up(REVOKED) == {ZERO}, f"c1 prints that {ZERO} is revoked, and no other")
    bench.produce()
    rest = bench.partitions() - {ZERO}
    bench.wait(lambda: rest <= trial.events().at_end(bench.written), "the others are consumed")
    _start_all(bench, **later)
    bench.removed("c1")
    bench.consumed()
    _finish(bench)


@partial(Scenario, "refused-partition", "lists a partition that has an owner in `refused`")
def refuses_what_is_owned(bench: Bench) -> None:
    """A start of a partition whose owner znode exists: it is listed in `refused`, the rest is claimed."""
    _stopped(bench)
    owner = bench.paths.owner(*ZERO)
    other = b'{"version":1,"thread":"x-0","consumer":"x","incarnation":"x","generation":1}'
    bench.store.commit([Create(owner, other, ephemeral=True)])
    _start_all(bench)
    bench.removed("c1")
    now = bench.channel("c1")
    require(set(now.running) == bench.partitions() - {ZERO}, f"the channel runs {names_of(now.running)}")
    require(set(now.refused) == {ZERO}, f"`refused` is {names_of(now.refused)}, not {ZERO}")
    node = bench.store.get(owner)
    require(node is not None and node.data == other, f"c1 has changed the owner znode of {ZERO}, which is another's")
    bench.store.commit([Delete(owner)])
    _finish(bench)
    require(not bench.channel("c1").refused, "`refused` stays after a start that was claimed completely")


@partial(Scenario, "withdrawn-command", "does not apply a command that was withdrawn")
def ignores_what_is_withdrawn(bench: Bench) -> None:
    """A stop is withdrawn while the multi that applies it is lost: it keeps everything, or takes it again."""
    trial, channel = _still(bench)
    loss = bench.withdraw_at(trial, nth=1)
    bench.send("c1", option=STOP)
    bench.wait(loss.lost.is_set, "c1 sends a multi that removes the stop")
    _require_others_removed(bench, channel)
    _require_unchanged(bench, channel)
    bench.flow()
    _finish(bench)


@partial(Scenario, "other-topic-id", "tells two topics of one name by their id")
def distinguishes_topic_ids(bench: Bench) -> None:
    """A start names the topic under another id: it claims that, and delivers no record of the topic that it knows."""
    bench.settled("c1")
    bench.hold_still()
    bench.send("c1", option=STOP)
    bench.removed("c1")
    trial = bench.trials["c1"]
    other = "AAAAAAAAAAAAAAAAAAAAAA"
    _start_all(bench, topics={TOPIC: other})
    bench.removed("c1")
    require(dict(bench.channel("c1").topics) == {TOPIC: other}, "the channel does not have the id of the start")
    bench.produce()
    bench.stand_still(1.5, lambda: require(not trial.events().batches, "c1 delivers records of the topic's other id"))
    _finish(bench)


@partial(Scenario, "several-multis", "needs several multis for many partitions", partitions=MANY)
def needs_several_multis(bench: Bench) -> None:
    """Hundreds of partitions: starts, stops and its leaving are in several multis within their bounds."""
    bench.produce(partitions=SOME)
    bench.settled("c1")
    bench.settled("c1", "c2")
    bench.consumed()
    bench.leave(bench.trials["c1"])
    bench.settled("c2")


@partial(Scenario, "torn-start", "stops claiming when a start is withdrawn", partitions=MANY)
def stops_when_a_start_is_torn(bench: Bench) -> None:
    """A start of several multis is withdrawn while the second is lost: what is claimed runs, no more is claimed."""
    trial = _stopped(bench)
    loss = bench.withdraw_at(trial, nth=2)
    _start_all(bench)
    bench.wait(loss.lost.is_set, "c1 sends a second multi for a start")
    claimed = set(bench.channel("c1").running)
    require(0 < len(claimed) < MANY, f"the first of several multis of a start claims {len(claimed)} partitions")
    _require_others_removed(bench, bench.channel("c1"))
    now = set(bench.channel("c1").running)
    require(now == claimed, f"c1 claims {names_of(now - claimed)} of a start that was withdrawn")
    owners = bench.store.children(bench.paths.owners_of(TOPIC))
    count = len(owners.names) if owners is not None else 0
    require(count == len(claimed), f"c1 runs {len(claimed)} partitions, and there are {count} owner znodes")
    _finish(bench)


@partial(Scenario, "missing-parents", "makes the parents of its znodes again")
def makes_missing_parents(bench: Bench) -> None:
    """An operator has removed the parents of owner and offset znodes: it makes them, and applies the command."""
    _stopped(bench)
    bench.store.commit([Delete(bench.paths.owners_of(TOPIC)), Delete(bench.paths.owners)])
    _start_all(bench)
    bench.removed("c1")
    require(set(bench.channel("c1").running) == bench.partitions(), "the channel does not run what was started")
    _finish(bench)


# ---- parts


def _still(bench: Bench) -> tuple[Trial, Channel]:
    """A member that runs every partition, in a paused group, and its channel."""
    trial, _ = bench.consuming(SOME)
    bench.hold_still()
    return trial, bench.channel("c1")


def _stopped(bench: Bench) -> Trial:
    """The same, after it has applied a stop of everything."""
    trial, _ = _still(bench)
    bench.send("c1", option=STOP)
    bench.removed("c1")
    return trial


def _start_all(bench: Bench, **fields: object) -> None:
    """Start everything in thread c1-0."""
    last = bench.scenario.partitions - 1
    bench.send("c1", option=START, ownershipMap={"c1-0": {TOPIC: f"0-{last}"}}, **fields)


def _require_others_removed(bench: Bench, channel: Channel) -> None:
    """It removes a stale command, and so has listed its channel again."""
    bench.send("c1", option=STOP, topics={}, epoch=channel.epoch - 1)
    bench.removed("c1")
    bench.stand_still(0.5)


def _require_unapplied(bench: Bench, trial: Trial, before: Channel) -> None:
    bench.removed("c1")
    _require_unchanged(bench, before)
    require(not trial.events().gone, "c1 has given up partitions for commands that do not count")
    bench.flow()
    _finish(bench)


def _require_unchanged(bench: Bench, before: Channel) -> None:
    now = bench.channel("c1")
    for name in ("incarnation", "epoch", "generation", "command"):
        was, is_now = getattr(before, name), getattr(now, name)
        require(was == is_now, f"`{name}` of the channel was {was}, and is {is_now} after commands that do not count")
    require(set(now.running) == set(before.running), f"the channel runs {names_of(now.running)} after them")


def _finish(bench: Bench) -> None:
    bench.go_on()
    bench.settled("c1")
    bench.consumed()


@partial(Scenario, "recreated-topic", "begins a topic that was created again")
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


@partial(Scenario, "topic-grows", "takes partitions that were added")
def takes_added_partitions(bench: Bench) -> None:
    """A topic has more partitions: they are claimed, and begin at their beginning."""
    bench.settled("c1")
    count = bench.scenario.partitions
    alter_topic(bench.store, Brokers(), TOPIC, count + 2)
    bench.produce(20, partitions=range(count + 2))
    bench.consumed()
    added = {TopicPartition(TOPIC, count), TopicPartition(TOPIC, count + 1)}
    require(added <= set(bench.channel("c1").running), "the channel does not run the added partitions")


@partial(Scenario, "offset-of-another-topic", "ignores offsets of another topic id")
def ignores_offsets_of_another_topic(bench: Bench) -> None:
    _write_offsets(bench, OffsetRecord(999, "AAAAAAAAAAAAAAAAAAAAAA", 1).to_bytes(), "AAAAAAAAAAAAAAAAAAAAAA")
    bench.produce()
    bench.settled("c1")
    bench.consumed()


@partial(Scenario, "unreadable-offset", "waits for an offset that cannot be read")
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


@partial(Scenario, "overwritten-channel", "registers again when its channel was overwritten", repeats=True)
def survives_an_overwritten_channel(bench: Bench) -> None:
    trial, incarnation = bench.consuming()
    bench.store.commit([SetData(bench.paths.channel("c1"), b"\xff scribbled")])
    bench.wait(lambda: trial.events().given_up(LOST) == bench.partitions(), "c1 prints that its partitions are lost")
    bench.settled("c1", timeout_s=60.0)
    require(bench.channel("c1").incarnation != incarnation, "c1 goes on under the incarnation that was overwritten")
    bench.flow()


def _write_offsets(bench: Bench, data: bytes, topic_id: str) -> None:
    """The group's offsets, as left by an earlier group of the name."""
    ensure(bench.store, bench.paths.skeleton)
    begun = BegunRecord(topic_id, frozenset(range(bench.scenario.partitions))).to_bytes()
    bench.store.commit([Create(bench.paths.offsets_of(TOPIC), begun), Create(bench.paths.offset(*ZERO), data)])
