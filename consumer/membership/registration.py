"""Registering a consumer's name: the one multi with which an incarnation begins.

It ends the predecessor under the name: its offsets are written into `offsets/`, its owner znodes, commands and `ids`
are removed, and the fence moves; a static member takes its seat with it. So the newest process has the name, and
ZooKeeper refuses later writes of the older one.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from coordinator.zk.batching import ensure
from coordinator.zk.errors import AccessDenied, BadData, ConnectionLost, NotAuthorized, Refused, WriteDenied
from coordinator.zk.lease import LEASE_SHARE
from coordinator.zk.store import MAX_OPERATIONS, Create, Delete, Node, Operation, SetData, Store
from coordinator.zk.update import Failure, retried
from coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import GroupPaths, parents_of
from coordinator.zk.znodes.records import (
    NO_CHANNEL,
    STATIC,
    UNKNOWN_MEMBER_ID,
    Channel,
    OwnerRecord,
    Registration,
    Seat,
    parsed_channel,
)
from coordinator.zk.znodes.regions import CONSUMERS, SLOTS, RegionMembership
from coordinator.zk.znodes.sync import CLIENT, ClientProtocols

from ..config import COORDINATOR_SIDE, ConsumerConfig, Subscription
from ..errors import FencedInstanceId
from .claims import PARTITIONS_A_STEP, release_operations

log = logging.getLogger(__name__)

TRIES = 50


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


def registration_of(
    config: ConsumerConfig,
    subscription: Subscription | None,
    incarnation: str,
    store: Store,
    seal_interval_ms: int,
    client: ClientProtocols | None = None,
) -> Registration:
    """The registration of a consumer on this session.

    :param client: its client-side protocols; a coordinator of an earlier release ignores a consumer that supports only
        these.
    """
    is_client_only = client is not None and COORDINATOR_SIDE not in config.sides
    topics, pattern = (subscription.topics, subscription.pattern) if subscription is not None else ({}, STATIC)
    return Registration(
        incarnation=incarnation,
        subscription=topics if not is_client_only or pattern == STATIC else {},
        pattern=CLIENT if is_client_only else pattern,
        host=socket.gethostname(),
        protocols=config.protocols,
        lease_ms=round(store.negotiated_timeout_s * LEASE_SHARE * 1000),
        max_poll_interval_ms=config.max_poll_interval_ms,
        seal_interval_ms=seal_interval_ms,
        instance_id=config.group_instance_id,
        client=client,
        region=RegionMembership(config.region, SLOTS if seal_interval_ms else CONSUMERS) if config.region else None,
    )


def changed_registration(store: Store, paths: GroupPaths, consumer: str, registration: Registration) -> list[Operation]:
    """The operations, under the fence, that change the registration in place: a rejoin.

    :raises BadData: when the seat of a static member cannot be read.
    """
    written: list[Operation] = [SetData(paths.id(consumer), registration.to_bytes())]
    node = store.get(paths.seat(consumer)) if registration.instance_id else None
    if node is not None:
        removed = Seat.parse(paths.seat(consumer), node.data).removed
        seat = Seat(registration, round(store.negotiated_timeout_s * 1000), removed)
        written.append(SetData(paths.seat(consumer), seat.to_bytes(), node.stat.version))
    return written


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
    channel = channel.without(frozenset(running) - _to_write(store, paths, channel, owners))
    running = sorted(channel.running)
    offsets = store.get_many([paths.offset(*partition) for partition in running])
    return Predecessor(
        version=node.stat.version,
        written_ms=node.stat.mtime_ms if channel.is_live else 0,
        channel=channel,
        commands=tuple(sorted(listing.names if listing else ())),
        has_id=store.get(paths.id(consumer)) is not None,
        has_seat=store.get(paths.seat(consumer)) is not None,
        owned=frozenset(part for part in running if owners.get(part)),
        known_offsets=frozenset(part for part, node in zip(running, offsets, strict=True) if node is not None),
    )


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


def _to_write(store: Store, paths: GroupPaths, channel: Channel, owners: Mapping[TopicPartition, bool]) -> PartitionSet:
    """Entries of `running` whose offsets are written: no other incarnation owns them, and a start named its topic."""
    if not channel.running:
        return NONE
    topics = sorted({partition.topic for partition in channel.running})
    begun = store.get_many([paths.offsets_of(topic) for topic in topics])
    known = {topic for topic, node in zip(topics, begun, strict=True) if node is not None}
    return frozenset(part for part in channel.running if part.topic in known and owners.get(part, True))


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
    return [
        SetData(paths.channel(consumer), new.to_bytes(), before.version),
        *released,
        *(Delete(paths.command(consumer, name)) for name in before.commands),
        *([Delete(paths.id(consumer))] if before.has_id else []),
        Create(paths.id(consumer), registration.to_bytes(), ephemeral=True),
        *_seat(paths.seat(consumer), before.has_seat, registration, session_timeout_ms),
    ]


def seat_given_up(store: Store, paths: GroupPaths, consumer: str) -> list[Operation]:
    """The operations for the seat of a static member that leaves permanently."""
    path = paths.seat(consumer)
    return [Delete(path)] if store.get(path) is not None else []


def _seat(path: str, is_there: bool, registration: Registration, session_timeout_ms: int) -> list[Operation]:
    """A static member takes its seat; a dynamic one has none, and removes a seat under its name."""
    if not registration.instance_id:
        return [Delete(path)] if is_there else []
    data = Seat(registration, session_timeout_ms).to_bytes()
    return [SetData(path, data) if is_there else Create(path, data)]
