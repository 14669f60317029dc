"""The consumer's configuration."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field

from coordinator.zk.config import EVERYWHERE, require
from coordinator.zk.errors import BadData, UsageError
from coordinator.zk.names import checked_name
from coordinator.zk.patterns import TopicFilter
from coordinator.zk.records import PATTERNS


def _default_name() -> str:
    host = "".join(char if char.isalnum() or char in "-_" else "-" for char in socket.gethostname())
    return f"{host[:100]}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Checked when built. Names as Kafka's where Kafka has one.

    :ivar zk: servers and chroot, `host:port,host:port/chroot`.
    :ivar consumer: this consumer's name; the newest process under a name has it.
    :ivar log_dir: the embedded log's folder (or URL of another log).
    :ivar protocols: assignment strategies, the preferred first.
    :ivar max_poll_interval_ms: without a poll for so long, the consumer leaves.
    :ivar max_poll_records: records that one poll returns at most.
    :ivar fetch_max_bytes: bytes that one poll returns at most, but for the first record.
    :ivar offsets_interval_ms: how often offsets that moved are also written into `offsets/`.
    :ivar metrics_port: where `/metrics` is served; 0 serves none.
    :ivar metrics_host: the address to serve it on.
    :ivar history_dir: a folder for the history that the checker decides invariants from; empty keeps none.
    """

    zk: str
    group: str
    consumer: str = field(default_factory=_default_name)
    log_dir: str = ""
    protocols: tuple[str, ...] = ("range",)
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024
    offsets_interval_ms: int = 60_000
    metrics_port: int = 0
    metrics_host: str = EVERYWHERE
    history_dir: str = ""

    def __post_init__(self) -> None:
        checked_name("group", self.group)
        checked_name("consumer", self.consumer)
        require(bool(self.zk), "name the ZooKeeper servers: --zk HOST:PORT,HOST:PORT/CHROOT")
        require(self.session_timeout_ms >= 100, "session_timeout_ms must be 100 or more")
        require(self.connect_timeout_ms > 0, "connect_timeout_ms must be positive")
        require(1000 <= self.max_poll_interval_ms < 2**31, "max_poll_interval_ms must be 1000 or more")
        require(self.max_poll_records == -1 or self.max_poll_records > 0, "max_poll_records must be positive, or -1")
        require(self.fetch_max_bytes > 0, "fetch_max_bytes must be positive")
        require(self.offsets_interval_ms > 0, "offsets_interval_ms must be positive")
        require(0 <= self.metrics_port <= 65_535, "metrics_port must be from 0 (off) to 65535")
        require(bool(self.metrics_host), "metrics_host must be an address of this host")
        require(bool(self.protocols), "protocols must name at least one strategy")


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer wants.

    :ivar topics: topic -> threads, or for a wildcard one pattern -> threads.
    :ivar pattern: `static`, `white_list` or `black_list`.
    """

    topics: dict[str, int]
    pattern: str = "static"

    def __post_init__(self) -> None:
        require(bool(self.topics), "subscribe to at least one topic or pattern")
        require(self.pattern in PATTERNS, f"pattern must be one of {', '.join(PATTERNS)}")
        require(all(threads > 0 for threads in self.topics.values()), "a topic needs at least one thread")
        if self.pattern == "static":
            for topic in self.topics:
                checked_name("topic", topic)
        else:
            require(len(self.topics) == 1, "a wildcard is one pattern")
            try:
                TopicFilter(self.pattern, next(iter(self.topics)))
            except BadData as error:
                raise UsageError(str(error)) from error
