"""`zk-coordinator topics sync` and `groups export-offsets`: between a Kafka and the znodes, once or again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from coordinator.admin.export_offsets import Row, TopicWithId
from coordinator.admin.export_offsets import export_offsets as export_them
from coordinator.admin.groups import Reading, existing_group
from coordinator.admin.sync_topics import LEFT_ALONE, Change, readable_topics, sync_topics
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.process import cli
from coordinator.zk.process.cli import log_options
from coordinator.zk.process.log_format import log_to_stderr
from coordinator.zk.runtime import ENDINGS, ThreadRuntime, on_signals
from coordinator.zk.znodes.paths import Brokers

if TYPE_CHECKING:
    from consumer.logs import LogError
    from consumer.logs.kafka.requests import Described, Requests

log = logging.getLogger(__name__)

EXPORTED = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "STATUS")
SYNCED = ("TOPIC", "CHANGE", "PARTITIONS", "TOPIC-ID", "REASON")
AT_ONCE = 500
"""Number of topics in one metadata request."""

Acts = tuple[Callable[[], Iterable[Sequence[object]]], Callable[[], object], Callable[[str], object]]
"""What a command does once, for the rows to print; what it does each time of `--every`; and how it logs a failure."""


def on_kafka(columns: Sequence[str]) -> Callable[[Callable[..., Acts]], Callable[..., None]]:
    """A command from a function that gets a client of the brokers, `zk` and the command's own options."""

    def framed(take: Callable[..., Acts]) -> Callable[..., None]:
        @cli.env_option("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="Kafka's brokers.")
        @cli.kafka_option
        @click.option("--every", "every_s", type=cli.Seconds(0.1), metavar="S", help="Repeat every S seconds.")
        @cli.zk_option
        @cli.output_option
        @log_options
        @wraps(take)
        def command(
            bootstrap_servers: str,
            kafka: Mapping[str, str] | None,
            every_s: float | None,
            output: str,
            log_level: str,
            log_format: str,
            **own: Any,
        ) -> None:
            from consumer.logs.kafka.options import bootstrap_servers as parsed_servers
            from consumer.logs.kafka.options import kafka_options
            from consumer.logs.kafka.requests import Requests  # loads pyarrow, needed only here

            servers = parsed_servers("kafka:", bootstrap_servers)
            with closing(Requests(servers, kafka_options(kafka or {}))) as client:
                once, again, failed = take(client, **own)
                if every_s is None:
                    cli.print_rows(columns, [*once()], output)
                else:
                    log_to_stderr(log_level, log_format)
                    repeat(again, every_s, failed)

        return command

    return framed


def repeat(act: Callable[[], object], every_s: float, on_problem: Callable[[str], object]) -> None:
    """Call `act` every `every_s` seconds until SIGTERM or Ctrl-C.

    :param on_problem: called with each failure, once for the same text.
    :raises UsageError: when `act` raises it: a retry would fail too.
    """
    stopping = ThreadRuntime().event()
    on_signals(ENDINGS, lambda number: stopping.set())
    problem = ""
    while not stopping.is_set():
        try:
            act()
            problem = ""
        except UsageError:
            raise
        except CoordinatorError as error:
            if str(error) != problem:
                problem = str(error)
                on_problem(problem)
        stopping.wait(every_s)


# ---- groups export-offsets


@click.command("export-offsets")
@click.argument("group")
@click.option("--as", "name", metavar="NAME", help="The name of the group in Kafka. [default: GROUP]")
@on_kafka(EXPORTED)
def export_offsets(client: Requests, zk: str, group: str, name: str | None) -> Acts:
    """Commit the offsets of GROUP to Kafka, for a group of that name.

    Kafka's own tools then show its lag. The offsets in Kafka are never read back: those in ZooKeeper are valid. A group
    with members in Kafka is refused: they own its offsets.
    """

    def export() -> list[Row]:
        with cli.opened(zk) as store:
            found = existing_group(Reading(store), group)
        return export_them(_Kafka(client), name or group, found)

    def failed(problem: str) -> None:
        log.warning("offset export failed, retrying: group=%s reason=%s", group, problem)

    return export, export, failed


class _Kafka:
    """See `KafkaGroups`."""

    def __init__(self, client: Requests) -> None:
        self.group, self.commit_offsets, self._describe = client.group, client.commit_offsets, client.describe

    def partitions(self, topics: Collection[TopicWithId]) -> Mapping[TopicWithId, frozenset[int] | str]:
        from consumer.logs import LogError
        from consumer.logs.kafka.topics import checked

        answers = self._describe({name for name, _ in topics}).results() if topics else {}
        found: dict[TopicWithId, frozenset[int] | str] = {}
        for name, topic_id in topics:
            try:
                found[name, topic_id] = checked(name, topic_id, answers[name]).partitions
            except LogError as error:
                found[name, topic_id] = str(error)
        return found


# ---- topics sync


@click.command()
@on_kafka(SYNCED)
@cli.brokers_option
def sync(client: Requests, zk: str, brokers: Brokers) -> Acts:
    """Make /brokers/topics match the topics, ids and partitions of a Kafka in KRaft mode.

    Prints the changes; with --every it continues until SIGTERM or Ctrl-C, logs each change, and retries while Kafka or
    ZooKeeper is unavailable. Topics that no sync has created are left alone.
    """

    left_alone: set[Change] = set()

    def changes() -> list[Change]:
        with cli.opened(zk, make_chroot=True) as store:
            cluster, names = client.cluster()
            answers: dict[str, Described | LogError] = {}
            for first in range(0, len(names), AT_ONCE):
                answers |= client.describe(names[first : first + AT_ONCE]).results()
            there, unreadable = readable_topics(answers)
            return sync_topics(store, brokers, there, cluster, unreadable)

    def rows() -> list[tuple[object, ...]]:
        return [(each.topic, each.what, each.partitions, each.id, each.reason) for each in changes()]

    def logged() -> None:
        """Each change, and a topic that is left alone once."""
        nonlocal left_alone
        found = changes()
        before, left_alone = left_alone, {change for change in found if change.what == LEFT_ALONE}
        for change in found:
            if change.what != LEFT_ALONE:
                log.info(
                    "topic synced: topic=%s change=%s partitions=%s id=%s",
                    change.topic, change.what, change.partitions, change.id,
                )  # fmt: skip
            elif change not in before:
                log.warning("topic sync failed: topic=%s reason=%s", change.topic, change.reason)

    return rows, logged, lambda why: log.warning("topic sync failed, retrying: reason=%s", why)
