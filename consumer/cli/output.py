"""The output of `zk-consumer run`: one JSON line per record, or per event, as Kafka's VerifiableConsumer."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from consumer.consumer import Callbacks, Record
from consumer.errors import AssignmentFailed
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition

log = logging.getLogger(__name__)

Polled = Mapping[TopicPartition, Sequence[Record]]


class RecordLines(Callbacks):
    """One line per record. Other events are written to stderr and the log, or by other outputs.

    :param consumer: its name, for the log.
    """

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer

    def started(self) -> None:
        """The consumer is created; polling begins."""

    def polled(self, polled: Polled) -> None:
        """These records were returned, and are committed next."""
        for records in polled.values():
            for record in records:
                _print(shown_record(record))

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets were committed."""

    def not_committed(self, offsets: Mapping[TopicPartition, int], error: Exception) -> None:
        """These were not committed, or the outcome is unknown."""
        click.echo(f"error: {error}", err=True)

    def assignment_failed(self, failure: AssignmentFailed) -> None:
        """The leader gave no assignment; fetching of assigned partitions continues."""
        log.warning("assignment failed: consumer=%s reason=%s", self.consumer, failure)

    def ended(self) -> None:
        """The consumer is closed."""


class EventLines(RecordLines):
    """One line per event, with the names and fields of Kafka's VerifiableConsumer; and `partitions_lost`.

    :param wall_ms: the clock of their timestamps, in milliseconds since the epoch.
    :param is_verbose: whether to print each record, too.
    """

    def __init__(self, consumer: str, wall_ms: Callable[[], int], is_verbose: bool = False) -> None:
        super().__init__(consumer)
        self._wall_ms = wall_ms
        self._is_verbose = is_verbose

    def started(self) -> None:
        self._event("startup_complete")

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self._event("partitions_assigned", partitions=_named(partitions))

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._event("partitions_revoked", partitions=_named(partitions))

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self._event("partitions_lost", partitions=_named(partitions))

    def polled(self, polled: Polled) -> None:
        if self._is_verbose:
            for record in (record for records in polled.values() for record in records):
                self._event("record_data", **_place(record), **_contents(record))
        batches = [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "count": len(records),
                "minOffset": records[0].offset,
                "maxOffset": records[-1].offset,
            }
            for partition, records in sorted(polled.items())
            if records
        ]
        if batches:
            self._event("records_consumed", count=sum(map(len, polled.values())), partitions=batches)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        if offsets:
            self._event("offsets_committed", offsets=_with_offsets(offsets), success=True)

    def not_committed(self, offsets: Mapping[TopicPartition, int], error: Exception) -> None:
        self._event("offsets_committed", offsets=_with_offsets(offsets), success=False, error=str(error))

    def assignment_failed(self, failure: AssignmentFailed) -> None:
        self._event("assignment_failed", ask=failure.ask, error=str(failure))

    def ended(self) -> None:
        self._event("shutdown_complete")

    def _event(self, name: str, **fields: Any) -> None:
        _print({"timestamp": self._wall_ms(), "name": name, **fields})


def _print(values: Mapping[str, object]) -> None:
    click.echo(json.dumps(values, separators=(",", ":")))


def _named(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(partitions)]


def _with_offsets(offsets: Mapping[TopicPartition, int]) -> list[dict[str, object]]:
    items = sorted(offsets.items())
    return [{"topic": topic, "partition": number, "offset": offset} for (topic, number), offset in items]


def shown_record(record: Record) -> dict[str, object]:
    """A record as one JSON object."""
    shown = {**_place(record), "timestamp": record.timestamp_ms, **_contents(record)}
    if record.headers:
        shown["headers"] = [{"name": name, **text_or_base64("value", data)} for name, data in record.headers]
    return shown


def _place(record: Record) -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _contents(record: Record) -> dict[str, object]:
    """Bytes as text when they are UTF-8, else as base64 under `key_base64`, `value_base64`."""
    return {**text_or_base64("key", record.key), **text_or_base64("value", record.value)}


def text_or_base64(name: str, data: bytes | None) -> dict[str, object]:
    """A field with bytes as text when they are UTF-8, else as base64, with `_base64` appended to its name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
