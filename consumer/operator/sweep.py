"""Removes the state files of dropped checkpoints: members do it, since the coordinator may not reach the files.

A checkpoint's files are in a separate folder, `[region]/[sequence]/` below `checkpoint_dir`. A state without a new
contribution is copied from the checkpoint before, with the name of its file: `files` of a complete checkpoint lists the
earlier ones whose files it names.
"""

from __future__ import annotations

import logging

from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Store
from coordinator.zk.znodes.paths import RegionPaths, checkpoint_number
from coordinator.zk.znodes.regions import COMPLETED, CheckpointEnd

from ..sealing.folder_claim import chroot_of, claim
from ..sealing.segment_files import SegmentFolder

log = logging.getLogger(__name__)

YOUNG_S = 600.0
"""A folder with a file younger than this is never removed."""
FOLDERS_AT_ONCE = 1_000


def sweep(store: Store, runtime: Runtime, folder: SegmentFolder, region: str, below: int) -> int:
    """Remove the folders of checkpoints before `below` that no longer exist and whose files no existing checkpoint
    names; the number removed.

    In this order: folders, then checkpoints, the oldest first. A number below that of a complete checkpoint is never
    used again, and a copy is made while its source checkpoint exists. The marker is read last: nothing is removed in a
    folder of another chroot.

    :param below: a checkpoint that is complete.
    :raises StoreError: when ZooKeeper did not answer.
    :raises BadData: when a checkpoint's file names cannot be read.
    :raises ForeignFolder: when the region's folder belongs to another chroot.
    :raises OSError: when the folder cannot be listed, or a file cannot be removed.
    """
    paths = RegionPaths(region)
    there = {int(name): name for name in folder.folders(region) if name.isascii() and name.isdigit()}
    store.sync()
    listing = store.children(paths.checkpoints)
    if listing is None:
        return 0
    standing = sorted(filter(None, map(checkpoint_number, listing.names)))
    old = sorted(number for number in there.keys() - set(standing) if 0 < number < below)
    if not old:
        return 0
    named: set[int] = set()
    ends = [paths.end(number, COMPLETED) for number in standing]
    for path, node in zip(ends, store.get_many(ends), strict=True):
        if node is not None:
            named.update(CheckpointEnd.parse(path, node.data).files)
    again = store.children(paths.checkpoints)
    if again is None or max(map(checkpoint_number, again.names), default=0) > max(standing, default=0):
        return 0  # a new checkpoint may name one of them: the next one sweeps again
    removed = 0
    before_s = runtime.wall_ms() / 1000 - YOUNG_S
    unnamed = [each for each in old if each not in named][:FOLDERS_AT_ONCE]
    if unnamed:
        claim(folder, region, chroot_of(store), "checkpoint_dir")
    for number in unnamed:
        if folder.remove_folder(f"{region}/{there[number]}", before_s):
            log.info("state files removed: region=%s checkpoint=%d", region, number)
            removed += 1
    return removed
