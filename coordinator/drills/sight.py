"""What there is to see of a drill while it runs: the group as ZooKeeper has it, what was produced, sealed, streamed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ..groups import Reading, ShownGroup, read_group
from ..zk.errors import BadData
from ..zk.partitions import PartitionSet, TopicPartition
from ..zk.paths import COORDINATOR
from ..zk.records import CoordinatorRecord
from ..zk.state import STABLE
from ..zk.store import Store
from .processes import Process
from .settings import POOL, Settings
from .waiting import NotReached, wait_for

Produced = dict[str, dict[str, dict[str, int]]]
"""Topic -> its id -> partition -> records."""

READY_S = 30.0
SPARK_READY_S = 180.0


class Sight:
    """Looks; changes nothing.

    :ivar store: the drill's own session, behind proxies that no fault is done to.
    :ivar processes: those that nobody has ended.
    :ivar partition_count: of the topic, as it stands.
    """

    def __init__(self, store: Store, folder: Path, settings: Settings) -> None:
        self.store = store
        self.folder = folder
        self.settings = settings
        self.histories = folder / "histories"
        self.processes: dict[str, Process] = {}
        self.partition_count = settings.partitions

    def group(self) -> ShownGroup:
        """The group as ZooKeeper has it."""
        return read_group(Reading(self.store), self.settings.group)

    def elected(self) -> CoordinatorRecord | None:
        """The coordinator, None while there is none."""
        node = self.store.get(COORDINATOR)
        try:
            return CoordinatorRecord.parse(COORDINATOR, node.data) if node is not None else None
        except BadData:
            return None

    def wait_settled(self, consumers: set[str], timeout_s: float = READY_S) -> None:
        """Wait until the group is Stable with just these consumers, and every partition is run by one of them.

        :raises NotReached: after `timeout_s`.
        """
        every = self.partitions()

        def is_settled() -> bool:
            shown = self.group()
            running = {part for member in shown.members if member.channel for part in member.channel.running}
            return shown.state.state == STABLE and set(shown.state.target) == consumers and running >= every

        wait_for(is_settled, timeout_s, f"the group is Stable with {', '.join(sorted(consumers))}")

    def lives(self) -> dict[str, str]:
        """Consumer -> its incarnation, of those that have a share."""
        return {name: target.incarnation for name, target in self.group().state.target.items()}

    def wait_back(self, before: Mapping[str, str], timeout_s: float = READY_S) -> None:
        """Wait until each of these consumers has a share under another incarnation: a fault has ended the one before.

        :raises NotReached: after `timeout_s`.
        """

        def are_back() -> bool:
            now = self.lives()
            return all(now.get(name, life) != life for name, life in before.items())

        wait_for(are_back, timeout_s, f"a new incarnation of each of {', '.join(sorted(before))}")

    def partitions(self) -> PartitionSet:
        """Every partition of the topic."""
        return frozenset(TopicPartition(self.settings.topic, number) for number in range(self.partition_count))

    def slots(self) -> set[str]:
        """The slots that run, or that Spark shall run."""
        if self.settings.spark == "pool":
            return {slot(number) for number in range(self.settings.slots)}
        return {name for name in self.processes if name.startswith(f"{POOL}-slot-")}

    def slot_processes(self) -> dict[str, int]:
        """`name#process id` of every slot that has ever run -> its process id."""
        found = [path.stem for path in self.histories.glob(f"{POOL}-slot-*#*.jsonl")]
        return {who: int(who.rpartition("#")[2]) for who in found}

    def streamed(self) -> list[dict[str, object]] | None:
        """What the query has delivered, batch by batch; None where there is no query."""
        if not self.settings.spark:
            return None
        batches = sorted((self.folder / "batches").glob("*.json"), key=lambda path: int(path.stem))
        return [row for path in batches for row in json.loads(path.read_text())]

    def produced(self) -> Produced:
        """What the producers have said, the newest of a topic's ids last."""
        ends: Produced = {}
        for line in self._producer().printed():
            for topic, ids in line["ends"].items():
                for topic_id, numbers in ids.items():
                    ends.setdefault(topic, {}).setdefault(topic_id, {}).update(numbers)
        return ends

    def produced_by_partition(self) -> Counter[TopicPartition]:
        """How many records each partition has, of all its topic's ids together."""
        counts: Counter[TopicPartition] = Counter()
        for topic, ids in self.produced().items():
            for numbers in ids.values():
                counts.update({TopicPartition(topic, int(number)): count for number, count in numbers.items()})
        return counts

    def stop_producing(self) -> None:
        """No record more."""
        producer = self._producer()
        if not producer.is_running:
            raise NotReached("the producer has ended, and nobody has ended it")
        producer.terminate()
        if producer.wait() is None:
            raise NotReached("the producer does not end")

    def _producer(self) -> Process:
        if "producer" not in self.processes:
            raise NotReached("no producer was started")
        return self.processes["producer"]

    def ended(self) -> list[str]:
        """The processes that have ended although nobody has ended them."""
        return sorted(name for name, each in self.processes.items() if name != "producer" and not each.is_running)

    def sealed_offsets(self) -> dict[TopicPartition, int]:
        """Partition -> where whoever runs it stands."""
        return {
            part: offset
            for member in self.group().members
            if member.channel is not None and member.channel.is_live
            for part, offset in member.channel.running.items()
            if offset is not None
        }

    def drained(self, timeout_s: float = 20.0) -> None:
        """Wait until all that was produced is sealed.

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

        wait_for(is_sealed, timeout_s, "every record that was produced is sealed")

    def caught_up(self, timeout_s: float) -> None:
        """Wait until the query, where there is one, has delivered as much as was produced.

        :raises NotReached: after `timeout_s`.
        """
        numbers = [each for ids in self.produced().values() for each in ids.values()]
        wanted = sum(count for each in numbers for count in each.values())

        def is_there() -> bool:
            rows = self.streamed()
            return rows is None or sum(int(str(row["rows"])) for row in rows) >= wanted

        wait_for(is_there, timeout_s, "the query has delivered every record")


def slot(number: int) -> str:
    """The consumer name of a slot."""
    return f"{POOL}-slot-{number}"
