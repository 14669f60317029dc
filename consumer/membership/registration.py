"""Registering a consumer's name: the one multi with which an incarnation begins.

It ends the predecessor under the name: its offsets are written into `offsets/`, its owner znodes, commands and `ids`
are removed, and the fence moves; a static member takes its seat with it. So the newest process has the name, and
ZooKeeper refuses later writes of the older one.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from zk_group.coordinator.zk.backoff import Backoff
from zk_group.coordinator.zk.errors import (
    AccessDenied,
    BadData,
    ConnectionLost,
    IncarnationOver,
    NotAuthorized,
    Refused,
    Retryable,
    SessionLost,
    StoreError,
    WriteDenied,
    ZooKeeperUnreachable,
)
from zk_group.coordinator.zk.lease import LEASE_SHARE, Heard, Lease, LeaseLog
from zk_group.coordinator.zk.runtime import Runtime, Task
from zk_group.coordinator.zk.store import MAX_OPERATIONS, Create, Delete, Node, Operation, SetData, Store, StoreFactory
from zk_group.coordinator.zk.update import Failure, ensure, retried
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths, parents_of
from zk_group.coordinator.zk.znodes.records import (
    NO_CHANNEL,
    STATIC,
    UNKNOWN_MEMBER_ID,
    Channel,
    OwnerRecord,
    Registration,
    Seat,
    parsed_channel,
)
from zk_group.coordinator.zk.znodes.regions import CONSUMERS, SLOTS, RegionMembership

from ..config import Subscription
from ..errors import ChannelGone, FencedInstanceId, UnknownMemberId
from .call_guard import MemberContext
from .channel import FencedChannel
from .claims import PARTITIONS_A_STEP, release_operations
from .offsets import CommittedOffsets, Consumption
from .roles import Role

log = logging.getLogger(__name__)

FAILING_SHARE = 2 / 3
"""Of `max_poll_interval_ms`; the keeper looks every sixth, and so leaves before an eviction."""


def heartbeat_s(due_s: float, max_poll_interval_ms: int) -> float:
    """Seconds between two looks of the keeper, at most a sixth of `max_poll_interval_ms`.

    A whole number of them makes `due_s`: a renewal that comes a little early does not count, nor does the next one
    until it is due.
    """
    return due_s / math.ceil(due_s / (max_poll_interval_ms / 6000))


class Keeper:
    """Keeps one consumer alive between polls, over all its incarnations.

    :param has_owners: whether running partitions have owner znodes.
    :ivar last_poll: time of the application's last poll.  :ivar last_commit: time of the last channel write.
    :ivar closing: set when the consumer closes.
    """

    def __init__(self, context: MemberContext, offsets: CommittedOffsets, has_owners: bool = True) -> None:
        self._has_owners = has_owners
        self._config = context.config
        self._runtime = context.runtime
        self._wake = context.wake
        self._offsets = offsets
        self._calls = context.calls
        self.closing = context.runtime.event()
        self.last_poll = self.last_commit = self._last_look = context.runtime.monotonic()

    def start(self, store: Store, fenced: FencedChannel, lease: Lease) -> Task:
        """Keep this incarnation until it is over."""
        self.last_commit = self._runtime.monotonic()
        return self._runtime.spawn(lambda: self._keep(store, fenced, lease), f"keeper-{self._config.consumer}")

    def _keep(self, store: Store, fenced: FencedChannel, lease: Lease) -> None:
        """Renew the lease every 1/6 of the session timeout; leave when the application has stopped polling."""
        while fenced.over is None and not store.lost and not self.closing.is_set():
            try:
                lease.renew()
                self._touch_or_leave(store, fenced)
                self._look_again(store)
            except (IncarnationOver, SessionLost) as error:
                log.info("heartbeat stopped: consumer=%s reason=%s", self._config.consumer, error)
                break
            except StoreError as error:
                log.debug("heartbeat failed, retrying: lease_left_s=%.1f reason=%s", lease.left_s, error)
            self.closing.wait(heartbeat_s(lease.due_s, self._config.max_poll_interval_ms))
        if isinstance(fenced.over, ChannelGone):
            store.close()  # removes the owner znodes of running partitions; a hung consumer would not end its session
        self._wake.set()

    def _touch_or_leave(self, store: Store, fenced: FencedChannel) -> None:
        """A heartbeat every third of `max_poll_interval_ms`; leave when no poll came for the whole interval.

        Also when a callback has raised, and no poll has succeeded since, for `FAILING_SHARE` of it: the coordinator,
        which evicts the member after the whole, would give slow polling as the reason, not the callback's exception.

        Heartbeats continue between polls: the coordinator, which waits as long for one, evicts no consumer within its
        time.
        """
        now, limit_s = self._runtime.monotonic(), self._config.max_poll_interval_ms / 1000
        if failing := self._calls.failing(limit_s * FAILING_SHARE):
            self._leave(store, fenced, f"left by itself: {failing}")
        elif now - self.last_poll >= limit_s:
            reason = f"left by itself: poll was not called for {self._config.max_poll_interval_ms} ms"
            self._leave(store, fenced, f"{reason} (raise max_poll_interval_ms, or lower max_poll_records)")
        elif now - self.last_commit >= limit_s / 3:
            fenced.touch()
            self.last_commit = now

    def _look_again(self, store: Store) -> None:
        """Once a session timeout, and before an eviction, the channel is read unconditionally: a watch may be lost."""
        now, limit_s = self._runtime.monotonic(), self._config.max_poll_interval_ms / 1000
        if now - self._last_look >= min(store.negotiated_timeout_s, limit_s / 2):
            self._last_look = now
            self._wake.set()

    def _leave(self, store: Store, fenced: FencedChannel, reason: str) -> None:
        with fenced.lock:  # an application that resumes just now commits before this, or is refused
            consumer, channel = self._config.consumer, fenced.channel
            after, operations = self._offsets.ended(store, consumer, channel, reason, UNKNOWN_MEMBER_ID)
            if not self._has_owners:
                # No partition was revoked: while the channel has them, the coordinator waits for the lease to expire.
                after = replace(after, ask=fenced.channel.ask)
            fenced.end(after, operations, UnknownMemberId(reason))
        log.warning("left: group=%s consumer=%s reason=%s", self._config.group, self._config.consumer, reason)


TRIES = 50

MOST_TOPICS = 100
"""Topics whose existence is checked with a registration."""

CREATE_IT = (
    "check the name, or create it (zk-coordinator topics create {topic}; for Kafka 4 topics sync): "
    "it is assigned as soon as it exists"
)

ATTEMPTS = Backoff(0.1, 5.0)
REFUSALS = Backoff(0.2, 5.0)


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The znodes under the name when a registration begins.

    :ivar written_ms: when its channel was written, by ZooKeeper's clock; 0 unless its incarnation lives.
    """

    version: int
    written_ms: int
    channel: Channel
    commands: tuple[str, ...]
    has_id: bool
    has_seat: bool
    owned: PartitionSet
    known_offsets: PartitionSet


