"""One turn of a consistent region, pure: begin, completion and abort of checkpoints, and requests.

Sources R17 and R24: drains, and the merge of contributions. A group's own turns send `drain` and restart partitions
after a reset; here are the decisions that concern all groups of the region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..planning.regional import SET_LOWER, after_reset
from ..zk.backoff import Backoff
from ..zk.store import MAX_COMMIT_BYTES
from ..zk.znodes.group_state import STABLE, GroupState
from ..zk.znodes.json_fields import MAX_COUNT
from ..zk.znodes.partitions import PartitionSet
from ..zk.znodes.regions import (
    ABORTED,
    CHECKPOINT,
    COMPLETED,
    CONSUMERS,
    FAIL,
    FAILED,
    INITIAL,
    MAX_CHECKPOINT_BYTES,
    MAX_NUMBER_OF_PARTICIPANTS,
    RESET,
    RESETTING,
    RUNNING,
    Checkpoint,
    Contribution,
    Region,
    RegionRequest,
)

PERIODIC = "periodic"
MOST_DOUBLINGS = 4
"""One member without a contribution stops the others until the abort: in a part of the time that shrinks to this."""
BESIDE_BYTES = 60_000
"""Room in a multi for the region with its groups, an end, and the fence."""


_BLOCKED = "no checkpoint: the turns of group"


@dataclass(frozen=True, slots=True)
class Blocked:
    """A group whose turns fail blocks checkpoints. Its only memory is the region's `reason`, for the next term too.

    :ivar why: the error.
    """

    group: str
    why: str

    @property
    def reason(self) -> str:
        """As the region's `reason`."""
        return f"{_BLOCKED} {self.group} fail: {self.why}"[:1000]

    @staticmethod
    def was(region: Region) -> bool:
        """Whether the region's `reason` is of this kind."""
        return region.reason is not None and region.reason.startswith(_BLOCKED)


@dataclass(frozen=True, slots=True)
class RegionRules:
    """An operator's settings for regions; in seconds.

    :ivar interval_s: between checkpoints.  :ivar drain_s: time until an open checkpoint is aborted.
    :ivar kept: number of complete checkpoints that are kept.
    :ivar most_resets: consecutive resets that an application may request without a new cut.
    """

    interval_s: float = 60.0
    drain_s: float = 60.0
    kept: int = 10
    most_resets: int = 5

    @property
    def between(self) -> Backoff:
        """The time between checkpoints, which grows with each late one in a row."""
        return Backoff(self.interval_s, self.interval_s * 2**MOST_DOUBLINGS)


@dataclass(frozen=True, slots=True)
class RegionGroups:
    """The existing groups of a region.

    :ivar states: group -> state; `versions` has those of their znodes.
    :ivar paused: those that an operator has paused.
    :ivar failing: those whose turns fail, with the reason: their members receive no drain.
    """

    states: Mapping[str, GroupState]
    versions: Mapping[str, int] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    failing: Mapping[str, str] = field(default_factory=dict)

    @property
    def participants(self) -> dict[str, dict[str, str]]:
        """Group -> consumer -> incarnation, of every member of a target that is not away from its seat."""
        found = {
            group: {name: one.incarnation for name, one in state.target.items() if name not in _away(state)}
            for group, state in self.states.items()
        }
        return {group: some for group, some in sorted(found.items()) if some}

    def are_ready(self, region: Region) -> bool:
        """Whether there are members, and all of every group have restored their state."""
        there = [state for state in self.states.values() if state.target]
        if not self.participants:
            return False
        if region.kind != CONSUMERS:
            return all(state.state == STABLE for state in there)
        return all(state.region is not None and state.region.ready == region.reset for state in there)


