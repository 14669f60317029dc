"""Where a member of a consistent region begins: offsets and states of its start's cut."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from coordinator.zk.errors import BadData
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Create, Operation, SetData, Store
from coordinator.zk.update import ensure
from coordinator.zk.znodes.cuts import contributions
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import RegionPaths
from coordinator.zk.znodes.records import Channel, OffsetRecord
from coordinator.zk.znodes.regions import INITIAL, Contribution, Order

from ..config import ConsumerConfig
from ..membership.claims import PARTITIONS_A_STEP, chunks
from ..membership.offsets import CommittedOffsets, Record
from .states import State, StateFiles

log = logging.getLogger(__name__)

READ_AT_ONCE = 25
GIVE_UP_READING_S = 15.0
"""A cut that is unreadable for this long fails the region, or for half of `max_poll_interval_ms` if that is less (seed
002): the start stays in the channel meanwhile, and for a whole one the member would be evicted and begin again."""

Fail = Callable[[Store, str, Record], None]
"""Called with the reason that the region cannot continue."""


class CutReader:
    """Reads for one member, over all its incarnations.

    :param offsets: resolves where the group begins with partitions that have never run.
    :param fail: reports to the region that this member cannot continue.
    :ivar order: of the last start applied; None before the first.
    :ivar reloads: whether running partitions begin again from the cut although their offsets are known.
    """

    def __init__(
        self, config: ConsumerConfig, runtime: Runtime, files: StateFiles, offsets: CommittedOffsets, fail: Fail
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._files = files
        self._offsets = offsets
        self._fail = fail
        self._paths = RegionPaths(config.region)
        self._give_up_s = min(GIVE_UP_READING_S, config.max_poll_interval_ms / 2000)
        self._cut: dict[str, Contribution] | None = None
        self._failing_since: float | None = None
        self.order: Order | None = None
        self.reloads = False

    def begin(self, order: Order | None, reloads: bool) -> None:
        """Read the cut of `order` from now on; None when the incarnation is over."""
        self.order, self.reloads = order, reloads
        self._cut = self._failing_since = None

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions`: of the cut, else the initial ones, which are resolved once.

        :raises StoreError: when ZooKeeper did not answer.
        """
        order = self.order
        if order is None or channel.region is None or order.reset != channel.region.reset:
            return channel  # another start follows
        requested = frozenset(partitions)
        try:
            offsets = self._offsets_of(self._contributions(store, order), channel, requested)
            offsets |= self._initial(store, channel, requested - offsets.keys(), record)
        except BadData as error:
            self.unreadable(store, error, record)
            return channel
        self.reloads = self.reloads and len(offsets) < len(requested)
        return replace(channel, running={**channel.running, **offsets})

    def state(self, store: Store, channel: Channel, order: Order) -> State:
        """The states of running partitions.

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
        """An unreadable cut is tried again for a while; then the region fails, with a remedy."""
        now = self._runtime.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.error("checkpoint unreadable: consumer=%s problem=%s", self._config.consumer, error)
        if now - self._failing_since >= self._give_up_s:
            self._failing_since = now
            remedy = f"restore it, or `zk-coordinator regions reset {self._paths.region} --to` another checkpoint"
            self._fail(store, f"{error}; {remedy}", record)

    def _contributions(self, store: Store, order: Order) -> dict[str, Contribution]:
        """The contributions of a start: with its partitions, its own, and of members that are gone."""
        if self._cut is None:
            names = sorted({*order.sources, *order.inherited}) if order.checkpoint != INITIAL else []
            group, sequence = self._config.group, order.checkpoint
            self._cut = dict(contributions(store, self._paths, sequence, group, names, READ_AT_ONCE))
        return self._cut

    def _offsets_of(
        self, cut: Mapping[str, Contribution], channel: Channel, partitions: PartitionSet
    ) -> dict[TopicPartition, int]:
        offsets = {}
        for given in cut.values():
            for part, offset in given.offsets.items():
                if part in partitions and given.topics.get(part.topic) == channel.topics.get(part.topic):
                    offsets[part] = offset
                elif part in partitions:
                    log.warning("checkpoint offset dropped, topic recreated: partition=%s", part)
        return offsets

    def _initial(
        self, store: Store, channel: Channel, partitions: PartitionSet, record: Record
    ) -> dict[TopicPartition, int]:
        """Where the group began with partitions that the cut does not have; recorded before any fetch."""
        if not partitions:
            return {}
        ordered = sorted(partitions)
        paths = [self._paths.initial_offset(self._config.group, *part) for part in ordered]
        offsets: dict[TopicPartition, int] = {}
        fresh: dict[TopicPartition, int | None] = {}
        for part, path, node in zip(ordered, paths, store.get_many(paths), strict=True):
            initial = OffsetRecord.parse(path, node.data) if node is not None else None
            if initial is not None and initial.topic_id == channel.topics.get(part.topic):
                offsets[part] = initial.offset
            else:
                fresh[part] = node.stat.version if node is not None else None
        begun = self._offsets.read(store, channel, fresh, record) if fresh else channel
        starts = {part: start for part in fresh if (start := begun.running.get(part)) is not None}
        if starts:
            self._record(store, channel, starts, fresh, record)
        return offsets | starts

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
        for batch in chunks(offsets, 2 * PARTITIONS_A_STEP):
            written: list[Operation] = []
            for part in batch:
                path, version = paths.initial_offset(group, *part), versions[part]
                data = OffsetRecord(offsets[part], channel.topics.get(part.topic, ""), 0).to_bytes()
                written.append(Create(path, data) if version is None else SetData(path, data, version))
            record(written)
