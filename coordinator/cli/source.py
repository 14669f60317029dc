"""Options for the log that a command reads offsets from, `--log-dir`, and for where Kafka is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coordinator.zk.cli import bootstrap_option, kafka_option
from coordinator.zk.paths import Brokers

if TYPE_CHECKING:
    from consumer.logs import Log

Command = TypeVar("Command", bound=Callable[..., Any])

brokers_needed_option = click.option(
    "--bootstrap-servers",
    required=True,
    envvar="ZK_GROUP_BOOTSTRAP_SERVERS",
    show_envvar=True,
    metavar="HOST:PORT,...",
    help="Kafka's brokers.",
)
"""For commands that do nothing without Kafka."""

every_option = click.option(
    "--every", "every_s", type=click.FloatRange(min=0.1), metavar="S", help="Again every S seconds."
)


def source_options(is_needed: bool) -> Callable[[Command], Command]:
    """`--log-dir`, `--bootstrap-servers` and `--kafka`, given to the command under these names.

    :param is_needed: whether the command can do nothing without the log.
    """
    log_dir = click.option(
        "--log-dir",
        envvar="ZK_GROUP_LOG_DIR",
        show_envvar=True,
        required=is_needed,
        help="The log, for its end and the lag: the embedded log's folder, kafka: or kafka://HOST:PORT.",
    )
    return lambda command: log_dir(bootstrap_option(kafka_option(command)))


def opened_source(
    log_dir: str, zk: str, brokers: Brokers, bootstrap_servers: str, kafka: Mapping[str, str] | None
) -> Log:
    """The log.

    :raises UsageError: when the options name none.
    """
    from consumer.logs import KafkaPlace, open_log  # loads pyarrow, which nothing else here needs

    return open_log(log_dir, KafkaPlace(zk, brokers.brokers_path, bootstrap_servers, kafka or {}))