@dataclass(frozen=True, slots=True)
class OpenCheckpoint:
    """The checkpoint in progress.

    :ivar checkpoint: its znode; None without one, and when it is unreadable.
    :ivar contributions: (group, consumer) -> contribution; None when unreadable.
    :ivar strays: ends that an operator has created below it.
    :ivar age_s: seconds since it began.
    """

    checkpoint: Checkpoint | None = None
    contributions: Mapping[tuple[str, str], Contribution | None] = field(default_factory=dict)
    strays: frozenset[str] = frozenset()
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cuts:
    """The checkpoints that have ended.

    :ivar completed: the kept cuts, in order.
    :ivar late: consecutive checkpoints with a late contribution: they delay the next one.
    :ivar age_s: seconds since the last checkpoint ended.
    """

    completed: tuple[int, ...] = ()
    late: int = 0
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests to a region.

    :ivar request: None without one, and when it is unreadable.
    :ivar version: of the znode `request`, None without one.
    :ivar wanted: the reason for a checkpoint now; empty without one.
    """

    request: RegionRequest | None = None
    version: int | None = None
    wanted: str = ""


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """A region as read by its turn.

    :ivar version: of its znode, for the turn's compare-and-set.
    """

    region: Region
    groups: RegionGroups
    open: OpenCheckpoint = OpenCheckpoint()
    cuts: Cuts = Cuts()
    requests: Requests = Requests()
    now_ms: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the open checkpoint.

    :ivar how: `COMPLETED` or `ABORTED`.
    :ivar is_late: whether it was aborted because of a late contribution.
    """

    sequence: int
    how: str = ABORTED
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """The writes of a region's turn.

    :ivar region: its new value.
    :ivar begun: a checkpoint that begins, with the region's `open` as its sequence.
    :ivar end: the open checkpoint's, with `reason`.
    :ivar abandoned: cuts after the target of a reset.
    :ivar is_answered: whether the request is removed.
    :ivar again_s: delay of the next turn.
    """

    region: Region
    begun: Checkpoint | None = None
    end: Ending | None = None
    reason: str = ""
    abandoned: tuple[int, ...] = ()
    is_answered: bool = False
    again_s: float | None = None

    @property
    def completed(self) -> int:
        """The completed checkpoint, 0 without one."""
        return self.end.sequence if self.end is not None and self.end.how == COMPLETED else 0


def region_plan(snapshot: RegionSnapshot, rules: RegionRules) -> RegionPlan:
    """Decide one turn of a region."""
    decided = (
        _requested(snapshot, rules)
        or _open(snapshot, rules)
        or _restored(snapshot)
        or _blocked(snapshot, rules)
        or _next(snapshot, rules)
    )
    return replace(decided, region=replace(decided.region, interval_ms=round(rules.interval_s * 1000)))


def _restored(snapshot: RegionSnapshot) -> RegionPlan | None:
    """A reset ends when every member has restored its state."""
    region = snapshot.region
    if region.state != RESETTING or not snapshot.groups.are_ready(region):
        return None
    return RegionPlan(replace(region, state=RUNNING, reason=None, since_ms=snapshot.now_ms), again_s=0.0)


def _away(state: GroupState) -> tuple[str, ...]:
    return state.region.away if state.region is not None else ()


# ---- checkpoints


def _blocked(snapshot: RegionSnapshot, rules: RegionRules) -> RegionPlan | None:
    """No checkpoint begins while the turns of a group fail: the others would stand still until its abort, each time."""
    region = snapshot.region
    if region.state == FAILED:
        return None
    participants = snapshot.groups.participants
    failing = {group: why for group, why in snapshot.groups.failing.items() if group in participants}
    if not failing:
        return RegionPlan(replace(region, reason=None), again_s=0.0) if Blocked.was(region) else None
    reason = Blocked(*min(failing.items())).reason
    is_asked = snapshot.requests.request is not None
    return RegionPlan(replace(region, reason=reason), reason=reason, is_answered=is_asked, again_s=rules.interval_s)


