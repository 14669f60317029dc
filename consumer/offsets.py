"""Offsets in ZooKeeper: read when a partition was claimed, written by whoever ends the hold on it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from coordinator.zk.errors import CoordinatorError
from coordinator.zk.partitions import NONE, TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel, OffsetRecord
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import MAX_OPERATIONS, Create, Delete, Node, Operation, SetData, Store

from .errors import NoOffsetForPartition
from .ownership import PARTITIONS_A_STEP, chunks, offset_operations, release_operations
from .starts import Found, came_later

log = logging.getLogger(__name__)

Find = Callable[[TopicPartition, str, bool], Found]
"""Where a group begins with a partition: (partition, topic id, whether it came up after the group had begun)."""

Record = Callable[[Sequence[Operation]], None]
"""Commits operations under the consumer's fence."""


READ_AGAIN_S = 1.0
"""How often an offset is looked for again that could not be read."""


class Offsets:
    """The offsets of one consumer's partitions.

    What a partition has of znodes is known from its claim: to read that again before each commit would cost more than
    the commit. Whoever is refused because somebody has changed them by hand says so with `doubt`, and it is read.

    :param find: where the group begins with a partition of which it has no offset.
    """

    reloads = False
    """Whether offsets that are known are read again: never, but in a consistent region."""

    def __init__(self, runtime: Runtime, paths: GroupPaths, find: Find) -> None:
        self._runtime = runtime
        self._paths = paths
        self._find = find
        self._undecided: dict[TopicPartition, NoOffsetForPartition] = {}
        self._published: dict[TopicPartition, int | None] = {}
        self._publishing: dict[TopicPartition, int | None] = {}
        self._complaints: dict[TopicPartition, str] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._has_znode: dict[TopicPartition, bool] = {}
        self._is_in_doubt = False

    def doubt(self, path: str) -> bool:
        """A commit was refused at `path`; whether what is known of znodes is to blame, and another try is worth it."""
        was_in_doubt = self._is_in_doubt
        self._is_in_doubt |= path.startswith((f"{self._paths.owners}/", f"{self._paths.offsets}/"))
        return self._is_in_doubt and not was_in_doubt

    def believe(self) -> None:
        """A commit went through."""
        self._is_in_doubt = False

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions` filled in.

        Where none was ever written, or under another topic id, the group begins: where, is found and then recorded
        with `record`, some hundred partitions at a time, before anything is fetched. An offset that cannot be read
        leaves its partition unfetched, and is said: to begin anew would bring records twice.

        :raises StoreError: when `record` does; what was recorded is read with the next call.
        """
        now = self._runtime.monotonic()
        self._forget_others(channel)
        wanted = sorted(part for part in partitions if self._not_before.get(part, now) <= now)
        nodes = store.get_many([self._paths.offset(*partition) for partition in wanted])
        found: dict[TopicPartition, int | None] = {}
        unknown: dict[TopicPartition, Node | None] = {}
        self._has_znode |= {part: node is not None for part, node in zip(wanted, nodes, strict=True)}
        for partition, node in zip(wanted, nodes, strict=True):
            try:
                offset = self._standing(partition, channel, node)
            except CoordinatorError as error:
                self._wait(partition, error)
                continue
            if offset is None:
                unknown[partition] = node
            else:
                found[partition] = offset
                self._settled(partition)
        found |= self._begun(store, channel, unknown, record) if unknown else {}
        return replace(channel, running={**channel.running, **found})

    def _forget_others(self, channel: Channel) -> None:
        """What is noted of partitions that run no more must not pile up."""
        self._published = {part: offset for part, offset in self._published.items() if part in channel.running}
        self._complaints = {part: why for part, why in self._complaints.items() if part in channel.running}
        self._not_before = {part: at for part, at in self._not_before.items() if part in channel.running}
        self._undecided = {part: why for part, why in self._undecided.items() if part in channel.running}
        self._has_znode = {part: has for part, has in self._has_znode.items() if part in channel.running}

    def _standing(self, partition: TopicPartition, channel: Channel, node: Node | None) -> int | None:
        """What stands in `offsets/`; None when nothing does of this topic."""
        if node is None:
            return None
        standing = OffsetRecord.parse(self._paths.offset(*partition), node.data)
        return standing.offset if standing.topic_id == channel.topics.get(partition.topic, "") else None

    def _begun(
        self, store: Store, channel: Channel, unknown: Mapping[TopicPartition, Node | None], record: Record
    ) -> dict[TopicPartition, int]:
        """Begin with partitions of which the group has no offset; where, once that is recorded."""
        topics = sorted({partition.topic for partition in unknown})
        nodes = store.get_many([self._paths.offsets_of(topic) for topic in topics])
        notes = dict(zip(topics, nodes, strict=True))
        starts = self._found(channel, sorted(unknown), notes)
        missing = {topic for topic in topics if notes[topic] is None}
        for some in chunks(starts, PARTITIONS_A_STEP if missing else MAX_OPERATIONS - 10) if starts else ():
            parents = sorted(missing & {partition.topic for partition in some})
            missing -= set(parents)
            made = [Create(self._paths.offsets_of(topic)) for topic in parents]
            record([*made, *(self._start(channel, part, starts[part], unknown[part]) for part in some)])
            for partition in some:
                self._has_znode[partition] = True
                self._settled(partition)
        if starts:
            self._tell(starts)
        return {partition: start.offset for partition, start in starts.items()}

    def _found(
        self, channel: Channel, unknown: Iterable[TopicPartition], notes: Mapping[str, Node | None]
    ) -> dict[TopicPartition, Found]:
        """Where the group begins. A log that is away is not waited for at each partition: the next call goes on."""
        starts: dict[TopicPartition, Found] = {}
        until = self._runtime.monotonic() + READ_AGAIN_S
        for partition in unknown:
            topic, topic_id = partition.topic, channel.topics.get(partition.topic, "")
            try:
                is_later = came_later(self._paths.offsets_of(topic), notes[topic], topic_id, partition.partition)
                starts[partition] = self._find(partition, topic_id, is_later)
            except (CoordinatorError, OSError) as error:
                self._wait(partition, error)
            if self._runtime.monotonic() > until:
                break
        return starts

    def _tell(self, starts: Mapping[TopicPartition, Found]) -> None:
        places = Counter(start.place.text for start in starts.values())
        log.info(
            "start positions recorded: group=%s partitions=%d positions=%s",
            self._paths.group, len(starts), ",".join(f"{place}:{count}" for place, count in sorted(places.items())),
        )  # fmt: skip
        for partition, start in starts.items():
            log.debug("partition begins: partition=%s offset=%d position=%s", partition, start.offset, start.place.text)

    def _start(self, channel: Channel, partition: TopicPartition, start: Found, node: Node | None) -> Operation:
        """Records a start where no offset of this topic stands; refused when one does by now."""
        path, topic_id = self._paths.offset(*partition), channel.topics.get(partition.topic, "")
        data = OffsetRecord(start.offset, topic_id, channel.generation, start.place.text).to_bytes()
        return Create(path, data) if node is None else SetData(path, data, node.stat.version)

    def _settled(self, partition: TopicPartition) -> None:
        self._complaints.pop(partition, None)
        self._undecided.pop(partition, None)

    def _wait(self, partition: TopicPartition, error: Exception) -> None:
        self._complain(partition, str(error))
        self._not_before[partition] = self._runtime.monotonic() + READ_AGAIN_S
        if isinstance(error, NoOffsetForPartition):
            self._undecided[partition] = error

    def _complain(self, partition: TopicPartition, problem: str) -> None:
        if self._complaints.get(partition) != problem:
            self._complaints[partition] = problem
            log.error("partition waits for its offset: partition=%s problem=%s", partition, problem)

    def refuse_undecided(self, channel: Channel) -> None:
        """
        :raises NoOffsetForPartition: when a partition runs of which the group has no offset, and must not begin.
        """
        for partition, error in self._undecided.items():
            if partition in channel.running:
                raise error

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that are held but not fetched, each with the reason."""
        return dict(self._complaints)

    def known(self, store: Store, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` have an offset znode."""
        wanted = sorted(partitions)
        nodes = store.get_many([self._paths.offset(*partition) for partition in wanted])
        return frozenset(part for part, node in zip(wanted, nodes, strict=True) if node is not None)

    def owned(self, store: Store, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` have an owner znode."""
        wanted = sorted(partitions)
        nodes = store.get_many([self._paths.owner(*partition) for partition in wanted])
        return frozenset(part for part, node in zip(wanted, nodes, strict=True) if node is not None)

    def release(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition]) -> list[Operation]:
        """The operations that give `partitions` up: offsets written, owners removed."""
        some = frozenset(partitions)
        if not self._is_in_doubt and all(p in self._has_znode for p in some if channel.running.get(p) is not None):
            known = frozenset(part for part in some if self._has_znode.get(part))
            return release_operations(self._paths, channel, some, known, some)
        return release_operations(self._paths, channel, some, self.known(store, some), self.owned(store, some))

    def in_the_way(self, store: Store, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of `partitions` cannot be claimed, because an owner znode stands there."""
        return self.owned(store, partitions) if self._is_in_doubt else NONE

    def ended(
        self, store: Store, consumer: str, channel: Channel, reason: str, error: str = ""
    ) -> tuple[Channel, list[Operation]]:
        """The channel of an incarnation that ends itself, and what goes with it.

        :param error: Kafka's word for it, empty when the application asked for it.

        What does not fit into one multi stays in `running`: the fence has moved, and the coordinator writes it out.
        """
        ids: list[Operation] = [Delete(self._paths.id(consumer))]
        if len(channel.running) > PARTITIONS_A_STEP:
            return replace(channel, ended=reason, error=error), ids
        self._is_in_doubt = True  # there is no second try
        released = self.release(store, channel, channel.running)
        after = replace(channel, running={}, topics={}, ended=reason, error=error, refused=NONE, ask="")
        return after, released + ids

    def publish(self, store: Store, channel: Channel) -> list[Operation]:
        """Operations that write the offsets that moved since they were `published` last into `offsets/`: for people.

        At most one multi's worth; the rest goes with the next call.
        """
        moved = [p for p, o in sorted(channel.running.items()) if o is not None and self._published.get(p) != o]
        some = moved[: MAX_OPERATIONS - 10]
        self._publishing = {partition: channel.running[partition] for partition in some}
        return offset_operations(self._paths, channel, some, self.known(store, some))

    def published(self) -> None:
        """The operations of the last `publish` have been committed."""
        self._published |= self._publishing
        self._has_znode |= dict.fromkeys(self._publishing, True)
