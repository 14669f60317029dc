"""`zk-coordinator topics sync`: copy the topics of a Kafka without ZooKeeper into znodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from coordinator.admin.sync_topics import LEFT_ALONE, Change, readable_topics, sync_topics
from coordinator.zk.process.cli import brokers_option, kafka_option, opened, output_option, print_rows, zk_option
from coordinator.zk.process.config_options import log_options, log_to_stderr
from coordinator.zk.znodes.paths import Brokers

from .source import brokers_needed_option, every_option, kafka_client, repeat

if TYPE_CHECKING:
    from consumer.logs import LogError
    from consumer.logs.kafka.requests import Described, Requests

log = logging.getLogger(__name__)

COLUMNS = ("TOPIC", "CHANGE", "PARTITIONS", "TOPIC-ID", "REASON")
AT_ONCE = 500
"""Number of topics in one metadata request."""


@click.command()
@brokers_needed_option
@kafka_option
@every_option
@zk_option
@brokers_option
@output_option
@log_options
def sync(
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None,
    every_s: float | None,
    zk: str,
    brokers: Brokers,
    output: str,
    log_level: str,
    log_format: str,
) -> None:
    """Make /brokers/topics match the topics, ids and partitions of a Kafka in KRaft mode.

    Prints the changes; with --every it continues until SIGTERM or Ctrl-C, logs each change, and retries while Kafka or
    ZooKeeper is unavailable. Topics that no sync has created are left alone.
    """
    with kafka_client(bootstrap_servers, kafka) as client:

        def changes() -> list[Change]:
            with opened(zk, make_chroot=True) as store:
                cluster, answers = _metadata(client)
                there, unreadable = readable_topics(answers)
                return sync_topics(store, brokers, there, cluster, unreadable)

        if every_s is None:
            print_rows(COLUMNS, [(c.topic, c.what, c.partitions, c.id, c.reason) for c in changes()], output)
        else:
            log_to_stderr(log_level, log_format)
            change_log = _ChangeLog()
            repeat(lambda: change_log.write(changes()), every_s, _warn)


def _warn(problem: str) -> None:
    log.warning("topic sync failed, retrying: reason=%s", problem)


class _ChangeLog:
    """The log of changes: each one, and a topic that is left alone once."""

    def __init__(self) -> None:
        self._left_alone: set[Change] = set()

    def write(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.what != LEFT_ALONE:
                log.info(
                    "topic synced: topic=%s change=%s partitions=%s id=%s",
                    change.topic, change.what, change.partitions, change.id,
                )  # fmt: skip
            elif change not in self._left_alone:
                log.warning("topic sync failed: topic=%s reason=%s", change.topic, change.reason)
        self._left_alone = {change for change in changes if change.what == LEFT_ALONE}


def _metadata(client: Requests) -> tuple[str, dict[str, Described | LogError]]:
    """The cluster's id, and the metadata of all its topics.

    :raises LogError: when no broker answers.
    """
    cluster, names = client.cluster()
    answers: dict[str, Described | LogError] = {}
    for first in range(0, len(names), AT_ONCE):
        answers |= client.describe(names[first : first + AT_ONCE]).results()
    return cluster, answers