def _next(snapshot: RegionSnapshot, rules: RegionRules) -> RegionPlan:
    """A checkpoint, if one is requested or due, and may begin."""
    region, groups = snapshot.region, snapshot.groups
    asked, wanted = snapshot.requests.request, snapshot.requests.wanted
    left_s = rules.between.after(1 + snapshot.cuts.late) - snapshot.cuts.age_s
    trigger = wanted or (PERIODIC if left_s <= 0 else "")
    if asked is not None:
        trigger = f"requested by {asked.by}" if asked.by else "requested"
    if not trigger:
        return RegionPlan(region, again_s=left_s if region.state == RUNNING else None)
    members = groups.participants
    if wanted and not members and region.state == RUNNING:  # a generation waits, but there is no contributor
        return RegionPlan(replace(region, state=RESETTING, since_ms=snapshot.now_ms), again_s=0.0)
    if region.state != RUNNING or groups.paused or not groups.are_ready(region):
        return RegionPlan(region, again_s=1.0 if region.state == RUNNING and members else None)
    away = {group: _away(state) for group, state in groups.states.items() if _away(state)}
    begun = Checkpoint(trigger, region.reset, region.sequence, members, snapshot.now_ms, away)
    if reason := _no_number(region) or _too_large(begun, groups.states):
        refused = replace(region, reason=reason)
        return RegionPlan(refused, reason=reason, is_answered=asked is not None, again_s=rules.interval_s)
    after = replace(region, open=region.next_sequence, next_sequence=region.next_sequence + 1, reason=None)
    return RegionPlan(after, begun, is_answered=asked is not None, again_s=rules.drain_s)


def _no_number(region: Region) -> str:
    is_last = region.next_sequence >= MAX_COUNT
    return f"no checkpoint: {region.next_sequence} is the last number that one may have: {SET_LOWER}" if is_last else ""


def _too_large(checkpoint: Checkpoint, groups: Mapping[str, GroupState]) -> str:
    """Why a checkpoint does not fit into ZooKeeper; empty when it does. A group's turn that aborts it writes it again,
    beside the group's state; and a start names its participants twice at most."""
    count = sum(map(len, checkpoint.participants.values()))
    size = len(checkpoint.to_bytes())
    beside = max((len(state.to_bytes()) for state in groups.values()), default=0)
    room = min(MAX_CHECKPOINT_BYTES, MAX_COMMIT_BYTES - beside - BESIDE_BYTES)
    if count <= MAX_NUMBER_OF_PARTICIPANTS and size <= room:
        return ""
    return (
        f"no checkpoint: its {count} participants take {size} bytes, and it has room for "
        f"{MAX_NUMBER_OF_PARTICIPANTS} and {room}: spread the groups over several regions, or shorten consumers' names"
    )


def _open(snapshot: RegionSnapshot, rules: RegionRules) -> RegionPlan | None:
    """The open checkpoint: completed, aborted, or waited for."""
    region, groups, checkpoint = snapshot.region, snapshot.groups.states, snapshot.open.checkpoint
    if not region.open:
        return None
    if checkpoint is None:
        return aborted(region, "it cannot be read")
    if snapshot.open.strays:
        return aborted(region, f"{min(snapshot.open.strays)} was put below it by hand")
    missing = [
        (group, consumer)
        for group, members in checkpoint.participants.items()
        for consumer in members
        if (group, consumer) not in snapshot.open.contributions
    ]
    if left := [each for each in missing if each[0] in groups and each[1] in _away(groups[each[0]])]:
        return aborted(region, f"{left[0][1]} of group {left[0][0]} has left")
    if missing and (left_s := rules.drain_s - snapshot.open.age_s) > 0:
        return RegionPlan(region, again_s=left_s)
    if missing:
        return _late(region, missing, rules)
    if reason := _invalid(snapshot, checkpoint):
        return aborted(region, reason)
    after = replace(region, open=0, sequence=region.open, consecutive_resets=0)
    return RegionPlan(after, end=Ending(region.open, COMPLETED), again_s=0.0)


def aborted(region: Region, reason: str, is_late: bool = False) -> RegionPlan:
    """The open checkpoint is aborted."""
    end = Ending(region.open, is_late=is_late)
    return RegionPlan(replace(region, open=0), end=end, reason=reason[:1000], again_s=0.0)


