"""Probes of a running drill: the group in ZooKeeper, and the produced, sealed and streamed records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from coordinator.admin.groups import Reading, ShownGroup, ShownMember, read_group
from coordinator.zk.errors import BadData
from coordinator.zk.store import Store
from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR
from coordinator.zk.znodes.records import CoordinatorRecord

from ..base.processes import NotReached, Process, wait_for
from ..base.settings import POOL, Settings

Produced = dict[str, dict[str, dict[str, int]]]
"""Topic -> its id -> partition -> records."""

READY_S = 30.0
SPARK_READY_S = 180.0


class Sight:
    """Read-only probes.

    :ivar store: the drill's own session, behind proxies without faults.
    :ivar processes: the processes that the drill has not ended.
    :ivar partition_count: of the topic, current.
    """

    def __init__(self, store: Store, folder: Path, settings: Settings) -> None:
        self.store = store
        self.folder = folder
        self.settings = settings
        self.histories = folder / "histories"
        self.processes: dict[str, Process] = {}
        self.partition_count = settings.partitions

    def group(self) -> ShownGroup:
        """The group in ZooKeeper."""
        return read_group(Reading(self.store), self.settings.group)

    def elected(self) -> CoordinatorRecord | None:
        """The coordinator; None without one."""
        node = self.store.get(COORDINATOR)
        try:
            return CoordinatorRecord.parse(COORDINATOR, node.data) if node is not None else None
        except BadData:
            return None

    def wait_settled(self, consumers: set[str], timeout_s: float = READY_S) -> None:
        """Wait until the group is Stable with exactly these consumers, and every partition runs.

        :raises NotReached: after `timeout_s`.
        """
        every = self.partitions()

        def is_settled() -> bool:
            shown = self.group()
            running = {part for member in shown.members if member.channel for part in member.channel.running}
            return shown.state.state == STABLE and set(shown.state.target) == consumers and running >= every

        wait_for(is_settled, timeout_s, f"the group is Stable with {', '.join(sorted(consumers))}")

    def lives(self) -> dict[str, str]:
        """Consumer -> its incarnation, for consumers with a target."""
        return {name: target.incarnation for name, target in self.group().state.target.items()}

    def wait_back(self, before: Mapping[str, str], timeout_s: float = READY_S) -> None:
        """Wait until each of these consumers has a target under a new incarnation.

        :raises NotReached: after `timeout_s`.
        """

        def are_back() -> bool:
            now = self.lives()
            return all(now.get(name, life) != life for name, life in before.items())

        wait_for(are_back, timeout_s, f"a new incarnation of each of {', '.join(sorted(before))}")

    def partitions(self, topic: str = "") -> PartitionSet:
        """Every partition of the topic, or of another with as many."""
        of = topic or self.settings.topic
        return frozenset(TopicPartition(of, number) for number in range(self.partition_count))

    def slots(self) -> set[str]:
        """The slots that run, or that Spark has to run."""
        if self.settings.spark == "pool":
            return {slot(number) for number in range(self.settings.slots)}
        return {name for name in self.processes if name.startswith(f"{POOL}-slot-")}

    def slot_processes(self) -> dict[str, int]:
        """`name#process id` of every slot so far -> its process id."""
        stems = [path.stem for path in self.histories.glob(f"{POOL}-slot-*#*.jsonl")]
        return {who: int(who.rpartition("#")[2]) for who in stems}

    def streamed(self) -> list[dict[str, object]] | None:
        """The batches that the query has delivered; None without a query."""
        if not self.settings.spark:
            return None
        batches = sorted((self.folder / "batches").glob("*.json"), key=lambda path: int(path.stem))
        return [row for path in batches for row in json.loads(path.read_text())]

    def produced(self) -> Produced:
        """The producers' counts, the newest of a topic's ids last."""
        ends: Produced = {}
        for line in self._producer().printed():
            for topic, ids in line["ends"].items():
                for topic_id, numbers in ids.items():
                    ends.setdefault(topic, {}).setdefault(topic_id, {}).update(numbers)
        return ends

    def produced_by_partition(self) -> Counter[TopicPartition]:
        """The number of records of each partition, over all of its topic's ids."""
        counts: Counter[TopicPartition] = Counter()
        for topic, ids in self.produced().items():
            for numbers in ids.values():
                counts.update({TopicPartition(topic, int(number)): count for number, count in numbers.items()})
        return counts

    def stop_producing(self) -> None:
        """Stop the producer."""
        producer = self._producer()
        if not producer.is_running:
            raise NotReached("the producer ended unexpectedly")
        producer.terminate()
        if producer.wait() is None:
            raise NotReached("the producer does not stop")

    def _producer(self) -> Process:
        if "producer" not in self.processes:
            raise NotReached("no producer was started")
        return self.processes["producer"]

    def ended(self) -> list[str]:
        """The processes that ended unexpectedly."""
        return sorted(name for name, each in self.processes.items() if name != "producer" and not each.is_running)

    def sealed_offsets(self) -> dict[TopicPartition, int]:
        """Partition -> the sealed offset."""
        return {
            part: offset
            for member in self.group().members
            if member.channel is not None and member.channel.is_live
            for part, offset in member.channel.running.items()
            if offset is not None
        }

    def drained(self, timeout_s: float = 20.0) -> None:
        """Wait until all produced records are sealed.

        :raises NotReached: after `timeout_s`.
        """
        wanted = {
            TopicPartition(topic, int(number)): count
            for topic, ids in self.produced().items()
            for numbers in list(ids.values())[-1:]
            for number, count in numbers.items()
        }

        def is_sealed() -> bool:
            offsets = self.sealed_offsets()
            return all(offsets.get(part, 0) >= count for part, count in wanted.items())

        wait_for(is_sealed, timeout_s, "every produced record is sealed")

    def caught_up(self, timeout_s: float) -> None:
        """Wait until the query, if there is one, has delivered all produced records.

        :raises NotReached: after `timeout_s`.
        """
        wanted = self.produced_by_partition().total()

        def is_there() -> bool:
            rows = self.streamed()
            return rows is None or sum(int(str(row["rows"])) for row in rows) >= wanted

        wait_for(is_there, timeout_s, "the query has delivered every record")


def slot(number: int) -> str:
    """The consumer name of a slot."""
    return f"{POOL}-slot-{number}"


def remnants(group: ShownGroup) -> list[str]:
    """Commands, partitions and owners of ended incarnations, which a turn should have removed."""
    result = [each for member in group.members for each in _of_channel(member)]
    live = {
        (member.consumer, part)
        for member in group.members
        if member.channel is not None and member.channel.is_live
        for part in member.channel.running
    }
    result += [
        f"owner {each.partition} of {each.consumer}"
        for each in group.partitions
        if each.consumer is not None and (each.consumer, each.partition) not in live
    ]
    return result


def _of_channel(member: ShownMember) -> list[str]:
    channel = member.channel
    if channel is None:
        return []
    dead = [f"{part} in `running` of {member.consumer}" for part in channel.running if not channel.is_live]
    return dead + [
        f"{sent.name} for {member.consumer}"
        for sent in member.commands
        if not channel.is_live or (sent.command is not None and sent.command.incarnation != channel.incarnation)
    ]
