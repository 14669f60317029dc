"""The expected target of a group: every live member, and every partition of every subscribed topic."""

from __future__ import annotations

import json
from base64 import b64decode

from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.znodes.group_state import CLIENT, CONSUMER, GroupState, partitions_of
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import STATIC, Registration
from zk_group.coordinator.zk.znodes.regions import FAILED
from zk_group.coordinator.zk.znodes.topic_filter import TopicFilter

from .replay import Replay
from .znode_views import GroupView, MemberView

Item = tuple[str, ...]
"""A defect of a target: its kind, then its names."""


def subscribed(world: Replay, group: GroupView, member: MemberView) -> frozenset[str] | None:
    """The existing topics that a member subscribes to; for a static subscription all named ones.

    Under client-side assignment by its metadata; None when that is in an unknown format.
    """
    protocol = group.known.strategy if group.known is not None and group.is_led else None
    known = member.subscribed
    if known is None or known[:2] != (world.topics_changed, protocol):
        known = member.subscribed = (world.topics_changed, protocol, _topics(world, member.registration, protocol))
    return known[2]


def _topics(world: Replay, registration: Registration | None, protocol: str | None) -> frozenset[str] | None:
    if registration is None:
        return frozenset()
    pattern, texts = registration.pattern, list(registration.subscription)
    if registration.client is not None and (protocol is not None or pattern == CLIENT):
        found = _metadata(registration, protocol)
        if found is None:
            return None
        pattern, texts = found
    if pattern == STATIC:
        return frozenset(texts)
    try:
        topics = TopicFilter(pattern, texts[0])
    except (BadData, IndexError):
        return frozenset()
    return frozenset(name for name in world.topics if topics.allows(name))


def _metadata(registration: Registration, protocol: str | None) -> tuple[str, list[str]] | None:
    """Pattern and topics in a member's metadata; None when they cannot be read."""
    client = registration.client
    if client is None or client.protocol_type != CONSUMER:
        return None
    text = client.metadata.get(protocol or "") or next(iter(client.metadata.values()), "")
    try:
        values = json.loads(b64decode(text, validate=True))
        topics, pattern = values["topics"], values.get("pattern", STATIC)
        return (pattern, list(topics)) if all(type(each) is str for each in (pattern, *topics)) else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


DEFAULT_ASSIGNMENT_S = 60.0
"""Seconds for an ask of a leader where `bounds` lack them: the default timeout, and the longest backoff."""


def longest_ask_s(world: Replay) -> float:
    """How long a leader without an answer may delay its group: the timeout, and the backoff after it."""
    return world.bounds.get("assignment_timeout", DEFAULT_ASSIGNMENT_S)


DEFAULT_HOLD_S = 120.0
"""Seconds that a generation of a group in a consistent region may wait for a checkpoint, where `bounds` lack them."""


def hold_s(world: Replay, group: GroupView) -> float:
    """How long a generation of the group may wait for a checkpoint of its consistent region; 0 without a region."""
    return world.bounds.get("hold", DEFAULT_HOLD_S) if world.regions.of(group.name) is not None else 0.0


def extra_s(world: Replay, group: GroupView, asks: int = 1) -> float:
    """What is added to a group's times: for so many asks of a leader, and for a checkpoint of its region."""
    return (asks * longest_ask_s(world) if group.is_led else 0.0) + hold_s(world, group)


def notice_s(world: Replay, now: float) -> float:
    """Seconds before `now` in which a change may be unseen; infinity without bounds."""
    if not world.bounds:
        return float("inf")
    longer: float = world.bounds["notice"] + world.bounds["session_timeout"]
    return longer if world.conditions.disturbed_until > now - longer else world.bounds["notice"]


def has_failed(world: Replay, group: GroupView) -> bool:
    """Whether the group's consistent region has failed: then its members run nothing until an operator resets it.

    With a manually edited cut it may have.
    """
    region = world.regions.of(group.name)
    return is_cut_touched(world, group) or (
        region is not None and region.data is not None and region.data.state == FAILED
    )


def is_cut_touched(world: Replay, group: GroupView) -> bool:
    """Whether the group's region has a manually edited cut: it may be unreadable."""
    region = world.regions.of(group.name)
    cut = region.checkpoints.get(region.data.sequence) if region is not None and region.data is not None else None
    return cut is not None and cut.by_hand


def can_be_led(world: Replay, group: GroupView) -> bool:
    """Whether the group needs no leader, or has a live member with a working assignor."""
    broken = world.conditions.broken
    if broken is None or not group.is_led:
        return True
    return any(not broken.hit(name, group.channels[name].owner) for name in group.live_members)


