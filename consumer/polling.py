"""What `poll` does besides membership: fetches when it is time to, and chooses what is returned (KIP-41)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.runtime import Runtime

from .buffer import Buffer
from .config import ConsumerConfig
from .fetcher import Fetch, Fetcher, Looks, Position
from .holder import Start
from .out_of_range import Jump
from .poll_order import ORDERS, UNBOUNDED
from .prefetch import HEURISTICS
from .records import Record, records_of

FETCH_S = 0.005
"""A fetch that has brought something ends after so long: the files of a thousand partitions take a second to open."""


class Polling:
    """The records of one consumer, from the log to the application. A poll fetches once at most, and never waits.

    :param tell: is told what was fetched.
    :param tell_jumps: is told where fetching goes on elsewhere, because the log does not have the offset.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        fetcher: Fetcher,
        runtime: Runtime,
        tell: Callable[[Sequence[Fetch]], None],
        tell_jumps: Callable[[Mapping[TopicPartition, Jump]], None],
    ) -> None:
        self._config = config
        self._fetcher = fetcher
        self._runtime = runtime
        self._tell = tell
        self._tell_jumps = tell_jumps
        self._buffer = Buffer()
        self._paused: PartitionSet = frozenset()
        self._order = ORDERS[config.poll_order]
        self._wants = HEURISTICS[config.prefetch]
        self._looks = Looks(runtime)
        self._prefetches = Looks(runtime)

    # ---- partitions

    def begin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Fetch these too."""
        self._fetcher.begin(starts)
        self._buffer.begin(starts)
        self.look()

    def end(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these no more; what waits of them is dropped, and that they were paused forgotten."""
        self._fetcher.end(partitions)
        self._buffer.end(partitions)
        self._paused -= frozenset(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`."""
        self._fetcher.rewind(partition, offset)
        self._buffer.seek(partition, offset)
        self.look()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these, and fetch nothing; what waits of them goes on waiting."""
        self._paused |= frozenset(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return and fetch these again."""
        self._paused -= frozenset(partitions)
        self.look()

    @property
    def paused(self) -> PartitionSet:
        """The partitions that are paused."""
        return self._paused

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """Partition -> the offset of the next record that is returned. May be read by other threads."""
        return self._buffer.positions

    def position(self, partition: TopicPartition) -> Position | None:
        """The same of one partition, None when it is not held."""
        return self._buffer.position(partition)

    @property
    def complaints(self) -> dict[TopicPartition, str]:
        """Partitions that cannot be fetched now, each with the reason."""
        return self._fetcher.complaints

    @property
    def retained(self) -> tuple[int, int]:
        """Records that wait, and the bytes that they cost. May be read by other threads."""
        return self._buffer.rows, self._buffer.nbytes

    # ---- records

    @property
    def wait_s(self) -> float:
        """Seconds until the next look for records is due; 0 when it is, or some wait already."""
        return self._looks.wait_s

    def look(self) -> None:
        """Something has changed, or somebody asks: the next look is due."""
        self._looks.at_once()

    def poll(self, max_records: int | None) -> dict[TopicPartition, list[Record]]:
        """The next records, and what is fetched for the poll after this.

        :param max_records: at most so many, and never more than `max_poll_records`.
        :raises OffsetOutOfRange: when the log does not have an offset, and `auto_offset_reset` is `none`.
        """
        self._mind_out_of_range()
        has_some = any(self._buffer.there(self._paused))
        if not has_some:
            if self._looks.wait_s:
                return {}
            self._fetch(self._looks, self._fetchable(), at_least=1)
        found = self._take(max_records)
        try:
            if has_some and not self._prefetches.wait_s:
                self._prefetch()
            self._buffer.pack()
            return {fetch.partition: records_of(fetch) for fetch in found}
        except BaseException:
            for fetch in found:  # not returned: a commit must not go over them
                self.seek(fetch.partition, fetch.first)
            raise

    def put_back(self, records: Mapping[TopicPartition, list[Record]]) -> None:
        """These were not returned after all: the next poll begins with them."""
        for partition, some in records.items():
            self.seek(partition, some[0].offset)

    def _mind_out_of_range(self) -> None:
        """Only of partitions of which nothing waits: what was fetched before is returned before."""
        out_of_range = self._fetcher.out_of_range
        if not out_of_range.partitions:
            return
        alone = out_of_range.partitions - self._buffer.left(out_of_range.partitions).keys()
        out_of_range.refuse(alone)
        if jumps := {partition: jump for partition, jump in out_of_range.jumps.items() if partition in alone}:
            self._tell_jumps(jumps)
            for partition, jump in jumps.items():
                self.seek(partition, jump.after)

    def _take(self, max_records: int | None) -> list[Fetch]:
        bounds = [bound for bound in (max_records, self._config.max_poll_records) if bound is not None and bound > 0]
        picked = self._order.pick(self._buffer.there(self._paused), min(bounds, default=UNBOUNDED))
        found = self._buffer.take(picked, self._config.fetch_max_bytes)
        taken = [(fetch.partition, fetch.rows) for fetch in found]
        left = self._buffer.left(fetch.partition for fetch in found)
        self._buffer.put_behind(self._order.behind(taken, left))
        return found

    def _prefetch(self) -> None:
        most = self._config.max_poll_records if self._config.max_poll_records > 0 else UNBOUNDED
        waiting = dict(self._buffer.there(self._paused))
        if wanted := self._wants(waiting, self._fetchable(), len(self._buffer.assignment), most):
            self._fetch(self._prefetches, wanted)

    def _fetchable(self) -> Collection[TopicPartition]:
        held = self._buffer.assignment
        return frozenset(held) - self._paused if self._paused else held

    def _fetch(self, looks: Looks, wanted: Collection[TopicPartition], at_least: int = 0) -> None:
        """Fetch what the bounds leave room for.

        :param at_least: bytes to ask for even where there is no room: where paused partitions fill the buffer, the
            others go on with a record at a time.
        """
        config = self._config
        room = max(at_least, min(config.fetch_max_bytes, config.buffer_memory - self._buffer.nbytes))
        if room <= 0:
            return
        began = self._runtime.monotonic()
        until = began + FETCH_S
        fetched = self._fetcher.fetch(
            UNBOUNDED, room, wanted, config.max_partition_fetch_bytes, lambda: self._runtime.monotonic() >= until
        )
        looks.note(began, is_empty=not fetched)
        for fetch in fetched:
            self._buffer.add(fetch)
        self._tell(fetched)
