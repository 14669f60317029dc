"""The processes of the consumer under trial, and their printed lines.

The rules of `EventLines` hold for each process alone (`docs/conformance.md`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.values import shown
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

from ..base.processes import Process

STARTED, ENDED = "startup_complete", "shutdown_complete"
ASSIGNED, REVOKED, LOST = "partitions_assigned", "partitions_revoked", "partitions_lost"
CONSUMED, COMMITTED = "records_consumed", "offsets_committed"
NOT_COMMITTED = f"{COMMITTED}, without success"
OTHERS = ("record_data", "assignment_failed")


class NotConforming(CoordinatorError):
    """The consumer violated `zk_paths.md`; the message has the violation."""


def require(holds: bool, otherwise: str) -> None:
    """
    :raises NotConforming: unless it holds.
    """
    if not holds:
        raise NotConforming(otherwise)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition in one `records_consumed`: offsets `first` up to `end`, without `end`."""

    partition: TopicPartition
    first: int
    end: int


@dataclass
class EventLines:
    """The output of one process so far.

    :ivar process: its name, for messages.
    :ivar held: partitions that are assigned, and neither revoked nor lost.
    :ivar names: the names of its events, in order.
    :ivar batches: its consumed batches, in order.
    :ivar committed: partition -> the last offset committed.
    :ivar gone: partitions of each `partitions_revoked` and `partitions_lost`, in order, with the event's name.
    """

    process: str
    held: set[TopicPartition] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    gone: list[tuple[str, PartitionSet]] = field(default_factory=list)
    _position: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Partition -> the offset after the last record consumed of it."""
        return {batch.partition: batch.end for batch in self.batches}

    def at_end(self, ends: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """The partitions consumed up to the offset in `ends`."""
        return {part for part, end in self.ends.items() if end == ends.get(part)}

    def given_up(self, how: str) -> set[TopicPartition]:
        """All partitions reported as `REVOKED`, or as `LOST`."""
        return {each for name, partitions in self.gone if name == how for each in partitions}

    def take(self, line: str) -> None:
        """The next line.

        :raises NotConforming: when it is no event, or may not come now.
        """
        try:
            event = json.loads(line)
            self._take(event["name"], event["timestamp"], event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{self.process} prints {shown(line, 200)}"
            raise NotConforming(f"{what}, which is no event of the kit: {error!r}") from error

    def _require(self, holds: bool, otherwise: str) -> None:
        require(holds, f"{self.process} {otherwise}")

    def _take(self, name: str, at_ms: int, event: Mapping[str, Any]) -> None:
        self._require(type(at_ms) is int, f"prints {name} without a timestamp in milliseconds")
        self._require(ENDED not in self.names, f"prints {name} after {ENDED}")
        self._require(STARTED in (name, *self.names), f"prints {name} before {STARTED}")
        self.names.append(name if name != COMMITTED or event["success"] else NOT_COMMITTED)
        if name == ASSIGNED:
            self.held |= _partitions(event)
        elif name in (REVOKED, LOST):
            self._give_up(name, _partitions(event))
        elif name == CONSUMED:
            self._consume(event)
        elif name == COMMITTED and event["success"]:
            self._commit(event)
        else:
            known = (STARTED, ENDED, COMMITTED, *OTHERS)
            self._require(name in known, f"prints an event of an unknown name, {shown(name)}")

    def _give_up(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        strange = partitions - self.held
        self._require(not strange, f"prints {name} of {names_of(strange)}, which it does not have")
        self.gone.append((name, partitions))
        self.held -= partitions
        for each in partitions:
            self._position.pop(each, None)
            self.committed.pop(each, None)

    def _consume(self, event: Mapping[str, Any]) -> None:
        for each in event["partitions"]:
            partition, first, end = _partition(each), int(each["minOffset"]), int(each["maxOffset"]) + 1
            self._require(partition in self.held, f"consumes {partition}, which is not assigned to it")
            position = self._position.get(partition, first)
            self._require(first == position, f"consumes {partition} from {first}, and its position is {position}")
            self._require(each["count"] == end - first, f"counts {each['count']} records from {first} to {end - 1}")
            self._position[partition] = end
            self.batches.append(Batch(partition, first, end))

    def _commit(self, event: Mapping[str, Any]) -> None:
        for each in event["offsets"]:
            partition, offset = _partition(each), int(each["offset"])
            self._require(partition in self.held, f"commits {partition}, which is not assigned to it")
            position = self._position.get(partition)
            self._require(
                position is not None and offset <= position,
                f"commits {offset} of {partition}, and its position is {position}",
            )
            before = self.committed.get(partition, 0)
            self._require(offset >= before, f"commits {offset} of {partition} after {before}")
            self.committed[partition] = offset


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Partitions, for messages."""
    return ", ".join(map(str, sorted(partitions))) or "nothing"


def _partition(values: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(str(values["topic"]), int(values["partition"]))


def _partitions(event: Mapping[str, Any]) -> frozenset[TopicPartition]:
    return frozenset(_partition(each) for each in event["partitions"])


@dataclass
class Trial:
    """One process of the consumer under trial.

    :ivar name: the consumer's name.
    :ivar former: number of its batches of a removed topic.
    """

    name: str
    process: Process
    former: int = 0

    def events(self) -> EventLines:
        """Its output so far.

        :raises NotConforming: when it breaks a rule of a process.
        """
        events = EventLines(self.process.name)
        for line in self.process.lines():
            events.take(line)
        return events

    def batches(self) -> list[Batch]:
        """Its consumed batches so far, of the current topics."""
        return self.events().batches[self.former :]


class Trials(dict[str, Trial]):
    """Process name -> its trial.

    :ivar written: partition -> records produced, of the current topics.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[TopicPartition, int] = {}

    def unconsumed(self) -> list[str]:
        """The records not printed as consumed by any process."""
        found = []
        for part, count in sorted(self.written.items()):
            end = 0
            for first, after in self._spans(part):
                end = max(end, after) if first <= end else end
            if end < count:
                found.append(f"{part} from {end} to {count - 1}")
        return found

    def forget(self) -> None:
        """Reset the record counts of a recreated topic."""
        self.written.clear()
        for trial in self.values():
            trial.former = len(trial.events().batches)

    def require_once(self) -> None:
        """
        :raises NotConforming: when a record was consumed twice.
        """
        for part in self.written:
            for (_, end), (first, _) in pairwise(self._spans(part)):
                require(first >= end, f"the records of {part} from {first} to {end - 1} were consumed twice")

    def _spans(self, part: TopicPartition) -> list[tuple[int, int]]:
        batches = [batch for trial in self.values() for batch in trial.batches()]
        return sorted((batch.first, batch.end) for batch in batches if batch.partition == part)
