"""Reading what `zk-consumer run --events` prints, under the rules of the harness of Kafka's VerifiableConsumer."""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zk_group.coordinator.zk.znodes.partitions import TopicPartition

DEAD, STARTED, JOINED, REBALANCING = "dead", "started", "joined", "rebalancing"
Offsets = dict[TopicPartition, int]


class RuleBroken(AssertionError):
    """A consumer printed what no consumer may."""


@dataclass
class ConsumerEvents:
    """One consumer, as far as its lines tell.

    :ivar state: joined while it has been assigned something that it still has.
    :ivar position: the next offset of what it has consumed; not known before the first record.
    :ivar assigned, revoked: number of callbacks; a loss counts as a revocation.
    """

    state: str = DEAD
    assignment: set[TopicPartition] = field(default_factory=set)
    position: Offsets = field(default_factory=dict)
    committed: Offsets = field(default_factory=dict)
    assigned: int = 0
    revoked: int = 0
    lost: int = 0
    consumed: int = 0

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in list(partitions):
            self.assignment.discard(partition)
            self.position.pop(partition, None)
        self.state = JOINED if self.assignment else REBALANCING


class GroupEvents:
    """The consumers of one group; fed with their lines in the order of time, it raises at the first broken rule.

    :ivar position: the position of a partition's last consumer.
    :ivar committed: the last commits.
    :param fenced: fenced processes, whose name another one has taken: their last poll may be reported late.
    """

    def __init__(self, fenced: Collection[str] = ()) -> None:
        self._fenced = fenced
        self.consumers: dict[str, ConsumerEvents] = {}
        self.position: Offsets = {}
        self.committed: Offsets = {}

    @property
    def consumed(self) -> int:
        """How many records all of them have consumed."""
        return sum(seen.consumed for seen in self.consumers.values())

    def joined(self) -> set[str]:
        """The joined consumers."""
        return {name for name, seen in self.consumers.items() if seen.state == JOINED}

    def owners(self, of: Iterable[str] | None = None) -> dict[TopicPartition, list[str]]:
        """The owners of each partition, among `of` or all."""
        found: dict[TopicPartition, list[str]] = {}
        for name in sorted(self.consumers if of is None else of):
            for partition in self.consumers[name].assignment if name in self.consumers else ():
                found.setdefault(partition, []).append(name)
        return found

    def take(self, consumer: str, line: str) -> None:
        """The next line of `consumer`.

        :raises RuleBroken: when it may not.
        """
        event = json.loads(line)
        _rule(isinstance(event.get("timestamp"), int), f"{consumer} prints an event without a timestamp: {line}")
        seen = self.consumers.setdefault(consumer, ConsumerEvents())
        name = event.get("name")
        if name == "startup_complete":
            seen.assignment, seen.position, seen.state = set(), {}, STARTED
        elif name == "shutdown_complete":
            seen.assignment, seen.position, seen.state = set(), {}, DEAD
        elif name == "partitions_assigned":
            seen.assigned += 1
            seen.assignment |= _partitions(event)
            seen.state = JOINED
        elif name in ("partitions_revoked", "partitions_lost"):
            self._given_up(consumer, seen, _partitions(event), is_lost=name == "partitions_lost")
        elif name == "records_consumed":
            self._consumed(consumer, seen, event)
        elif name == "offsets_committed":
            self._committed(consumer, seen, event)
        elif name == "assignment_failed":
            _rule(bool(event.get("error")), f"{consumer} hears of a failed assignment and does not say why")
        else:
            _rule(name == "record_data", f"{consumer} prints an event that is not known: {line}")

    def _given_up(self, consumer: str, seen: ConsumerEvents, partitions: set[TopicPartition], is_lost: bool) -> None:
        _rule(partitions <= seen.assignment, f"{consumer} gives up {partitions - seen.assignment}, which it has not")
        seen.revoked += 1
        seen.lost += is_lost
        seen.forget(partitions)

    def _consumed(self, consumer: str, seen: ConsumerEvents, event: Mapping[str, Any]) -> None:
        _rule(seen.state == JOINED, f"{consumer} consumes while it is {seen.state}")
        _rule(event["count"] == sum(each["count"] for each in event["partitions"]), f"{consumer} cannot add: {event}")
        for each in event["partitions"]:
            partition, first, last = _partition(each), each["minOffset"], each["maxOffset"]
            _rule(partition in seen.assignment, f"{consumer} consumes from {partition}, which is not assigned to it")
            own, committed = seen.position.get(partition, first), self.committed.get(partition, 0)
            _rule(first == own, f"{consumer} consumes {partition} from {first} on, and stands at {own}")
            is_late = consumer in self._fenced and first < committed
            _rule(
                is_late or first >= committed,
                f"{consumer} consumes {partition} from {first}, and {committed} is committed",
            )
            _rule(each["count"] == last - first + 1, f"{consumer} leaves records out: {each}")
            seen.position[partition] = last + 1
            self.position[partition] = max(last + 1, self.position.get(partition, 0) if is_late else 0)
        seen.consumed += event["count"]

    def _committed(self, consumer: str, seen: ConsumerEvents, event: Mapping[str, Any]) -> None:
        if not event["success"]:
            _rule(bool(event.get("error")), f"{consumer} fails to commit and does not say why")
            return
        for each in event["offsets"]:
            partition, offset = _partition(each), each["offset"]
            _rule(partition in seen.assignment, f"{consumer} commits {partition}, which is not assigned to it")
            own = seen.position.get(partition, -1)
            _rule(offset <= own, f"{consumer} commits {offset} of {partition}, and stands at {own}")
            group = self.position.get(partition, -1)
            _rule(offset <= group, f"{consumer} commits {offset} of {partition}, and the group stands at {group}")
            seen.committed[partition] = self.committed[partition] = offset


def replayed(printed: Mapping[str, Iterable[str]], fenced: Collection[str] = ()) -> GroupEvents:
    """The group after everything that its consumers have printed, each its lines, put in the order of time."""
    group = GroupEvents(fenced)
    streams = [[(json.loads(line)["timestamp"], name, line) for line in lines] for name, lines in printed.items()]
    for _, name, line in heapq.merge(*streams, key=lambda item: item[0]):
        group.take(name, line)
    return group


def _rule(holds: bool, broken: str) -> None:
    if not holds:
        raise RuleBroken(broken)


def _partition(values: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(values["topic"], values["partition"])


def _partitions(event: Mapping[str, Any]) -> set[TopicPartition]:
    return {_partition(each) for each in event["partitions"]}
