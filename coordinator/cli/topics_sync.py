"""`zk-coordinator topics sync`: keep the topics of a Kafka without ZooKeeper where the coordinator looks for them."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping

import click

from coordinator.topics_sync import LEFT_ALONE, Change, sync_topics
from coordinator.zk.cli import kafka_option
from coordinator.zk.cli_config import log_options, log_to_stderr
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.paths import Brokers
from coordinator.zk.records import Topic
from coordinator.zk.runtime import ThreadRuntime, on_signals

from .common import brokers_option, opened, output_option, print_rows, zk_option
from .source import brokers_needed_option, every_option

log = logging.getLogger(__name__)

COLUMNS = ("TOPIC", "CHANGE", "PARTITIONS", "TOPIC-ID", "REASON")
AT_ONCE = 500
"""Topics that are asked for in one request."""


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
    """Make /brokers/topics say what the brokers of a Kafka in KRaft mode say: topics, their ids and partitions.

    Prints what has changed; with --every it goes on until SIGTERM or Ctrl-C, says each change in its log, and waits
    when Kafka or ZooKeeper is away. Topics that no sync has made are left alone.
    """
    source = _Source(bootstrap_servers, kafka or {})
    try:
        if every_s is None:
            with opened(zk, make_chroot=True) as store:
                changes = sync_topics(store, brokers, *source.read())
            print_rows(COLUMNS, [(c.topic, c.what, c.partitions, c.id, c.reason) for c in changes], output)
        else:
            log_to_stderr(log_level, log_format)
            _keep(source, zk, brokers, every_s)
    finally:
        source.close()


def _keep(source: _Source, zk: str, brokers: Brokers, every_s: float) -> None:
    stopping = ThreadRuntime().event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    problem, said = "", set[Change]()
    while not stopping.is_set():
        try:
            with opened(zk, make_chroot=True) as store:
                changes = sync_topics(store, brokers, *source.read())
            said = _say(changes, said)
            problem = ""
        except UsageError:
            raise
        except CoordinatorError as error:
            if str(error) != problem:
                problem = str(error)
                log.warning("topics not synced, will try again: reason=%s", problem)
        stopping.wait(every_s)


def _say(changes: list[Change], said: set[Change]) -> set[Change]:
    """Say what has changed, and once what is left alone; the latter."""
    for change in changes:
        if change.what != LEFT_ALONE:
            log.info(
                "topic synced: topic=%s change=%s partitions=%s id=%s",
                change.topic,
                change.what,
                change.partitions,
                change.id,
            )
        elif change not in said:
            log.warning("topic not synced: topic=%s reason=%s", change.topic, change.reason)
    return {change for change in changes if change.what == LEFT_ALONE}


class _Source:
    """The brokers' metadata."""

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        from consumer.logs.kafka import KafkaClient  # loads pyarrow, which nothing else here needs
        from consumer.logs.kafka_open import bootstrap_servers
        from consumer.logs.kafka_options import kafka_options

        self._client = KafkaClient(bootstrap_servers("kafka:", servers), kafka_options(options))

    def read(self) -> tuple[dict[str, Topic], str, dict[str, str]]:
        """The topics, the cluster's id, and the topics that cannot be read with the reasons.

        :raises LogError: when no broker answers.
        """
        from consumer.logs import LogError

        cluster, names = self._client.cluster()
        topics: dict[str, Topic] = {}
        unreadable: dict[str, str] = {}
        for first in range(0, len(names), AT_ONCE):
            pending = self._client.describe(names[first : first + AT_ONCE])
            for name, found in pending.results().items():
                if isinstance(found, LogError):
                    unreadable[name] = str(found)
                elif not found.error:  # else it has gone meanwhile
                    topics[name] = Topic(name, found.id, tuple(sorted(found.partitions)))
        if unreadable and not topics:
            raise LogError(next(iter(unreadable.values())))
        return topics, cluster, unreadable

    def close(self) -> None:
        self._client.close()
