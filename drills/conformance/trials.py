"""The processes of the consumer under trial, and what they have consumed, by their lines."""

from __future__ import annotations

from itertools import pairwise

from coordinator.zk.znodes.partitions import TopicPartition

from ..base.processes import Process
from .definition import require
from .event_lines import Batch, EventLines, read_lines


class Trial:
    """One process of the consumer under trial.

    :ivar name: the consumer's name.
    :ivar former: number of its batches that were of a topic which is removed.
    """

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.former = 0

    def events(self) -> EventLines:
        """What it has printed so far.

        :raises NotConforming: when it breaks a rule of a process.
        """
        return read_lines(self.process.name, self.process.lines())

    def batches(self) -> list[Batch]:
        """What it has consumed so far, of the topics as they are now."""
        return self.events().batches[self.former :]


class Trials(dict[str, Trial]):
    """Process name -> its trial.

    :ivar written: partition -> records produced, of the topics as they are now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[TopicPartition, int] = {}

    def held(self) -> dict[str, set[TopicPartition]]:
        """Consumer -> what its last process holds, by its lines."""
        return {trial.name: trial.events().held for trial in self.values()}

    def unconsumed(self) -> list[str]:
        """The records that no process has printed as consumed."""
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
