"""Options for the log of a command, `--log-dir`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from coordinator.admin.offsets import BoundsOf, LogBounds
from coordinator.zk.process.cli import bootstrap_option, command_access, env_option, kafka_option
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

if TYPE_CHECKING:
    from consumer.logs import Log

Command = TypeVar("Command", bound=Callable[..., Any])


OpenLog = Callable[[str, Brokers], "Log"]
"""Opens the log that a command's options name, by `--zk` and `--brokers-path`. It raises UsageError for a bad name."""


def source_options(is_needed: bool) -> Callable[[Command], Command]:
    """`--log-dir`, `--bootstrap-servers` and `--kafka`, given to the command as `source`, an `OpenLog`, or None.

    :param is_needed: whether the command requires the log.
    """
    log_dir = env_option(
        "--log-dir",
        required=is_needed,
        help="The log, for its end and the lag: the embedded log's folder, kafka: or kafka://HOST:PORT.",
    )

    def with_source(command: Command) -> Command:
        @wraps(command)
        def run(
            *args: Any, log_dir: str | None, bootstrap_servers: str, kafka: Mapping[str, str] | None, **rest: Any
        ) -> Any:
            def opened(zk: str, brokers: Brokers) -> Log:
                from consumer.logs import KafkaPlace, open_log  # loads pyarrow, needed only here

                place = KafkaPlace(zk, brokers.brokers_path, bootstrap_servers, kafka or {}, command_access())
                return open_log(log_dir or "", place)

            return command(*args, source=opened if log_dir or is_needed else None, **rest)

        return cast(Command, run)

    return lambda command: log_dir(bootstrap_option(kafka_option(with_source(command))))


def bounds_in(source: Log) -> BoundsOf:
    """Earliest and latest offsets of a log's partitions; 0 for those without records."""
    from consumer.logs import UnknownTopic

    def bounds_of(topic: Topic, partition: int, timestamp_ms: int | None) -> LogBounds:
        place = (topic.name, topic.id, partition)
        try:
            latest = source.latest(*place)  # read first: later records are after it
            at = min(latest, source.offset_for_timestamp(*place, timestamp_ms)) if timestamp_ms is not None else None
            return LogBounds(source.earliest(*place), latest, at)
        except UnknownTopic:
            return LogBounds(0, 0, None)

    return bounds_of
