"""Removing segment files that nobody will ever name: those of incarnations that ended before their multi."""

from __future__ import annotations

import logging

from coordinator.zk.errors import BadData
from coordinator.zk.names import is_name
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import parsed_channel
from coordinator.zk.runtime import Runtime
from coordinator.zk.sealed import Segment
from coordinator.zk.store import Node, Store

from ..segment_files import FoundFile, SegmentFolder, may_be_sealed

log = logging.getLogger(__name__)

ORPHAN_AFTER_S = 600.0
"""Younger files are left alone, whatever the channel says."""

FORGOTTEN_AFTER_S = 2 * 86_400.0
"""Older than any channel is kept: without a channel, only such a file is certainly nobody's."""


def sweep(store: Store, runtime: Runtime, folder: SegmentFolder, group: str) -> int:
    """Remove the orphans of a group; how many there were.

    In this order: files, then channels, then segments. An incarnation that is over seals nothing afterwards, so a file
    of it that no segment names by then will never be named.

    :raises StoreError: when ZooKeeper did not answer.
    :raises OSError: when the folder cannot be listed or a file not be removed.
    """
    paths = GroupPaths(group)
    now_s = runtime.wall_ms() / 1000
    old = [found for found in folder.list(group) if now_s - found.modified_s >= ORPHAN_AFTER_S]
    if not old:
        return 0
    store.sync()
    channels = _channels(store, paths, old)
    ended = [found for found in old if _is_over(found, channels, now_s)]
    if not ended or store.get(paths.segments) is None:
        return 0
    named = _named(store, paths)
    orphans = [found.file for found in ended if named is not None and found.file not in named]
    for file in orphans:
        folder.remove(file)
        log.info("orphan removed: group=%s file=%s", group, file)
    return len(orphans)


def _channels(store: Store, paths: GroupPaths, files: list[FoundFile]) -> dict[str, Node | None]:
    names = sorted({consumer for found in files if is_name(consumer := _consumer(found))})
    return dict(zip(names, store.get_many([paths.channel(name) for name in names]), strict=True))


def _consumer(found: FoundFile) -> str:
    return found.file.split("/")[1]


def _is_over(found: FoundFile, channels: dict[str, Node | None], now_s: float) -> bool:
    node = channels.get(_consumer(found))
    if node is None:
        return now_s - found.modified_s >= FORGOTTEN_AFTER_S
    try:
        channel = parsed_channel("a channel", node.data)
    except BadData:
        return False
    return not may_be_sealed(found.file, channel)


def _named(store: Store, paths: GroupPaths) -> set[str] | None:
    """The files that segments name; None when one of them cannot be read."""
    listing = store.children(paths.segments)
    nodes = store.get_many([paths.segment(name) for name in (listing.names if listing else ())])
    try:
        return {Segment.parse("a segment", node.data).file for node in nodes if node is not None}
    except BadData as error:
        log.warning("orphans are left alone: path=%s problem=%s", paths.segments, error)
        return None
