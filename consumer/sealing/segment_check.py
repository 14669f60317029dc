"""Checks the files of sealed segments against their checksums and znodes; finds files without a segment, and removes
those of incarnations that ended before their multi.

`zk-coordinator segments verify` imports this when it runs: it needs pyarrow, which the coordinator does not load.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import GroupPaths, is_name
from zk_group.coordinator.zk.znodes.records import Channel, parsed_channel
from zk_group.coordinator.zk.znodes.segments import Segment

from ..errors import SegmentError
from .segment_files import FoundFile, SegmentFolder, chroot_of, claim, incarnation_of, is_remote, refusal

log = logging.getLogger(__name__)

WHERE = ("topic", "partition")

ORPHAN_AFTER_S = 600.0
"""Younger files are never removed, independent of the channel."""

FORGOTTEN_AFTER_S = 2 * 86_400.0
"""Longer than the retention of any channel: without a channel, only an older file is certainly an orphan."""


class FileProblem(NamedTuple):
    """A problem of a file; `kind` is a word or two for it."""

    kind: str
    text: str


class SegmentCheck:
    """Checks segments and folders; opens each folder once.

    A URL that only znodes name is not opened: any member can write one, some file systems end the process when they
    have no credentials, and each would get this user's.

    :param segments_dir: the segments folder on this machine, or its URL; empty for the folders in the znodes.
    :ivar without_checksums: the number of segments whose files have none: a release before these sealed them.
    :ivar unopened: the URLs that only znodes name, with the number of their segments: those are not checked.
    :ivar foreign: folders of another chroot, each as a reason: their other files are none of this chroot's orphans.
    """

    def __init__(self, segments_dir: str = "") -> None:
        self.without_checksums = 0
        self.unopened: Counter[str] = Counter()
        self.foreign: list[str] = []
        self._override = segments_dir
        self._folders: dict[str, SegmentFolder] = {}
        if segments_dir:
            self.folder(segments_dir)

    def folder(self, segments_dir: str) -> SegmentFolder:
        """The folder.

        :raises UsageError: when pyarrow cannot open it.
        """
        place = self._override or segments_dir
        if place not in self._folders:
            self._folders[place] = SegmentFolder(place)
        return self._folders[place]

    def _is_unopened(self, segments_dir: str) -> bool:
        return not self._override and is_remote(segments_dir)

    def problem(self, segment: Segment) -> FileProblem | None:
        """The problem of a segment's file, None when it is complete, or unopened. Reads all of it."""
        if self._is_unopened(segment.segments_dir):
            self.unopened[segment.segments_dir] += 1
            return None
        try:
            folder = self.folder(segment.segments_dir)
            (size,) = folder.sizes([segment.file])
            if size is None:
                return FileProblem("missing file", f"{folder.path(segment.file)} is missing")
            if size != segment.size:
                text = f"{folder.path(segment.file)} has {size} bytes and should have {segment.size}"
                return FileProblem("wrong size", text)
            contents = folder.contents(segment.file, size, segment.rows)
            self.without_checksums += not contents.has_checksums
            batches = [batch.select([*WHERE, "offset"]) for batch in folder.unplaced(segment, contents)]
        except (SegmentError, UsageError, OSError, pa.ArrowException) as error:
            return FileProblem("unreadable file", str(error).partition("\n")[0])
        text = _ranges_problem(segment, pa.Table.from_batches(batches) if batches else None)
        return FileProblem("wrong offsets", text) if text else None

    def files(self, store: Store, group: str, segments: Sequence[Segment]) -> dict[str, SegmentFolder]:
        """The files in all folders that `segments` name, or in the given one, except in folders of another chroot.

        :raises OSError: when a folder cannot be listed, or its marker cannot be read.
        :raises StoreError: when ZooKeeper did not answer.
        """
        chroot = chroot_of(store)
        places = {self._override} if self._override else {segment.segments_dir for segment in segments}
        folders: dict[str, SegmentFolder] = {}
        for place in sorted(places):
            if self._is_unopened(place):
                continue
            try:
                folder = self.folder(place)
            except UsageError:
                continue  # reported with each of its segments
            if reason := refusal(folder, group, chroot):
                self.foreign.append(reason)
                continue
            folders |= {listed.file: folder for listed in folder.list(group)}
        return folders


