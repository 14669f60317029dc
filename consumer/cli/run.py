"""`zk-consumer run`: one consumer that prints its records, or its events, as JSON lines."""

from __future__ import annotations

import math
from typing import Any

import click

from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.errors import AssignmentFailed, CommitFailed
from zk_group.coordinator.zk.errors import CoordinatorError, IncarnationOver, UsageError
from zk_group.coordinator.zk.process.cli import built, config_options, kafka_option, log_options
from zk_group.coordinator.zk.process.log_format import log_to_stderr
from zk_group.coordinator.zk.runtime import ENDINGS, Event, Runtime, ThreadRuntime, on_signals
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, STATIC, WHITE_LIST

from .output import EventLines, RecordLines, run_child

HELPS = {
    "zk": "The ZooKeeper servers, as host:port,host:port/chroot.",
    "group": "The consumer group.",
    "consumer": "This consumer's name; host, process and random digits by default.",
    "group_instance_id": "Static member name: a restart within the session timeout causes no rebalance.",
    "log_dir": "The embedded log's folder; kafka: or kafka://HOST:PORT for Kafka.",
    "bootstrap_servers": "Kafka's brokers; those registered in ZooKeeper by default.",
    "brokers_path": "The znode below which Kafka's brokers are registered.",
    "assignment": "Assigning side: coordinator, client (the group's leader), or both, the preferred first.",
    "protocols": "Assignment strategies, the preferred first; lag and rack for client-side assignment only.",
    "assignment_delay_ms": "The leader's delay after a topic change before a rebalance.",
    "client_rack": "The rack of this consumer.",
    "region": "Consistent region: offsets move with its checkpoints, without commits.",
    "checkpoint_dir": "Storage of large checkpoint states: a folder or URI that all members, and no other chroot, use.",
    "start_position": "Where the group begins: beginning, end, committed, or a time (ISO 8601, or epoch milliseconds).",
    "auto_offset_reset": "Position without an offset, or after one out of range: earliest, latest or none.",
    "session_timeout_ms": "The requested ZooKeeper session timeout.",
    "connect_timeout_ms": "Time limit for the first connection to ZooKeeper.",
    "max_poll_interval_ms": "Maximum time between polls; after it the consumer leaves.",
    "max_poll_records": "Maximum records of one poll; -1 for no limit.",
    "poll_order": "Order of partitions in a poll: greedy, or proportional.",
    "prefetch": "Prefetching while records are buffered: share, or total.",
    "fetch_max_bytes": "Maximum bytes of one fetch, and of one poll.",
    "max_partition_fetch_bytes": "Maximum bytes of one partition in one fetch.",
    "buffer_memory": "Maximum bytes of buffered records.",
    "enable_auto_commit": "Commit periodically, before a rebalance and at the end, instead of after each poll.",
    "auto_commit_interval_ms": "Interval of automatic commits.",
    "offsets_interval_ms": "Interval at which changed offsets are also written into offsets/.",
    "metrics_port": "Port of /metrics for Prometheus, and of /healthz; 0 disables it.",
    "metrics_host": "The address to listen on; 0.0.0.0 for all of this host.",
    "history_dir": "Folder for this consumer's history, for the checker.",
}

POLL_MS = 500


