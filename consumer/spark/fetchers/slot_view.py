"""What each slot of a pool does and what it waits for: from its Spark job, and from the group's znodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.zk.errors import StoreError
from coordinator.zk.store import Store
from coordinator.zk.znodes.group_state import FAILED, STABLE, GroupState
from coordinator.zk.znodes.json_fields import readable
from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import STATIC, Channel, parsed_channel
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
MOST_SHOWN = 5
MORE_THREADS = "every partition is assigned to another consumer thread: there are more threads than partitions"


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group, as far as it explains the slots of a pool.

    :ivar channels: member -> its live channel, without those of earlier processes.
    :ivar paused: why its fetchers are paused, else None.
    :ivar problem: why the group could not be read, else None.
    """

    channels: Mapping[str, Channel] = field(default_factory=dict)
    state: GroupState = field(default_factory=GroupState)
    has_coordinator: bool = True
    paused: str | None = None
    problem: str | None = None


def read_group(store: Store, group: str, consumers: Sequence[str], earlier: Mapping[str, str]) -> GroupView:
    """Read the group's znodes once.

    :param earlier: consumer -> incarnation of an earlier process with its name, which is no slot of this pool.
    :raises StoreError: when ZooKeeper did not answer.
    """
    paths = GroupPaths(group)
    members = [*map(paths.id, consumers), *map(paths.channel, consumers)]
    elected, state, segments, *found = store.get_many([COORDINATOR, paths.state, paths.segments, *members])
    ids, nodes = found[: len(consumers)], found[len(consumers) :]
    registered = {name: node for name, member, node in zip(consumers, ids, nodes, strict=True) if member is not None}
    channels = {name: readable(parsed_channel, "a channel", node) for name, node in registered.items()}
    return GroupView(  # nodes report what is unreadable
        channels={n: c for n, c in channels.items() if c and c.is_live and c.incarnation != earlier.get(n)},
        state=readable(GroupState.parse, paths.state, state) or GroupState(),
        has_coordinator=elected is not None,
        paused=(readable(SegmentsRecord.parse, paths.segments, segments) or SegmentsRecord()).paused,
    )


def view_of(store: Store | None, group: str, consumers: Sequence[str], earlier: Mapping[str, str]) -> GroupView:
    """`read_group`, with an error as the view's problem.

    :param store: the driver's session, None without one.
    """
    if store is None:
        return GroupView(problem="the driver has no session with ZooKeeper")
    try:
        return read_group(store, group, consumers, earlier)
    except StoreError as error:
        return GroupView(problem=str(error))


def shown_slots(view: GroupView, subscription: Subscription, slots: Sequence[SlotStatus]) -> list[SlotStatus]:
    """The status of each slot with the state that it is in, and the reason.

    :param slots: as their supervisors have them: by their jobs.
    """
    topics = sorted(subscription.topics) if subscription.pattern == STATIC else []
    return [_shown(slot, view, _left_out_topics(view, topics)) for slot in slots]


def late_slots(view: GroupView, slots: Sequence[SlotStatus]) -> list[SlotStatus]:
    """Slots that do not run all that a Stable group's target has for them, with what each waits for as its reason.

    :param slots: as `shown_slots` returned them.
    """
    late = []
    for slot in slots:
        if slot.state not in (UNASSIGNED, FETCHING, PAUSED):
            late.append(slot)
        elif reason := _waits_for(slot.consumer, view, view.state.left_out.get(slot.consumer)):
            late.append(replace(slot, reason=reason))
    return late


def late_text(slots: Sequence[SlotStatus]) -> str:
    """What late slots wait for: each reason once, with the slots that have it."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for slot in slots:
        by_reason.setdefault((slot.state, f": {slot.reason}" if slot.reason else ""), []).append(slot.consumer)
    texts = [f"{state} {', '.join(_first(names))}{reason}" for (state, reason), names in by_reason.items()]
    return "; ".join(_first(texts))


def _first(texts: Sequence[str]) -> list[str]:
    return [*texts[:MOST_SHOWN], *([f"and {len(texts) - MOST_SHOWN} more"] if len(texts) > MOST_SHOWN else [])]


def _shown(status: SlotStatus, view: GroupView, topics: str | None) -> SlotStatus:
    """
    :param topics: why topics of the subscription are not assigned.
    """
    if status.state in (NEW, ENDED):
        return replace(status, reason=status.last_error)
    if status.state != RUNNING:
        return replace(status, state=FAILING, reason=status.last_error)
    if view.problem is not None:
        return replace(status, state=UNKNOWN, reason=view.problem)
    left_out = view.state.left_out.get(status.consumer)
    if status.consumer not in view.channels:
        last = f"attempt {status.attempts}, after: {status.last_error}" if status.last_error else left_out
        return replace(status, state=REGISTERING, reason=last)
    if not view.channels[status.consumer].running:
        left_out = left_out or topics
        reason = _waits_for(status.consumer, view, left_out) or left_out or MORE_THREADS
        return replace(status, state=UNASSIGNED, reason=reason)
    if view.paused is not None:
        return replace(status, state=PAUSED, reason=view.paused)
    return replace(status, state=FETCHING, reason=topics)


def _waits_for(consumer: str, view: GroupView, left_out: str | None) -> str | None:
    """Why a member does not run all that the target has for it; None when it does.

    :param left_out: why the target lacks something for it, which is the reason while there is no target for it.
    """
    state = view.state
    if not view.has_coordinator:
        return "no coordinator is elected: start a node (zk-coordinator run)"
    if state.state == FAILED:
        return f"the group could not be rebalanced: {state.reason}"
    target = state.target.get(consumer)
    if state.state != STABLE or target is None:
        reason = f" ({state.reason})" if state.reason else ""
        return left_out or f"waits for an assignment: the group is {state.state}{reason}"
    if len(target.partitions) > len(view.channels[consumer].running):
        return "waits for its partitions"
    return None


def _left_out_topics(view: GroupView, topics: Sequence[str]) -> str | None:
    reasons = [f"topic {name}: {view.state.left_out[name]}" for name in topics if name in view.state.left_out]
    more = [f"{len(reasons) - MOST_REASONS} more topics"] if len(reasons) > MOST_REASONS else []
    return "; ".join([*reasons[:MOST_REASONS], *more]) or None
