"""An assignor's input and output, for the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..assignors import Assignment, Assignor, Subscriber
from ..zk.runtime import Runtime
from ..zk.znodes.json_fields import compact
from ..zk.znodes.partitions import TopicPartition, range_texts


class RecordingAssignor(Assignor):
    """Records the input and output of one group's assignor in the history (S8)."""

    def __init__(self, assignor: Assignor, runtime: Runtime, group: str) -> None:
        self._assignor = assignor
        self._group = group
        self._runtime = runtime
        self.name = assignor.name
        self.is_eager = assignor.is_eager

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        found = self._assignor.assign(subscribers, topics)
        members = {one.consumer: _input_of(one) for one in sorted(subscribers, key=lambda one: one.consumer)}
        partitions = {name: list(numbers) for name, numbers in sorted(topics.items())}
        self._runtime.record(
            "assignment",
            group=self._group,
            strategy=self.name,
            input=compact({"members": members, "topics": partitions}).decode(),
            target={
                consumer: {thread: range_texts(parts) for thread, parts in sorted(threads.items())}
                for consumer, threads in sorted(found.items())
            },
        )
        return found


def _input_of(one: Subscriber) -> list[Any]:
    """The complete input of an assignor."""
    before: dict[str, list[TopicPartition]] = {}
    for part, thread in one.on_thread.items():
        before.setdefault(thread, []).append(part)
    was = {thread: range_texts(parts) for thread, parts in sorted(before.items())}
    threads = sorted(one.threads.items())
    return [threads, range_texts(one.running), one.generation, one.user_data, one.instance_id, was]