@click.command()
@config_options(ConsumerConfig, HELPS)
@kafka_option
@click.option("--topics", help="Topics with their threads, as a:2,b.")
@click.option("--white-list", metavar="RE[:THREADS]", help="Every topic whose whole name matches.")
@click.option("--black-list", metavar="RE[:THREADS]", help="Every topic whose name does not match.")
@click.option("--exec", "command", metavar="CMD", help="With --region: a command that processes the records.")
@click.option(
    "--exec-timeout-ms",
    type=click.IntRange(100),
    default=60_000,
    show_default=True,
    help="Time limit for the command to read input, and to answer.",
)
@click.option("--max-records", type=click.IntRange(1), help="End after so many records.")
@click.option("--timeout-ms", type=click.IntRange(1), help="End when no record has come for so long.")
@click.option("--events", is_flag=True, help="Print events, as Kafka's VerifiableConsumer, instead of records.")
@click.option("--verbose", is_flag=True, help="With --events: each record, too.")
@log_options
def run(
    topics: str | None,
    white_list: str | None,
    black_list: str | None,
    command: str | None,
    exec_timeout_ms: int,
    max_records: int | None,
    timeout_ms: int | None,
    events: bool,
    verbose: bool,
    log_level: str,
    log_format: str,
    **options: Any,
) -> None:
    """Consume, print each record as one JSON line on stdout, and commit. SIGTERM, SIGHUP and Ctrl-C leave the group.

    It runs until then, or as --max-records and --timeout-ms have it, as kafka-console-consumer: the first waiting time
    includes joining the group.

    With --events it prints the events of Kafka's VerifiableConsumer: assigned, revoked, lost, consumed, committed.
    With --region and --exec a command in any language receives the records as lines of JSON, and keeps an
    exactly-once state (docs/regions.md).
    """
    if verbose and not events:
        raise UsageError("--verbose adds records to --events: give both")
    if command is not None and (events or max_records is not None or timeout_ms is not None):
        raise UsageError("--exec hands all records to its command: leave out --events, --max-records and --timeout-ms")
    log_to_stderr(log_level, log_format)
    subscription = parsed_subscription(topics, white_list, black_list)
    config = built(ConsumerConfig, options)
    if command is not None and not config.region:
        raise UsageError("--exec needs a consistent region, which keeps its state: add --region NAME")
    if not config.log_dir:
        raise UsageError("name the log to read: --log-dir DIR (or kafka:), or set ZK_GROUP_LOG_DIR")
    runtime = ThreadRuntime()
    config = config.named(runtime)
    stopping = runtime.event()
    on_signals(ENDINGS, lambda number: stopping.set())
    try:
        if command is not None:
            run_child(config, subscription, command, exec_timeout_ms / 1000, stopping, runtime)
            return
        output = EventLines(config.consumer, runtime.wall_ms, verbose) if events else RecordLines(config.consumer)
        consumer = Consumer(config, subscription, output)
        try:
            with consumer:
                output.started()
                commits = not config.enable_auto_commit and not config.region
                _consume(consumer, output, stopping, max_records, timeout_ms, commits, runtime)
        finally:
            output.ended()
    except IncarnationOver as over:  # Kafka's name of the error first
        raise CoordinatorError(f"{type(over).__name__}: {over}") from over


def _consume(
    consumer: Consumer,
    output: RecordLines,
    stopping: Event,
    max_records: int | None,
    timeout_ms: int | None,
    commits: bool,
    runtime: Runtime,
) -> None:
    count = 0
    last = runtime.monotonic()
    while not stopping.is_set() and (max_records is None or count < max_records):
        most = None if max_records is None else max_records - count
        idle_ms = 1000 * (runtime.monotonic() - last)
        left_ms = POLL_MS if timeout_ms is None else math.ceil(timeout_ms - idle_ms)
        if left_ms <= 0:
            click.echo(f"no record came for {timeout_ms} ms: {count} records in all", err=True)
            return
        try:
            polled = consumer.poll(min(POLL_MS, left_ms), most)
        except AssignmentFailed as failure:
            output.assignment_failed(failure)
            continue
        output.polled(polled)
        if some := sum(map(len, polled.values())):
            count, last = count + some, runtime.monotonic()
        if not commits:
            continue
        offsets = {partition: records[-1].offset + 1 for partition, records in polled.items() if records}
        try:
            consumer.commit()
            output.committed(offsets)
        except CommitFailed as error:
            output.not_committed(offsets, error)


def parsed_subscription(topics: str | None, white_list: str | None, black_list: str | None) -> Subscription:
    """The subscription that the options name.

    :raises UsageError: unless exactly one of them is given, with valid topics and threads.
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