def may_seal(store: Store, group: str, files: Iterable[str]) -> dict[str, bool | None]:
    """File -> whether the incarnation that wrote it lives and may still seal it; None when its consumer has no channel.

    Read between a listing of the files and one of the segments, this is final: a file that may not be sealed, and
    that none of these segments names, will never be named. By an unreadable channel all may be sealed.

    :raises StoreError: when ZooKeeper did not answer.
    """
    writers = {file: (*file.split("/"), "")[1] for file in files}
    names = sorted({name for name in writers.values() if is_name(name)})
    found = zip(names, store.get_many([GroupPaths(group).channel(name) for name in names]), strict=True)
    channels = {name: readable(parsed_channel, "a channel", node) for name, node in found if node is not None}
    return {file: _may_be_sealed(file, channels[name]) if name in channels else None for file, name in writers.items()}


def _may_be_sealed(file: str, channel: Channel | None) -> bool:
    """An incarnation seals one file after the other: its sealed one, and all with a lower number, are final."""
    if channel is None:
        return True
    if not channel.is_live or channel.incarnation != incarnation_of(file):
        return False
    return not (channel.sealed and file.startswith(channel.sealed[:-16]) and file <= channel.sealed)


def _ranges_problem(segment: Segment, table: pa.Table | None) -> str:
    """The difference between the offsets in a file and the ranges in the znode; empty when there is none."""
    missing = {(each.topic, each.partition): each.offsets for each in segment.missing}
    expected = {
        (part.topic, part.partition): (part.first, part.next)
        for part in segment.ranges
        if part.next - part.first > missing.get((part.topic, part.partition), 0)
    }
    inside: dict[tuple[str, int], tuple[int, int, int]] = {}
    if table is not None:
        sums = table.group_by(list(WHERE)).aggregate([("offset", how) for how in ("min", "max", "count_distinct")])
        for row in sums.to_pylist():
            offsets = (row["offset_min"], row["offset_max"], row["offset_count_distinct"])
            inside[row["topic"], row["partition"]] = offsets
    for topic, number in sorted({*expected, *inside}, key=str):
        where = f"{topic}-{number}"
        if (topic, number) not in inside:
            return f"it has no records of {where}, and should have offsets {_text(expected[topic, number])}"
        first, last, distinct = inside[topic, number]
        if (topic, number) not in expected:
            return f"it has offsets {first} to {last} of {where}, and should have none"
        (begin, end), lacking = expected[topic, number], missing.get((topic, number), 0)
        if not begin <= first <= last < end or (not lacking and (first, last + 1) != (begin, end)):
            return f"it has offsets {first} to {last} of {where}, and should have {_text((begin, end))}"
        if distinct != end - begin - lacking:
            should = f"{end - begin - lacking}" if lacking else "each"
            return f"it has {distinct} of the offsets {begin} to {end - 1} of {where}, and should have {should}"
    count = sum(distinct for _, _, distinct in inside.values())
    return f"it has {segment.rows - count} records twice" if count != segment.rows else ""


def _text(pair: tuple[int, int]) -> str:
    return f"{pair[0]} to {pair[1] - 1}"


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
    may = may_seal(store, group, [found.file for found in old])
    ended = [found for found in old if _is_over(found, may[found.file], now_s)]
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


def _is_over(entry: FoundFile, may: bool | None, now_s: float) -> bool:
    return not may if may is not None else now_s - entry.modified_s >= FORGOTTEN_AFTER_S


def _named(store: Store, paths: GroupPaths) -> set[str] | None:
    """The files that segments name; None when one of them cannot be read."""
    listing = store.children(paths.segments)
    nodes = store.get_many([paths.segment(name) for name in (listing.names if listing else ())])
    try:
        return {Segment.parse("a segment", node.data).file for node in nodes if node is not None}
    except BadData as error:
        log.warning("orphan sweep skipped: path=%s problem=%s", paths.segments, error)
        return None
