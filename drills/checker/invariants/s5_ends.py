"""S5: where the next range of each partition has to begin."""

from __future__ import annotations

from collections.abc import Iterable

from ..replay.fast_json import Partition
from ..replay.verdict import Event

Key = tuple[str, str, str, int]
"""Group, topic, topic id, partition."""


class Ends:
    """The end offset of each partition, and the event that set it.

    A partition under a new id may begin at the earliest record: 0 unless an `earliest` event has another. After a
    manual edit the end is unknown until the next write.
    """

    def __init__(self) -> None:
        self._ends: dict[Key, tuple[int, Event]] = {}
        self._earliest: dict[tuple[str, str, int], set[int]] = {}
        self._jumps: dict[Key, set[tuple[int, int]]] = {}
        self._unknown: set[tuple[str, Partition]] = set()

    def on_earliest(self, event: Event) -> None:
        key = (event["topic"], event["topic_id"], event["partition"])
        self._earliest.setdefault(key, set()).add(event["offset"])

    def on_jump(self, event: Event) -> None:
        key = (event["group"], event["topic"], event["topic_id"], event["partition"])
        self._jumps.setdefault(key, set()).add((event["before"], event["after"]))

    def has_jumped(self, key: Key, before: int, after: int) -> bool:
        """Whether a consumer has reported that it resumes at `after`, because the log lacks `before`."""
        return (before, after) in self._jumps.get(key, ())

    def has_jumped_to(self, key: Key, after: int) -> bool:
        """Whether one has reported that it resumes at `after`."""
        return any(each[1] == after for each in self._jumps.get(key, ()))

    def was_edited(self, group: str, partition: Partition) -> bool:
        """Whether a partition was ever edited manually."""
        return (group, partition) in self._unknown

    def get(self, key: Key) -> tuple[int, Event] | None:
        return self._ends.get(key)

    def joins(self, key: Key, first: int) -> bool:
        """Whether a range that begins at `first` is adjacent to the previous one."""
        known = self._ends.get(key)
        if known is not None:
            return known[0] == first or self.has_jumped(key, known[0], first)
        if (key[0], (key[1], key[3])) in self._unknown:
            return True
        return first in self._earliest.get(key[1:], (0,))

    def move(self, key: Key, end: int, event: Event) -> None:
        self._ends[key] = (end, event)

    def forget(self, group: str, partitions: Iterable[Partition]) -> None:
        """Forget partitions after a manual edit."""
        edited = set(partitions)
        self._unknown |= {(group, partition) for partition in edited}
        for key in [key for key in self._ends if key[0] == group and (key[1], key[3]) in edited]:
            del self._ends[key]
