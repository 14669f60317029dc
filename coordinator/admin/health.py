"""The data of `zk-coordinator status`, and health findings: each check is a pure function of the data.

Times are compared with the local wall clock, so a bound should be longer than the clock skew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from ..zk.errors import BadData
from ..zk.security.policy import AclPolicy
from ..zk.store import DENIED, Store, existing_nodes
from ..zk.values import first_names
from ..zk.znodes import paths as znodes
from ..zk.znodes import records
from ..zk.znodes.group_state import CLIENT, COMPLETING, FAILED, PREPARING, STABLE, Rebalance, partitions_of
from ..zk.znodes.partitions import PartitionSet, TopicPartition, range_texts
from ..zk.znodes.paths import COORDINATOR
from ..zk.znodes.regions import ABORTED, RESETTING, RUNNING
from ..zk.znodes.regions import FAILED as REGION_FAILED
from ..zk.znodes.segments import SegmentsRecord
from ..zk.znodes.topic_filter import TopicFilter
from .groups import Reading, ShownGroup, read_group, unreadable
from .regions import OPEN, ShownRegion, read_region
from .segments import FAR_BEHIND_SEGMENTS, ShownQuery, silent_queries
from .topics import usable_topics
from .verify import not_live

ELECTIONS = 3
"""Attempts to read the coordinator with a matching epoch."""
NEWEST_CHECKPOINTS = 25
"""Maximum number of a region's checkpoints to read; the coordinator keeps 20 aborted ones."""

