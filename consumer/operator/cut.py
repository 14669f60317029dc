"""Where a member of a consistent region begins: offsets and states of the cut that its start names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from coordinator.zk.errors import BadData
from coordinator.zk.fenced import ensure
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.paths import RegionPaths
from coordinator.zk.records import Channel, OffsetRecord
from coordinator.zk.regions import INITIAL, Contribution, Order
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Create, Operation, SetData, Store

from ..config import ConsumerConfig
from ..offsets import Offsets, Record
from ..ownership import PARTITIONS_A_STEP, chunks
from .states import State, StateFiles

log = logging.getLogger(__name__)

CONTRIBUTIONS_AT_ONCE = 25
GIVE_UP_READING_S = 15.0
"""A cut that cannot be read for so long fails the region (seed 002: 15 s at most)."""

Fail = Callable[[Store, str, Record], None]
"""Called with why the region cannot go on."""


class CutReader:
    """Reads for one member, over all its incarnations.

    :param offsets: resolves where the group begins with partitions that have never run.
    :param fail: tells the region that this member cannot go on.
    :ivar order: of the last start applied; None where nothing was.
    :ivar reloads: whether what runs begins again from the cut although its offsets are known.
    """

    def __init__(
        self, config: ConsumerConfig, runtime: Runtime, files: StateFiles, offsets: Offsets, fail: Fail
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._files = files
        self._offsets = offsets
        self._fail = fail
        self._paths = RegionPaths(config.region)
        self._cut: dict[str, Contribution] | None = None
        self._failing_since: float | None = None
        self.order: Order | None = None
        self.reloads = False

    def begin(self, order: Order, reloads: bool) -> None:
        """From now on read what `order` names."""
        self.order, self.reloads = order, reloads
        self._cut = self._failing_since = None

    def again(self) -> None:
        """What runs is about to be given up: should that be withdrawn, it begins again from the cut."""
        self.reloads = self.order is not None
        self._cut = self._failing_since = None

    def end(self) -> None:
        """The incarnation is over."""
        self.order, self.reloads = None, False
        self._cut = self._failing_since = None

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions`: of the cut, else the initial ones, which are found once.

        :raises StoreError: when ZooKeeper did not answer.
        """
        order = self.order
        if order is None or channel.region is None or order.reset != channel.region.reset:
            return channel  # another start follows
        wanted = frozenset(partitions)
        try:
            found = self._offsets_of(self._contributions(store, order), channel, wanted)
            found |= self._initial(store, channel, wanted - found.keys(), record)
        except BadData as error:
            self.unreadable(store, error, record)
            return channel
        self.reloads = self.reloads and len(found) < len(wanted)
        return replace(channel, running={**channel.running, **found})

    def state(self, store: Store, channel: Channel, order: Order) -> State:
        """The states of what runs.

        :raises BadData: when one cannot be read.
        """
        partitions: dict[TopicPartition, bytes] = {}
        member, inherited = b"", {}
        for name, given in self._contributions(store, order).items():
            where = self._paths.contribution(order.checkpoint, self._config.group, name)
            topics = {topic for topic, topic_id in given.topics.items() if channel.topics.get(topic) == topic_id}
            mine = frozenset(part for part in given.offsets if part in channel.running and part.topic in topics)
            state = self._files.get(where, given, mine)
            partitions |= state.partitions
            if name == self._config.consumer:
                member = state.member
            elif name in order.inherited and state.member:
                inherited[name] = state.member
        return State(partitions, member, inherited)

    def unreadable(self, store: Store, error: BadData, record: Record) -> None:
        """What cannot be read is tried again for a while; then the region fails, with what to do."""
        now = self._runtime.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.error("checkpoint unreadable: consumer=%s problem=%s", self._config.consumer, error)
        if now - self._failing_since >= GIVE_UP_READING_S:
            self._failing_since = now
            self._fail(store, str(error), record)

    def _contributions(self, store: Store, order: Order) -> dict[str, Contribution]:
        """The contributions that a start names: with its partitions, its own, and of names that are gone."""
        if self._cut is None:
            found: dict[str, Contribution] = {}
            names: Sequence[str] = sorted({*order.sources, *order.inherited})
            for first in range(0, len(names) if order.checkpoint != INITIAL else 0, CONTRIBUTIONS_AT_ONCE):
                some = names[first : first + CONTRIBUTIONS_AT_ONCE]
                paths = [self._paths.contribution(order.checkpoint, self._config.group, name) for name in some]
                for name, path, node in zip(some, paths, store.get_many(paths), strict=True):
                    if node is None:
                        raise BadData(f"{path} is missing")
                    found[name] = Contribution.parse(path, node.data)
            self._cut = found
        return self._cut

    def _offsets_of(
        self, cut: Mapping[str, Contribution], channel: Channel, wanted: PartitionSet
    ) -> dict[TopicPartition, int]:
        found = {}
        for given in cut.values():
            for part, offset in given.offsets.items():
                if part in wanted and given.topics.get(part.topic) == channel.topics.get(part.topic):
                    found[part] = offset
                elif part in wanted:
                    log.warning("offset of the cut dropped, its topic was recreated: partition=%s", part)
        return found

    def _initial(
        self, store: Store, channel: Channel, partitions: PartitionSet, record: Record
    ) -> dict[TopicPartition, int]:
        """Where the group began with partitions that the cut does not have; recorded before anything is fetched."""
        if not partitions:
            return {}
        wanted = sorted(partitions)
        paths = [self._paths.initial_offset(self._config.group, *part) for part in wanted]
        found: dict[TopicPartition, int] = {}
        fresh: dict[TopicPartition, int | None] = {}
        for part, path, node in zip(wanted, paths, store.get_many(paths), strict=True):
            initial = OffsetRecord.parse(path, node.data) if node is not None else None
            if initial is not None and initial.topic_id == channel.topics.get(part.topic):
                found[part] = initial.offset
            else:
                fresh[part] = node.stat.version if node is not None else None
        begun = self._offsets.read(store, channel, fresh, record) if fresh else channel
        starts = {part: start for part in fresh if (start := begun.running.get(part)) is not None}
        if starts:
            self._record(store, channel, starts, fresh, record)
        return found | starts

    def _record(
        self,
        store: Store,
        channel: Channel,
        offsets: Mapping[TopicPartition, int],
        versions: Mapping[TopicPartition, int | None],
        record: Record,
    ) -> None:
        group, paths = self._config.group, self._paths
        topics = sorted({part.topic for part in offsets})
        ensure(store, [f"{paths.initial}/{group}", *(paths.initial_of(group, topic) for topic in topics)])
        for some in chunks(offsets, 2 * PARTITIONS_A_STEP):
            written: list[Operation] = []
            for part in some:
                path, version = paths.initial_offset(group, *part), versions[part]
                data = OffsetRecord(offsets[part], channel.topics.get(part.topic, ""), 0).to_bytes()
                written.append(Create(path, data) if version is None else SetData(path, data, version))
            record(written)