def register(
    store: Store,
    paths: GroupPaths,
    consumer: str,
    registration: Registration,
    own: frozenset[str] | None,
    also: Sequence[str] = (),
    see: Callable[[list[Node | None]], None] = lambda nodes: None,
) -> tuple[Channel, int]:
    """Register `consumer`.

    :param own: this process's incarnations under the name so far; None for a new process, which takes the name.
    :param also: other znodes to read on the way; `see` gets them.
    :returns: the channel's data and version.
    :raises FencedInstanceId: when another process has taken the name.
    :raises NotAuthorized: when an ACL refuses.
    :raises StoreError: when ZooKeeper did not answer, or too many znodes changed at once.
    """
    new = Channel(incarnation=registration.incarnation)
    session_timeout_ms = round(store.negotiated_timeout_s * 1000)
    took_over_ms = 0

    def attempt(error: Failure | None) -> tuple[Channel, int]:
        nonlocal took_over_ms
        if isinstance(error, Refused):
            log.info("registration restarted: consumer=%s refused=%s reason=%s", consumer, error.path, error.reason)
            if error.reason == "no-node":
                ensure(store, parents_of(error.path))
        see(ensure(store, (*paths.skeleton, paths.channel(consumer)), also=also))
        before = _look(store, paths, consumer)
        if before.channel.incarnation == new.incarnation:
            return before.channel, before.version  # an earlier try, whose reply was lost, had succeeded
        if own is not None and before.channel.incarnation not in ("", *own):
            raise FencedInstanceId(f"another process has registered as {consumer}")
        took_over_ms = before.written_ms or took_over_ms  # before the fence moves
        while operations := _next_of_the_end(paths, consumer, before):
            store.commit(operations)
            before = _look(store, paths, consumer)
        taken = replace(registration, took_over_ms=took_over_ms)
        store.commit(_beginning(paths, consumer, before, new, taken, session_timeout_ms))
        return new, before.version + 1

    failure = f"{consumer} could not register in {TRIES} tries: its znodes keep changing"
    try:
        return retried(store, attempt, lambda: failure, TRIES)
    except (WriteDenied, AccessDenied) as error:
        raise NotAuthorized(f"{consumer} cannot register: {error}") from error


