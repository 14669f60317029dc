"""S5, third part: what an application commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..replay.commits import Commit
from ..replay.verdict import Event, moment

Held = tuple[str, str, str, int]
"""Group, incarnation, topic, partition."""


class ReturnedRecords:
    """No offset passes a record that `poll` has not returned to the application.

    The application has every record from the offset at which its incarnation began with a partition up to the end of
    what `poll` has returned last, or to where it was sought, or where the log made it jump. Offsets without a record
    (`records` 0 of a fetch) are passed when nothing is buffered before them. What was below the begin is an earlier
    owner's. A process that records no `returned` is not judged.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._ends: dict[Held, tuple[int, Event]] = {}
        self._tells: set[str] = set()

    def on_begin(self, event: Event) -> None:
        for topic, partitions in event["partitions"].items():
            for number, first in partitions.items():
                if first is not None:
                    self._move(event, topic, int(number), first)

    def on_sought(self, event: Event) -> None:
        for topic, partitions in event["partitions"].items():
            for number, offset in partitions.items():
                self._move(event, topic, int(number), offset)

    def on_jump(self, event: Event) -> None:
        self._move(event, event["topic"], event["partition"], event["after"])

    def on_returned(self, event: Event) -> None:
        self._tells.add(event["who"])
        for item in event["ranges"]:
            self._move(event, item["topic"], item["partition"], item["next"])

    def on_fetch(self, event: Event) -> None:
        for item in event["ranges"]:
            if item.get("records") == 0 and self._is_at(event, item):
                self._move(event, item["topic"], item["partition"], item["next"])

    def _is_at(self, event: Event, item: Mapping[str, Any]) -> bool:
        known = self._ends.get((event["group"], event["incarnation"], item["topic"], item["partition"]))
        return known is not None and known[0] == item["first"]

    def _move(self, event: Event, topic: str, number: int, offset: int) -> None:
        self._ends[event["group"], event["incarnation"], topic, number] = (offset, event)

    def judge(self, key: tuple[str, str, str, int], incarnation: str, offset: int, commit: Commit) -> None:
        """An application's commit moves the offset of a partition.

        :param key: group, topic, topic id, partition.
        """
        group, topic, _, number = key
        known = self._ends.get((group, incarnation, topic, number))
        if known is None or offset <= known[0] or commit.who not in self._tells:
            return
        self._report(
            f"{offset} of {topic}-{number} was committed in group {group} at {moment(commit.at)}, and {commit.who} was "
            f"given the records below {known[0]} only",
            known[1],
            commit.event,
        )
