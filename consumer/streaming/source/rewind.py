"""Sets a stopped query back to a checkpoint of its group's consistent region, with all its state.

First the query's znode is set back, with a mark: from then on no segment after the checkpoint is collected, and no run
may begin. Then files of its Spark checkpoint are removed, then the mark is set to done. A run that has read these files
before begins elsewhere than the mark requires, and is refused. A rewind that was interrupted can be repeated.

Its Spark checkpoint, as files: below `checkpointLocation` are `offsets/K`, the end of batch K, `commits/K`, written
when it has finished, and for each stateful operator and partition (and store, of a join) `state/.../V.*`: the state
after batch V - 1, or its changes. Spark never checks for a state of a later version than it begins with: a leftover
snapshot of one would be used for the version that is written again under its number.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from zk_group.coordinator.zk.errors import BadData, CoordinatorError, StoreError, UsageError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Check, Create, Node, SetData, Store
from zk_group.coordinator.zk.update import Change, Failure, retried, update
from zk_group.coordinator.zk.values import shown
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import GroupPaths, checked_name
from zk_group.coordinator.zk.znodes.segments import Query, Rewind, SegmentsRecord

from .planner import QueryCuts
from .segment_index import MAX_OFFSET_BYTES, SealedSegments, SourceOffset

log = logging.getLogger(__name__)

SILENT_AFTER_S = 180.0
"""A running query sends a heartbeat once a minute; after three missed ones it counts as stopped."""
OFFSETS, COMMITS, STATE = "offsets", "commits", "state"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PROVIDERS = ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")
"""The last part of `PROVIDER`, of providers with known files."""
WHOLE = ("snapshot", "zip")
_VERSION = re.compile(r"([0-9]{1,18})(?:_[A-Za-z0-9-]+)?\.(delta|changelog|snapshot|zip)")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class NotRewindable(CoordinatorError):
    """A Spark checkpoint cannot be set back to the requested batch; the message contains the reason."""


class CheckpointFiles:
    """Reads and shortens one Spark checkpoint. No query may use it meanwhile.

    :param location: the query's `checkpointLocation`: a folder, or a URI that pyarrow has a file system for (`s3a:` is
        Hadoop's name for `s3:`).
    :raises UsageError: when it is neither, or not a Spark checkpoint.
    """

    def __init__(self, location: str) -> None:
        place = re.sub(r"^s3[an]:", "s3:", location) if _URL.match(location) else str(Path(location).absolute())
        try:
            self._fs, root = fs.FileSystem.from_uri(place)
            self._root = root.rstrip("/")
            self._committed = self._batches(COMMITS)
            self._begun = self._batches(OFFSETS)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(f"{shown(location)} is no Spark checkpoint: {error}") from error
        if not self._begun:
            raise UsageError(f"{shown(location)} is no Spark checkpoint: no batch is in its folder {OFFSETS}")

    @property
    def newest(self) -> int:
        """The last started batch."""
        return self._begun[-1]

    @property
    def finished(self) -> list[int]:
        """The retained and finished batches, in order."""
        return [batch for batch in self._begun if batch in set(self._committed)]

    def offset(self, batch: int) -> SourceOffset:
        """The end of a batch.

        :raises NotRewindable: when the query has other sources, or an unknown release of Spark has written it.
        :raises BadData: when it cannot be read.
        """
        return self._read(batch)[1]

    def check(self, batch: int) -> None:
        """Check that Spark can continue after a batch: every state of it is retained, and no other would be left.

        :raises NotRewindable: when it cannot.
        :raises BadData: when the batch's offsets cannot be read.
        """
        if not self._stores:
            return
        provider = str(self._read(batch)[0].get(PROVIDER, "")).rsplit(".", 1)[-1]
        if provider not in PROVIDERS:
            raise NotRewindable(f"the query's state is kept by {shown(provider)}, which does not support a rewind here")
        next_version = batch + 1
        for store, files in sorted(self._stores.items()):
            versions = {version for version, _, _ in files}
            first = max((version for version, kind, _ in files if kind in WHOLE and version <= next_version), default=0)
            if next_version not in versions or not versions >= set(range(first + 1, next_version + 1)):
                raise NotRewindable(f"the state after batch {batch} is not retained in {self._root}/{store}")

    def later(self, batch: int) -> list[str]:
        """The files of later batches, in the order of their removal.

        States first: once Spark would begin after `batch`, none of a later version may be left. Then batches, the
        newest first and `commits` before `offsets`, so that the remaining files are always a valid Spark checkpoint.
        """
        files = [path for store in self._stores.values() for version, _, path in store if version > batch + 1]
        numbers = sorted({each for each in (*self._begun, *self._committed) if each > batch}, reverse=True)
        for number in numbers:
            files += [f"{COMMITS}/{number}"] if number in self._committed else []
            files += [f"{OFFSETS}/{number}"] if number in self._begun else []
        return files

    def remove(self, files: list[str]) -> None:
        """Remove them in this order, with Hadoop's checksums beside them; durable when this returns.

        :raises OSError: when one cannot be removed.
        """
        folders: list[str] = []
        for file in files:
            folder, _, name = f"{self._root}/{file}".rpartition("/")
            for each in (f"{folder}/{name}", f"{folder}/.{name}.crc"):
                if self._fs.get_file_info(each).type == fs.FileType.File:
                    self._fs.delete_file(each)
            if folders[-1:] != [folder]:
                self._sync(folders[-1:])
                folders.append(folder)
        self._sync(folders)

    def _sync(self, folders: list[str]) -> None:
        """Make removals durable before later ones."""
        for folder in folders if isinstance(self._fs, fs.LocalFileSystem) else ():
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _read(self, batch: int) -> tuple[Mapping[str, Any], SourceOffset]:
        """The settings of a batch, and its end."""
        path = f"{self._root}/{OFFSETS}/{batch}"
        try:
            with self._fs.open_input_file(path) as source:
                if source.size() > MAX_OFFSET_BYTES:
                    raise BadData(f"{path} has {source.size()} bytes, over {MAX_OFFSET_BYTES}")
                version, settings, *sources = source.read().decode().splitlines()
            if version != "v1":
                raise NotRewindable(f"{path} is of version {shown(version)}, and only v1 is known")
            if len(sources) != 1:
                raise NotRewindable(f"the query has {len(sources)} sources, and only a query of one can be rewound")
            conf, offset = json.loads(settings).get("conf"), json.loads(sources[0])
            if not isinstance(offset, dict) or not isinstance(conf, dict):
                raise BadData(f"{path} has no settings, or no offset of a query of this source")
            return conf, SourceOffset.of(offset)
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise BadData(f"{path} cannot be read: {error}") from error

    @cached_property
    def _stores(self) -> dict[str, list[tuple[int, str, str]]]:
        """State store -> version, kind and path of its files.

        :raises NotRewindable: when an operator has more than one metadata file, one for each batch.
        """
        stores = defaultdict(list)
        for path in self._files(STATE):
            folder, _, name = path.rpartition("/")
            if "/_metadata/v2/" in f"/{path}":
                raise NotRewindable(f"{self._root}/{path}: metadata of an operator by the batch is not known here")
            if match := _VERSION.fullmatch(name):
                stores[folder].append((int(match[1]), match[2], path))
        return stores

    def _files(self, folder: str) -> Iterator[str]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True, recursive=True)
        for info in self._fs.get_file_info(selector):
            if info.type == fs.FileType.File:
                yield info.path.removeprefix(f"{self._root}/")

    def _batches(self, folder: str) -> list[int]:
        names = (path.rpartition("/")[2] for path in self._files(folder))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 18)


@dataclass(frozen=True, slots=True)
class Rewound:
    """The result of a rewind.

    :ivar batch: the last batch that stays; `newest` the last one before the rewind.
    :ivar files: number of removed files.
    """

    batch: int
    newest: int
    files: int


class Rewinder:
    """Rewinds one query of a group.

    :param location: its `checkpointLocation`.
    :param has_ended: its driver has ended, in spite of a recent heartbeat.
    """

    def __init__(
        self, store: Store, runtime: Runtime, group: str, query: str, location: str, has_ended: bool = False
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._paths = GroupPaths(checked_name("group", group))
        self._query = checked_name("query", query)
        self._files = CheckpointFiles(location)
        self._has_ended = has_ended
        self._run = runtime.random_id()
        self._path = self._paths.query(query)

    def to(self, checkpoint: int, execute: bool = False) -> Rewound:
        """Rewind it, or with `execute` unset only compute the result.

        :raises UsageError: when it runs, or the Spark checkpoint is another query's.
        :raises SegmentError: when the region does not have the checkpoint.
        :raises NotRewindable: when no retained batch ended there, or later segments were collected.
        :raises BadData: when a znode or file cannot be read.
        :raises OSError: when a file cannot be removed: repeat it.
        """
        self._store.sync()
        cut = QueryCuts(self._runtime, self._paths.group).find(self._store, "--to", checkpoint)
        batch, offset = self._batch_before(cut)
        self._checked(offset)
        segments = SealedSegments(self._runtime, self._paths)
        segments.refresh(self._store, force=True)
        if segments.between(offset.czxid, cut):  # one after the batch belongs to the cut, too: all later ones exist
            raise NotRewindable(f"no batch of query {self._query} that Spark retains ended at checkpoint {checkpoint}")
        self._files.check(batch)
        files = self._files.later(batch)
        if execute:
            self._fence(offset)
            self._files.remove(files)
            self._done()
            log.info(
                "query rewound: group=%s query=%s checkpoint=%d batch=%d newest=%d files=%d",
                self._paths.group, self._query, checkpoint, batch, self._files.newest, len(files),
            )  # fmt: skip
        return Rewound(batch, self._files.newest, len(files))

    def _batch_before(self, cut: int) -> tuple[int, SourceOffset]:
        """The last batch without any segment after a cut."""
        for batch in reversed(self._files.finished):
            offset = self._files.offset(batch)
            if offset.query != self._query:
                raise UsageError(f"the Spark checkpoint is of query {offset.query}, and not of {self._query}")
            if offset.czxid < cut:
                return batch, offset
        raise NotRewindable(f"Spark retains no batch of query {self._query} from before the checkpoint")

    def _checked(self, offset: SourceOffset) -> tuple[Node, Node | None]:
        """The znodes of the segments and of the query, checked for a rewind."""
        segments, node = self._store.get_many([self._paths.segments, self._path])
        if segments is None or segments.stat.czxid != offset.root:
            raise NotRewindable(
                f"the Spark checkpoint is of another ZooKeeper ensemble, or group {self._paths.group} was removed and "
                "recreated"
            )
        if SegmentsRecord.parse(self._paths.segments, segments.data).collected > offset.czxid:
            raise NotRewindable(f"segments after {offset.segment}, up to which Spark has read there, were collected")
        if node is not None and node.stat.ephemeral_owner:
            raise UsageError(f"query {self._query} of group {self._paths.group} is running")
        query = self._parsed(node)
        silent_s = (self._runtime.wall_ms() - node.stat.mtime_ms) / 1000 if node is not None else SILENT_AFTER_S
        is_repeated = query.rewind is not None and not query.rewind.is_done
        if silent_s < SILENT_AFTER_S and not (query.expired_ms or is_repeated or self._has_ended):
            raise UsageError(
                f"query {self._query} of group {self._paths.group} sent a heartbeat {max(0.0, silent_s):.0f} s ago: "
                "stop it, and confirm with --stopped"
            )
        return segments, node

    def _fence(self, offset: SourceOffset) -> None:
        """Set the query's znode back: it holds back segments after the checkpoint, and no run begins."""
        mark = Rewind(offset.checkpoint, offset.czxid)

        def attempt(before: Failure | None) -> None:
            segments, node = self._checked(offset)
            data = Query(self._run, offset.czxid, self._runtime.wall_ms(), rewind=mark).to_bytes()
            end = SetData(self._path, data, node.stat.version) if node is not None else Create(self._path, data)
            same = Check(self._paths.segments, segments.stat.version)
            self._store.commit([same, SetData(self._paths.queries, b""), end])

        retried(self._store, attempt, lambda: f"query {self._query} was not rewound: its znodes keep changing")

    def _done(self) -> None:
        """The files are complete: a run may begin there."""

        def done(node: Node | None) -> Change[None]:
            query = self._parsed(node)
            if node is None or query.run != self._run or query.rewind is None:
                raise StoreError(f"query {self._query} was removed, or rewound once more, meanwhile: rewind it again")
            after = replace(query, rewind=replace(query.rewind, is_done=True))
            return Change([SetData(self._path, after.to_bytes(), node.stat.version)], None)

        update(self._store, self._path, done)

    def _parsed(self, node: Node | None) -> Query:
        """The query's znode; an unreadable one belongs to no run."""
        return readable(Query.parse, self._path, node) or Query("", 0, 0)
