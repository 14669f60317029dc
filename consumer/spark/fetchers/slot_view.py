"""What each slot of a pool does: decided from its Spark job, and from the group's znodes as the driver reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from coordinator.zk.errors import BadData, StoreError
from coordinator.zk.store import Node, Store
from coordinator.zk.znodes.group_state import FAILED, STABLE, GroupState
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import STATIC, parsed_channel
from coordinator.zk.znodes.segments import SegmentsRecord

from ...config import Subscription
from .supervisor import ENDED, NEW, RUNNING, SlotStatus

REGISTERING = "registering"
UNASSIGNED = "unassigned"
FETCHING = "fetching"
PAUSED = "paused"
FAILING = "failing"
UNKNOWN = "unknown"
MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group, as far as it explains its slots.

    :ivar running: registered consumer -> how many partitions it runs.
    """

    running: Mapping[str, int]
    state: GroupState
    has_coordinator: bool = True
    paused: str | None = None


def statuses(
    store: Store | None, group: str, subscription: Subscription, slots: Sequence[SlotStatus]
) -> list[SlotStatus]:
    """The status of each slot with the state that it is in.

    :param store: the driver's session, None without one.
    :param slots: as their supervisors have them.
    """
    view, problem = None, "the driver has no session with ZooKeeper"
    if store is not None:
        try:
            view = read_group(store, group, [slot.consumer for slot in slots])
        except StoreError as error:
            problem = str(error)
    topics = sorted(subscription.topics) if subscription.pattern == STATIC else []
    return [shown_status(slot, view, topics, problem) for slot in slots]


def read_group(store: Store, group: str, consumers: Sequence[str]) -> GroupView:
    """
    :raises StoreError: when ZooKeeper did not answer.
    """
    paths = GroupPaths(group)
    members = [*map(paths.id, consumers), *map(paths.channel, consumers)]
    elected, state, segments, *found = store.get_many([COORDINATOR, paths.state, paths.segments, *members])
    ids, channels = found[: len(consumers)], found[len(consumers) :]
    registered = zip(consumers, ids, channels, strict=True)
    return GroupView(
        running={name: _partitions_in(channel) for name, member, channel in registered if member is not None},
        state=_state_in(state),
        has_coordinator=elected is not None,
        paused=_paused_in(segments),
    )


def shown_status(
    status: SlotStatus, view: GroupView | None, topics: Sequence[str] = (), problem: str | None = None
) -> SlotStatus:
    """A slot's status with the state that it is in, and the reason.

    :param status: as its supervisor has it: by its job.
    :param view: None when the group could not be read, for the reason `problem`.
    :param topics: names that its subscription has, if it has names.
    """
    if status.state in (NEW, ENDED):
        return replace(status, reason=status.last_error)
    if status.state != RUNNING:
        return replace(status, state=FAILING, reason=status.last_error)
    if view is None:
        return replace(status, state=UNKNOWN, reason=problem)
    if status.consumer not in view.running:
        last = f"attempt {status.attempts}, after: {status.last_error}" if status.last_error else None
        return replace(status, state=REGISTERING, reason=last)
    unassigned = _unassigned_topics(view, topics)
    if not view.running[status.consumer]:
        return replace(status, state=UNASSIGNED, reason=_why_unassigned(status.consumer, view, unassigned))
    if view.paused is not None:
        return replace(status, state=PAUSED, reason=view.paused)
    return replace(status, state=FETCHING, reason=unassigned)


def _unassigned_topics(view: GroupView, topics: Sequence[str]) -> str | None:
    reasons = [f"topic {name}: {view.state.left_out[name]}" for name in topics if name in view.state.left_out]
    more = [f"{len(reasons) - MOST_REASONS} more topics"] if len(reasons) > MOST_REASONS else []
    return "; ".join([*reasons[:MOST_REASONS], *more]) or None


def _why_unassigned(consumer: str, view: GroupView, topics: str | None) -> str:
    state = view.state
    if not view.has_coordinator:
        return "no coordinator is elected: start a node (zk-coordinator run)"
    if state.state == FAILED:
        return f"the group could not be rebalanced: {state.reason}"
    if found := state.left_out.get(consumer) or topics:
        return found
    if state.state == STABLE and consumer in state.target:
        return "every partition is assigned to another consumer thread: there are more threads than partitions"
    return f"waits for an assignment: the group is {state.state}{f' ({state.reason})' if state.reason else ''}"


def _partitions_in(node: Node | None) -> int:
    with suppress(BadData):
        return len(parsed_channel("a channel", node.data).running) if node is not None else 0
    return 0


def _state_in(node: Node | None) -> GroupState:
    with suppress(BadData):
        return GroupState.parse("the state", node.data) if node is not None else GroupState()
    return GroupState()


def _paused_in(node: Node | None) -> str | None:
    with suppress(BadData):
        return SegmentsRecord.parse("the segments znode", node.data if node is not None else b"").paused
    return None
