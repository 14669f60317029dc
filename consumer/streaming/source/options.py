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
from dataclasses import dataclass, fields
from typing import Any

from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.security.access import spark_name
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.values import checked_hosts, require
from zk_group.coordinator.zk.znodes.cuts import checkpoint_named
from zk_group.coordinator.zk.znodes.paths import checked_name, shown

from ...config import GroupAccess
from .segment_index import is_segment

EARLIEST = "earliest"
LATEST = "latest"
KAFKA = "kafka."
TOPICS_OF_KAFKA = ("subscribe", "subscribepattern", "assign")
"""Options of Spark's Kafka source for which there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig(GroupAccess):
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
    :ivar zk_wait_ms: how long a query waits for ZooKeeper's answer before it fails.
    """

    query: str = ""
    max_rows: int = 0
    include_headers: bool = False
    readers: int = 2
    fail_on_data_loss: bool = True
    starting_segments: str = EARLIEST
    ending_segments: str = LATEST
    align_checkpoints: bool = False
    zk_wait_ms: int = 120_000

    def check(self) -> None:
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

    @property
    def session_opener(self) -> StoreFactory:
        """Opens sessions of the query."""
        return self.opener(f"query {self.query or self.group}")


OPTIONS = {
    "maxRecordsPerTrigger" if each.name == "max_rows" else spark_name(each.name): each
    for each in sorted(
        fields(SourceConfig), key=lambda each: (each.kw_only, each.name not in SourceConfig.__annotations__)
    )
    if each.name != "kafka"
}
"""Option of Spark -> its field; those of `kafka` have their own names."""


def source_config(options: Mapping[str, str]) -> SourceConfig:
    """The options of a `readStream` or `read`, with names in Spark's style.

    :raises UsageError: when one is unknown, missing or wrong.
    """
    kafka = {name: value for name, value in options.items() if name.lower().startswith(KAFKA)}
    values: dict[str, Any] = {"zk": "", "group": "", "kafka": kafka}
    for option, each in OPTIONS.items():
        if (text := options.get(option)) is None:
            continue
        if isinstance(each.default, bool):
            require(text.lower() in ("true", "false"), f"option {option} must be true or false")
        elif isinstance(each.default, int):
            require(text.isascii() and text.isdigit(), f"option {option} must be a whole number")
        values[each.name] = text.strip().lower() if each.name.endswith("_segments") else text
    for name in options:
        if name not in kafka:
            _check_known(name, list(OPTIONS))
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