STUCK_AFTER_MS = 60_000
DIFFERS_AFTER_MS = 5_000
"""A registration is read after its channel: another incarnation may have registered in between."""
BEHIND_RECORDS, BEHIND_BYTES = 1_000_000, 2**30
"""A silent query is far behind from either of these, or `FAR_BEHIND_SEGMENTS`, on; the last is a quarter of a
backlog's default bound."""
MOST_UNREADABLE = 20
"""Unreadable znodes with a finding each."""
ABORTED_IN_A_ROW = 3
"""Aborted checkpoints of a region in a row: each death of a member aborts one, so that fewer mean little."""
INTERVALS_LATE = 3
"""A checkpoint is delayed while a member's contribution to the one before is late."""
RESETS_IN_A_ROW = 3
"""Resets without a checkpoint between them: a group that starts after a long stop takes one or two."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group, with additional data for the checks.

    :ivar rebalance: the record of its last rebalance.
    :ivar request: a requested turn not taken yet.
    :ivar silent: its silent queries.
    """

    shown: ShownGroup
    segments: SegmentsRecord = field(default_factory=SegmentsRecord)
    rebalance: Rebalance | None = None
    request: records.TurnRequest | None = None
    silent: tuple[ShownQuery, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The data of `zk-coordinator status`.

    :ivar coordinator: the elected node, None when there is none or it is unreadable.
    :ivar standby: the other running nodes, by their names; nodes of releases before this znode are not listed.
    :ivar coordinator_session: session of the coordinator's znode, 0 when it is persistent; None without a znode.
    """

    coordinator: records.CoordinatorRecord | None
    epoch: int | None
    groups: tuple[GroupStatus, ...]
    topics: tuple[records.Topic, ...]
    problems: dict[str, str]
    coordinator_session: int | None = None
    paused: records.PausedRecord = records.NOTHING_PAUSED
    regions: tuple[ShownRegion, ...] = ()
    turn_times: records.TurnTimes | None = None
    standby: tuple[records.NodeRecord, ...] = ()


def read_status(store: Store, brokers: znodes.Brokers, now_ms: int | None = None) -> Status:
    """Read the complete status.

    :param now_ms: the wall clock; None to read no queries.
    """
    reading = Reading(store)
    epoch, elected, session = _coordinator(reading)
    reading.parsed(znodes.ACL_POLICY, lambda p, data: AclPolicy.parse(p, data) if data != DENIED else None)
    paused = reading.parsed(znodes.PAUSED, records.PausedRecord.parse) or records.NOTHING_PAUSED
    groups = tuple(_group(reading, name, now_ms) for name in reading.names(znodes.GROUPS))
    regions = tuple(read_region(reading, name, NEWEST_CHECKPOINTS) for name in reading.names(znodes.REGIONS))
    topics = tuple(usable_topics(reading, brokers).values())
    times, standby = reading.parsed(znodes.TURN_TIMES, records.TurnTimes.parse), _standby(reading, session or 0)
    number, problems = epoch.epoch if epoch else None, reading.problems
    return Status(elected, number, groups, topics, problems, session, paused, regions, times, standby)


def _coordinator(reading: Reading) -> tuple[records.EpochRecord | None, records.CoordinatorRecord | None, int | None]:
    """The epoch, the elected node, and the session of its znode; read again after an election between the two."""
    for _ in range(ELECTIONS):
        epoch = reading.parsed(znodes.COORDINATOR_EPOCH, records.EpochRecord.parse)
        node = reading.store.get(znodes.COORDINATOR)
        elected = reading.record(znodes.COORDINATOR, node, records.CoordinatorRecord.parse)
        if epoch is None or elected is None or epoch.epoch == elected.epoch:
            break
    return epoch, elected, node.stat.ephemeral_owner if node is not None and elected is not None else None


def _standby(reading: Reading, elected: int) -> tuple[records.NodeRecord, ...]:
    """The nodes listed by their own sessions, without the elected one.

    :param elected: its session; 0 without one.
    """
    nodes = []
    names = reading.names(znodes.NODES)
    for _, path, node in existing_nodes(reading.store, names, lambda name: f"{znodes.NODES}/{name}"):
        session = node.stat.ephemeral_owner
        if session not in (0, elected) and path == znodes.node_path(session):
            nodes.append(reading.record(path, node, records.NodeRecord.parse))
    return tuple(sorted(filter(None, nodes), key=lambda node: (node.node, node.host)))


def _group(reading: Reading, name: str, now_ms: int | None) -> GroupStatus:
    paths = znodes.GroupPaths(name)
    shown = read_group(reading, name)
    reading.problems.update(_bad_patterns(shown))
    segments = reading.parsed(paths.segments, SegmentsRecord.parse)
    rebalance = reading.parsed(paths.rebalance(shown.state.generation), Rebalance.parse)
    request = reading.parsed(paths.request, records.TurnRequest.parse)
    silent = tuple(silent_queries(reading, name, now_ms)) if now_ms is not None else ()
    return GroupStatus(shown, segments or SegmentsRecord(), rebalance, request, silent)


def _bad_patterns(group: ShownGroup) -> dict[str, str]:
    problems = {}
    for member in group.members:
        registration = member.registration
        if registration is None or registration.pattern in (records.STATIC, CLIENT):
            continue
        for text in registration.subscription:
            try:
                TopicFilter(registration.pattern, text)
            except BadData as error:
                problems[znodes.GroupPaths(group.group).id(member.consumer)] = str(error)
    return problems


# ---- findings


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """One finding.

    :ivar check: name of the check.
    :ivar group: the group concerned, None for the coordinator, regions and unreadable znodes.
    :ivar message: one sentence for an operator.
    :ivar region: the consistent region concerned.
    """

    check: str
    group: str | None
    message: str
    region: str | None = None

    def __str__(self) -> str:
        if self.region is not None:
            return f"region {self.region}: {self.message}"
        return f"group {self.group}: {self.message}" if self.group is not None else self.message


def findings(status: Status, now_ms: int, stuck_after_ms: int = STUCK_AFTER_MS) -> list[HealthFinding]:
    """All findings: the coordinator, each group, each consistent region, and unreadable znodes.

    :param now_ms: the wall clock.
    :param stuck_after_ms: the age from which a transient state is a finding: a rebalance, an unacknowledged command, a
        pause, a requested turn, a region's reset.
    """
    clock = _Clock(now_ms, stuck_after_ms)
    result = [HealthFinding(name, None, message) for name, message in _elected(status)]
    pause = status.paused.everything
    if pause is not None and clock.is_old(pause.since_ms):
        result.append(HealthFinding("paused", None, f"every group is {_paused(pause, clock)}"))
    for group in status.groups:
        for check in CHECKS_OF_A_GROUP:
            result += [HealthFinding(name, group.shown.group, message) for name, message in check(status, group, clock)]
    for region in status.regions:
        result += [HealthFinding(name, None, message, region.name) for name, message in _region(status, region, clock)]
    result += [HealthFinding("unreadable", None, line) for line in unreadable(status.problems, MOST_UNREADABLE)]
    return result


@dataclass(frozen=True, slots=True)
class _Clock:
    now_ms: int
    stuck_after_ms: int

    def is_old(self, since_ms: int | None) -> bool:
        return since_ms is not None and self.now_ms - since_ms >= self.stuck_after_ms

    def age(self, since_ms: int | None) -> str:
        return f"{max(0, self.now_ms - (since_ms or self.now_ms)) / 1000:.0f} s"


Found = Iterator[tuple[str, str]]
"""Pairs of a check's name and its message."""


def _elected(status: Status) -> Found:
    elected = status.coordinator
    if status.coordinator_session is None and COORDINATOR not in status.problems:
        yield "no-coordinator", "no coordinator is elected: no group is rebalanced (run `zk-coordinator run`)"
    elif status.coordinator_session == 0:
        what = f"{COORDINATOR} is persistent: no session holds it, and no node can be elected (`resign` removes it)"
        yield "coordinator-persistent", what
    if elected is not None and elected.epoch != status.epoch:
        epoch = "no epoch" if status.epoch is None else f"epoch {status.epoch}"
        held = f"node {elected.node} holds the coordinator's znode with epoch {elected.epoch}"
        refused = "its writes are refused (`resign` triggers an election)"
        yield "coordinator-epoch", f"{held}, but the epoch's znode has {epoch}: {refused}"


def _paused(pause: records.Pause, clock: _Clock) -> str:
    return f"paused for {clock.age(pause.since_ms)} by {pause.by or 'an operator'}{_why(pause.reason)}"


def _rebalance(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    state, record = group.shown.state, group.rebalance
    if state.state == FAILED:
        yield "rebalance-failed", f"RebalanceFailed ({state.reason or 'no reason is given'})"
    if state.state not in (PREPARING, COMPLETING):
        return
    since_ms = group.shown.state_ms
    if record is not None and record.finished_ms is None:
        since_ms = record.standing_since_ms or record.started_ms
    if clock.is_old(since_ms):
        why = f" ({state.reason})" if state.reason else ""
        yield "rebalance-stuck", f"{state.state} for {clock.age(since_ms)}, generation {state.generation}{why}"


def _assignment(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    state = group.shown.state
    reasons: dict[str, list[str]] = {}
    for what, why in sorted(state.left_out.items()):
        reasons.setdefault(why, []).append(what)
    for why, left_out in sorted(reasons.items()):
        yield "left-out", f"{first_names(left_out)} left out: {why}"
    if state.state != STABLE:
        return
    assigned = {partition for target in state.target.values() for partition in target.partitions}
    known = [topic for topic in status.topics if state.topics.get(topic.name) == topic.id]
    missing = {TopicPartition(topic.name, number) for topic in known for number in topic.partitions} - assigned
    missing -= partitions_of(state.left_out).keys()
    missing = {part for part in missing if not {str(part), part.topic} & state.left_out.keys()}
    if missing and state.target:
        yield "not-assigned", f"{_ranges(missing)} unassigned"


def _evictions(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    for mark in group.shown.state.marks:
        yield "eviction", f"{_ranges(mark.partitions)} of {mark.consumer} wait for its lease: {mark.reason}"


def _members(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    """Registrations that differ from their channels: one multi writes both, so that they differ only for a moment."""
    for member in group.shown.members:
        why = not_live(member) if member.registration is not None and member.channel is not None else None
        is_settled = member.changed_ms is None or clock.now_ms - member.changed_ms >= DIFFERS_AFTER_MS
        if why is not None and is_settled:
            yield "not-live", f"{member.consumer} has no part: {why}"


def _commands(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    for member in group.shown.members:
        old = [sent for sent in member.commands if clock.is_old(sent.sent_ms)]
        if old:
            option = old[0].command.option if old[0].command else "a command that cannot be read"
            more = f" (and {len(old) - 1} more)" if len(old) > 1 else ""
            what = f"{option} {old[0].name} for {clock.age(old[0].sent_ms)}{more}"
            yield "unacknowledged", f"{member.consumer} has not acknowledged {what}"


def _pauses(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    pause = status.paused.groups.get(group.shown.group)
    if pause is not None and clock.is_old(pause.since_ms):
        yield "paused", _paused(pause, clock)
    request = group.request
    if request is not None and clock.is_old(request.since_ms):
        by = request.by or "an operator"
        yield "request", f"no turn has succeeded for {clock.age(request.since_ms)}, though {by} requested one"
    if group.segments.paused is not None:
        yield "fetching-paused", f"its fetchers are paused: {group.segments.paused}"


def _queries(status: Status, group: GroupStatus, clock: _Clock) -> Found:
    for query in group.silent:
        if query.rows < BEHIND_RECORDS and query.segments < FAR_BEHIND_SEGMENTS and query.size < BEHIND_BYTES:
            continue
        least = "at least " if query.segments >= FAR_BEHIND_SEGMENTS else ""
        held = f"holds back {least}{query.rows:,} records in {query.segments:,} segments"
        remedy = f"start it again, or release them: `queries remove {group.shown.group} {query.query} --execute`"
        yield "query-silent", f"query {query.query} is silent for {clock.age(query.seen_ms)} and {held} ({remedy})"


# ---- consistent regions


def _region(status: Status, shown: ShownRegion, clock: _Clock) -> Found:
    region = shown.region
    if region is None:
        return
    if region.state == REGION_FAILED:
        yield "region-failed", f"Failed, its members have stopped ({region.reason or 'no reason is given'})"
    is_paused = status.paused.everything is not None or bool(status.paused.groups.keys() & set(region.groups))
    is_active = any(shown.members.values()) and not is_paused
    if region.state == RESETTING and clock.is_old(region.since_ms) and is_active:
        yield "region-resetting", f"Resetting for {clock.age(region.since_ms)}: a member has not restored its state"
    ended = (each for each in reversed(shown.checkpoints) if each.state != OPEN)
    in_a_row = [*takewhile(lambda each: each.state == ABORTED, ended)]
    if len(in_a_row) >= ABORTED_IN_A_ROW:
        last = in_a_row[0]
        why = _why(last.end.reason if last.end is not None else None)
        yield "checkpoints-aborted", f"the last {len(in_a_row)} checkpoints were aborted, last {last.sequence}{why}"
    newest_ms = max(shown.cut_ms or 0, region.since_ms)
    bound_ms = INTERVALS_LATE * region.interval_ms
    if region.state == RUNNING and bound_ms and clock.now_ms - newest_ms > bound_ms and is_active:
        is_newer = (shown.cut_ms or 0) >= region.since_ms
        what = f"checkpoint {region.sequence} completed" if is_newer else "it began to run"
        interval = f"checkpoint_interval_ms is {region.interval_ms}"
        yield "checkpoint-late", f"no checkpoint since {what} {clock.age(newest_ms)} ago ({interval})"
    resets = region.reset - shown.cut_reset if shown.cut_reset is not None else 0
    # Each reset sets `since_ms`: the age of the present reset is not that of the series.
    is_repeated = region.state == RESETTING and resets >= RESETS_IN_A_ROW
    cut_ms = shown.cut_ms
    if is_repeated and cut_ms is not None and bound_ms and clock.now_ms - cut_ms > bound_ms and is_active:
        what = f"checkpoint {region.sequence} completed {clock.age(cut_ms)} ago"
        yield "checkpoint-late", f"reset {resets} times since {what}: its members do not stay, or are reset"


CHECKS_OF_A_GROUP: tuple[Callable[[Status, GroupStatus, _Clock], Found], ...] = (
    _rebalance, _assignment, _evictions, _members, _commands, _pauses, _queries,
)  # fmt: skip
"""In the order of their findings; a new check is one more function."""


def summary(status: Status) -> str:
    """The status in one line, for a status without findings."""
    elected = status.coordinator
    coordinator = f"node {elected.node} elected, epoch {elected.epoch}" if elected else "no coordinator elected"
    live = sum(1 for group in status.groups if group.shown.state.target)
    paused = len(status.paused.groups) + (status.paused.everything is not None)
    text = f"{coordinator}, {len(status.groups)} groups ({live} with members), {len(status.topics)} topics"
    return text + (f", {paused} paused" if paused else "")


def _ranges(partitions: PartitionSet) -> str:
    return first_names([f"{topic}({ranges})" for topic, ranges in range_texts(partitions).items()])


def _why(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
