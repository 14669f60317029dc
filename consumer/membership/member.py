"""A consumer's life: register, drain the channel, claim and release partitions, keep the lease, leave.

Commands and fetchers belong to one thread of control, as in Kafka: all but the keeper runs inside `tend`,
which the application's `poll` (or a slot's loop) calls. The keeper, in the background, renews the lease and makes the
consumer leave when the application has stopped polling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from zk_group.coordinator.zk.errors import (
    BadData,
    CoordinatorError,
    IncarnationOver,
    NotAuthorized,
    Refused,
    Retryable,
    SessionLost,
    StoreError,
    UsageError,
)
from zk_group.coordinator.zk.runtime import FirstLines
from zk_group.coordinator.zk.store import Delete, Operation, Store, StoreFactory
from zk_group.coordinator.zk.znodes.partitions import PartitionSet
from zk_group.coordinator.zk.znodes.paths import error_text, sequence
from zk_group.coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER, Channel, Command, Order

from ..config import Subscription
from ..errors import TURNED_AWAY, ChannelGone, DrainFailed, FencedInstanceId, IllegalGeneration, UnknownMemberId
from ..logs.base import NO_OFFSETS, Offsets
from .call_guard import MemberContext
from .channel import FencedChannel
from .claims import acknowledgement, after_command, chunks, claim_operations, with_claimed
from .offsets import CommittedOffsets, Consumption, Holding
from .registration import Keeper, Registrar
from .roles import OffsetReader, Role
from .start_position import find_nowhere

log = logging.getLogger(__name__)


class Received(NamedTuple):
    """A command in the channel; `command` is None when it cannot be read."""

    order: Order
    name: str
    command: Command | None


class CommandDrain:
    """Applies the commands of one consumer's channel.

    :param roles: those of the member. A command that none of them applies is removed unapplied.

    :ivar stale: commands removed unapplied.  :ivar applied: commands applied.
    """

    def __init__(self, context: MemberContext, offsets: CommittedOffsets, roles: Sequence[Role] = ()) -> None:
        self._roles = roles
        self._applies = {option: role.apply for role in roles for option in role.commands}
        self._restores = any(role.restores for role in roles)
        self._meter = context.meter
        self._paths = context.paths
        self._consumer = context.consumer
        self._wake = context.wake
        self._lines = FirstLines(context.runtime)
        self._offsets = offsets
        self.stale = 0
        self.applied = 0

    def drain(self, store: Store, fenced: FencedChannel) -> None:
        """Apply or remove every command that is in the channel now.

        :raises Refused: when one was withdrawn meanwhile, or an owner znode appeared: call again.
        :raises IncarnationOver: when this incarnation was ended.
        """
        for received in self._received(store):
            try:
                self._take(store, fenced, received)
            except Refused as refused:
                if not self._offsets.doubt(refused.path):
                    raise
                self._take(store, fenced, received)
            self._offsets.believe()

    def give_up(self, partitions: PartitionSet) -> None:
        """Stop fetching these, before the multi that releases them."""
        for role in self._roles:
            role.give_up(partitions)

    def _take(self, store: Store, fenced: FencedChannel, received: Received) -> None:
        name, command = received.name, received.command
        if command is None or self._is_stale(fenced.channel, command):
            return self._remove_unapplied(fenced, received)
        if command.option == STOP_FETCHER:
            return self._stop(store, fenced, name, command)
        if command.option == START_FETCHER:
            return self._begin(store, fenced, received, command)
        apply = self._applies.get(command.option)
        done = apply(store, fenced, name, command) if apply is not None else False
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

    def _on_commands(self, path: str) -> None:  # one watch, however often it is set: a lambda would be one each time
        self._wake.set()

    def _is_stale(self, channel: Channel, command: Command) -> bool:
        is_older = (command.epoch, command.generation) < (channel.epoch, channel.generation)
        return is_older or command.incarnation != channel.incarnation

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

    def _stop(self, store: Store, fenced: FencedChannel, name: str, command: Command) -> None:
        """Stop, seal or commit open records, then one multi: offsets, owners, channel data, the command removed."""
        running = frozenset(fenced.channel.running)
        partitions = (command.partitions or running) & running
        for role in self._roles:
            role.stopping(is_whole=not command.partitions)
        self.give_up(partitions)
        steps = chunks(partitions)
        for number, batch in enumerate(steps, 1):
            released = self._offsets.release(store, fenced.channel, batch)
            after = fenced.channel.without(batch)
            if number == len(steps):  # until then the coordinator sees a stop of its own generation in progress
                after = after_command(after, name, command)
            done = acknowledgement(self._paths, self._consumer, name, is_last=number == len(steps))
            fenced.commit(after, [*released, done])
        self._log_applied(name, command, len(partitions), 0)

    def _begin(self, store: Store, fenced: FencedChannel, received: Received, command: Command) -> None:
        """A start; in a consistent region it stays until the member's state is restored, and begins at the cut."""
        admitted = [role.admits(fenced.channel, received.name, command) for role in self._roles]
        if False in admitted:
            return self._remove_unapplied(fenced, received)
        if None in admitted:
            return
        if self._restores:
            self.give_up(frozenset(fenced.channel.running))
        for role in self._roles:
            role.ordered(fenced.channel, command)
        self._start(store, fenced, received.name, command)
        for role in self._roles:
            role.started(received.name, command)

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
            is_last = number == len(steps) and not self._restores
            done = acknowledgement(self._paths, self._consumer, name, is_last=is_last)
            fenced.commit(after, [*owners, done])
        self._log_applied(name, command, len(missing - refused), len(refused))

    def _log_applied(self, name: str, command: Command, partitions: int, refused: int) -> None:
        self.applied += 1
        self._meter.command_applied(command.option)
        log.info(
            "command applied: consumer=%s command=%s option=%s epoch=%d generation=%d partitions=%d refused=%d",
            self._consumer, name, command.option, command.epoch, command.generation, partitions, refused,
        )  # fmt: skip


