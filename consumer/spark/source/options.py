"""The options of `format("zk_group")`, and the names of the readers of one query."""

from __future__ import annotations

import difflib
import errno
import hashlib
import itertools
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import ZooKeeperAccess, spark_options
from coordinator.zk.values import checked_hosts, require
from coordinator.zk.znodes.cuts import checkpoint_named
from coordinator.zk.znodes.paths import checked_name, shown

from .segment_index import is_segment

EARLIEST = "earliest"
LATEST = "latest"
KAFKA = "kafka."
TOPICS_OF_KAFKA = ("subscribe", "subscribepattern", "assign")
"""Options of Spark's Kafka source for which there is none."""


@dataclass(frozen=True, slots=True)
class SourceConfig(ZooKeeperAccess):
    """The options of `format("zk_group")`.

    :ivar query: the query's name; a second reader of one stream (a self-join) is `NAME.reader-2`. Generated when it is
        empty, and then kept in the checkpoint: such a query holds segments back while its driver runs, and for ten
        minutes after its session has ended.
    :ivar max_rows: `maxRecordsPerTrigger`: a batch ends before the segment that would exceed this; 0 for no limit.
    :ivar readers: maximum tasks that read a batch.
    :ivar fail_on_data_loss: false delivers the remaining records, and warns.
    :ivar starting_segments: `earliest`, the first existing segment, or `latest`, after the newest; for a batch read
        `earliest` or a segment's name. A query with a checkpoint continues there.
    :ivar ending_segments: of a batch read, `latest`, when it is planned, or a segment's name. In a consistent region
        both may be `checkpoint:NUMBER`: the segments after that cut, and those that belong to it.
    :ivar align_checkpoints: a batch ends at every checkpoint of the group's consistent region, whose number is then in
        the batch's end offset.
    :ivar log_dir: the log that the group fetches from, for its ends in a stream's progress; empty omits them.
    :ivar bootstrap_servers: with `brokers_path` and `kafka` as in `ConsumerConfig`, for a Kafka log.
    :ivar zk_wait_ms: how long a query waits for ZooKeeper's answer before it fails.
    """

    zk: str
    group: str
    query: str = ""
    max_rows: int = 0
    include_headers: bool = False
    readers: int = 2
    fail_on_data_loss: bool = True
    starting_segments: str = EARLIEST
    ending_segments: str = LATEST
    align_checkpoints: bool = False
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    zk_wait_ms: int = 120_000
    log_dir: str = ""
    bootstrap_servers: str = ""
    brokers_path: str = "/brokers"
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """See `Values`."""
        checked_hosts(self.zk)
        checked_name("group", self.group)
        if self.query:
            checked_name("query", self.query)
        require(self.max_rows >= 0, "maxRecordsPerTrigger must be positive")
        require(1 <= self.readers <= 1000, "readers must be from 1 to 1000")
        for option, value in (("startingSegments", self.starting_segments), ("endingSegments", self.ending_segments)):
            known = value in (EARLIEST, LATEST) or is_segment(value) or checkpoint_named(value)
            names = f"{EARLIEST}, {LATEST}, a segment's name or checkpoint:NUMBER"
            require(bool(known), f"{option} must be {names}, not {shown(value)}")


def source_config(options: Mapping[str, str]) -> SourceConfig:
    """The options of a `readStream` or `read`, with names in Spark's style.

    :raises UsageError: when one is unknown, missing or wrong.
    """
    known: list[str] = []

    def text(name: str, default: str = "") -> str:
        known.append(name)
        return options.get(name, default)

    def flag(name: str, default: str) -> bool:
        value = text(name, default).lower()
        require(value in ("true", "false"), f"option {name} must be true or false")
        return value == "true"

    def number(name: str, default: int) -> int:
        value = text(name, str(default))
        require(value.isascii() and value.isdigit(), f"option {name} must be a whole number")
        return int(value)

    defaults = ZooKeeperAccess()
    values: dict[str, Any] = {
        "zk": text("zk"),
        "group": text("group"),
        "query": text("query"),
        "max_rows": number("maxRecordsPerTrigger", 0),
        "include_headers": flag("includeHeaders", "false"),
        "readers": number("readers", 2),
        "fail_on_data_loss": flag("failOnDataLoss", "true"),
        "starting_segments": text("startingSegments", EARLIEST).strip().lower(),
        "ending_segments": text("endingSegments", LATEST).strip().lower(),
        "align_checkpoints": flag("alignCheckpoints", "false"),
        "session_timeout_ms": number("sessionTimeoutMs", 10_000),
        "connect_timeout_ms": number("connectTimeoutMs", 15_000),
        "zk_wait_ms": number("zkWaitMs", 120_000),
        **{
            name: flag(option, shown) if shown in ("true", "false") else text(option)
            for name, (option, shown) in zip(asdict(defaults), spark_options(defaults).items(), strict=True)
        },
        "log_dir": text("logDir"),
        "bootstrap_servers": text("bootstrapServers"),
        "brokers_path": text("brokersPath", "/brokers"),
        "kafka": {name: value for name, value in options.items() if name.lower().startswith(KAFKA)},
    }
    for name in options:
        if not name.lower().startswith(KAFKA):
            _check_known(name, known)
    return SourceConfig(**values)


def _check_known(name: str, known: Sequence[str]) -> None:
    """
    :raises UsageError: when the source has no such option; with the nearest name.
    """
    by_lower = {each.lower(): each for each in known}  # Spark's options are case-insensitive
    if name.lower() in by_lower:
        return
    if name.lower() in TOPICS_OF_KAFKA:
        raise UsageError(f"the source has no option {shown(name)}: the group's topics are those of its FetcherPool")
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(known)}"
    raise UsageError(f"the source has no option {shown(name)}: {hint}")


class ClaimedReader:
    """The number of one reader of a new query: a stream that is joined with itself has one reader for each side.

    Spark runs each in a child process of the driver's JVM, and gives it neither the checkpoint nor its side. So each
    claims a number, while its process lives, by an abstract socket (unix(7)): the first has the query's name, the next
    `NAME.reader-2`. The name is then in the reader's offsets: a restarted query needs no number.

    :raises UsageError: when the name of a further reader is too long.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self.query = config.query
        for number in itertools.count(2):
            place = (os.getppid(), config.zk, config.group, self.query)
            try:
                self._socket.bind(b"\0zk-group-" + hashlib.sha256(repr(place).encode()).hexdigest().encode())
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            self.query = checked_name("query", f"{config.query}.reader-{number}")

    def close(self) -> None:
        """Release the number."""
        self._socket.close()


def is_reader_of(query: str, name: str) -> bool:
    """Whether `query`, of an offset, is a reader of the query that the application calls `name`."""
    return re.fullmatch(re.escape(name) + r"(\.reader-\d+)?", query) is not None
