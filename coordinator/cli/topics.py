"""`zk-coordinator topics`: create, list, alter and delete the topics of the embedded log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from coordinator.admin.topics import (
    MAX_PARTITIONS,
    ListedTopic,
    alter_topic,
    create_topic,
    delete_topic,
    get_topic,
    list_topics,
    topic_znodes,
)
from coordinator.zk import below
from coordinator.zk.errors import BadData
from coordinator.zk.process.cli import Cli, brokers_option, env_option, opened, output_option, print_rows, zk_option
from coordinator.zk.store import Store
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

COLUMNS = ("TOPIC", "PARTITIONS", "TOPIC-ID", "ERROR")

partitions_option = click.option(
    "--partitions", type=click.IntRange(1, MAX_PARTITIONS), required=True, help="Total number of partitions."
)


@click.group(cls=Cli, places={"sync": f"{__package__}.topics_sync"})
def topics() -> None:
    """The topics that groups consume. Those of a real Kafka are only listed."""


@topics.command()
@click.argument("name")
@partitions_option
@zk_option
@brokers_option
@output_option
def create(name: str, partitions: int, zk: str, brokers: Brokers, output: str) -> None:
    """Create topic NAME."""
    with opened(zk, make_chroot=True) as store:
        _print([_good(create_topic(store, brokers, name, partitions))], output)


@topics.command("list")
@zk_option
@brokers_option
@output_option
def list_(zk: str, brokers: Brokers, output: str) -> None:
    """List all topics; one whose znode cannot be read is listed with the reason."""
    with opened(zk) as store:
        _print(list_topics(store, brokers), output)


@topics.command()
@click.argument("name")
@partitions_option
@zk_option
@brokers_option
@output_option
def alter(name: str, partitions: int, zk: str, brokers: Brokers, output: str) -> None:
    """Give topic NAME more partitions."""
    with opened(zk) as store:
        _print([_good(alter_topic(store, brokers, name, partitions))], output)


@topics.command()
@click.argument("name")
@click.option("--execute", is_flag=True, help="Delete; without it, only show what would be removed.")
@env_option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The embedded log; the topic's data is removed from it too.",
)
@zk_option
@brokers_option
@output_option
def delete(name: str, execute: bool, log_dir: Path | None, zk: str, brokers: Brokers, output: str) -> None:
    """Delete topic NAME: its znodes, and its data when --log-dir is given. A dry run without --execute."""
    with opened(zk) as store:
        znodes = topic_znodes(store, brokers, name)
        topic = _readable(store, brokers, name)
        data = _data(log_dir, topic)
        if execute:
            znodes = delete_topic(store, brokers, name)
            # After the znodes: writers and fetchers have been notified, or will find the folder missing.
            _remove(log_dir, topic)
    _print_removal(znodes, data, output)
    if not execute:
        click.echo("nothing was removed: this was a dry run, delete with --execute", err=True)


def _readable(store: Store, brokers: Brokers, name: str) -> Topic | None:
    try:
        return get_topic(store, brokers, name)
    except BadData:
        return None  # its znodes can be deleted; which data is its own is unknown


def _good(topic: Topic) -> ListedTopic:
    return ListedTopic(topic.name, topic, None)


def _print(found: Iterable[ListedTopic], output: str) -> None:
    print_rows(COLUMNS, [_row(listed.name, listed.topic, listed.error) for listed in found], output)


def _row(name: str, topic: Topic | None, error: str | None) -> tuple[object, ...]:
    return (name, len(topic.partitions) if topic else None, topic.id if topic else None, error)


def _data(log_dir: Path | None, topic: Topic | None) -> list[Path]:
    """The folder of the topic's data, if it exists."""
    if log_dir is None or topic is None:
        return []
    from consumer.logs.embedded.log import topic_folder  # loads pyarrow, needed only here

    folder = topic_folder(log_dir, topic.name, topic.id)
    return [folder] if topic.id in below.folders(log_dir, [topic.name]) else []


def _remove(log_dir: Path | None, topic: Topic | None) -> None:
    if log_dir is None or topic is None:
        return
    from consumer.logs.embedded.log import remove_topic

    remove_topic(log_dir, topic.name, topic.id)


def _print_removal(znodes: Iterable[str], data: Iterable[Path], output: str) -> None:
    rows = [*(("znode", path) for path in znodes), *(("data", str(path)) for path in data)]
    print_rows(("KIND", "PATH"), rows, output)