def _look(store: Store, paths: GroupPaths, consumer: str) -> Predecessor:
    listing = store.children(paths.channel(consumer))
    node = store.get(paths.channel(consumer))
    if node is None:
        raise ConnectionLost(f"the channel of {consumer} was removed while it registered: try again")
    try:
        channel = parsed_channel(paths.channel(consumer), node.data)
    except BadData as error:
        log.error("ignoring unreadable znode: path=%s problem=%s", paths.channel(consumer), error)
        channel = NO_CHANNEL
    running = sorted(channel.running)
    owners = _own(store, paths, channel)
    # Offsets are written of partitions that no other incarnation owns, and whose topic a start has named.
    topics = sorted({partition.topic for partition in running})
    begun = store.get_many([paths.offsets_of(topic) for topic in topics]) if topics else []
    known = {topic for topic, topic_node in zip(topics, begun, strict=True) if topic_node is not None}
    channel = channel.without(part for part in running if part.topic not in known or not owners.get(part, True))
    running = sorted(channel.running)
    offsets = store.get_many([paths.offset(*partition) for partition in running])
    known_offsets = frozenset(part for part, one in zip(running, offsets, strict=True) if one is not None)
    version, written_ms = node.stat.version, node.stat.mtime_ms if channel.is_live else 0
    commands, owned = tuple(sorted(listing.names if listing else ())), frozenset(filter(owners.get, running))
    has_id, has_seat = (store.get(path(consumer)) is not None for path in (paths.id, paths.seat))
    return Predecessor(version, written_ms, channel, commands, has_id, has_seat, owned, known_offsets)


def _own(store: Store, paths: GroupPaths, channel: Channel) -> dict[TopicPartition, bool]:
    """Partitions of `running` with an owner znode -> whether it is this incarnation's."""
    running = sorted(channel.running)
    found = {}
    for partition, node in zip(running, store.get_many([paths.owner(*one) for one in running]), strict=True):
        if node is not None:
            found[partition] = True
            with suppress(BadData):
                owner = OwnerRecord.parse(paths.owner(*partition), node.data)
                found[partition] = owner.incarnation == channel.incarnation
    return found


def _next_of_the_end(paths: GroupPaths, consumer: str, before: Predecessor) -> list[Operation]:
    """The next commit before the registration, when the predecessor's partitions exceed one multi; else empty.

    First the fence moves, while `running` stays; then its partitions are written, in chunks.
    """
    path, channel = paths.channel(consumer), before.channel
    if len(before.commands) > MAX_OPERATIONS // 4:
        return [Delete(paths.command(consumer, name)) for name in before.commands[:MAX_OPERATIONS]]
    if len(channel.running) <= PARTITIONS_A_STEP // 2:
        return []
    if channel.is_live:
        # Not fenced yet: if this process died now, the predecessor could have its name back.
        ended = replace(channel, ended=f"{consumer} is being taken over", error=UNKNOWN_MEMBER_ID)
        return [SetData(path, ended.to_bytes(), before.version)]
    batch: list[TopicPartition] = sorted(channel.running)[:PARTITIONS_A_STEP]
    released = release_operations(paths, channel, batch, before.known_offsets, before.owned)
    return [SetData(path, channel.without(batch).to_bytes(), before.version), *released]


def _beginning(
    paths: GroupPaths,
    consumer: str,
    before: Predecessor,
    new: Channel,
    registration: Registration,
    session_timeout_ms: int,
) -> list[Operation]:
    released = release_operations(paths, before.channel, before.channel.running, before.known_offsets, before.owned)
    path, data = paths.seat(consumer), Seat(registration, session_timeout_ms).to_bytes()
    seat: list[Operation] = [Delete(path)] if before.has_seat else []  # a dynamic member has none
    if registration.instance_id:
        seat = [SetData(path, data) if before.has_seat else Create(path, data)]
    return [
        SetData(paths.channel(consumer), new.to_bytes(), before.version),
        *released,
        *(Delete(paths.command(consumer, name)) for name in before.commands),
        *([Delete(paths.id(consumer))] if before.has_id else []),
        Create(paths.id(consumer), registration.to_bytes(), ephemeral=True),
        *seat,
    ]


