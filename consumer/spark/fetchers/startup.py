"""Which slots of a pool do not run yet, and what each waits for: as ZooKeeper shows it, for the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from coordinator.zk.errors import BadData
from coordinator.zk.store import Node, Store
from coordinator.zk.znodes.group_state import STABLE, GroupState
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import Channel, parsed_channel

from .supervisor import SlotStatus

MOST_SHOWN = 5
UNREGISTERED = "its Spark task has not registered"
NO_COORDINATOR = "no coordinator is elected: start a node (zk-coordinator run)"


@dataclass(frozen=True, slots=True)
class Seen:
    """A group, as far as the slots of a pool are concerned.

    :ivar registered: those of them that are in `ids`.
    :ivar state: None when the group has none yet, or an unreadable one.
    """

    has_coordinator: bool
    state: GroupState | None
    registered: Set[str] = frozenset()
    channels: Mapping[str, Channel] = field(default_factory=dict)


def seen(store: Store, group: str, consumers: Sequence[str]) -> Seen:
    """
    :raises StoreError: when there was no answer.
    """
    paths = GroupPaths(group)
    elected, state = store.get_many([COORDINATOR, paths.state])
    ids = store.get_many([paths.id(consumer) for consumer in consumers])
    channels = store.get_many([paths.channel(consumer) for consumer in consumers])
    return Seen(
        elected is not None,
        _state(paths, state),
        {consumer for consumer, node in zip(consumers, ids, strict=True) if node is not None},
        {consumer: _channel(node) for consumer, node in zip(consumers, channels, strict=True) if node is not None},
    )


def incarnations(now: Seen) -> dict[str, str]:
    """Consumer -> the incarnation in its channel."""
    return {consumer: channel.incarnation for consumer, channel in now.channels.items()}


def waiting(now: Seen, consumers: Sequence[str], earlier: Mapping[str, str]) -> dict[str, str]:
    """Consumer -> what it waits for, of those that do not run what the group's target has for them.

    :param earlier: incarnations of the processes before, which do not count.
    """
    found = {consumer: _waits_for(now, consumer, earlier.get(consumer)) for consumer in consumers}
    return {consumer: reason for consumer, reason in found.items() if reason is not None}


def late_text(left: Mapping[str, str], slots: Sequence[SlotStatus]) -> str:
    """What slots wait for, each reason once, with the last errors of those that have ended unexpectedly."""
    errors = {slot.consumer: slot.last_error for slot in slots if slot.last_error}
    by_reason: dict[str, list[str]] = {}
    for consumer, reason in left.items():
        full = f"{reason}, after: {errors[consumer]}" if consumer in errors else reason
        by_reason.setdefault(full, []).append(consumer)
    texts = [f"{', '.join(_shortened(consumers))}: {reason}" for reason, consumers in by_reason.items()]
    return "; ".join(_shortened(texts))


def _shortened(texts: Sequence[str]) -> list[str]:
    return [*texts[:MOST_SHOWN], *([f"and {len(texts) - MOST_SHOWN} more"] if len(texts) > MOST_SHOWN else [])]


def _waits_for(now: Seen, consumer: str, earlier: str | None) -> str | None:
    channel = now.channels.get(consumer)
    if consumer not in now.registered or channel is None or not channel.is_live or channel.incarnation == earlier:
        return UNREGISTERED
    if not now.has_coordinator:
        return NO_COORDINATOR
    state = now.state
    if state is None or state.state != STABLE:
        reason = f" ({state.reason})" if state is not None and state.reason else ""
        return f"the group is {state.state if state is not None else 'new'}{reason}"
    target = state.target.get(consumer)
    if target is None or len(target.partitions) > len(channel.running):
        return "it waits for its partitions"
    return None


def _state(paths: GroupPaths, node: Node | None) -> GroupState | None:
    try:
        return GroupState.parse(paths.state, node.data) if node is not None else None
    except BadData:
        return None


def _channel(node: Node) -> Channel:
    """Of an unreadable one nothing runs."""
    try:
        return parsed_channel("a channel", node.data)
    except BadData:
        return Channel("", ended="unreadable")
