"""`zk-coordinator groups export-offsets`: commit a group's offsets to Kafka, for lag monitoring there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import click

from coordinator.admin.export_offsets import Row, TopicWithId
from coordinator.admin.export_offsets import export_offsets as export_them
from coordinator.admin.groups import Reading, existing_group
from coordinator.zk.process.cli import kafka_option, opened, output_option, print_rows, zk_option
from coordinator.zk.process.config_options import log_options, log_to_stderr

from .source import brokers_needed_option, every_option, kafka_client, repeat

if TYPE_CHECKING:
    from consumer.logs import LogError
    from consumer.logs.kafka.requests import Described, Requests

log = logging.getLogger(__name__)

COLUMNS = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "STATUS")


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
    """Commit the offsets of GROUP to Kafka, for a group of that name.

    Kafka's own tools then show its lag. The offsets in Kafka are never read back: those in ZooKeeper are valid. A group
    with members in Kafka is refused: they own its offsets.
    """
    with kafka_client(bootstrap_servers, kafka) as client:

        def export() -> list[Row]:
            with opened(zk) as store:
                found = existing_group(Reading(store), group)
            return export_them(_Kafka(client), name or group, found)

        def warn(problem: str) -> None:
            log.warning("offset export failed, retrying: group=%s reason=%s", group, problem)

        if every_s is None:
            print_rows(COLUMNS, export(), output)
        else:
            log_to_stderr(log_level, log_format)
            repeat(export, every_s, warn)


class _Kafka:
    """See `KafkaGroups`."""

    def __init__(self, client: Requests) -> None:
        self._client = client

    def group(self, group: str) -> tuple[str, int]:
        return self._client.group(group)

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], str]:
        return self._client.commit_offsets(group, offsets)

    def partitions(self, topics: Collection[TopicWithId]) -> Mapping[TopicWithId, frozenset[int] | str]:
        answers = self._client.describe({name for name, _ in topics}).results() if topics else {}
        return {(name, topic_id): _partitions(name, topic_id, answers[name]) for name, topic_id in topics}


def _partitions(topic: str, topic_id: str, answer: Described | LogError) -> frozenset[int] | str:
    from consumer.logs import LogError
    from consumer.logs.kafka.topics import checked

    try:
        return checked(topic, topic_id, answer).partitions
    except LogError as error:
        return str(error)
