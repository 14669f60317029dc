"""The slots of a pool as their driver sees them: Spark jobs, each one task in a separate stage, repeated in a thread.

What each slot does and waits for is known from its job, and from the group's znodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from typing import Any

from pyspark import InheritableThread, SparkContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests

from zk_group.coordinator.zk.backoff import Backoff
from zk_group.coordinator.zk.errors import StoreError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.group_state import FAILED, STABLE, GroupState
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from zk_group.coordinator.zk.znodes.records import STATIC, Channel, parsed_channel
from zk_group.coordinator.zk.znodes.segments import SegmentsRecord

from ...config import Subscription
from ..resources import SparkCluster, ship, wait_for_executors
from .config import SlotSpec
from .slot import run_slot

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.2, 30.0)
GOOD_WHILE_S = 60.0
NEW, RUNNING, WAITING, ENDED = "new", "running", "waiting", "ended"
INHERITED = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.job.tags", "spark.sql.execution.id")
"""Local properties that a slot's job must not inherit from the thread that starts it: otherwise the end of a query
that resizes the pool in `foreachBatch` would cancel the slots, too."""


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot as seen by the driver.

    :ivar state: `new`; `registering`, until it is a member; `unassigned`, while it waits for partitions; `fetching`;
        `paused`, by the group's backlog; `failing`, until its next attempt; `ended`; or `unknown`, while ZooKeeper does
        not answer. (A supervisor itself only knows its job: `running`, and `waiting` for its next attempt.)
    :ivar attempts: jobs started so far.
    :ivar last_error: the reason of the last unexpected end, None when there was none.
    :ivar reason: why it is in this state, and what of its subscription it does not fetch; None without a reason.
    """

    slot: int
    consumer: str
    state: str = NEW
    attempts: int = 0
    last_error: str | None = None
    reason: str | None = None


class SlotSupervisor:
    """One slot. Its job is restarted after every unexpected end, with backoff.

    :param job: runs the slot's Spark job to its end, and returns the reason; it raises nothing.
    :param is_over: whether the Spark application has ended.
    :ivar status: its current status.
    """

    def __init__(
        self, number: int, consumer: str, runtime: Runtime, job: Callable[[int], str], is_over: Callable[[], bool]
    ) -> None:
        self.number = number
        self.status = SlotStatus(number, consumer)
        self._runtime = runtime
        self._job = job
        self._is_over = is_over
        self._ending = runtime.event()
        self._thread = InheritableThread(target=self._run, name=f"pool-slot-{number}", daemon=True)

    def start(self) -> None:
        """Start the slot. Once."""
        self._thread.start()

    def end(self) -> None:
        """Start no further job. The running one ends by the pool's znode."""
        self._ending.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it has ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Repeat the job, with backoff unless it ran for long."""
        failures = 0
        while not self._ending.is_set() and not self._is_over():
            started = self._runtime.monotonic()
            self._note(state=RUNNING, attempts=self.status.attempts + 1)
            problem = self._job(self.number)
            if self._ending.is_set():
                break
            failures = 1 if self._runtime.monotonic() - started >= GOOD_WHILE_S else failures + 1
            backoff_s = BACKOFF.after(failures)
            self._note(state=WAITING, last_error=problem)
            log.warning("slot restarted: slot=%d in_s=%.1f reason=%s", self.number, backoff_s, problem)
            self._ending.wait(backoff_s)
        self._note(state=ENDED)

    def _note(self, **changes: Any) -> None:
        self.status = replace(self.status, **changes)


def slots_table(title: str, slots: Sequence[SlotStatus]) -> str:
    """The slots as a table in HTML, for notebooks."""
    names = [field.name for field in fields(SlotStatus)]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = [["" if (value := getattr(slot, name)) is None else str(value) for name in names] for slot in slots]
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def reason_of(error: Exception) -> str:
    """The error that ended a job, in one line: the last line of a Python task's traceback if there is one."""
    text = str(error)
    _, separator, traceback = text.rpartition("Traceback (most recent call last):")
    if not separator:
        return text.partition("\n")[0]
    lines = [line for line in traceback.split("\n")[1:] if line and not line[0].isspace()]
    return lines[0] if lines else text.partition("\n")[0]


class SlotJobs:
    """Runs and cancels slot jobs.

    :param spec_of: the number of a slot -> its task's current parameters.
    """

    def __init__(self, sc: SparkContext, cluster: SparkCluster, spec_of: Callable[[int], SlotSpec]) -> None:
        self._sc = sc
        self._cluster = cluster
        self._spec_of = spec_of
        self._profile: ResourceProfile | None = None

    def prepare(self, runtime: Runtime, executors_timeout_s: float, slot_cpus: float) -> None:
        """Wait for executors, and send them the modules.

        :raises CoordinatorError: when no executor registers.
        """
        wait_for_executors(self._sc, self._cluster, runtime, executors_timeout_s)
        ship(self._sc)
        if not self._cluster.threads:  # `local[N]` supports no profile
            self._profile = ResourceProfileBuilder().require(TaskResourceRequests().cpus(slot_cpus)).build

    def run(self, number: int) -> str:
        """Run a slot's job to its end; the reason of its end."""
        spec = self._spec_of(number)
        try:
            for name in INHERITED:
                self._sc.setLocalProperty(name, None)  # type: ignore[arg-type]
            self._sc.addJobTag(_tag(spec))
            self._sc.setJobDescription(f"{spec.config.consumer(number)} of group {spec.config.group}")
            rdd = self._sc.parallelize([spec], 1)
            if self._profile is not None:
                rdd = rdd.withResources(self._profile)
            results = rdd.map(run_slot).collect()
            return str(results[0]["reason"])
        except Exception as error:  # noqa: BLE001  the slot is restarted after any of them
            return reason_of(error)

    def cancel(self, number: int) -> None:
        """Cancel a slot's job."""
        self._sc.cancelJobsWithTag(_tag(self._spec_of(number)))

    def is_over(self) -> bool:
        """Whether the Spark application has ended."""
        return self._sc._jsc is None or bool(self._sc._jsc.sc().isStopped())


def _tag(spec: SlotSpec) -> str:
    return f"zk-group-{spec.run}-slot-{spec.number}"


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
    left_out, topics = view.state.left_out, subscription.topics if subscription.pattern == STATIC else ()
    reasons = [f"topic {name}: {left_out[name]}" for name in sorted(topics) if name in left_out]
    more = [f"{len(reasons) - MOST_REASONS} more topics"] if len(reasons) > MOST_REASONS else []
    left_out_topics = "; ".join([*reasons[:MOST_REASONS], *more]) or None
    return [_shown(slot, view, left_out_topics) for slot in slots]


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