# Large: the poll side of one incarnation after the other, and its ends, each with what an application must know.
class ConsumerMember:
    """One consumer of a group, over all its incarnations and sessions.

    :param consumption: None for a member of a group that assigns no partitions.
    :param roles: besides that of its partitions.
    :ivar paths: of the group.  :ivar trace: its events.  :ivar wake: set when `tend` has work.
    """

    def __init__(
        self,
        context: MemberContext,
        open_store: StoreFactory,
        consumption: Consumption | None,
        roles: Sequence[Role] = (),
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self.paths = context.paths
        self.trace = context.trace
        self.wake = context.wake
        find = consumption.starts.find if consumption else find_nowhere
        self._offsets = CommittedOffsets(context.runtime, context.paths, find)
        self._published_at = context.runtime.monotonic()
        reader: OffsetReader = self._offsets
        for role in roles:
            reader = role.reading(reader)
        partitions = [Holding(context, consumption.holder, reader)] if consumption is not None else []
        self._roles = sorted([*roles, *partitions], key=lambda role: role.follows_partitions)
        self._drain = CommandDrain(context, self._offsets, self._roles)
        self._keeper = Keeper(context, self._offsets, has_owners=bool(partitions))
        self._registrar = Registrar(context, open_store, self._keeper, consumption, self._roles)
        self._fenced_for_good: FencedInstanceId | None = None
        runtime, keeper = context.runtime, self._keeper
        context.meter.reads_member(lambda: self.lease_left_s, lambda: runtime.monotonic() - keeper.last_poll)

    # ---- queries

    @property
    def channel(self) -> Channel | None:
        """The channel as last known; None when the consumer is not registered."""
        fenced = self._registrar.live
        return fenced.channel if fenced is not None else None

    @property
    def may_fetch(self) -> bool:
        """Whether partitions are held, the lease runs, and no checkpoint waits."""
        fenced, lease, store = self._registrar.live, self._registrar.lease, self.store  # read once: for worker threads
        is_ended = fenced is None or fenced.is_ending or store is None or store.lost
        is_paused = any(role.is_paused for role in self._roles)
        return not is_ended and not is_paused and lease is not None and lease.is_held

    @property
    def lease_left_s(self) -> float:
        """Seconds until the lease expires."""
        lease = self._registrar.lease  # read once: metrics are read by another thread
        return lease.left_s if lease else 0.0

    @property
    def store(self) -> Store | None:
        """The session of the current incarnation."""
        return self._registrar.store

    @property
    def registrations(self) -> int:
        """How many incarnations have begun."""
        return self._registrar.registrations

    # ---- the poll side

    def tend(self) -> None:
        """Register, apply commands, read offsets, send a heartbeat, as needed. Never waits for long.

        When an incarnation ends for another reason than those below, its partitions are reported lost first; a new
        one follows after a backoff.

        :raises FencedInstanceId: when a newer process has this consumer's name.
        :raises InconsistentGroupProtocol: when the group has no strategy in common with this consumer.
        :raises GroupMaxSizeReached: when the group is full. After this and the one before, another call tries again.
        :raises NoOffsetForPartition: when the group has none, and `auto_offset_reset` is `none`; other work is done.
        :raises AssignmentFailed: when the group's leader gave no assignment; once for each failure, other work is done.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made, or `NotAuthorized`.
        """
        self._keeper.last_poll = self._runtime.monotonic()
        if self._fenced_for_good is not None:
            raise self._fenced_for_good
        try:
            channel = self._registrar.registered()
            if channel is None:
                self.wake.clear()  # no command to apply yet: a waiting `poll` keeps waiting
                return
            channel.settle()
            self._registrar.update(channel)
            self._obey(channel)
            if (store := self.store) is not None:
                for role in self._roles:
                    role.tend(store, channel)
            self._context.calls.succeeded()
            self._offsets.refuse_undecided(channel.channel)
            for role in self._roles:
                role.raise_failure()
        except DrainFailed as error:
            self.leave(str(error))
            raise
        except FencedInstanceId as over:
            self._fenced_for_good = over
            self._drop_everything(str(over))
            raise
        except TURNED_AWAY as refusal:
            self._drop_everything(str(refusal))
            self._registrar.backoff.refused()
            raise
        except (SessionLost, ChannelGone) as lost:
            self._drop_everything(str(lost))
            self._registrar.close()
        except IncarnationOver as over:
            self._drop_everything(str(over))
        except StoreError as error:
            if isinstance(error, NotAuthorized) and self.registrations == 0:
                raise
            # An outage of ZooKeeper is logged when it begins and ends, not with each request that has no answer.
            if isinstance(error, Retryable):
                log.debug("request failed, retrying: consumer=%s reason=%s", self._context.consumer, error)
            else:
                log.info("ZooKeeper unavailable, retrying: consumer=%s reason=%s", self._context.consumer, error)
            self.wake.set()
            self._runtime.sleep(0.05)

    def advance(
        self, offsets: Offsets, operations: tuple[Operation, ...] = (), sealed: str = "", lost: Offsets = NO_OFFSETS
    ) -> None:
        """Move the offsets of partitions that run (`Channel.advanced`), together with `operations`, under the fence.

        :raises IllegalGeneration: when one of them no longer runs; nothing has moved.
        :raises IncarnationOver: when the incarnation is over, by its class; nothing has moved.
        :raises StoreError: when ZooKeeper refused or did not answer; `channel` is the truth then.
        """
        fenced = self._registrar.fenced
        if fenced is None or fenced.over is not None:
            raise fenced.over if fenced and fenced.over else UnknownMemberId("the consumer is not registered")
        began = self._runtime.monotonic()
        with fenced.lock:  # no unknown outcome may be resolved between the read and the commit
            fenced.settle()
            before = fenced.channel
            if sealed and before.sealed == sealed:
                return  # an earlier try, whose reply was lost, has succeeded
            missing = [partition for partition in offsets if partition not in before.running]
            if missing:
                raise IllegalGeneration(f"{missing[0]} is no longer this consumer's")
            fenced.commit(before.advanced(offsets, lost, sealed), operations)
        self._keeper.last_commit = self._runtime.monotonic()
        self._context.meter.committed(self._keeper.last_commit - began)
        if (store := self.store) is not None:
            at_once = bool(before.discontinuities)  # sealed by now: `offsets/` is not to have one any more
            self._publish_if_due(store, fenced, at_once)

    def _publish_if_due(self, store: Store, fenced: FencedChannel, at_once: bool) -> None:
        """Publish offsets in `offsets/` for readers, every `offsets_interval_ms`; the channel has them first."""
        now = self._runtime.monotonic()
        if now - self._published_at < self._context.config.offsets_interval_ms / 1000 and not at_once:
            return
        self._published_at = now
        try:
            self._offsets.publish(store, fenced)
        except (IncarnationOver, StoreError) as error:  # the next `tend` handles an incarnation that is over
            log.info("offset publish deferred: consumer=%s reason=%s", self._context.consumer, error)

    def subscribe(self, subscription: Subscription) -> None:
        """Change the subscription; the next `tend` writes it in place, which causes a rebalance.

        :raises UsageError: when an assignor's metadata for it is too large; nothing has changed then.
        """
        self._registrar.subscribe(subscription)

    def in_session(self, act: Callable[[Store, FencedChannel], None]) -> None:
        """Call `act` with the session and the channel of the living incarnation.

        :raises UsageError: when there is none: poll first.
        """
        fenced = self._registrar.live
        if self.store is None or fenced is None:
            raise UsageError("the consumer is no member now: poll first")
        act(self.store, fenced)

    def rejoin(self) -> None:
        """Write the registration again: the offered protocols have changed."""
        self._registrar.rejoin()

    def leave(self, reason: str = "left", for_good: bool = False) -> None:
        """Release everything (`for_good`: a seat, too) and end the incarnation, not the session; on the poll side.

        What a callback raises is the reason, and is raised at the end.
        """
        fenced = self._registrar.fenced
        if fenced is None or fenced.over is not None:  # it may have ended since the last `tend`
            self._drop_everything(str(fenced.over) if fenced is not None else reason)
            return
        failure: Exception | None = None
        try:
            fenced.settle()
            try:
                for role in self._roles:
                    role.leaving()
                self._drain.give_up(frozenset(fenced.channel.running))
            except Exception as error:
                if not self._context.calls.is_of_callback(error) and isinstance(error, CoordinatorError | OSError):
                    raise
                failure, reason = error, f"left: {self._context.calls.failing() or error_text(error)}"
            self._end(fenced, reason, for_good)
        except (CoordinatorError, OSError) as error:
            log.warning("leave failed: consumer=%s reason=%s", self._context.consumer, error)
        try:
            self._drop_everything(reason)
        finally:
            if failure is not None:
                raise failure

    def close(self, for_good: bool = False) -> None:
        """Leave, end the session and the keeper."""
        self._keeper.closing.set()
        try:
            self.leave(for_good=for_good)
        finally:  # a callback of the application may raise: an open session would keep the member
            self._registrar.close()
            self._context.meter.gone()

    # ---- commands and running partitions

    def _obey(self, fenced: FencedChannel) -> None:
        if self.store is None or not self.wake.is_set():
            return
        self.wake.clear()
        try:
            applied = self._drain.applied
            self._drain.drain(self.store, fenced)
            self._registrar.backoff.succeeded(is_member=self._drain.applied > applied)
        except Refused as refused:
            # Withdrawn meanwhile, or an owner znode appeared: read again.
            log.info("command drain restarted: consumer=%s refused=%s", self._context.consumer, refused.path)
            self.wake.set()
            self._runtime.sleep(0.02)
        except BaseException:
            self.wake.set()  # after an exception of the application's callback, for example: its command is still there
            raise

    # ---- the end of an incarnation

    def _end(self, fenced: FencedChannel, reason: str, for_good: bool) -> None:
        """End it in ZooKeeper, completely when that fits into one multi; else the coordinator writes the rest."""
        if self.store is None:
            return
        after, operations = self._offsets.ended(self.store, self._context.consumer, fenced.channel, reason)
        seat = self.paths.seat(self._context.consumer)
        if for_good and self.store.get(seat) is not None:
            operations.append(Delete(seat))
        fenced.end(after, operations, IncarnationOver(reason))
        log.info("left: group=%s consumer=%s reason=%s", self._context.config.group, self._context.consumer, reason)

    def _drop_everything(self, reason: str) -> None:
        if (fenced := self._registrar.fenced) is not None:
            self._context.trace.over(fenced.incarnation, reason)
        self._registrar.forget()
        self._context.calls.succeeded()
        with ExitStack() as ending:  # the last role first; all of them, also when a callback raises
            for role in self._roles:
                ending.callback(role.lost, reason)
