"""Protocol type `consumer`: a member's subscription is its metadata, and the leader assigns partitions.

Topic metadata is the leader's task (sources G30): it watches the topics of its assignment, and requests another
ask when they change, at most once in `assignment_delay_ms`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import MappingProxyType
from typing import Any

from zk_group.coordinator.assignors.registry import (
    BUILT_IN,
    NAME_RULE,
    Kind,
    Unusable,
    assignors,
    complete,
    load_offered,
)
from zk_group.coordinator.zk.errors import BadData, CoordinatorError, UsageError
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.values import in_chunks, shown
from zk_group.coordinator.zk.znodes.group_state import (
    Answer,
    Ask,
    ClientProtocols,
    GroupState,
    MemberAnswer,
    decoded,
    encoded,
)
from zk_group.coordinator.zk.znodes.json_fields import Fields, readable
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers, ask_number, is_name, names_below
from zk_group.coordinator.zk.znodes.records import (
    MAX_TOPIC_BYTES,
    NO_CHANNEL,
    STATIC,
    Channel,
    OffsetRecord,
    Registration,
    Topic,
    parsed_channel,
)
from zk_group.coordinator.zk.znodes.topic_filter import GroupFilters, TopicFilter

from ..config import CLIENT_SIDE, COORDINATOR_SIDE, Subscription
from ..logs.base import Log, Offsets, TopicIdPartition
from ..membership.call_guard import MemberContext
from ..membership.client_assignment import IDS_AT_ONCE, ClientAssignment, Decision, MemberMetadata, ProtocolType
from .adapter import CoordinatorStrategy
from .base import Assignment, ClientAssignor, Cluster, Held
from .lag import LagAssignor
from .metadata import ConsumerMetadata
from .rack import RackAssignor

log = logging.getLogger(__name__)

CHANNELS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class _SubscribedTopics:
    """Subscribed topics of an ask's members."""

    names: frozenset[str]
    filters: tuple[TopicFilter, ...]

    @classmethod
    def of(cls, metadata: Iterable[bytes]) -> _SubscribedTopics:
        names: set[str] = set()
        wildcards: list[tuple[str, str]] = []
        for data in metadata:
            try:
                known = ConsumerMetadata.parse("metadata", data)
            except BadData:
                continue  # the assignor decides about it
            if known.pattern == STATIC:
                names |= set(known.subscription)
            else:
                wildcards += known.wildcards
        return cls(frozenset(names), GroupFilters(wildcards).usable)

    def among(self, names: Iterable[str]) -> list[str]:
        """Those of `names` with a subscriber. Other subscribed topics do not exist."""
        existing = filter(is_name, names)
        return sorted(name for name in existing if name in self.names or any(one.allows(name) for one in self.filters))


@dataclass(slots=True)
class _LedAssignment:
    """This member's last assignment as the leader.

    :ivar differs_since: when topics began to differ from the assignment's; None while they are equal.
    """

    ask: str
    subscribed: _SubscribedTopics
    seen: Mapping[str, Topic]
    checked_at: float
    differs_since: float | None = None


