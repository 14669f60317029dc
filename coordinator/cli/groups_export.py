"""`zk-coordinator groups export-offsets`: a group's offsets as Kafka's own, for tools that look for lag there."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping

import click

from coordinator.groups import Reading, ShownGroup, existing_group
from coordinator.zk.cli import kafka_option
from coordinator.zk.cli_config import log_options, log_to_stderr
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.runtime import ThreadRuntime, on_signals

from .common import opened, output_option, print_rows, zk_option
from .source import brokers_needed_option, every_option

log = logging.getLogger(__name__)

COLUMNS = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "STATUS")
MAY_BE_SET = ("EMPTY", "DEAD")

Row = tuple[str, str, int, int, str]


@click.command("export-offsets")
@click.argument("group")
@brokers_needed_option
@click.option("--as", "name", metavar="NAME", help="The name of the group in Kafka. [default: GROUP]")
@kafka_option
@every_option
@zk_option
@output_option
@log_options
def export_offsets(
    group: str,
    bootstrap_servers: str,
    name: str | None,
    kafka: Mapping[str, str] | None,
    every_s: float | None,
    zk: str,
    output: str,
    log_level: str,
    log_format: str,
) -> None:
    """Write the offsets at which GROUP stands to Kafka, as the committed offsets of a group of that name.

    Kafka's own tools then show its lag. Nothing is ever read back: the group's offsets are those in ZooKeeper. A group
    that has members in Kafka is refused, for these offsets are theirs.
    """
    exporter = _Exporter(bootstrap_servers, kafka or {}, name or group)
    try:
        if every_s is None:
            rows = exporter.export(_read(zk, group))
            print_rows(COLUMNS, rows, output)
        else:
            log_to_stderr(log_level, log_format)
            _keep(exporter, zk, group, every_s)
    finally:
        exporter.close()


def _read(zk: str, group: str) -> ShownGroup:
    with opened(zk) as store:
        return existing_group(Reading(store), group)


def _keep(exporter: _Exporter, zk: str, group: str, every_s: float) -> None:
    stopping = ThreadRuntime().event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    problem = ""
    while not stopping.is_set():
        try:
            exporter.export(_read(zk, group))
            problem = ""
        except UsageError:
            raise
        except CoordinatorError as error:
            if str(error) != problem:
                problem = str(error)
                log.warning("offsets not exported, will try again: group=%s reason=%s", group, problem)
        stopping.wait(every_s)


class _Exporter:
    """Kafka, as far as this needs it.

    :ivar name: of the group there.
    """

    def __init__(self, servers: str, options: Mapping[str, str], name: str) -> None:
        from consumer.logs.kafka import KafkaClient  # loads pyarrow, which nothing else here needs
        from consumer.logs.kafka_open import bootstrap_servers
        from consumer.logs.kafka_options import kafka_options

        self.name = name
        self._client = KafkaClient(bootstrap_servers("kafka:", servers), kafka_options(options))

    def export(self, group: ShownGroup) -> list[Row]:
        """Write its offsets; a row for each, with what became of it.

        :raises UsageError: when the group has members in Kafka.
        :raises LogError: when Kafka does not answer.
        """
        state, members = self._client.group(self.name)
        if state not in MAY_BE_SET or members:
            raise UsageError(
                f"group {self.name} has {members} members in Kafka ({state.capitalize()}), and its offsets there are "
                "theirs: stop them, or export under another name with --as"
            )
        stands = {
            (part.partition.topic, part.partition.partition): part.offset
            for part in group.partitions
            if part.offset is not None
        }
        strange = self._strange(group)
        wanted = {place: offset for place, offset in stands.items() if place not in strange}
        refused = self._client.commit_offsets(self.name, wanted) if wanted else {}
        said = {**strange, **refused}
        return [
            (self.name, topic, number, offset, said.get((topic, number), "Successful"))
            for (topic, number), offset in sorted(stands.items())
        ]

    def _strange(self, group: ShownGroup) -> dict[tuple[str, int], str]:
        """Partitions whose offset is of another topic than Kafka has, or of one that it has not."""
        from consumer.logs import LogError
        from consumer.logs.kafka_topics import checked

        ids = {part.partition.topic: part.topic_id for part in group.partitions if part.topic_id is not None}
        found: dict[tuple[str, int], str] = {}
        answers = self._client.describe(ids).results() if ids else {}
        for part in group.partitions:
            topic, number = part.partition
            try:
                there = checked(topic, part.topic_id or "", answers.get(topic, LogError("its topic has no id")))
                if number not in there.partitions:
                    found[topic, number] = "Kafka has no such partition"
            except LogError as error:
                found[topic, number] = str(error)
        return found

    def close(self) -> None:
        self._client.close()
