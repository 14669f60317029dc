"""A consumer's life: register, drain the channel, claim and give up partitions, keep the lease, leave.

Commands and fetchers belong to one thread of control, as in Kafka: everything here but the keeper runs inside `tend`,
which the application's `poll` (or a slot's loop) calls. The keeper, in the background, renews the lease and makes the
consumer leave when the application has stopped polling.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from coordinator.zk.errors import (
    BadData,
    CoordinatorError,
    IncarnationOver,
    Refused,
    SessionLost,
    StoreError,
    UsageError,
    ZooKeeperUnreachable,
)
from coordinator.zk.lease import Lease
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel, Registration
from coordinator.zk.runtime import Runtime
from coordinator.zk.store import Operation, SessionState, Store, StoreFactory

from .assignment.client import ClientAssignment
from .backoff import Backoff
from .channel import FencedChannel
from .commands import CommandDrain
from .config import ConsumerConfig, Subscription
from .errors import TURNED_AWAY, ChannelGone, DrainFailed, FencedInstanceId, IllegalGeneration, UnknownMemberId
from .fetcher import Fetch
from .holder import Holder
from .holding import Holding
from .keeper import Keeper
from .metrics import Meter, unread
from .offsets import Offsets
from .operator.contributor import Contributor
from .operator.region import RegionMember
from .out_of_range import Jump
from .registration import changed_registration, register, registration_of, seat_given_up
from .session import Session
from .starts import Starts, find_nowhere
from .trace import Trace

log = logging.getLogger(__name__)


class Member:
    """One consumer of a group, over as many incarnations and sessions as it takes.

    :param subscription: None for a member of a group that assigns no partitions; then `starts` is None, too.
    :param starts: finds where the group begins with partitions of which it has no offset.
    :param seal_interval_ms: how often the holder seals, for the registration; 0 when it seals nothing.
    :param client: the member's part in client-side assignment, where it takes part.
    :param region: its part in its consistent region, where it is in one.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscription: Subscription | None,
        open_store: StoreFactory,
        runtime: Runtime,
        holder: Holder,
        starts: Starts | None,
        meter: Meter | None = None,
        seal_interval_ms: int = 0,
        client: ClientAssignment | None = None,
        region: Contributor | None = None,
    ) -> None:
        self._client = client
        self._region = region
        self._config = config
        self._seal_interval_ms = seal_interval_ms
        self._subscription = subscription
        self._is_resubscribed = False
        self._runtime = runtime
        self._paths = GroupPaths(config.group)
        self._offsets = Offsets(runtime, self._paths, starts.find if starts is not None else find_nowhere)
        self._session = Session(open_store, runtime, self._on_state)
        self._channel: FencedChannel | None = None
        self._lease: Lease | None = None
        self._trace = Trace(runtime, config.group, config.consumer)
        self._own_incarnations: set[str] = set()
        self._fenced: FencedInstanceId | None = None
        self._backoff = Backoff(runtime)
        self._last_offsets = runtime.monotonic()
        self._meter = meter or unread()
        reader = region.reading(self._offsets) if isinstance(region, RegionMember) else self._offsets
        self._holding = Holding(config.consumer, holder, reader, self._trace, self._meter)
        self._drain = CommandDrain(runtime, self._paths, config.consumer, self._offsets, self._meter, client, region)
        self._keeper = Keeper(config, runtime, self._offsets, self._drain.dirty, has_owners=subscription is not None)
        if client is not None:
            client.reports_to(self._meter, runtime)
        self._meter.reads_member(lambda: self.lease_left_s, lambda: runtime.monotonic() - self._keeper.last_poll)
        self.wake = self._drain.dirty
        self.registrations = 0

    # ---- what others may ask

    @property
    def channel(self) -> Channel | None:
        """What the consumer runs, as far as it knows; None when it is not registered."""
        return self._channel.channel if self._channel and self._channel.over is None else None

    @property
    def may_fetch(self) -> bool:
        """Whether partitions are held, the lease runs, and no checkpoint waits."""
        fenced, lease, store = self._channel, self._lease, self.store  # read once: worker threads ask, too
        is_ended = fenced is None or fenced.over is not None or fenced.is_ending or store is None or store.lost
        is_paused = self._region is not None and self._region.is_paused
        return not is_ended and not is_paused and lease is not None and lease.is_held

    @property
    def lease_left_s(self) -> float:
        """Seconds that the lease is still good for."""
        lease = self._lease  # read once: metrics are read by another thread
        return lease.left_s if lease else 0.0

    @property
    def store(self) -> Store | None:
        """The session of the current incarnation."""
        return self._session.store

    @property
    def paths(self) -> GroupPaths:
        """The group's paths."""
        return self._paths

    # ---- the poll side

    def tend(self) -> None:
        """Do what is due: register, obey commands, read offsets, give a sign of life. Never waits for long.

        An incarnation that is over for another reason than those below is followed by a new one, after a backoff:
        its partitions are told lost first.

        :raises FencedInstanceId: when a newer process has this consumer's name.
        :raises InconsistentGroupProtocol: when the group has no strategy in common with this consumer.
        :raises GroupMaxSizeReached: when the group is full. After this and the one before, another call tries again.
        :raises NoOffsetForPartition: when the group has none, and `auto_offset_reset` is `none`; all else is done then.
        :raises AssignmentFailed: when the group's leader gave no assignment; once for each failure, all else is done.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made.
        """
        self._keeper.last_poll = self._runtime.monotonic()
        if self._fenced is not None:
            raise self._fenced
        try:
            channel = self._registered()
            if channel is None:
                self._drain.dirty.clear()  # there is nothing to obey yet: whoever waits for it shall wait
                return
            channel.settle()
            self._rejoin(channel)
            self._obey(channel)
            if self._client is not None and self.store is not None:
                self._client.tend(self.store, channel)
            self._holding.follow(self.store, channel)
            if self._region is not None and self.store is not None:
                self._region.tend(self.store, channel)
            self._offsets.refuse_undecided(channel.channel)
            if self._client is not None:
                self._client.raise_failure()
        except DrainFailed as error:
            self.leave(str(error))
            raise
        except FencedInstanceId as over:
            self._fenced = over  # for good, whatever becomes of the channel
            self._drop_everything(str(over))
            raise
        except TURNED_AWAY as refusal:
            self._drop_everything(str(refusal))
            self._backoff.turned_away()
            raise
        except (SessionLost, ChannelGone) as lost:
            self._drop_everything(str(lost))
            self._session.close()
        except IncarnationOver as over:
            self._drop_everything(str(over))
        except StoreError as error:
            log.info("will try again: consumer=%s reason=%s", self._config.consumer, error)
            self._drain.dirty.set()
            self._runtime.sleep(0.05)

    def advance(
        self, offsets: Mapping[TopicPartition, int], operations: tuple[Operation, ...] = (), sealed: str | None = None
    ) -> None:
        """Move the offsets of partitions that run, together with `operations`, under the fence.

        :raises IllegalGeneration: when one of them no longer runs; nothing has moved.
        :raises IncarnationOver: when the incarnation is over, the class says why; nothing has moved.
        :raises StoreError: when ZooKeeper refused or did not answer; what `channel` says then is the truth.
        """
        fenced = self._channel
        if fenced is None or fenced.over is not None:
            raise fenced.over if fenced and fenced.over else UnknownMemberId("the consumer is not registered")
        began = self._runtime.monotonic()
        with fenced.lock:  # nobody may settle an unknown outcome between the look and the commit
            fenced.settle()
            before = fenced.channel
            if sealed is not None and before.sealed == sealed:
                return  # an earlier try, whose reply was lost, has done it
            missing = [partition for partition in offsets if partition not in before.running]
            if missing:
                raise IllegalGeneration(f"{missing[0]} is no longer this consumer's")
            after = replace(before, running={**before.running, **offsets})
            fenced.commit(replace(after, sealed=sealed) if sealed is not None else after, operations)
        self._keeper.last_commit = self._runtime.monotonic()
        self._meter.committed(self._keeper.last_commit - began)
        self._publish(fenced)

    def subscribe(self, subscription: Subscription) -> None:
        """Want this from now on; the next `tend` writes it in place, and the group is rebalanced.

        :raises UsageError: when it cannot be offered; nothing has changed then.
        """
        if self._client is not None:
            self._client.offer(subscription)
        self._subscription = subscription
        self.rejoin()

    def in_session(self, act: Callable[[Store, FencedChannel], None]) -> None:
        """Do this with the session and the channel of the incarnation that lives.

        :raises UsageError: when there is none: poll first.
        """
        if self.store is None or self._channel is None or self._channel.over is not None:
            raise UsageError("the consumer is no member now: poll first")
        act(self.store, self._channel)

    def rejoin(self) -> None:
        """Say anew what it wants: what it offers has changed."""
        self._is_resubscribed = True
        self._drain.dirty.set()

    def leave(self, reason: str = "left", for_good: bool = False) -> None:
        """Give everything up (`for_good`: a seat, too) and end the incarnation, not the session; on the poll side."""
        fenced = self._channel
        if fenced is None or fenced.over is not None:  # it may have been ended since the last `tend`
            self._drop_everything(str(fenced.over) if fenced is not None else reason)
            return
        try:
            fenced.settle()
            if self._client is not None:
                self._client.stopped()
            self._holding.give_up(frozenset(fenced.channel.running))
            self._end(fenced, reason, for_good)
        except (CoordinatorError, OSError) as error:
            log.warning("left without a word: consumer=%s reason=%s", self._config.consumer, error)
        self._drop_everything(reason)

    def close(self, for_good: bool = False) -> None:
        """Leave, end the session and the keeper."""
        self._keeper.closing.set()
        try:
            self.leave(for_good=for_good)
        finally:  # a callback of the application's may raise: who keeps its session stays a member
            self._session.close()
            self._meter.gone()

    def fetched(self, fetched: Sequence[Fetch]) -> None:
        """These records came; for the history."""
        if fetched and self._channel is not None:
            self._trace.fetched(self._channel.incarnation, fetched)

    def jumped(self, jumps: Mapping[TopicPartition, Jump]) -> None:
        """Positions were out of range, and are moved; for the history."""
        if self._channel is not None:
            self._trace.jumped(self._channel.incarnation, jumps)

    # ---- registering

    def _registered(self) -> FencedChannel | None:
        """The channel of a living incarnation; None while the back-off runs or ZooKeeper does not answer."""
        if self._channel is not None and self._channel.over is None:
            if self.store is not None and self.store.lost:
                raise SessionLost("the session with ZooKeeper is over")
            return self._channel
        if self._channel is not None and self._channel.over is not None:
            over, self._channel = self._channel.over, None
            raise over
        return None if self._backoff.is_running else self._register()

    def _register(self) -> FencedChannel | None:
        self._backoff.attempt()
        try:
            store = self._session.open()
        except ZooKeeperUnreachable:
            if self.registrations == 0:
                raise
            return None
        registration = self._registration(store, self._runtime.random_id())
        self._is_resubscribed = False
        consumer = self._config.consumer
        # Noted before it is sent: when the reply is lost, what stands there is this process's own all the same.
        self._own_incarnations.add(registration.incarnation)
        own = frozenset(self._own_incarnations) if self.registrations else None
        channel, version = register(store, self._paths, consumer, registration, own)
        self._own_incarnations = {channel.incarnation}
        fenced = FencedChannel(store, self._runtime, self._paths, consumer, channel, version)
        lease = self._session.lease(store, fenced.check)
        lease.renew()
        self._channel, self._lease = fenced, lease
        self._keeper.start(store, fenced, lease)
        self._drain.dirty.set()
        self.registrations += 1
        self._meter.registered()
        self._trace.registered(channel.incarnation, store.session_id)
        log.info("registered: group=%s consumer=%s incarnation=%s", self._config.group, consumer, channel.incarnation)
        return fenced

    def _registration(self, store: Store, incarnation: str) -> Registration:
        client = self._client.offer(self._subscription) if self._client is not None else None
        return registration_of(self._config, self._subscription, incarnation, store, self._seal_interval_ms, client)

    def _rejoin(self, fenced: FencedChannel) -> None:
        """Write a subscription that has changed in place."""
        if self._is_resubscribed and self.store is not None:
            self._is_resubscribed = False  # what cannot be offered is said once
            try:
                registration = self._registration(self.store, fenced.incarnation)
                fenced.guarded(changed_registration(self.store, self._paths, self._config.consumer, registration))
            except (StoreError, BadData) as error:
                self._is_resubscribed = True
                if isinstance(error, StoreError):
                    raise
                log.warning("subscription not changed yet: consumer=%s reason=%s", self._config.consumer, error)
                return
            log.info("subscription changed: group=%s consumer=%s", self._config.group, self._config.consumer)

    def _on_state(self, state: SessionState) -> None:
        self._drain.dirty.set()

    # ---- commands and what runs

    def _obey(self, fenced: FencedChannel) -> None:
        if self.store is None or not self._drain.dirty.is_set():
            return
        self._drain.dirty.clear()
        try:
            applied = self._drain.applied
            self._drain.drain(self.store, fenced, self._holding.give_up)
            self._backoff.went_well(is_member=self._drain.applied > applied)
        except Refused as refused:
            # Withdrawn meanwhile, or an owner znode appeared: look again.
            log.info("channel is read again: consumer=%s refused=%s", self._config.consumer, refused.path)
            self._drain.dirty.set()
            self._runtime.sleep(0.02)
        except BaseException:
            self._drain.dirty.set()  # a callback of the application's, say: its command still stands there
            raise

    def _publish(self, fenced: FencedChannel) -> None:
        """Every `offsets_interval_ms` the offsets that moved go into `offsets/` too."""
        now = self._runtime.monotonic()
        if self.store is None or now - self._last_offsets < self._config.offsets_interval_ms / 1000:
            return
        self._last_offsets = now
        try:
            if operations := self._offsets.publish(self.store, fenced.channel):
                fenced.guarded(operations)
                self._offsets.published()
        except (IncarnationOver, StoreError) as error:  # the next `tend` hears of what is over
            log.info("offsets are published later: consumer=%s reason=%s", self._config.consumer, error)

    # ---- the end of an incarnation

    def _end(self, fenced: FencedChannel, reason: str, for_good: bool) -> None:
        """End it in ZooKeeper, whole when it fits into one multi; else the coordinator writes the rest out."""
        if self.store is None:
            return
        over = IncarnationOver(reason)
        after, operations = self._offsets.ended(self.store, self._config.consumer, fenced.channel, reason)
        operations += seat_given_up(self.store, self._paths, self._config.consumer) if for_good else []
        fenced.end(after, operations, over)
        log.info("left: group=%s consumer=%s reason=%s", self._config.group, self._config.consumer, reason)

    def _drop_everything(self, reason: str) -> None:
        if self._channel is not None:
            self._trace.over(self._channel.incarnation, reason)
        if self._client is not None:
            self._client.lost(reason)
        if self._region is not None:
            self._region.lost(reason)
        self._channel = None
        self._lease = None
        self._holding.drop(reason)