class ConsumerProtocol(ProtocolType):
    """The protocol type of members that consume partitions.

    :param assignors: the client-side assignors of this member, the preferred first.
    """

    def __init__(self, context: MemberContext, source: Log, assignors: Sequence[ClientAssignor]) -> None:
        config = self._config = context.config
        self._context = context
        self._runtime = context.runtime
        self._wake = context.wake
        self._log = source
        self._assignors = {each.name: each for each in assignors}
        self._brokers = Brokers(config.brokers_path)
        self._paths = context.paths
        self._led: _LedAssignment | None = None
        self._may_have_led = bool(config.group_instance_id)
        self._changed = context.runtime.event()

    def offer(self, subscription: Subscription | None) -> ClientProtocols:
        """The metadata of each assignor."""
        topics, pattern = (subscription.topics, subscription.pattern) if subscription is not None else ({}, STATIC)
        mine = ConsumerMetadata(dict(topics), pattern, self._config.client_rack)
        try:
            metadata = {name: encoded(each.metadata(mine)) for name, each in self._assignors.items()}
        except CoordinatorError:
            raise
        except Exception as error:  # third-party code
            raise UsageError(f"an assignor gives no metadata: {type(error).__name__}: {error}") from error
        return ClientProtocols(tuple(self._assignors), metadata, is_preferred=self._config.sides[0] == CLIENT_SIDE)

    # ---- as the leader

    def assign(self, store: Store, name: str, ask: Ask, members: Mapping[str, MemberMetadata]) -> Decision:
        """
        :raises BadData: when the protocol is not installed here.
        """
        assignor = self._assignors.get(ask.protocol)
        if assignor is None:
            raise BadData(f"{self._config.consumer} has no assignor {ask.protocol}")
        metadata = {consumer: known.metadata for consumer, known in members.items()}
        subscribed = _SubscribedTopics.of(metadata.values())
        topics, data = self._read_topics(store, subscribed)
        self._may_have_led = False
        self._led = _LedAssignment(name, subscribed, topics, self._runtime.monotonic())
        channels = self._read_channels(store, sorted(members))
        lookup = LeaderLookup(self._context, store, self._log, topics, data, channels)
        cluster = Cluster(topics, self._held(store, members, channels), lookup)
        assignment = assignor.assign(cluster, metadata)
        given = {part.topic for one in assignment.values() for part in one.partitions}
        assigned = {topic: known for topic, known in topics.items() if topic in given or known.partitions}
        return Decision(
            {consumer: MemberAnswer(one.threads, encoded(one.member_state)) for consumer, one in assignment.items()},
            {topic: known.id for topic, known in assigned.items()},
            {topic: frozenset(known.partitions) for topic, known in assigned.items()},
            assignor.is_cooperative,
        )

    def _read_topics(self, store: Store, subscribed: _SubscribedTopics) -> tuple[dict[str, Topic], dict[str, bytes]]:
        """The topics with a subscriber, each watched."""
        listing = store.children(self._brokers.topics, watch=self._on_topics)
        names = subscribed.among(listing.names if listing is not None else ())
        paths = [self._brokers.topic(name) for name in names]
        topics: dict[str, Topic] = {}
        data: dict[str, bytes] = {}
        for name, path, node in zip(names, paths, store.get_many(paths, watch=self._on_topics), strict=True):
            if node is not None:
                try:
                    topics[name] = Topic.parse(path, name, node.data, node.stat.czxid)
                    data[name] = node.data
                except BadData as error:
                    log.warning("ignoring unreadable znode: path=%s problem=%s", path, error)
        return topics, data

    def _read_channels(self, store: Store, names: Sequence[str]) -> dict[str, Channel]:
        found = {}
        for batch in in_chunks(names, CHANNELS_AT_ONCE):
            paths = [self._paths.channel(name) for name in batch]
            for name, path, node in zip(batch, paths, store.get_many(paths), strict=True):
                if (channel := readable(parsed_channel, path, node, log)) is not None:
                    found[name] = channel
        return found

    def _held(
        self, store: Store, members: Mapping[str, MemberMetadata], channels: Mapping[str, Channel]
    ) -> dict[str, Held]:
        """What each member runs, and what the last target gave it."""
        target = self._state(store).target
        held = {}
        for consumer, known in members.items():
            channel, before = channels.get(consumer, NO_CHANNEL), target.get(consumer)
            if channel.incarnation != known.registration.incarnation:
                channel = NO_CHANNEL
            threads = before.threads if before is not None else {}
            owners = {part: thread for thread, parts in threads.items() for part in parts}
            instance_id = known.registration.instance_id
            held[consumer] = Held(frozenset(channel.running), channel.generation, owners, instance_id)
        return held

    def _state(self, store: Store) -> GroupState:
        return readable(GroupState.parse, self._paths.state, store.get(self._paths.state)) or GroupState()

    # ---- topics, while leading

    def wants_rebalance(self, store: Store) -> str:
        """See `ProtocolType`. Topics are read again once per session timeout, in case a watch was lost."""
        if self._may_have_led:
            self._led = self._previous_assignment(store)
            self._may_have_led = False
        led = self._led
        if led is None:
            return ""
        now = self._runtime.monotonic()
        if led.differs_since is None:
            if not self._changed.is_set() and now - led.checked_at < store.negotiated_timeout_s:
                return ""
            self._changed.clear()
            led.checked_at = now
            if not self._differs(store, led):
                return ""
            led.differs_since = now
        if now - led.differs_since < self._config.assignment_delay_ms / 1000:
            return ""
        return self._request(store, led)

    def _previous_assignment(self, store: Store) -> _LedAssignment | None:
        """The assignment of a static member's earlier incarnation: a bounce triggers no new ask, and the topics need a
        watcher."""
        client = self._state(store).client
        if client is None:
            return None
        first = max(1, ask_number(client.ask))
        names = [name for name in names_below(store, self._paths.sync) if ask_number(name) >= first]
        names.sort(key=ask_number)
        nodes = store.get_many([path for name in names for path in (self._paths.ask(name), self._paths.answer(name))])
        for name, asked, answered in reversed(list(zip(names, nodes[::2], nodes[1::2], strict=True))):
            ask = readable(Ask.parse, self._paths.ask(name), asked)
            answer = readable(Answer.parse, self._paths.answer(name), answered)
            if ask is not None and answer is not None and answer.error is None:
                return self._resumed(store, name, ask, answer) if ask.leader == self._config.consumer else None
        return None

    def _resumed(self, store: Store, name: str, ask: Ask, answer: Answer) -> _LedAssignment:
        subscribed = _SubscribedTopics.of(self._read_metadata(store, ask))
        topics, _ = self._read_topics(store, subscribed)
        seen = {topic: known for topic, known in topics.items() if topic in answer.topics or not known.partitions}
        for topic, topic_id in answer.topics.items():
            numbers, known = answer.partitions.get(topic, frozenset()), topics.get(topic)
            if known is None or (known.id, frozenset(known.partitions)) != (topic_id, numbers):
                seen[topic] = Topic(topic, topic_id, tuple(sorted(numbers)))
        return _LedAssignment(name, subscribed, seen, self._runtime.monotonic(), self._runtime.monotonic())

    def _read_metadata(self, store: Store, ask: Ask) -> list[bytes]:
        found = []
        for batch in in_chunks(sorted(ask.members), IDS_AT_ONCE):
            paths = [path for name in batch for path in (self._paths.id(name), self._paths.seat(name))]
            nodes = store.get_many(paths)
            for path, registration, seat in zip(paths[::2], nodes[::2], nodes[1::2], strict=True):
                node = registration or seat  # a member away from its seat keeps its part
                try:
                    client = Registration.parse(path, node.data).client if node is not None else None
                    if client is not None and ask.protocol in client.metadata:
                        found.append(decoded(path, client.metadata[ask.protocol]))
                except BadData:
                    continue  # the next ask omits it
        return found

    def _differs(self, store: Store, led: _LedAssignment) -> str:
        topics, _ = self._read_topics(store, led.subscribed)
        changed = sorted(name for name in topics.keys() | led.seen.keys() if topics.get(name) != led.seen.get(name))
        return changed[0] if changed else ""

    def _request(self, store: Store, led: _LedAssignment) -> str:
        """The reason for another ask; empty when not the leader any more, or while its answer is pending."""
        client = self._state(store).client
        adopted = client.ask if client is not None else ""
        if adopted != led.ask:
            if client is None or ask_number(adopted) > ask_number(led.ask):
                self._led = None
            return ""
        changed = self._differs(store, led)
        led.differs_since = led.differs_since if changed else None
        return f"topic {changed} has changed" if changed else ""

    def requested(self) -> None:
        """See `ProtocolType`. This member's last assignment is void until the next ask."""
        self._led = None

    def _on_topics(self, path: str) -> None:
        self._changed.set()
        self._wake.set()

    # ---- as a member

    def assigned(self, protocol: str, entry: MemberAnswer, channel: Channel) -> None:
        """Pass this member's assignment to the assignor of the group's protocol."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            return
        try:
            state = decoded("the member state", entry.member_state)
            assignor.on_assignment(Assignment(entry.threads, state), state, channel.generation)
        except (Exception, SystemExit):  # third-party code
            log.exception("assignor failed: group=%s protocol=%s", self._config.group, protocol)

    def lost(self, reason: str) -> None:
        """A new incarnation leads once it is asked; a static member's may lead already."""
        self._led = None
        self._may_have_led = bool(self._config.group_instance_id)


