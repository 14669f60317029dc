"""`zk-consumer run`: one consumer that prints what it reads as JSON lines."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterable
from typing import Any

import click

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer, Record
from consumer.errors import CommitFailed
from coordinator.zk.cli_config import built, config_options, log_options, log_to_stderr
from coordinator.zk.errors import UsageError
from coordinator.zk.records import BLACK_LIST, STATIC, WHITE_LIST
from coordinator.zk.runtime import Event, ThreadRuntime, on_signals

HELPS = {
    "zk": "The ZooKeeper servers, as host:port,host:port/chroot.",
    "group": "The consumer group.",
    "consumer": "This consumer's name; host and process number when it is not given.",
    "log_dir": "The embedded log's folder.",
    "session_timeout_ms": "The ZooKeeper session timeout to ask for.",
    "connect_timeout_ms": "How long to wait for a ZooKeeper server at the start.",
    "max_poll_interval_ms": "Without a poll for so long, the consumer leaves.",
    "max_poll_records": "Records that one poll returns at most; -1 for no bound.",
    "fetch_max_bytes": "Bytes that one poll returns at most.",
    "offsets_interval_ms": "How often moved offsets also go into offsets/.",
    "metrics_port": "Serve /metrics for Prometheus on this port; 0 does not.",
    "metrics_host": "The address to serve it on.",
    "history_dir": "Keep a history of what this consumer does in this folder, for the checker.",
}


@click.command()
@config_options(ConsumerConfig, HELPS)
@click.option("--topics", help="Topics with their threads, as a:2,b.")
@click.option("--white-list", metavar="RE[:THREADS]", help="Every topic whose whole name matches.")
@click.option("--black-list", metavar="RE[:THREADS]", help="Every topic whose name does not match.")
@click.option("--max-records", type=click.IntRange(1), help="End after so many records.")
@log_options
def run(
    topics: str | None,
    white_list: str | None,
    black_list: str | None,
    max_records: int | None,
    log_level: str,
    log_format: str,
    **options: Any,
) -> None:
    """Consume, print each record as one JSON line on stdout, and commit. SIGTERM and Ctrl-C leave the group cleanly."""
    log_to_stderr(log_level, log_format)
    subscription = parsed_subscription(topics, white_list, black_list)
    config = built(ConsumerConfig, options)
    if not config.log_dir:
        raise UsageError("name the log to read: --log-dir DIR, or set ZK_GROUP_LOG_DIR")
    stopping = ThreadRuntime().event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    with Consumer(config, subscription) as consumer:
        _consume(consumer, stopping, max_records)


def _consume(consumer: Consumer, stopping: Event, max_records: int | None) -> None:
    printed = 0
    while not stopping.is_set() and (max_records is None or printed < max_records):
        most = None if max_records is None else max_records - printed
        for records in consumer.poll(500, most).values():
            _print(records)
            printed += len(records)
        try:
            consumer.commit()
        except CommitFailed as error:
            click.echo(f"error: {error}", err=True)


def _print(records: Iterable[Record]) -> None:
    for record in records:
        click.echo(json.dumps(_as_json(record), separators=(",", ":")))


def _as_json(record: Record) -> dict[str, object]:
    """Bytes as text where they are UTF-8, else as base64 under `key_base64`, `value_base64`."""
    shown: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        shown |= _text(name, data)
    if record.headers:
        shown["headers"] = [{"name": name, **_text("value", data)} for name, data in record.headers]
    return shown


def _text(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def parsed_subscription(topics: str | None, white_list: str | None, black_list: str | None) -> Subscription:
    """The subscription that the options name.

    :raises UsageError: when not exactly one of them is given, or it does not say topics and threads.
    """
    given = [option for option in (topics, white_list, black_list) if option is not None]
    if len(given) != 1:
        raise UsageError("give exactly one of --topics, --white-list and --black-list")
    if topics is not None:
        pairs = [_name_and_threads(part, is_pattern=False) for part in topics.split(",") if part.strip()]
        return Subscription(dict(pairs), STATIC)
    name, threads = _name_and_threads(given[0], is_pattern=True)
    return Subscription({name: threads}, WHITE_LIST if white_list is not None else BLACK_LIST)


def _name_and_threads(text: str, is_pattern: bool) -> tuple[str, int]:
    name, colon, threads = text.strip().rpartition(":")
    if not colon or (is_pattern and not threads.isdecimal()):
        return text.strip(), 1
    if not threads.isdecimal() or not 1 <= int(threads) <= 10_000:
        raise UsageError(f"{text!r} needs a number of threads from 1 to 10000 after the colon")
    return name, int(threads)
