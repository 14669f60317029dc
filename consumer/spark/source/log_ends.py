"""The ends of a group's log, for the progress of a query: read in the background; the query never waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from coordinator.zk.errors import BadData, CoordinatorError
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Store, StoreFactory
from coordinator.zk.znodes.paths import GroupPaths, is_name
from coordinator.zk.znodes.ranges import is_partition
from coordinator.zk.znodes.records import OffsetRecord, parsed_channel

from ...fetching.polling import READ_AGAIN_S
from ...logs import Log, TopicIdPartition

log = logging.getLogger(__name__)


class LogEnds:
    """The ends of a group's partitions and its lag, at most `READ_AGAIN_S` old at the last call.

    A thread with a separate ZooKeeper session reads them from the first call on, until `close`.
    """

    def __init__(self, group: str, open_store: StoreFactory, open_source: Callable[[], Log], runtime: Runtime) -> None:
        self._group = group
        self._paths = GroupPaths(group)
        self._open_store = open_store
        self._open_source = open_source
        self._runtime = runtime
        self._stopping = runtime.event()
        self._has_begun = False
        self._found: Mapping[str, Any] = {}
        self._last_problem = ""

    @property
    def latest(self) -> Mapping[str, Any]:
        """See `progress_of`; empty until the log has answered."""
        if not self._has_begun:
            self._has_begun = True
            self._runtime.spawn(self._run, "log-ends")
        return self._found

    def close(self) -> None:
        """Let the thread end soon."""
        self._stopping.set()

    def _run(self) -> None:
        store: Store | None = None
        source: Log | None = None
        while not self._stopping.is_set():
            try:
                if store is None or store.lost:
                    _close(store)
                    store = self._open_store()
                source = source or self._open_source()
                self._found = progress_of(source, stands_of(store, self._paths))
                self._last_problem = ""
            except (CoordinatorError, OSError) as error:
                is_new, self._last_problem = str(error) != self._last_problem, str(error)
                if is_new:
                    log.warning("log end unavailable: group=%s reason=%s", self._group, error)
            self._stopping.wait(READ_AGAIN_S)
        _close(store)
        if source is not None:
            source.close()


def stands_of(store: Store, paths: GroupPaths) -> dict[TopicIdPartition, int]:
    """The group's position in each partition: of the channel that runs it, else of `offsets/`.

    An unreadable one is omitted: the coordinator, and `status`, report its problem.
    """
    positions: dict[TopicIdPartition, int] = {}
    topics = _names(store, paths.offsets)
    parts = [(topic, int(n)) for topic in topics for n in _names(store, paths.offsets_of(topic)) if is_partition(n)]
    for (topic, number), node in zip(parts, store.get_many([paths.offset(*part) for part in parts]), strict=True):
        with suppress(BadData):
            if node is not None:
                record = OffsetRecord.parse(paths.offset(topic, number), node.data)
                positions[TopicIdPartition(topic, record.topic_id, number)] = record.offset
    names = _names(store, paths.channels)
    for name, node in zip(names, store.get_many([paths.channel(name) for name in names]), strict=True):
        with suppress(BadData):
            if node is not None:
                channel = parsed_channel(name, node.data)
                for part, offset in channel.running.items():
                    if offset is not None and part.topic in channel.topics:
                        positions[TopicIdPartition(part.topic, channel.topics[part.topic], part.partition)] = offset
    return positions


def _names(store: Store, path: str) -> list[str]:
    listing = store.children(path)
    return sorted(name for name in listing.names if is_name(name)) if listing else []


def progress_of(source: Log, positions: Mapping[TopicIdPartition, int]) -> Mapping[str, Any]:
    """`log_end`, topic -> partition -> the log's end, and `lag`, the records there that the group has not sealed.

    A partition whose end cannot be read is omitted, and so is a topic that is not in the log (any more).
    """
    ends: dict[str, dict[str, int]] = {}
    lag = 0
    for place, end in sorted(source.latest_of(sorted(positions)).items(), key=lambda item: item[0]):
        if isinstance(end, int):
            ends.setdefault(place.topic, {})[str(place.partition)] = end
            lag += max(0, end - positions[place])
    return {"log_end": ends, "lag": lag}


def _close(store: Store | None) -> None:
    if store is not None:
        store.close()
