"""`zk-coordinator topics`: create, list, alter and delete the topics of the embedded log."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.admin import topics as admin
from coordinator.admin.groups import Reading
from coordinator.zk import below
from coordinator.zk.errors import BadData
from coordinator.zk.process.cli import Cli, brokers_option, env_option
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

from .watching import Shot, printed

COLUMNS = ("TOPIC", "PARTITIONS", "TOPIC-ID", "ERROR")

partitions_option = click.option(
    "--partitions", type=click.IntRange(1, admin.MAX_PARTITIONS), required=True, help="Total number of partitions."
)


@click.group(cls=Cli, places={"sync": f"{__package__}.kafka"})
def topics() -> None:
    """The topics that groups consume. Those of a real Kafka are only listed."""


@topics.command()
@click.argument("name")
@partitions_option
@printed(brokers_option, make_chroot=True)
def create(reading: Reading, name: str, partitions: int, brokers: Brokers) -> Shot:
    """Create topic NAME."""
    return _shot(admin.ListedTopic(name, admin.create_topic(reading.store, brokers, name, partitions), None))


@topics.command("list")
@printed(brokers_option)
def list_(reading: Reading, brokers: Brokers) -> Shot:
    """List all topics; one whose znode cannot be read is listed with the reason."""
    return _shot(*admin.list_topics(reading.store, brokers))


@topics.command()
@click.argument("name")
@partitions_option
@printed(brokers_option)
def alter(reading: Reading, name: str, partitions: int, brokers: Brokers) -> Shot:
    """Give topic NAME more partitions."""
    return _shot(admin.ListedTopic(name, admin.alter_topic(reading.store, brokers, name, partitions), None))


@topics.command()
@click.argument("name")
@click.option("--execute", is_flag=True, help="Delete; without it, only show what would be removed.")
@env_option(
    "--log-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The embedded log; the topic's data is removed from it too.",
)
@printed(brokers_option)
def delete(reading: Reading, name: str, execute: bool, log_dir: Path | None, brokers: Brokers) -> Shot:
    """Delete topic NAME: its znodes, and its data when --log-dir is given. A dry run without --execute."""
    store = reading.store
    znodes = admin.topic_znodes(store, brokers, name)
    try:
        topic = admin.get_topic(store, brokers, name)
    except BadData:
        topic = None  # its znodes can be deleted; which data is its own is unknown
    data = _data(log_dir, topic)
    if execute:
        znodes = admin.delete_topic(store, brokers, name)
        if log_dir is not None and topic is not None:
            from consumer.logs.embedded.log import remove_topic

            # After the znodes: writers and fetchers have been notified, or will find the folder missing.
            remove_topic(log_dir, topic.name, topic.id)
    rows = [*(("znode", path) for path in znodes), *(("data", str(path)) for path in data)]
    notes = () if execute else ("nothing was removed: this was a dry run, delete with --execute",)
    return Shot(("KIND", "PATH"), rows, notes)


def _shot(*found: admin.ListedTopic) -> Shot:
    rows = [
        (
            each.name,
            len(each.topic.partitions) if each.topic else None,
            each.topic.id if each.topic else None,
            each.error,
        )
        for each in found
    ]
    return Shot(COLUMNS, rows)


def _data(log_dir: Path | None, topic: Topic | None) -> list[Path]:
    """The folder of the topic's data, if it exists."""
    if log_dir is None or topic is None:
        return []
    from consumer.logs.embedded.log import topic_folder  # loads pyarrow, needed only here

    folder = topic_folder(log_dir, topic.name, topic.id)
    return [folder] if topic.id in below.folders(log_dir, [topic.name]) else []