def _late(region: Region, missing: Sequence[tuple[str, str]], rules: RegionRules) -> RegionPlan:
    group, consumer = min(missing)
    more = f" and {len(missing) - 1} more have" if len(missing) > 1 else " has"
    within = f"within {rules.drain_s * 1000:.0f} ms (drain_timeout_ms)"
    return aborted(region, f"{consumer} of group {group}{more} not drained {within}", is_late=True)


def _invalid(snapshot: RegionSnapshot, checkpoint: Checkpoint) -> str:
    """Why the contributions are no consistent cut; empty when they are one."""
    for group, members in snapshot.groups.participants.items():
        if strangers := sorted(members.keys() - checkpoint.participants.get(group, {}).keys()):
            return f"{strangers[0]} of group {group} has joined"
    for group, incarnations in checkpoint.participants.items():
        state = snapshot.groups.states.get(group)
        for consumer, incarnation in incarnations.items():
            given = snapshot.open.contributions[group, consumer]
            target = state.target.get(consumer) if state is not None else None
            expected: PartitionSet = target.partitions if target is not None else frozenset()
            if given is None:
                return f"the contribution of {consumer} of group {group} cannot be read"
            if (given.incarnation, given.reset) != (incarnation, checkpoint.reset):
                return f"the contribution of {consumer} of group {group} is of another incarnation or reset"
            if frozenset(given.offsets) != expected:
                return f"the contribution of {consumer} of group {group} is not for the partitions that it runs"
    return ""


# ---- requests


def _requested(snapshot: RegionSnapshot, rules: RegionRules) -> RegionPlan | None:
    """A requested reset or failure; None for a checkpoint, which waits until one can begin."""
    region, request = snapshot.region, snapshot.requests.request
    if request is None:
        return None
    if request.reset not in (0, region.reset):
        return _refused(region, "a request of an earlier reset is ignored")
    if request.what == CHECKPOINT and region.state == FAILED:
        return _refused(region, "no checkpoint: the region has failed")
    if region.kind != CONSUMERS and request.what in (RESET, FAIL):
        return _refused(region, "a region of slots is never reset")
    if request.what == FAIL:
        return _failed(snapshot, f"{request.by}: {request.reason}" if request.by else request.reason)
    return _reset(snapshot, request, rules) if request.what == RESET else None


def _reset(snapshot: RegionSnapshot, request: RegionRequest, rules: RegionRules) -> RegionPlan:
    region, completed = snapshot.region, snapshot.cuts.completed
    to = region.sequence if request.sequence is None else request.sequence
    if to != INITIAL and to not in completed:
        return _refused(region, f"there is no complete checkpoint {to}")
    resets = region.consecutive_resets + 1 if request.by_application else 0
    if resets > rules.most_resets:
        return _failed(
            snapshot,
            f"the application asked for {resets} resets without a new checkpoint (max_consecutive_resets): mend it, "
            "then reset the region by hand",
        )
    if region.reset >= MAX_COUNT:
        return _refused(region, f"no reset: {region.reset} is the last number that one may have: {SET_LOWER}")
    state = FAILED if request.by_application and region.state == FAILED else RESETTING
    begun = replace(after_reset(replace(region, state=state), to, snapshot.now_ms), consecutive_resets=resets)
    abandoned = tuple(sequence for sequence in completed if sequence > to)
    reason = f"reset to {to}" + (f" by {request.by}" if request.by else "")
    return RegionPlan(begun, end=_aborting(region), reason=reason, abandoned=abandoned, is_answered=True, again_s=0.0)


def _refused(region: Region, reason: str) -> RegionPlan:
    return RegionPlan(region, is_answered=True, reason=reason, again_s=0.0)


def _failed(snapshot: RegionSnapshot, reason: str) -> RegionPlan:
    """The region fails by a request, and its open checkpoint is aborted."""
    region = snapshot.region
    failed = replace(region, state=FAILED, open=0, reason=reason[:1000], since_ms=snapshot.now_ms)
    return RegionPlan(failed, end=_aborting(region), reason=reason, is_answered=True, again_s=0.0)


def _aborting(region: Region) -> Ending | None:
    return Ending(region.open) if region.open else None
