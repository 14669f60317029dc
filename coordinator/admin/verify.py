"""`groups verify`: whether every subscribed partition of a group has a live owner that subscribed to it. Pure.

Kafka's tool VerifyConsumerRebalance, extended to partitions that the coordinator leaves out: an unassigned one is a
problem here, with the coordinator's own reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..planning.target import filters_of, threads_of
from ..zk.errors import BadData
from ..zk.znodes.group_state import STABLE, partitions_of
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import GroupPaths
from ..zk.znodes.records import NO_CHANNEL, Channel, Topic
from .groups import ShownGroup, ShownMember, ShownPartition


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem; `what` is a member, a topic or a partition."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class _Live(NamedTuple):
    """A live member; `threads` is topic -> number."""

    channel: Channel
    threads: Mapping[str, int]


def problems(group: ShownGroup, topics: Mapping[str, Topic]) -> list[Problem]:
    """All problems: members first, then topics and their partitions, then the coordinator's other exclusions.

    :param topics: all topics.
    """
    result: list[Problem] = []
    live: dict[str, _Live] = {}
    filters = filters_of(member.registration for member in group.members if member.registration is not None)
    for member in group.members:
        if member.registration is None:
            continue
        if why := not_live(member):
            result.append(Problem(member.consumer, group.state.left_out.get(member.consumer, why)))
            continue
        try:
            threads = threads_of(member.registration, topics, filters)
            live[member.consumer] = _Live(member.channel or NO_CHANNEL, threads)
        except BadData as error:
            result.append(Problem(member.consumer, str(error)))
    result += _in_topics(group, topics, live)
    reported = {problem.what for problem in result}
    return result + [Problem(what, why) for what, why in sorted(group.state.left_out.items()) if what not in reported]


def unknown(group: str, unreadable: Mapping[str, str]) -> list[Problem]:
    """Problems that hide all others: unreadable znodes of the whole group."""
    paths = GroupPaths(group)
    shared = (paths.state, paths.ids, paths.channels, paths.seats, paths.owners)
    return [Problem(path, unreadable[path]) for path in shared if path in unreadable]


def not_live(member: ShownMember) -> str | None:
    """Why a registered consumer is no live member, None when it is one."""
    channel, registration = member.channel, member.registration
    if channel is None:
        return "its channel is missing or cannot be read"
    if not channel.incarnation or (registration is not None and not registration.incarnation):
        where = "ids" if channel.incarnation else "channel"
        return f"it is registered, but the incarnation in its {where} is empty"
    if channel.ended is not None:
        return f"it is registered, but its incarnation is over: {channel.ended}"
    if registration is None or channel.incarnation != registration.incarnation:
        return "it is registered, but its channel is another incarnation's"
    return None


def _in_topics(group: ShownGroup, topics: Mapping[str, Topic], live: Mapping[str, _Live]) -> Iterator[Problem]:
    subscribed = {topic for each in live.values() for topic in each.threads}
    is_client_side = group.state.client is not None
    if is_client_side:  # only the leader interprets metadata: its proposed assignment contains the group's topics
        subscribed |= set(group.state.topics)
    shown = {each.partition: each for each in group.partitions}
    left_out = partitions_of(group.state.left_out)
    for name in sorted(subscribed):
        topic = topics.get(name)
        if topic is None:
            yield Problem(name, "no such topic (yet)")
        elif not topic.partitions:
            yield Problem(name, "the topic has no partitions")
        for number in topic.partitions if topic else ():
            partition = TopicPartition(name, number)
            why = _unowned(group, shown.get(partition), partition, left_out.get(partition))
            why = why or _misowned(shown[partition], topic, live, is_client_side)
            why = why or _not_in_target(group, shown[partition])
            if why is not None:
                yield Problem(str(partition), why)
    for partition, each in sorted(shown.items()):
        topic = topics.get(partition.topic)
        if each.thread is not None and partition.topic not in subscribed:
            yield Problem(str(partition), f"{each.thread} owns it, and no member subscribes to its topic")
        elif each.thread is not None and topic is not None and partition.partition not in topic.partitions:
            yield Problem(str(partition), f"{each.thread} owns it, and its topic has no such partition")


def _unowned(
    group: ShownGroup, shown: ShownPartition | None, partition: TopicPartition, left_out: str | None
) -> str | None:
    if shown is not None and shown.thread is not None:
        return None
    if shown is not None and shown.session is not None:
        return f"an owner znode that cannot be read is in the way{_held_by(shown)}"
    holders = [name for name, target in sorted(group.state.target.items()) if partition in target.partitions]
    by_leader = None if holders else group.state.left_out.get(partition.topic)
    if why := left_out or group.state.left_out.get(str(partition)) or by_leader:
        return why
    for mark in group.state.marks:
        if partition in mark.partitions:
            return f"no owner: it waits for the lease of {mark.consumer} ({mark.reason})"
    return f"no owner: it is assigned to {holders[0]}" if holders else "no owner"


def _not_in_target(group: ShownGroup, shown: ShownPartition) -> str | None:
    """Why an owner is not that of a Stable group's target, None when it is."""
    state = group.state
    targets = state.target.values()
    threads = [thread for one in targets for thread, parts in one.threads.items() if shown.partition in parts]
    if state.state != STABLE or not state.target or threads == [shown.thread]:
        return None
    where = f"assigns it to {threads[0]}" if threads else "does not assign it"
    return f"its owner is {shown.thread}, and the state {where}"


def _held_by(shown: ShownPartition) -> str:
    """The owner of the session that holds an owner znode, for a message; empty when it was not read."""
    if shown.session is None:
        return ""
    if not shown.session:
        return ": the znode is persistent, so no session's end removes it, and it keeps others from the partition"
    return f": session 0x{shown.session:x} holds the znode, which keeps others from the partition"


def _misowned(
    shown: ShownPartition, topic: Topic | None, live: Mapping[str, _Live], is_client_side: bool = False
) -> str | None:
    """Why the owner must not have the partition, None when it may.

    :param is_client_side: whether the threads are the leader's choice.
    """
    owner = live.get(shown.consumer or "")
    number = (shown.thread or "").removeprefix(f"{shown.consumer}-")
    if owner is None:
        return f"its owner {shown.thread} is of no live member{_held_by(shown)}"
    if shown.incarnation != owner.channel.incarnation:
        return f"its owner {shown.thread} is of an earlier incarnation of {shown.consumer}{_held_by(shown)}"
    threads = owner.threads.get(shown.partition.topic, 0)
    if not threads and not is_client_side:
        return f"its owner {shown.thread} has not subscribed to the topic"
    if not is_client_side and (not number.isdecimal() or int(number) >= threads):
        return f"its owner {shown.thread} is not among the {threads} threads that {shown.consumer} registered"
    if shown.partition not in owner.channel.running:
        return f"its owner {shown.thread} does not run it{_held_by(shown)}"
    if topic is not None and owner.channel.topics.get(topic.name) != topic.id:
        return f"its owner {shown.thread} runs it with another topic id"
    return None