class Registrar:
    """Registers a consumer, and again after an incarnation has ended. For the poll side.

    :param consumption: None for a member of a group that assigns no partitions.

    :ivar store: the session; None when there is none.
    :ivar fenced: the channel of the incarnation, None without one.  :ivar lease: its lease.
    :ivar registrations: incarnations that began.
    """

    def __init__(
        self,
        context: MemberContext,
        open_store: StoreFactory,
        keeper: Keeper,
        consumption: Consumption | None,
        roles: Sequence[Role],
    ) -> None:
        self._context = context
        self._open_store = open_store
        self._opened_at = float("-inf")
        self._last_lease: Lease | None = None
        self._keeper = keeper
        self._subscription = consumption.subscription if consumption is not None else None
        self._seal_interval_ms = consumption.seal_interval_ms if consumption is not None else 0
        self._roles = roles
        self._own_incarnations: set[str] = set()
        self._is_rejoining = False
        self._missing: set[str] = set()
        self.backoff = RegistrationBackoff(context.runtime)
        self.store: Store | None = None
        self.fenced: FencedChannel | None = None
        self.lease: Lease | None = None
        self._lease_log = LeaseLog(context.runtime, f"consumer {context.consumer}")
        self.registrations = 0

    @property
    def live(self) -> FencedChannel | None:
        """The channel while the incarnation lives."""
        fenced = self.fenced  # read once: the keeper and worker threads use it, too
        return fenced if fenced is not None and fenced.over is None else None

    def subscribe(self, subscription: Subscription) -> None:
        """Register with this subscription from now on.

        :raises UsageError: when an assignor's metadata for it is too large; nothing has changed then.
        """
        for role in self._roles:
            role.describe(Registration("", subscription.topics, subscription.pattern), subscription)
        self._subscription = subscription
        self.rejoin()

    def rejoin(self) -> None:
        """Let the next `update` write the registration: the offered protocols have changed."""
        self._is_rejoining = True
        self._context.wake.set()

    def registered(self) -> FencedChannel | None:
        """The channel of a living incarnation; None while the backoff runs or ZooKeeper does not answer.

        :raises IncarnationOver: when the incarnation has ended, once.
        :raises SessionLost: when its session has.
        :raises FencedInstanceId: when another process has taken the name.
        :raises ZooKeeperUnreachable: when no server has answered since the consumer was made.
        """
        fenced, store = self.fenced, self.store
        self._lease_log.look(self.lease)
        if fenced is None:
            return None if self.backoff.is_running else self._register()
        if fenced.over is not None:
            self.fenced, self._context.trace.incarnation = None, ""
            raise fenced.over
        if store is not None and store.lost:
            raise SessionLost("the session with ZooKeeper is over")
        return fenced

    def _register(self) -> FencedChannel | None:
        context = self._context
        self.backoff.attempt()
        try:
            store = self._open()
        except (ZooKeeperUnreachable, NotAuthorized):
            if self.registrations == 0:
                raise
            return None
        registration = self._registration(store, context.runtime.random_id())
        self._is_rejoining = False
        # Recorded before it is sent: when the reply is lost, an existing znode is still this process's own.
        self._own_incarnations.add(registration.incarnation)
        own = frozenset(self._own_incarnations) if self.registrations else None
        channel, version = register(store, context.paths, context.consumer, registration, own, *self._looks_at_topics())
        self._own_incarnations = {channel.incarnation}
        fenced = FencedChannel(store, context.runtime, context.paths, context.consumer, channel, version)
        lease = self._lease(store, fenced.check)
        with suppress(Retryable):  # else the keeper renews it: no reason for another incarnation
            lease.renew()
        self.fenced, self.lease = fenced, lease
        self._keeper.start(store, fenced, lease)
        context.wake.set()
        self.registrations += 1
        context.meter.registered()
        context.trace.registered(channel.incarnation, store.session_id)
        log.info(
            "registered: group=%s consumer=%s incarnation=%s",
            context.config.group, context.consumer, channel.incarnation,
        )  # fmt: skip
        return fenced

    def _open(self) -> Store:
        """The session, a new one when the last has ended.

        :raises ZooKeeperUnreachable: when no server answers.
        """
        if self.store is not None and not self.store.lost:
            return self.store
        self.close()
        self._opened_at = self._context.runtime.monotonic()
        self.store = self._open_store()
        self.store.add_listener(lambda state: self._context.wake.set())
        return self.store

    def _lease(self, store: Store, read_fence: Callable[[], None]) -> Lease:
        """A lease for another incarnation on this session, which continues the last one."""
        heard = self._last_lease.heard if self._last_lease else Heard(self._opened_at)
        self._last_lease = Lease(store, self._context.runtime, read_fence, "consumer", heard)
        return self._last_lease

    def close(self) -> None:
        """End the session."""
        store, self.store, self._last_lease = self.store, None, None
        if store is not None:
            store.close()

    def _looks_at_topics(self) -> tuple[list[str], Callable[[list[Node | None]], None]]:
        """The znodes of the subscribed topics, and what reports each missing one, once."""
        context, subscription = self._context, self._subscription
        is_static = subscription is not None and subscription.pattern == STATIC
        names = sorted(subscription.topics.keys() - self._missing)[:MOST_TOPICS] if subscription and is_static else []
        paths = [Brokers(context.config.brokers_path).topic(name) for name in names]

        def see(nodes: list[Node | None]) -> None:
            for name, path, node in zip(names, paths, nodes, strict=True):
                if node is None and name not in self._missing:
                    self._missing.add(name)
                    log.warning(
                        "topic missing: group=%s consumer=%s topic=%s path=%s remedy=%s",
                        context.config.group, context.consumer, name, path, CREATE_IT.format(topic=name),
                    )  # fmt: skip

        return paths, see

    def _registration(self, store: Store, incarnation: str) -> Registration:
        """The registration of a consumer on this session."""
        config, subscription, seal_ms = self._context.config, self._subscription, self._seal_interval_ms
        topics, pattern = (subscription.topics, subscription.pattern) if subscription is not None else ({}, STATIC)
        registration = Registration(
            incarnation=incarnation,
            subscription=topics,
            pattern=pattern,
            host=socket.gethostname(),
            protocols=config.protocols,
            lease_ms=round(store.negotiated_timeout_s * LEASE_SHARE * 1000),
            max_poll_interval_ms=config.max_poll_interval_ms,
            seal_interval_ms=seal_ms,
            instance_id=config.group_instance_id,
            region=RegionMembership(config.region, SLOTS if seal_ms else CONSUMERS) if config.region else None,
        )
        for role in self._roles:
            registration = role.describe(registration, subscription)
        return registration

    def update(self, fenced: FencedChannel) -> None:
        """Write a registration that has changed in place: the group is rebalanced.

        :raises StoreError: when ZooKeeper refused or did not answer: call again.
        """
        store, context = self.store, self._context
        if not self._is_rejoining or store is None:
            return
        self._is_rejoining = False  # an invalid offer is logged once
        path, seat = context.paths.id(context.consumer), context.paths.seat(context.consumer)
        try:
            registration = self._registration(store, fenced.incarnation)
            written: list[Operation] = [SetData(path, registration.to_bytes())]
            if registration.instance_id and (node := store.get(seat)) is not None:
                timeout_ms, removed = round(store.negotiated_timeout_s * 1000), Seat.parse(seat, node.data).removed
                after = Seat(registration, timeout_ms, removed)
                written.append(SetData(seat, after.to_bytes(), node.stat.version))
            fenced.guarded(written)
        except (StoreError, BadData) as error:
            self._is_rejoining = True
            if isinstance(error, StoreError):
                raise
            log.warning("subscription change deferred: consumer=%s reason=%s", context.consumer, error)
            return
        log.info("subscription changed: group=%s consumer=%s", context.config.group, context.consumer)

    def forget(self) -> None:
        """The incarnation is over."""
        self.fenced, self._context.trace.incarnation = None, ""
        self.lease = None


class RegistrationBackoff:
    """The waits between the registrations of one consumer."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._not_before = float("-inf")
        self._attempts = 0
        self._refusals = 0

    @property
    def is_running(self) -> bool:
        """Whether another registration must wait."""
        return self._runtime.monotonic() < self._not_before

    def attempt(self) -> None:
        """A registration begins."""
        self._attempts += 1
        self._wait(ATTEMPTS.after(self._attempts))

    def refused(self) -> None:
        """The group refused the member. A registration alone, which succeeded, does not reset the backoff."""
        self._refusals += 1
        self._wait(REFUSALS.after(self._refusals))

    def succeeded(self, is_member: bool) -> None:
        """The consumer has read its channel.

        :param is_member: whether it has also applied a command.
        """
        self._attempts = 0
        self._refusals = 0 if is_member else self._refusals

    def _wait(self, seconds: float) -> None:
        self._not_before = self._runtime.monotonic() + seconds
