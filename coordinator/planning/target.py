"""Steps 1 and 2 of `rebalance` (sources D22, D23): a group's topics, and the assignment of their partitions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..assignors import Assignor, Subscriber, assigned
from ..zk.errors import BadData, RebalanceFailed
from ..zk.znodes.group_state import CLIENT, Mark, Target, first_of, keys_of
from ..zk.znodes.json_fields import compact
from ..zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.ranges import MAX_PARTITION
from ..zk.znodes.records import STATIC, Registration, Topic
from ..zk.znodes.topic_filter import GroupFilters
from .snapshot import ChannelView, Member, Snapshot

OWNER_PATHS_A_SESSION = 256_000
"""Bytes of owner paths per session: a server cannot restart from a session whose end exceeds its buffer
(ZOOKEEPER-4306: 30,000 owners broke a 3.9.5, 10,000 did not)."""

OVER_A_SESSION = (
    f"its consumer owns as many partitions as one session may: {OWNER_PATHS_A_SESSION} bytes of owner paths "
    "(start more consumers)"
)
ROOM_BYTES = 470_000
"""Bytes of the target in `state` and of the largest command beside it, in one multi; the rest is for reasons."""
BEYOND = f"the group's state holds no more: target and largest start have {ROOM_BYTES} bytes (use several groups)"
LEAST_BESIDE = 64_000
CUTS = 7
"""Attempts to find the number of partitions that fit: the first by an estimate, each further one by bisection."""


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """A group's next assignment.

    :ivar target: consumer -> its target, for every live member, idle ones included.
    :ivar topics: the ids of the topics that have a subscriber.
    :ivar left_out: member, topic or partition -> the reason.
    :ivar ask: the ask that it answers, under client-side assignment.
    :ivar needs_barrier: whether no member may start before all have stopped an earlier assignment: for a protocol type
        without owners.
    :ivar retained: (member, command's name) of outstanding commands that are neither stops nor starts.
    """

    target: Mapping[str, Target] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    ask: str = ""
    needs_barrier: bool = False
    retained: frozenset[tuple[str, str]] = frozenset()


def filters_of(registrations: Iterable[Registration]) -> GroupFilters:
    """The wildcards of a group's members."""
    wildcards = (each for each in registrations if each.pattern not in (STATIC, CLIENT))
    return GroupFilters((each.pattern, text) for each in wildcards for text in each.subscription)


def threads_of(registration: Registration, topics: Mapping[str, Topic], filters: GroupFilters) -> dict[str, int]:
    """Topic -> threads of one member, with a wildcard resolved against the topics that exist.

    :param filters: of all the group's members.
    :raises BadData: when the pattern does not compile, or does not fit beside the group's others.
    """
    if registration.pattern in (STATIC, CLIENT):
        return dict(registration.subscription)
    ((text, threads),) = registration.subscription.items()
    selected = filters.selected((registration.pattern, text), topics)
    return {name: threads for name in topics if name in selected}


def is_live(member: Member, view: ChannelView | None) -> bool:
    """Whether the registered incarnation is the one that the channel shows, not ended."""
    return (
        member.registration is not None
        and view is not None
        and view.channel is not None
        and view.channel.is_live
        and view.channel.incarnation == member.registration.incarnation
    )


def target_assignment(
    snapshot: Snapshot, members: Mapping[str, Registration], assignor: Assignor, holds: Sequence[Mark] = ()
) -> TargetAssignment:
    """Assign every assignable partition to the members, static ones that are away included.

    Partitions that do not fit into `state`, beside the largest command, are left out from the last topic's last one
    on: the same ones until members or topics change, so that a sticky strategy repeats its result.

    :param holds: of evictions; they are in the state, too.
    :raises RebalanceFailed: when the assignor fails, or breaks its contract; or when the members alone do not fit.
    """
    room = max(ROOM_BYTES - sum(len(compact(hold.to_json())) for hold in holds), 2 * LEAST_BESIDE)
    demand = _demand(snapshot, members)
    least = _bytes_of(demand.found({}))
    if least >= room:
        raise RebalanceFailed(
            f"the group's {len(members)} members and their {len(demand.topics)} topics take {least} bytes in its "
            f"state, over the {room} that it may have: spread them over several groups"
        )
    beyond = _beyond_before(snapshot, members, demand)
    found = demand.without(assignor, beyond)
    size = _bytes_of(found)
    return found if size <= room else _cut(demand, assignor, beyond, room, (room - least) / (size - least))


def _beyond_before(snapshot: Snapshot, members: Mapping[str, Registration], demand: _Demand) -> PartitionSet:
    """Partitions that did not fit into the previous target, while members and topics are the same."""
    ids = {name: registration.incarnation for name, registration in members.items()}
    is_same = {name: one.incarnation for name, one in snapshot.state.target.items()} == ids
    first = first_of(snapshot.state.left_out, BEYOND)
    if first is None or not is_same or snapshot.state.topics != demand.topic_ids():
        return NONE
    return frozenset(partition for partition in demand.partitions if partition >= first)


def _cut(demand: _Demand, assignor: Assignor, beyond: PartitionSet, room: int, share: float) -> TargetAssignment:
    """The assignment of nearly all partitions, from the first on, that fit into `room`.

    :param share: an estimate of the part that fits, of the partitions not in `beyond`.
    """
    every = sorted(demand.partitions)
    fits, over, best = 0, len(demand.partitions - beyond), demand.without(assignor, demand.partitions)
    kept = int(over * 0.98 * share)
    for _ in range(CUTS):
        found = demand.without(assignor, frozenset(every[kept:]))
        if _bytes_of(found) <= room:
            fits, best = kept, found
        else:
            over = kept
        kept = (fits + over) // 2
    return best


def _bytes_of(found: TargetAssignment) -> int:
    """Bytes of a target in the state, and of the largest start beside it."""
    targets = {name: target.to_json() for name, target in found.target.items()}
    starts = [
        (len(compact(targets[name])), {part.topic for part in target.partitions})
        for name, target in found.target.items()
    ]
    largest = max((size + sum(len(t) + len(found.topics[t]) + 6 for t in topics) for size, topics in starts), default=0)
    return len(compact({"target": targets, "topics": dict(found.topics)})) + max(largest, LEAST_BESIDE)


@dataclass(frozen=True, slots=True)
class _Demand:
    """The members' subscriptions, resolved once for all attempts of an assignment.

    :ivar topics: those with a subscriber and partitions.  :ivar partitions: of these topics.
    :ivar left_out: member or topic -> the reason.
    """

    group: str
    members: Mapping[str, Registration]
    subscribers: Sequence[Subscriber]
    topics: Mapping[str, Topic]
    partitions: PartitionSet
    left_out: Mapping[str, str]

    def topic_ids(self) -> dict[str, str]:
        return {name: topic.id for name, topic in sorted(self.topics.items())}

    def without(self, assignor: Assignor, beyond: PartitionSet) -> TargetAssignment:
        """The assignment without the partitions `beyond`.

        :raises RebalanceFailed: when the assignor fails, or breaks its contract.
        """
        shares = {
            name: tuple(number for number in topic.partitions if TopicPartition(name, number) not in beyond)
            if beyond
            else topic.partitions
            for name, topic in self.topics.items()
        }
        shares = {name: numbers for name, numbers in shares.items() if numbers}
        subscribers = [
            replace(subscriber, threads={topic: n for topic, n in subscriber.threads.items() if topic in shares})
            for subscriber in self.subscribers
        ]
        found = self.found(assigned(assignor, subscribers, shares))
        return replace(found, left_out={**found.left_out, **keys_of(beyond, BEYOND)})

    def found(self, assignment: Mapping[str, Mapping[str, PartitionSet]]) -> TargetAssignment:
        """The target of an assignment, limited to the owner znodes that one session may have."""
        left_out = dict(self.left_out)
        target = {
            member.consumer: Target(
                self.members[member.consumer].incarnation,
                _bounded(self.group, assignment.get(member.consumer, {}), member.on_thread, left_out),
            )
            for member in self.subscribers
        }
        return TargetAssignment(target, self.topic_ids(), left_out)


def _demand(snapshot: Snapshot, members: Mapping[str, Registration]) -> _Demand:
    left_out: dict[str, str] = {}
    subscribers = []
    filters = filters_of(members.values())
    for consumer in sorted(members):
        try:
            threads = threads_of(members[consumer], snapshot.partitions.topics, filters)
        except BadData as error:
            left_out[consumer] = str(error)
            threads = {}
        view = snapshot.members.channels.get(consumer)
        subscribers.append(
            Subscriber(
                consumer,
                threads,
                view.running if view else NONE,
                view.channel.generation if view and view.channel else 0,
                members[consumer].user_data,
                instance_id=members[consumer].instance_id,
                on_thread=_before(snapshot, consumer),
            )
        )
    topics = _assignable(subscribers, snapshot.partitions.topics, left_out)
    every = frozenset(TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions)
    return _Demand(snapshot.group, members, subscribers, topics, every, left_out)


def _assignable(
    subscribers: Iterable[Subscriber], topics: Mapping[str, Topic], left_out: dict[str, str]
) -> dict[str, Topic]:
    found = {}
    for name in sorted({name for subscriber in subscribers for name in subscriber.threads}):
        if name not in topics:
            left_out[name] = "no such topic (yet)"
        elif not topics[name].partitions:
            left_out[name] = "the topic has no partitions"
        else:
            found[name] = topics[name]
    return found


def _before(snapshot: Snapshot, consumer: str) -> dict[TopicPartition, str]:
    """A consumer's previous target, also of an earlier incarnation: it may get its partitions back."""
    target = snapshot.state.target.get(consumer)
    threads = target.threads.items() if target else ()
    return {part: thread for thread, parts in threads for part in parts}


def owner_path_bytes(group: str, partitions: Iterable[TopicPartition]) -> int:
    """Bytes of the owner paths of `partitions` in the end of a session; a little over-estimated."""
    counts = Counter(part.topic for part in partitions)
    paths = GroupPaths(group)
    return sum(count * (len(paths.owner(topic, MAX_PARTITION)) + 4) for topic, count in counts.items())


def _bounded(
    group: str, threads: Mapping[str, PartitionSet], before: Mapping[TopicPartition, str], left_out: dict[str, str]
) -> dict[str, PartitionSet]:
    """Limit `threads` to the owner znodes of one session; the excess is left out with the reason.

    Partitions of the target `before` have precedence: a sticky strategy must repeat its result.
    """
    paths = GroupPaths(group)
    room = OWNER_PATHS_A_SESSION
    if owner_path_bytes(group, (part for parts in threads.values() for part in parts)) <= room:
        return {thread: parts for thread, parts in threads.items() if parts}
    kept: dict[str, set[TopicPartition]] = {}
    over = []
    every = [(part not in before, thread, part) for thread, parts in threads.items() for part in parts]
    for _, thread, partition in sorted(every):
        room -= len(paths.owner(*partition)) + 4
        if room >= 0:
            kept.setdefault(thread, set()).add(partition)
        else:
            over.append(partition)
    left_out |= keys_of(over, OVER_A_SESSION)
    return {thread: frozenset(parts) for thread, parts in kept.items()}
