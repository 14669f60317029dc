"""What an assignor was given and what it made of it, for the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .assignors import Assignment, Assignor, Subscriber
from .zk.fields import compact
from .zk.partitions import TopicPartition, range_texts
from .zk.runtime import Runtime


class RecordingAssignor(Assignor):
    """Tells the history what went into an assignor of one group, and what came out (S8)."""

    def __init__(self, assignor: Assignor, runtime: Runtime, group: str) -> None:
        self._assignor = assignor
        self._group = group
        self._runtime = runtime
        self.name = assignor.name
        self.is_eager = assignor.is_eager

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        found = self._assignor.assign(subscribers, topics)
        members = {one.consumer: _said(one) for one in sorted(subscribers, key=lambda one: one.consumer)}
        said = {name: list(numbers) for name, numbers in sorted(topics.items())}
        self._runtime.record(
            "assignment",
            group=self._group,
            strategy=self.name,
            input=compact({"members": members, "topics": said}).decode(),
            target={
                consumer: {thread: range_texts(parts) for thread, parts in sorted(threads.items())}
                for consumer, threads in sorted(found.items())
            },
        )
        return found


def _said(one: Subscriber) -> list[Any]:
    """All that an assignor may go by."""
    before: dict[str, list[TopicPartition]] = {}
    for part, thread in one.on_thread.items():
        before.setdefault(thread, []).append(part)
    was = {thread: range_texts(parts) for thread, parts in sorted(before.items())}
    threads = sorted(one.threads.items())
    return [threads, range_texts(one.running), one.generation, one.user_data, one.instance_id, was]
