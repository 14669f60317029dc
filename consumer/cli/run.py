"""`zk-consumer run`: one consumer that prints what it reads, or what happens to it, as JSON lines."""

from __future__ import annotations

import signal
from typing import Any

import click

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.errors import AssignmentFailed, CommitFailed
from coordinator.zk.cli import kafka_option
from coordinator.zk.cli_config import built, config_options, log_options, log_to_stderr
from coordinator.zk.errors import CoordinatorError, IncarnationOver, UsageError
from coordinator.zk.records import BLACK_LIST, STATIC, WHITE_LIST
from coordinator.zk.runtime import Event, ThreadRuntime, on_signals

from .child import run_child
from .output import EventLines, RecordLines

HELPS = {
    "zk": "The ZooKeeper servers, as host:port,host:port/chroot.",
    "group": "The consumer group.",
    "consumer": "This consumer's name; host and process number when it is not given.",
    "group_instance_id": "Be a static member under this name: a restart within the session timeout moves nothing.",
    "assignment": "Who assigns: coordinator, client (the group's leader), or both, the preferred first.",
    "assignment_delay_ms": "As the leader: how long to wait for more changes of topics before a rebalance.",
    "client_rack": "The rack of this consumer.",
    "region": "A consistent region: nothing is committed, offsets move with the region's checkpoints.",
    "checkpoint_dir": "Where large states of checkpoints are: a folder or a URI that all members share.",
    "protocols": "Assignment strategies, the preferred first; lag and rack for client-side assignment only.",
    "start_position": "Where the group begins: beginning, end, committed, or a time (ISO 8601, or epoch milliseconds).",
    "auto_offset_reset": "Without an offset, or with one that the log does not have: earliest, latest or none.",
    "log_dir": "The embedded log's folder; kafka: or kafka://HOST:PORT for Kafka.",
    "bootstrap_servers": "Kafka's brokers; those registered in ZooKeeper when not given.",
    "brokers_path": "The znode below which Kafka's brokers are registered.",
    "session_timeout_ms": "The ZooKeeper session timeout to ask for.",
    "connect_timeout_ms": "How long to wait for a ZooKeeper server at the start.",
    "max_poll_interval_ms": "Without a poll for so long, the consumer leaves.",
    "max_poll_records": "Records that one poll returns at most; -1 for no bound.",
    "poll_order": "Whose records a poll returns: greedy, or proportional.",
    "prefetch": "What is fetched while records wait: share, or total.",
    "fetch_max_bytes": "Bytes that one fetch brings, and one poll returns, at most.",
    "max_partition_fetch_bytes": "Bytes that one fetch brings of one partition at most.",
    "buffer_memory": "Bytes of records that wait to be returned, at most.",
    "enable_auto_commit": "Commit now and then, before a rebalance and at the end, and not after each poll.",
    "auto_commit_interval_ms": "How often that is.",
    "offsets_interval_ms": "How often moved offsets also go into offsets/.",
    "metrics_port": "Serve /metrics for Prometheus on this port; 0 does not.",
    "metrics_host": "The address to serve it on.",
    "history_dir": "Keep a history of what this consumer does in this folder, for the checker.",
}


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
    help="The longest that it may take to read on, or to answer.",
)
@click.option("--max-records", type=click.IntRange(1), help="End after so many records.")
@click.option("--events", is_flag=True, help="Print what happens, as Kafka's VerifiableConsumer, and not the records.")
@click.option("--verbose", is_flag=True, help="With --events: each record, too.")
@log_options
def run(
    topics: str | None,
    white_list: str | None,
    black_list: str | None,
    command: str | None,
    exec_timeout_ms: int,
    max_records: int | None,
    events: bool,
    verbose: bool,
    log_level: str,
    log_format: str,
    **options: Any,
) -> None:
    """Consume, print each record as one JSON line on stdout, and commit. SIGTERM and Ctrl-C leave the group cleanly.

    With --events it prints what Kafka's VerifiableConsumer does: what is assigned, revoked, lost, consumed, committed.
    With --region and --exec a command in any language gets the records as lines of JSON, and keeps a state that is
    exactly-once (docs/regions.md).
    """
    if verbose and not events:
        raise UsageError("--verbose adds records to --events: give both")
    if command is not None and (events or max_records is not None):
        raise UsageError("--exec hands all records to its command: leave out --events and --max-records")
    log_to_stderr(log_level, log_format)
    subscription = parsed_subscription(topics, white_list, black_list)
    config = built(ConsumerConfig, options)
    if command is not None and not config.region:
        raise UsageError("--exec needs a consistent region, which keeps its state: add --region NAME")
    if not config.log_dir:
        raise UsageError("name the log to read: --log-dir DIR (or kafka:), or set ZK_GROUP_LOG_DIR")
    runtime = ThreadRuntime()
    stopping = runtime.event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    try:
        if command is not None:
            run_child(config, subscription, command, exec_timeout_ms / 1000, stopping, runtime)
            return
        output = EventLines(config.consumer, runtime.wall_ms, verbose) if events else RecordLines(config.consumer)
        _print(config, subscription, output, stopping, max_records)
    except IncarnationOver as over:  # the word that people know it by from Kafka comes first
        raise CoordinatorError(f"{type(over).__name__}: {over}") from over


def _print(
    config: ConsumerConfig, subscription: Subscription, output: RecordLines, stopping: Event, max_records: int | None
) -> None:
    consumer = Consumer(config, subscription, output)
    output.started()
    try:
        with consumer:
            commits = not config.enable_auto_commit and not config.region
            _consume(consumer, output, stopping, max_records, commits)
    finally:
        output.ended()


def _consume(consumer: Consumer, output: RecordLines, stopping: Event, max_records: int | None, commits: bool) -> None:
    count = 0
    while not stopping.is_set() and (max_records is None or count < max_records):
        most = None if max_records is None else max_records - count
        try:
            polled = consumer.poll(500, most)
        except AssignmentFailed as failure:
            output.assignment_failed(failure)
            continue
        output.polled(polled)
        count += sum(map(len, polled.values()))
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
