"""`zk-coordinator topics`, and `groups export-offsets`: the topics of the embedded log, and a Kafka's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zk_group.coordinator.admin import topics as admin
from zk_group.coordinator.admin.groups import Reading, ShownGroup, existing_group, listed_topic
from zk_group.coordinator.zk import below
from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.process import cli
from zk_group.coordinator.zk.process.log_format import log_to_stderr
from zk_group.coordinator.zk.runtime import ENDINGS, ThreadRuntime, on_signals
from zk_group.coordinator.zk.values import in_chunks
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.coordinator.zk.znodes.records import Topic

from .watching import Shot, printed

log = logging.getLogger(__name__)

COLUMNS = ("TOPIC", "PARTITIONS", "TOPIC-ID", "ERROR")

partitions_option = click.option(
    "--partitions", type=click.IntRange(1, admin.MAX_PARTITIONS), required=True, help="Total number of partitions."
)

EXPORTED = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "STATUS")
SYNCED = ("TOPIC", "CHANGE", "PARTITIONS", "TOPIC-ID", "REASON")
AT_ONCE = 500
"""Number of topics in one metadata request."""
MAY_BE_SET = ("EMPTY", "DEAD")
"""States of a group in Kafka."""


@click.group(cls=cli.Cli)
def topics() -> None:
    """The topics that groups consume. Those of a real Kafka are only listed."""


@topics.command()
@click.argument("name")
@partitions_option
@printed(cli.brokers_option, make_chroot=True)
def create(reading: Reading, name: str, partitions: int, brokers: Brokers) -> Shot:
    """Create topic NAME."""
    return _shot(reading, brokers, {name: admin.create_topic(reading.store, brokers, name, partitions)})


@topics.command("list")
@printed(cli.brokers_option)
def list_(reading: Reading, brokers: Brokers) -> Shot:
    """List all topics; one whose znode cannot be read is listed with the reason."""
    return _shot(reading, brokers, admin.list_topics(reading, brokers))


@topics.command()
@click.argument("name")
@partitions_option
@printed(cli.brokers_option)
def alter(reading: Reading, name: str, partitions: int, brokers: Brokers) -> Shot:
    """Give topic NAME more partitions."""
    return _shot(reading, brokers, {name: admin.alter_topic(reading.store, brokers, name, partitions)})


@topics.command()
@click.argument("name")
@click.option("--execute", is_flag=True, help="Delete; without it, only show what would be removed.")
@cli.env_option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The embedded log; the topic's data is removed from it too.",
)
@printed(cli.brokers_option)
def delete(reading: Reading, name: str, execute: bool, log_dir: Path | None, brokers: Brokers) -> Shot:
    """Delete topic NAME: its znodes, and its data when --log-dir is given. A dry run without --execute."""
    store = reading.store
    znodes = admin.topic_znodes(store, brokers, name)
    # The znodes of an unreadable topic can be deleted; which data is its own is unknown.
    topic = listed_topic(reading, brokers, name, store.get(brokers.topic(name)))
    data = _data(log_dir, topic)
    if execute:
        znodes = admin.delete_topic(store, brokers, name)
        if log_dir is not None and topic is not None:
            from zk_group.consumer.logs.embedded.log import remove_topic

            # After the znodes: writers and fetchers have been notified, or will find the folder missing.
            remove_topic(log_dir, topic.name, topic.id)
    rows = [*(("znode", path) for path in znodes), *(("data", str(path)) for path in data)]
    notes = () if execute else ("nothing was removed: this was a dry run, delete with --execute",)
    return Shot(("KIND", "PATH"), rows, notes)


def _shot(reading: Reading, brokers: Brokers, topics: Mapping[str, Topic | None]) -> Shot:
    rows = []
    for name, topic in topics.items():
        partitions, topic_id = (len(topic.partitions), topic.id) if topic is not None else (None, None)
        rows.append((name, partitions, topic_id, reading.problems.get(brokers.topic(name))))
    return Shot(COLUMNS, rows)


def _data(log_dir: Path | None, topic: Topic | None) -> list[Path]:
    """The folder of the topic's data, if it exists."""
    if log_dir is None or topic is None:
        return []
    from zk_group.consumer.logs.embedded.log import topic_folder  # loads pyarrow, needed only here

    folder = topic_folder(log_dir, topic.name, topic.id)
    return [folder] if topic.id in below.folders(log_dir, [topic.name]) else []


if TYPE_CHECKING:
    from zk_group.consumer.logs.base import LogError
    from zk_group.consumer.logs.kafka.requests import Described, Requests

# ---- a Kafka, once or again and again


Row = tuple[str, str, int, int, str]
"""The group's name in Kafka, topic, partition, offset, result."""

Acts = tuple[Callable[[], Iterable[Sequence[object]]], Callable[[], object], Callable[[str], object]]
"""A command's single action, with rows to print; its action at each time of `--every`; its log of a failure."""


