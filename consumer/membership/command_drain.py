"""Draining a channel: the consumer's side of the commands.

In the order of (epoch, generation, sequence). Removing a command acknowledges it; a command that is for another
incarnation, comes from an older epoch or is unreadable is removed unapplied and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from coordinator.zk.errors import BadData, Refused
from coordinator.zk.runtime import FirstLines
from coordinator.zk.store import Delete, Store
from coordinator.zk.znodes.partitions import PartitionSet
from coordinator.zk.znodes.paths import sequence
from coordinator.zk.znodes.records import DRAIN, START_FETCHER, STOP_FETCHER, Channel, Command, Order

from .call_guard import MemberContext
from .channel import FencedChannel
from .claims import acknowledgement, after_command, chunks, claim_operations, with_claimed
from .client_assignment import ClientAssignment
from .contributor import Contributor, StatefulContributor
from .offsets import CommittedOffsets

log = logging.getLogger(__name__)

GiveUp = Callable[[PartitionSet], None]
"""Stops fetching partitions, before the multi that gives them up."""


class Received(NamedTuple):
    """A command in the channel; `command` is None when it cannot be read."""

    order: Order
    name: str
    command: Command | None


class CommandDrain:
    """Applies the commands of one consumer's channel.

    :param client: as of `ConsumerMember`, like `region`: without it its commands are removed unapplied.

    :ivar stale: commands removed unapplied.  :ivar applied: commands applied.
    """

    def __init__(
        self,
        context: MemberContext,
        offsets: CommittedOffsets,
        client: ClientAssignment | None = None,
        region: Contributor | None = None,
    ) -> None:
        self._client = client
        self._region = region
        self._stateful = region if isinstance(region, StatefulContributor) else None
        self._meter = context.meter
        self._paths = context.paths
        self._consumer = context.consumer
        self._wake = context.wake
        self._lines = FirstLines(context.runtime)
        self._offsets = offsets
        self.stale = 0
        self.applied = 0

    def drain(self, store: Store, fenced: FencedChannel, give_up: GiveUp) -> None:
        """Apply or remove every command that is in the channel now.

        :raises Refused: when one was withdrawn meanwhile, or an owner znode appeared: call again.
        :raises IncarnationOver: when this incarnation was ended.
        """
        for received in self._received(store):
            try:
                self._take(store, fenced, received, give_up)
            except Refused as refused:
                if not self._offsets.doubt(refused.path):
                    raise
                self._take(store, fenced, received, give_up)
            self._offsets.believe()

    def _take(self, store: Store, fenced: FencedChannel, received: Received, give_up: GiveUp) -> None:
        name, command = received.name, received.command
        if command is None or self._is_stale(fenced.channel, received):
            return self._remove_unapplied(fenced, received)
        if command.option == STOP_FETCHER:
            return self._stop(store, fenced, name, command, give_up)
        if command.option == START_FETCHER:
            return self._begin(store, fenced, received, command, give_up)
        if command.option == DRAIN:
            done = self._region.drain(store, fenced, name, command) if self._region is not None else False
        else:
            done = self._client is not None and self._client.obey(store, fenced, name, command)
        if done:
            self._log_applied(name, command, 0, 0)
        elif done is False:
            self._remove_unapplied(fenced, received)

    def _received(self, store: Store) -> list[Received]:
        listing = store.children(self._paths.channel(self._consumer), watch=self._on_commands)
        names = listing.names if listing else []
        paths = [self._paths.command(self._consumer, name) for name in names]
        found = zip(names, paths, store.get_many(paths), strict=True)
        commands = [self._parsed(name, path, node.data) for name, path, node in found if node is not None]
        return sorted(commands, key=lambda received: (received.order, received.name))

    def _parsed(self, name: str, path: str, data: bytes) -> Received:
        number = sequence(name)
        try:
            command = Command.parse(path, data)
        except BadData as error:
            if self._lines.take("unreadable command"):
                log.warning("ignoring unreadable znode: path=%s problem=%s", path, error)
            return Received(Order(0, 0, number or 0), name, None)
        if number is None:
            return Received(Order(0, 0, 0), name, None)
        return Received(Order(command.epoch, command.generation, number), name, command)

    def _on_commands(self, path: str) -> None:
        self._wake.set()

    def _is_stale(self, channel: Channel, received: Received) -> bool:
        command = received.command
        if command is None or command.incarnation != channel.incarnation:
            return True
        return (command.epoch, command.generation) < (channel.epoch, channel.generation)

    def _remove_unapplied(self, fenced: FencedChannel, received: Received) -> None:
        fenced.guarded([Delete(self._paths.command(self._consumer, received.name))])
        self.stale += 1
        self._meter.command_removed()
        if not self._lines.take("command discarded"):
            return
        log.warning(
            "command discarded: consumer=%s command=%s epoch=%d generation=%d",
            self._consumer, received.name, received.order.epoch, received.order.generation,
        )  # fmt: skip

    def _stop(self, store: Store, fenced: FencedChannel, name: str, command: Command, give_up: GiveUp) -> None:
        """Stop, seal or commit open records, then one multi: offsets, owners, channel data, the command removed."""
        running = frozenset(fenced.channel.running)
        partitions = (command.partitions or running) & running
        if self._client is not None and not command.partitions:
            self._client.stopped()
        if self._region is not None:
            self._region.stopped()
        give_up(partitions)
        steps = chunks(partitions)
        for number, batch in enumerate(steps, 1):
            released = self._offsets.release(store, fenced.channel, batch)
            after = fenced.channel.without(batch)
            if number == len(steps):  # until then the coordinator sees a stop of its own generation in progress
                after = after_command(after, name, command)
            done = acknowledgement(self._paths, self._consumer, name, is_last=number == len(steps))
            fenced.commit(after, [*released, done])
        self._log_applied(name, command, len(partitions), 0)

    def _begin(
        self, store: Store, fenced: FencedChannel, received: Received, command: Command, give_up: GiveUp
    ) -> None:
        """A start; in a consistent region it stays until the member's state is restored, and begins at the cut."""
        if self._stateful is None:
            self._start(store, fenced, received.name, command)
        elif command.region is None:
            self._remove_unapplied(fenced, received)
        elif not self._stateful.is_applied(fenced.channel, received.name, command):
            give_up(frozenset(fenced.channel.running))
            self._stateful.ordered(fenced.channel, command.region)
            self._start(store, fenced, received.name, command)
            self._stateful.started(received.name)

    def _start(self, store: Store, fenced: FencedChannel, name: str, command: Command) -> None:
        """One multi: missing owners created, channel data, the command removed.

        A partition whose owner znode exists already is left out and listed as refused.
        """
        missing = command.started - frozenset(fenced.channel.running)
        refused = self._offsets.in_the_way(store, missing)
        steps = chunks(missing - refused)
        for number, batch in enumerate(steps, 1):
            claimed = with_claimed(fenced.channel, batch, command.topics)
            after = after_command(claimed, name, command, refused)
            owners = claim_operations(self._paths, self._consumer, command, fenced.incarnation, batch)
            is_last = number == len(steps) and self._stateful is None
            done = acknowledgement(self._paths, self._consumer, name, is_last=is_last)
            fenced.commit(after, [*owners, done])
        self._log_applied(name, command, len(missing - refused), len(refused))
        if self._client is not None and command.ask:
            self._client.started(command.ask)

    def _log_applied(self, name: str, command: Command, partitions: int, refused: int) -> None:
        self.applied += 1
        self._meter.command_applied(command.option)
        log.info(
            "command applied: consumer=%s command=%s option=%s epoch=%d generation=%d partitions=%d refused=%d",
            self._consumer, name, command.option, command.epoch, command.generation, partitions, refused,
        )  # fmt: skip
