"""The roles of a member: its partitions, client-side assignment, its consistent region. A member has a list of them.

A group's kind decides which roles its members have. The member asks each of its roles, and none that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Protocol

from zk_group.coordinator.zk.store import Operation, Store
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.records import Channel, Command, Registration

from ..config import Subscription
from .channel import FencedChannel

Record = Callable[[Sequence[Operation]], None]
"""Commits operations under the consumer's fence."""


class OffsetReader(Protocol):
    """Reads the offsets at which running partitions begin."""

    @property
    def reloads(self) -> bool:
        """Whether offsets that are known are read again."""

    def read(self, store: Store, channel: Channel, partitions: Iterable[TopicPartition], record: Record) -> Channel:
        """`channel` with the offsets of `partitions`, as far as they are readable."""


class Role:
    """One role of a member, over all its incarnations; without effect by default. All calls come from inside `poll`.

    :cvar commands: options of the commands that this role applies.
    :cvar restores: whether all partitions begin again with each start, which stays until the role has removed it.
    :cvar follows_partitions: whether it tends after the partitions, whose offsets it needs.
    """

    commands: ClassVar[tuple[str, ...]] = ()
    restores: ClassVar[bool] = False
    follows_partitions: ClassVar[bool] = False

    @property
    def is_paused(self) -> bool:
        """Whether no records may be taken in. Thread-safe."""
        return False

    def describe(self, registration: Registration, subscription: Subscription | None) -> Registration:
        """`registration` with the fields of this role; `subscription` is None for a member that consumes no topics.

        :raises UsageError: when a field is too large.
        """
        return registration

    def reading(self, offsets: OffsetReader) -> OffsetReader:
        """Reads the offsets at which partitions begin."""
        return offsets

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """Do what is due after the commands were applied.

        :raises StoreError: when ZooKeeper did not answer: call again.
        """

    def raise_failure(self) -> None:
        """Raise for the application what has failed since the last call, once all other work is done."""

    # ---- commands

    def apply(self, store: Store, fenced: FencedChannel, name: str, command: Command) -> bool | None:
        """Apply a command of `commands`; False when it is stale, None when it stays until it can be applied.

        :raises Refused: when it was withdrawn meanwhile: read again.
        :raises StoreError: when ZooKeeper did not answer: call again.
        """
        return False

    def admits(self, channel: Channel, name: str, command: Command) -> bool | None:
        """Whether a start is applied now; False when it is stale, None when it was applied before, and stays."""
        return True

    def ordered(self, channel: Channel, command: Command) -> None:
        """A start is about to be applied."""

    def started(self, name: str, command: Command) -> None:
        """A start was applied."""

    def stopping(self, is_whole: bool) -> None:
        """A stop is about to be applied: of all partitions, or of some."""

    def give_up(self, partitions: PartitionSet) -> None:
        """These partitions are about to be released: stop fetching them."""

    # ---- the end of an incarnation

    def leaving(self) -> None:
        """The member is about to leave: end all work on its part."""

    def lost(self, reason: str) -> None:
        """The incarnation is over: other members may have its part."""