def on_kafka(columns: Sequence[str]) -> Callable[[Callable[..., Acts]], Callable[..., None]]:
    """A command from a function that gets a client of the brokers, `zk` and the command's own options."""

    def framed(take: Callable[..., Acts]) -> Callable[..., None]:
        @cli.env_option("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="Kafka's brokers.")
        @cli.kafka_option
        @click.option("--every", "every_s", type=cli.Seconds(0.1), metavar="S", help="Repeat every S seconds.")
        @cli.zk_option
        @cli.output_option
        @cli.log_options
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
            from zk_group.consumer.logs.kafka.options import bootstrap_servers as parsed_servers
            from zk_group.consumer.logs.kafka.options import kafka_options
            from zk_group.consumer.logs.kafka.requests import Requests  # loads pyarrow, needed only here

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
            shown = existing_group(Reading(store), group)
        return exported(client, name or group, shown)

    return export, export, lambda why: log.warning("offset export failed, retrying: group=%s reason=%s", group, why)


def exported(client: Requests, name: str, group: ShownGroup) -> list[Row]:
    """Commit a group's offsets as those of Kafka's group `name`; a row for each.

    :raises UsageError: when that group has members in Kafka.
    :raises CoordinatorError: when Kafka does not answer.
    """
    state, members = client.group(name)
    if state not in MAY_BE_SET or members:
        raise UsageError(
            f"group {name} has {members} members in Kafka ({state.capitalize()}), which own its offsets there: "
            "stop them, or export under another name with --as"
        )
    offsets: dict[tuple[str, int], int] = {p.partition: p.offset for p in group.partitions if p.offset is not None}
    strange = mismatches(client, group)
    valid = {part: offset for part, offset in offsets.items() if part not in strange}
    reasons = {**strange, **(client.commit_offsets(name, valid) if valid else {})}
    return [(name, *part, offset, reasons.get(part, "Successful")) for part, offset in sorted(offsets.items())]


def mismatches(client: Requests, group: ShownGroup) -> dict[tuple[str, int], str]:
    """Partitions whose topic id differs from Kafka's, or that Kafka does not have, with the reason."""
    from zk_group.consumer.logs.base import LogError
    from zk_group.consumer.logs.kafka.topics import checked

    topics = {part.partition.topic for part in group.partitions if part.topic_id is not None}
    answers = client.describe(topics).results() if topics else {}
    reasons: dict[tuple[str, int], str] = {}
    for part in group.partitions:
        topic, number = part.partition
        try:
            if part.topic_id is None:
                reasons[part.partition] = "its topic has no id"
            elif number not in checked(topic, part.topic_id, answers[topic]).partitions:
                reasons[part.partition] = "Kafka has no such partition"
        except LogError as error:
            reasons[part.partition] = str(error)
    return reasons


# ---- topics sync


@topics.command()
@on_kafka(SYNCED)
@cli.brokers_option
def sync(client: Requests, zk: str, brokers: Brokers) -> Acts:
    """Make /brokers/topics match the topics, ids and partitions of a Kafka in KRaft mode.

    Prints the changes; with --every it continues until SIGTERM or Ctrl-C, logs each change, and retries while Kafka or
    ZooKeeper is unavailable. Topics that no sync has created are left alone.
    """

    left_alone: set[admin.Change] = set()

    def changes() -> list[admin.Change]:
        with cli.opened(zk, make_chroot=True) as store:
            cluster, names = client.cluster()
            answers: dict[str, Described | LogError] = {}
            for batch in in_chunks(names, AT_ONCE):
                answers |= client.describe(batch).results()
            there, unreadable = readable_topics(answers)
            return admin.sync_topics(store, brokers, there, cluster, unreadable)

    def logged() -> None:
        """Each change; an unchanged topic only once."""
        nonlocal left_alone
        current = changes()
        before, left_alone = left_alone, {change for change in current if change.what == admin.LEFT_ALONE}
        for change in current:
            if change.what != admin.LEFT_ALONE:
                log.info(
                    "topic synced: topic=%s change=%s partitions=%s id=%s",
                    change.topic, change.what, change.partitions, change.id,
                )  # fmt: skip
            elif change not in before:
                log.warning("topic sync failed: topic=%s reason=%s", change.topic, change.reason)

    return changes, logged, lambda why: log.warning("topic sync failed, retrying: reason=%s", why)


def readable_topics(answers: Mapping[str, Described | CoordinatorError]) -> tuple[dict[str, Topic], dict[str, str]]:
    """The brokers' topics, and those whose metadata they do not return, with the reasons. Pure.

    A topic that was deleted since it was listed is in neither.

    :raises CoordinatorError: the first error, when no topic is readable.
    """
    topics: dict[str, Topic] = {}
    errors: dict[str, CoordinatorError] = {}
    for name, answer in answers.items():
        if isinstance(answer, CoordinatorError):
            errors[name] = answer
        elif not answer.error:
            topics[name] = Topic(name, answer.id, tuple(sorted(answer.partitions)))
    if errors and not topics:
        raise next(iter(errors.values()))
    return topics, {name: str(error) for name, error in errors.items()}
