"""Members of a consistent region: they contribute to a checkpoint, and take in no records until it has ended."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from zk_group.coordinator.zk.store import Check, Create, Delete, Store
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import RegionPaths
from zk_group.coordinator.zk.znodes.records import DRAIN, Channel, Command
from zk_group.coordinator.zk.znodes.regions import COMPLETED, ENDS, Checkpoint, Contribution, Order, Progress, Region

from .call_guard import MemberContext
from .channel import FencedChannel
from .roles import Role

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 1.0


class Contributor(Role, ABC):
    """The role of a member in its region. All methods are called inside `tend`.

    :ivar drain_ms: duration of the last drain; `longest_drain_ms` of the longest.
    :ivar drained: the last checkpoint with its contribution.  :ivar saved: the last complete one of these.
    """

    commands = (DRAIN,)
    follows_partitions = True

    def __init__(self, context: MemberContext) -> None:
        self._config = context.config
        self._runtime = context.runtime
        self._group = context.paths
        self._wake = context.wake
        self.paths = RegionPaths(context.config.region)
        self._is_first = False
        self._paused_for = 0
        self._looked_at = float("-inf")
        self._look = context.runtime.event()
        self._draining_for = 0
        self._drain_began = 0.0
        self.drain_ms = 0
        self.longest_drain_ms = 0
        self.drained = 0
        self.saved = 0

    @property
    def is_paused(self) -> bool:
        """Whether a checkpoint waits for other members: no records are taken in before its end is read."""
        return bool(self._paused_for)

    @property
    def is_in_checkpoint(self) -> bool:
        """The same, or a checkpoint waits for this member."""
        return bool(self._paused_for or self._draining_for)

    def stopping(self, is_whole: bool) -> None:
        self._paused_for = self._draining_for = 0

    def lost(self, reason: str) -> None:
        self.stopping(is_whole=True)

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """Continue after a checkpoint has ended.

        :raises StoreError: when ZooKeeper did not answer: call again.
        """
        if self.is_in_checkpoint:
            self._look_for_the_end(store, fenced.channel)

    def apply(self, store: Store, fenced: FencedChannel, name: str, command: Command) -> bool | None:
        """Contribute to a checkpoint; False when the command is not for this member's present reset.

        None when that is not possible yet: the command stays, and the member is woken to try again.

        :raises DrainFailed: when the application fails; the member must leave.
        :raises Refused: when it was withdrawn, or the checkpoint has ended: read again.
        """
        order = command.region
        if order is None or not self._may_contribute(fenced.channel, order):
            return False
        # The watch fires at its end: its data is set then, and not by a contribution.
        node = store.get(self.paths.checkpoint(order.checkpoint), watch=self._on_end)
        if node is None or (node.stat.version > 0 and self._names_at_the_end(store, order.checkpoint) is not None):
            return False
        if self._draining_for != order.checkpoint:
            self._draining_for, self._drain_began = order.checkpoint, self._runtime.monotonic()
            self._looked_at = self._drain_began
        contribution = self._contribution(store, fenced, order)
        took_ms = round((self._runtime.monotonic() - self._drain_began) * 1000)
        if contribution is None:
            return None
        given, channel = replace(contribution, drain_ms=took_ms), fenced.channel
        progress = replace(channel.region or Progress(), drained=order.checkpoint)
        after = replace(channel, epoch=command.epoch, command=name, running=dict(given.offsets), region=progress)
        where = self.paths.contribution(order.checkpoint, self._config.group, self._config.consumer)
        begun = readable(Checkpoint.parse, self.paths.checkpoint(order.checkpoint), node)
        participants = begun.participants.get(self._config.group, ()) if begun is not None else ()
        self._is_first = min(participants, default="") == self._config.consumer
        # Before it is sent: no records are taken in until the end is read.
        self._paused_for, self._draining_for = order.checkpoint, 0
        self._looked_at = self._runtime.monotonic()
        current = Check(self.paths.checkpoint(order.checkpoint), node.stat.version)
        acknowledged = Delete(self._group.command(self._config.consumer, name))
        fenced.commit(after, [current, Create(where, given.to_bytes()), acknowledged])
        self.drain_ms, self.longest_drain_ms = took_ms, max(took_ms, self.longest_drain_ms)
        self.drained = order.checkpoint
        log.info(
            "drained: group=%s consumer=%s region=%s checkpoint=%d ms=%d",
            self._config.group, self._config.consumer, self.paths.region, order.checkpoint, took_ms,
        )  # fmt: skip
        return True

    def _may_contribute(self, channel: Channel, order: Order) -> bool:
        """Whether a drain is for the member's present incarnation and reset."""
        return True

    @abstractmethod
    def _contribution(self, store: Store, fenced: FencedChannel, order: Order) -> Contribution | None:
        """This member's contribution; None while there is none.

        :raises StoreError: when ZooKeeper did not answer: call again.
        """

    def _look_for_the_end(self, store: Store, channel: Channel) -> None:
        now = self._runtime.monotonic()
        if not self._look.is_set() and now - self._looked_at < LOOK_AGAIN_S:
            return
        self._look.clear()
        self._looked_at = now
        checkpoint = self._paused_for or self._draining_for
        names = self._names_at_the_end(store, checkpoint)
        if names is None:
            # A lost connection has lost the watch, too.
            store.get(self.paths.checkpoint(checkpoint), watch=self._on_end)
            names = self._names_at_the_end(store, checkpoint)
            if names is None:
                return
        if self._paused_for == checkpoint:
            self._paused_for = 0
        if self._draining_for == checkpoint:  # else the next one has begun by now
            self._draining_for = 0
        is_completed = COMPLETED in names
        if channel.region is not None and channel.region.drained == checkpoint:
            self.drained = checkpoint  # also where the reply to the multi was lost
            if is_completed:
                self.saved = checkpoint
        if is_completed and self._is_first:
            self._completed(store, checkpoint)

    def _completed(self, store: Store, checkpoint: int) -> None:
        """A checkpoint has completed, and this member is the first of its participants in the group."""
        return None

    def _names_at_the_end(self, store: Store, checkpoint: int) -> Sequence[str] | None:
        """The children of a checkpoint that has ended, empty when it was removed; None while it is open."""
        listing = store.children(self.paths.checkpoint(checkpoint))
        if listing is not None and not any(how in listing.names for how in ENDS):
            region = self._region(store)
            if region is None or region.open == checkpoint:
                return None
            listing = store.children(self.paths.checkpoint(checkpoint))  # it has ended between the two reads
        return listing.names if listing is not None else ()

    def _region(self, store: Store) -> Region | None:
        return readable(Region.parse, self.paths.root, store.get(self.paths.root))

    def _on_end(self, path: str) -> None:
        self._look.set()
        self._wake.set()
