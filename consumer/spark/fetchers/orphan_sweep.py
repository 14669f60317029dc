"""Removes orphaned segment files: those of incarnations that ended before their multi."""

from __future__ import annotations

import logging

from coordinator.zk.errors import BadData
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Node, Store
from coordinator.zk.znodes.json_fields import readable
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import parsed_channel
from coordinator.zk.znodes.segments import Segment

from ...sealing.segment_files import FoundFile, SegmentFolder, channels_of, chroot_of, claim, may_be_sealed

log = logging.getLogger(__name__)

ORPHAN_AFTER_S = 600.0
"""Younger files are never removed, independent of the channel."""

FORGOTTEN_AFTER_S = 2 * 86_400.0
"""Longer than the retention of any channel: without a channel, only an older file is certainly an orphan."""


def sweep(store: Store, runtime: Runtime, folder: SegmentFolder, group: str) -> int:
    """Remove the orphans of a group; the number removed.

    In this order: files, then channels, then segments. An incarnation that is over seals nothing afterwards, so its
    files that no segment names by then will never be named. The marker is read last: nothing is removed in a
    folder of another chroot.

    :raises StoreError: when ZooKeeper did not answer.
    :raises ForeignFolder: when the group's folder belongs to another chroot.
    :raises OSError: when the folder cannot be listed or a file cannot be removed.
    """
    paths = GroupPaths(group)
    now_s = runtime.wall_ms() / 1000
    old = [found for found in folder.list(group) if now_s - found.modified_s >= ORPHAN_AFTER_S]
    if not old:
        return 0
    store.sync()
    channels = channels_of(store, group, [found.file for found in old])
    ended = [found for found in old if _is_over(found, channels[found.file], now_s)]
    if not ended or store.get(paths.segments) is None:
        return 0
    named = _named(store, paths)
    orphans = [found.file for found in ended if named is not None and found.file not in named]
    if orphans:
        claim(folder, group, chroot_of(store), "segments_dir")
    for file in orphans:
        folder.remove(file)
        log.info("orphan removed: group=%s file=%s", group, file)
    return len(orphans)


def _is_over(entry: FoundFile, node: Node | None, now_s: float) -> bool:
    if node is None:
        return now_s - entry.modified_s >= FORGOTTEN_AFTER_S
    channel = readable(parsed_channel, "a channel", node)
    return channel is not None and not may_be_sealed(entry.file, channel)


def _named(store: Store, paths: GroupPaths) -> set[str] | None:
    """The files that segments name; None when one of them cannot be read."""
    listing = store.children(paths.segments)
    nodes = store.get_many([paths.segment(name) for name in (listing.names if listing else ())])
    try:
        return {Segment.parse("a segment", node.data).file for node in nodes if node is not None}
    except BadData as error:
        log.warning("orphan sweep skipped: path=%s problem=%s", paths.segments, error)
        return None