def cover(world: Replay, group: GroupView, members: list[str]) -> set[str] | None:
    """The topics of `members`' subscriptions; None when one's metadata cannot be read."""
    found = [subscribed(world, group, group.members[name]) for name in members]
    return set().union(*(each for each in found if each is not None)) if None not in found else None


def mismatches(world: Replay, group: GroupView) -> list[Item]:
    """The target's differences from the existing members and topics; none for a manually edited one."""
    state = group.state
    if state is None:
        return [("state",)] if group.live_members and group.state_hand_at == float("-inf") else []
    if state.data is None or state.by_hand:
        return []
    live = group.live_members
    return _of_members(group, state.data, live) + _of_topics(world, group, state.data, live)


def _of_members(group: GroupView, state: GroupState, live: list[str]) -> list[Item]:
    found: list[Item] = []
    for name in live:
        registration = group.registration(name)
        incarnation = registration.incarnation if registration is not None else ""
        if name not in state.target or state.target[name].incarnation != incarnation:
            found.append(("member", name, incarnation))
    gone = [name for name in state.target if name not in live]
    return found + [("gone", name, state.target[name].incarnation) for name in gone]


def _of_topics(world: Replay, group: GroupView, state: GroupState, live: list[str]) -> list[Item]:
    found: list[Item] = []
    assigned: dict[str, set[int]] = {}
    for share in state.target.values():
        for topic, number in share.partitions:
            assigned.setdefault(topic, set()).add(number)
    expected = cover(world, group, live)
    if expected is None:
        return []
    for topic in sorted(expected | set(assigned)):
        view = world.topics.get(topic)
        if view is not None and view.data is None:
            continue  # the coordinator keeps its last readable data
        there = view.partitions if view is not None and topic in expected else frozenset()
        mine = assigned.get(topic, set())
        if view is not None and view.data is not None and mine and there and state.topics.get(topic) != view.data.id:
            found.append(("topic", topic, view.data.id))
            continue
        missing = sorted(there - mine - left_out(world, group, state, topic))
        found += [("missing", topic, str(n)) for n in missing if f"{topic}-{n}" not in state.left_out]
        found += [("extra", topic, str(number)) for number in sorted(mine - there)]
    return found


def left_out(world: Replay, group: GroupView, state: GroupState, topic: str) -> frozenset[int]:
    """Partitions of a topic that the leader has left unassigned, by the state; or that did not fit, by their ranges."""
    by_ranges = frozenset(part.partition for part in partitions_of(state.left_out) if part.topic == topic)
    return by_ranges | _left_out_by_the_leader(world, group, state, topic)


def _left_out_by_the_leader(world: Replay, group: GroupView, state: GroupState, topic: str) -> frozenset[int]:
    view = world.topics.get(topic)
    if state.client is None or topic not in state.left_out or view is None or view.data is None:
        return frozenset()
    if state.topics.get(topic) != view.data.id:
        return frozenset()
    ask = group.asks.get(state.client.ask)
    answer = ask.answer if ask is not None else None
    return frozenset(answer.partitions.get(topic, ())) if answer is not None else view.partitions


def is_kept(world: Replay, group: GroupView, item: Item) -> bool:
    """Whether an item is due to a static member that has left its seat: its part is kept for a while."""
    target = group.known.target if group.known is not None else {}
    channels = group.channels
    away = [name for name in group.seats.keys() & target.keys() if name in channels and not channels[name].is_live]
    what, *names = item
    if what != "extra":
        return what == "gone" and names[0] in away
    partition = TopicPartition(names[0], int(names[1]))
    return names[0] in world.topics and any(partition in target[name].partitions for name in away)


def item_text(item: Item) -> str:
    """An item in words."""
    return _TEXTS[item[0]].format(*item[1:])


_TEXTS = {
    "state": "there is no state",
    "member": "{} (incarnation {}) has no part in the target",
    "gone": "{} (incarnation {}) has left and still has its part in the target",
    "topic": "the target is of another topic {} than the one with id {}",
    "missing": "{}-{} is unassigned",
    "extra": "{}-{} is assigned, but does not exist",
}


def held(group: GroupView, state: GroupState) -> set[TopicPartition]:
    """What a channel of the group runs, or a mark of its state covers."""
    return set().union(*(view.running for view in group.channels.values()), *(mark.partitions for mark in state.marks))


def runs_target(group: GroupView, state: GroupState, consumer: str) -> bool:
    """Whether a live member runs exactly its target."""
    channel, share = group.channels.get(consumer), state.target.get(consumer)
    if channel is None or channel.data is None or share is None or share.incarnation != channel.data.incarnation:
        return False
    return share.partitions == channel.running.keys()