class LeaderLookup:
    """Of one call of an assignor. Partitions without an answer are missing; only ZooKeeper's errors are raised.

    :param topics: topic -> what it is now.  :param data: topic -> its znode's data, which has the replicas.
    :param channels: consumer -> its channel, which is ahead of `offsets/`.
    """

    def __init__(
        self,
        context: MemberContext,
        store: Store,
        source: Log,
        topics: Mapping[str, Topic],
        data: Mapping[str, bytes],
        channels: Mapping[str, Channel],
    ) -> None:
        self._store = store
        self._paths = context.paths
        self._brokers = Brokers(context.config.brokers_path)
        self._log = source
        self._topics, self._data, self._channels = topics, data, channels
        self._replicas: dict[str, Mapping[str, Any]] = {}
        self._rack_of: dict[str, str] | None = None

    def committed(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Committed offsets of the group, for the current topics."""
        requested = set(partitions)
        found = {
            part: offset
            for channel in self._channels.values()
            for part, offset in channel.running.items()
            if offset is not None and part in requested and channel.topics.get(part.topic) == self._id(part)
        }
        rest = sorted(requested - found.keys())
        paths = [self._paths.offset(*part) for part in rest]
        for part, path, node in zip(rest, paths, self._store.get_many(paths), strict=True):
            record = readable(OffsetRecord.parse, path, node)
            if record is not None and record.topic_id == self._id(part):
                found[part] = record.offset
        return found

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset that the next record of each will have."""
        places = {TopicIdPartition(part.topic, self._id(part), part.partition): part for part in partitions}
        ends = self._log.latest_of(places)
        return {places[place]: end for place, end in ends.items() if isinstance(end, int)}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """The offset of the oldest record of each."""
        found = {}
        for part in partitions:
            try:
                found[part] = self._log.earliest(part.topic, self._id(part), part.partition)
            except (CoordinatorError, OSError):
                continue
        return found

    def racks(self, partition: TopicPartition) -> frozenset[str]:
        """Racks of the replicas, as registered by Kafka's brokers; empty when unknown."""
        if partition.topic not in self._replicas:
            self._replicas[partition.topic] = {}
            with suppress(BadData):
                fields = Fields.parse("a topic", self._data.get(partition.topic, b""), most=MAX_TOPIC_BYTES)
                self._replicas[partition.topic] = fields.mapping("partitions")
        replicas = self._replicas[partition.topic].get(str(partition.partition))
        ids = [str(broker) for broker in replicas] if isinstance(replicas, list) else []
        racks = self._racks() if ids else {}
        return frozenset(racks[broker] for broker in ids if broker in racks)

    def _racks(self) -> Mapping[str, str]:
        """Broker -> rack."""
        if self._rack_of is None:
            names = [name for name in names_below(self._store, self._brokers.ids) if name.isdigit()]
            racks: dict[str, str] = {}
            for name, node in zip(names, self._store.get_many(list(map(self._brokers.id, names))), strict=True):
                with suppress(ValueError, AttributeError):
                    rack = json.loads(node.data).get("rack") if node is not None else ""
                    racks |= {name: rack} if rack and isinstance(rack, str) else {}
            self._rack_of = racks
        return self._rack_of

    def _id(self, part: TopicPartition) -> str:
        topic = self._topics.get(part.topic)
        return topic.id if topic is not None else ""


ENTRY_POINTS = "zk_group_coordinator.client_assignors"
RESERVED = frozenset({*BUILT_IN, LagAssignor.name, RackAssignor.name})
"""Names that no package can override."""
METHODS = ("metadata", "assign", "on_assignment")
SEVERAL = "several packages offer this name ({})"
CLIENT_ASSIGNORS = Kind(ENTRY_POINTS, RESERVED, "is_cooperative", METHODS, SEVERAL)


def client_assignors(offered: Iterable[EntryPoint] | None = None) -> Mapping[str, ClientAssignor]:
    """Name -> assignor, of all usable ones; the others are logged. Runs the code of installed packages: call once.

    A package's client assignor has precedence over its coordinator-side strategy of the same name.

    :param offered: entry points of client assignors; None for those of the installed packages.
    """
    found: dict[str, ClientAssignor] = {name: CoordinatorStrategy(each) for name, each in assignors().items()}
    usable, unusable = load_offered(CLIENT_ASSIGNORS, offered)
    found |= {LagAssignor.name: LagAssignor(), RackAssignor.name: RackAssignor(), **usable}
    for name, (where, reason) in unusable.items():
        log.warning("ignoring unusable strategy: strategy=%s entry_point=%s reason=%s", shown(name), where, reason)
    return MappingProxyType(found)


def named(names: Sequence[str], given: Sequence[ClientAssignor] = ()) -> tuple[ClientAssignor, ...]:
    """The assignors with these names, in their order; a repeated name counts once.

    :param given: assignors of the application, with precedence over installed ones.
    :raises UsageError: when one is not installed, or a given one is incomplete or has a duplicate name.
    """
    for assignor in given:
        name = getattr(assignor, "name", None)
        if not isinstance(name, str) or not is_name(name):
            raise UsageError(f"{shown(name)} is no name for a client assignor: {NAME_RULE}")
        try:
            complete(CLIENT_ASSIGNORS, name, assignor)
        except Unusable as reason:
            raise UsageError(f"client assignor {name} cannot be used: {reason}") from reason
    found = {assignor.name: assignor for assignor in given}
    if len(found) < len(given):
        raise UsageError("two of the given client assignors have the same name")
    if missing := [name for name in names if name not in found]:
        found = {**client_assignors(), **found}
        missing = [name for name in missing if name not in found]
    if missing:
        raise UsageError(
            f"client assignor not installed: {', '.join(map(shown, missing))}; installed: {', '.join(sorted(found))}"
        )
    return tuple(found[name] for name in dict.fromkeys(names))


def client_assignment(
    context: MemberContext, source: Log, given: Sequence[ClientAssignor] = ()
) -> ClientAssignment | None:
    """None for a consumer under the coordinator's strategies.

    :param given: client assignors besides the installed ones; when not empty, the only ones, in this order.
    :raises UsageError: when a protocol is not installed, or assignors are given without client-side assignment.
    """
    config = context.config
    if CLIENT_SIDE not in config.sides:
        if given:
            raise UsageError("assignors are for client-side assignment: add assignment='client'")
        return None
    names = [each.name for each in given] or list(config.protocols)
    if COORDINATOR_SIDE in config.sides and not given:
        installed = client_assignors()
        names = [name for name in names if name in installed] or names
    return ClientAssignment(context, ConsumerProtocol(context, source, named(names, given)))
