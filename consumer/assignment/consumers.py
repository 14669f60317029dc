"""Protocol type `consumer`: what a member subscribes to is its metadata, and a leader gives out partitions.

Topic metadata is the leader's business (seed 001): it watches the topics that its assignor was given, and asks to be
asked again when they change, at most once in `assignment_delay_ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.zk.errors import BadData, CoordinatorError, UsageError
from coordinator.zk.names import is_name
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import Brokers, GroupPaths, ask_number
from coordinator.zk.patterns import TopicFilter
from coordinator.zk.records import STATIC, Channel, Registration, Topic, parsed_channel
from coordinator.zk.runtime import Runtime
from coordinator.zk.state import GroupState
from coordinator.zk.store import Node, Store
from coordinator.zk.sync import Answer, Ask, ClientProtocols, MemberAnswer, decoded, encoded

from ..config import CLIENT_SIDE, ConsumerConfig, Subscription
from ..logs import Log
from .base import Assignment, ClientAssignor, Cluster, Held
from .client import IDS_AT_ONCE, Decision, Known
from .lookup import LeaderLookup
from .metadata import ConsumerMetadata

log = logging.getLogger(__name__)

CHANNELS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which topics the members of an ask subscribe to."""

    names: frozenset[str]
    filters: tuple[TopicFilter, ...]

    @classmethod
    def of(cls, metadata: Iterable[bytes]) -> _Wanted:
        names: set[str] = set()
        filters: dict[tuple[str, str], TopicFilter] = {}
        for data in metadata:
            try:
                known = ConsumerMetadata.parse("metadata", data)
            except BadData:
                continue  # the assignor says what becomes of it
            if known.pattern == STATIC:
                names |= set(known.subscription)
            else:
                filters |= {(known.pattern, text): TopicFilter(known.pattern, text) for text in known.subscription}
        return cls(frozenset(names), tuple(filters.values()))

    def among(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that a member subscribes to. What else one names is not there, however much that is."""
        return sorted(name for name in names if is_name(name) and self._is_wanted(name))

    def _is_wanted(self, name: str) -> bool:
        return name in self.names or any(each.allows(name) for each in self.filters)


@dataclass(slots=True)
class _Led:
    """What this member has last assigned as the leader.

    :ivar differs_since: since when topics have differed from what was assigned; None while they do not.
    """

    ask: str
    wanted: _Wanted
    seen: Mapping[str, Topic]
    looked_at: float
    differs_since: float | None = None


class ConsumerRole:
    """See `client.Role`.

    :param assignors: the client-side assignors of this member, the preferred first.
    :param wake: lets `poll` look again.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        runtime: Runtime,
        source: Log,
        assignors: Sequence[ClientAssignor],
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._log = source
        self._assignors = {each.name: each for each in assignors}
        self._wake = wake
        self._brokers = Brokers(config.brokers_path)
        self._paths = GroupPaths(config.group)
        self._led: _Led | None = None
        self._may_have_led = bool(config.group_instance_id)
        self._changed = runtime.event()

    def offer(self, subscription: Subscription | None) -> ClientProtocols:
        """The metadata of each assignor."""
        topics, pattern = (subscription.topics, subscription.pattern) if subscription is not None else ({}, STATIC)
        mine = ConsumerMetadata(dict(topics), pattern, self._config.client_rack)
        try:
            metadata = {name: encoded(each.metadata(mine)) for name, each in self._assignors.items()}
        except CoordinatorError:
            raise
        except Exception as error:  # a third party's
            raise UsageError(f"an assignor gives no metadata: {type(error).__name__}: {error}") from error
        return ClientProtocols(tuple(self._assignors), metadata, is_preferred=self._config.sides[0] == CLIENT_SIDE)

    # ---- as the leader

    def assign(self, store: Store, name: str, ask: Ask, members: Mapping[str, Known]) -> Decision:
        """
        :raises BadData: when this member does not know the protocol.
        """
        assignor = self._assignors.get(ask.protocol)
        if assignor is None:
            raise BadData(f"{self._config.consumer} has no assignor {ask.protocol}")
        metadata = {consumer: known.metadata for consumer, known in members.items()}
        wanted = _Wanted.of(metadata.values())
        topics, data = self._read_topics(store, wanted)
        self._may_have_led = False
        self._led = _Led(name, wanted, topics, self._runtime.monotonic())
        channels = self._read_channels(store, sorted(members))
        lookup = LeaderLookup(store, self._paths, self._brokers, self._log, topics, data, channels)
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

    def _read_topics(self, store: Store, wanted: _Wanted) -> tuple[dict[str, Topic], dict[str, bytes]]:
        """The topics that somebody subscribes to; whatever becomes of one of them is heard."""
        listing = store.children(self._brokers.topics, watch=self._on_topics)
        names = wanted.among(listing.names if listing is not None else ())
        paths = [self._brokers.topic(name) for name in names]
        topics: dict[str, Topic] = {}
        data: dict[str, bytes] = {}
        for name, path, node in zip(names, paths, store.get_many(paths, watch=self._on_topics), strict=True):
            topic = _topic(path, name, node) if node is not None else None
            if topic is not None and node is not None:
                topics[name], data[name] = topic, node.data
        return topics, data

    def _read_channels(self, store: Store, names: Sequence[str]) -> dict[str, Channel]:
        found = {}
        for first in range(0, len(names), CHANNELS_AT_ONCE):
            some = names[first : first + CHANNELS_AT_ONCE]
            paths = [self._paths.channel(name) for name in some]
            for name, path, node in zip(some, paths, store.get_many(paths), strict=True):
                try:
                    if node is not None:
                        found[name] = parsed_channel(path, node.data)
                except BadData as error:
                    log.warning("bad data set aside: path=%s problem=%s", path, error)
        return found

    def _held(self, store: Store, members: Mapping[str, Known], channels: Mapping[str, Channel]) -> dict[str, Held]:
        """What each member runs, and what the last target gave it."""
        target = self._state(store).target
        held = {}
        for consumer, known in members.items():
            channel, before = channels.get(consumer), target.get(consumer)
            is_same = channel is not None and channel.incarnation == known.registration.incarnation
            on_thread: dict[TopicPartition, str] = {}
            for thread, parts in before.threads.items() if before is not None else ():
                on_thread |= dict.fromkeys(parts, thread)
            held[consumer] = Held(
                frozenset(channel.running) if channel is not None and is_same else frozenset(),
                channel.generation if channel is not None and is_same else 0,
                on_thread,
                known.registration.instance_id,
            )
        return held

    def _state(self, store: Store) -> GroupState:
        node = store.get(self._paths.state)
        try:
            return GroupState.parse(self._paths.state, node.data) if node is not None else GroupState()
        except BadData:
            return GroupState()

    # ---- topics, as long as it leads

    def wants_rebalance(self, store: Store) -> str:
        """See `Role`. A watch that was lost hides nothing: topics are read again once a session timeout."""
        if self._may_have_led:
            self._led = self._led_before(store)
            self._may_have_led = False
        led = self._led
        if led is None:
            return ""
        now = self._runtime.monotonic()
        if led.differs_since is None:
            if not self._changed.is_set() and now - led.looked_at < store.negotiated_timeout_s:
                return ""
            self._changed.clear()
            led.looked_at = now
            if not self._differs(store, led):
                return ""
            led.differs_since = now
        if now - led.differs_since < self._config.assignment_delay_ms / 1000:
            return ""
        return self._request(store, led)

    def _led_before(self, store: Store) -> _Led | None:
        """What an earlier life of a static member has assigned: a bounce is not followed by another ask, and the topics
        need somebody who watches them."""
        client = self._state(store).client
        if client is None:
            return None
        listing = store.children(self._paths.sync)
        first = max(1, ask_number(client.ask))
        names = [name for name in (listing.names if listing is not None else ()) if ask_number(name) >= first]
        names.sort(key=ask_number)
        nodes = store.get_many([path for name in names for path in (self._paths.ask(name), self._paths.answer(name))])
        for name, asked, answered in reversed(list(zip(names, nodes[::2], nodes[1::2], strict=True))):
            try:
                if asked is None or answered is None:
                    continue
                ask = Ask.parse(self._paths.ask(name), asked.data)
                answer = Answer.parse(self._paths.answer(name), answered.data)
            except BadData:
                continue
            if answer.error is None:
                return self._taken_up(store, name, ask, answer) if ask.leader == self._config.consumer else None
        return None

    def _taken_up(self, store: Store, name: str, ask: Ask, answer: Answer) -> _Led:
        wanted = _Wanted.of(self._read_metadata(store, ask))
        topics, _ = self._read_topics(store, wanted)
        seen = {topic: known for topic, known in topics.items() if topic in answer.topics or not known.partitions}
        for topic, topic_id in answer.topics.items():
            numbers, known = answer.partitions.get(topic, frozenset()), topics.get(topic)
            if known is None or (known.id, frozenset(known.partitions)) != (topic_id, numbers):
                seen[topic] = Topic(topic, topic_id, tuple(sorted(numbers)))
        return _Led(name, wanted, seen, self._runtime.monotonic(), self._runtime.monotonic())

    def _read_metadata(self, store: Store, ask: Ask) -> list[bytes]:
        found = []
        for first in range(0, len(ask.members), IDS_AT_ONCE):
            some = sorted(ask.members)[first : first + IDS_AT_ONCE]
            paths = [path for name in some for path in (self._paths.id(name), self._paths.seat(name))]
            nodes = store.get_many(paths)
            for path, here, seat in zip(paths[::2], nodes[::2], nodes[1::2], strict=True):
                node = here or seat  # who is away from its seat has its part all the same
                try:
                    client = Registration.parse(path, node.data).client if node is not None else None
                    if client is not None and ask.protocol in client.metadata:
                        found.append(decoded(path, client.metadata[ask.protocol]))
                except BadData:
                    continue  # the next ask leaves it out
        return found

    def _differs(self, store: Store, led: _Led) -> str:
        topics, _ = self._read_topics(store, led.wanted)
        changed = sorted(name for name in topics.keys() | led.seen.keys() if topics.get(name) != led.seen.get(name))
        return changed[0] if changed else ""

    def _request(self, store: Store, led: _Led) -> str:
        """Why to ask again; nothing from who does not lead any more, or whose answer is still on its way."""
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
        """See `Role`. What this member has assigned is of no use until it is asked again."""
        self._led = None

    def _on_topics(self, path: str) -> None:
        self._changed.set()
        self._wake()

    # ---- as any member

    def assigned(self, protocol: str, entry: MemberAnswer, channel: Channel) -> None:
        """Tell the assignor of the group's protocol what its member was given."""
        assignor = self._assignors.get(protocol)
        if assignor is None:
            return
        try:
            state = decoded("the member state", entry.member_state)
            assignor.on_assignment(Assignment(entry.threads, state), state, channel.generation)
        except (Exception, SystemExit):  # a third party's
            log.exception("assignor failed: group=%s protocol=%s", self._config.group, protocol)

    def stopped(self) -> None:
        """The commands of a consumer name its partitions."""

    def lost(self, reason: str) -> None:
        """Another incarnation leads anew, when it is asked; that of a static member may lead already."""
        self._led = None
        self._may_have_led = bool(self._config.group_instance_id)


def _topic(path: str, name: str, node: Node) -> Topic | None:
    try:
        return Topic.parse(path, name, node.data, node.stat.czxid)
    except CoordinatorError as error:
        log.warning("bad data set aside: path=%s problem=%s", path, error)
        return None
