"""What a coordinator counts and measures, for Prometheus; docs/metrics.md says what each means.

One object for a process, handed in to whatever reports. It owns its registry, which somebody else serves, or nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from . import __version__
from .plan import Plan
from .snapshot import SentCommand, Snapshot
from .triggers import kind_of, trigger_kind
from .zk.regions import REGION_STATES
from .zk.state import FAILED, GROUP_STATES, GroupState, Rebalance

TAKEN, PUT_OFF, FAILED_TURN = "taken", "put_off", "failed"
COMPLETED, REPLACED, FAILED_REBALANCE = "completed", "replaced", "failed"
ADOPTED, FAILED_ASSIGNMENT, OUTDATED = "adopted", "failed", "outdated"
UNREADABLE = "unreadable"
ABORTED = "aborted"
OF_A_GENERATION, OF_A_RESTART, OF_AN_APPLICATION, OF_AN_OPERATOR = "generation", "restart", "application", "operator"
RESET_CAUSES = (OF_A_GENERATION, OF_A_RESTART, OF_AN_APPLICATION, OF_AN_OPERATOR)
TURN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
REBALANCE_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Queue(Protocol):
    """What is read of the request queue."""

    def __len__(self) -> int: ...
    def oldest_due_s(self) -> float: ...


class HasLease(Protocol):
    """What is read of a lease."""

    @property
    def left_s(self) -> float: ...


class CoordinatorMetrics:
    """Methods say what has happened, in the words of the code that calls them. Safe to call from several threads."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._states: dict[str, str] = {}
        self._queue: Queue | None = None
        self._lease: HasLease | None = None

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"zk_group_{name}", meaning, labels, registry=registry)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"zk_group_{name}", meaning, labels, registry=registry)

        def histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"zk_group_{name}", meaning, labels, buckets=buckets, registry=registry)

        gauge("build_info", "1, with the version of this project.", "version").labels(__version__).set(1)
        self._active = gauge("active_coordinator", "1 on the node that is elected, 0 on the others.")
        self._epoch = gauge("coordinator_epoch", "The epoch of this node's term, 0 when it is not elected.")
        self._elections = counter("coordinator_elections", "Times that this node was elected.")
        lease = gauge("coordinator_lease_left_seconds", "What the coordinator may act for without hearing more.")
        lease.set_function(self._lease_left_s)
        size = gauge("event_queue_size", "Groups that wait for a turn, those with a backoff among them.")
        size.set_function(self._queue_size)
        age = gauge("event_queue_age_seconds", "How long the oldest request has been due, 0 when none is.")
        age.set_function(self._queue_age_s)

        self._turns = counter("turns", "Turns by result.", "group", "result")
        self._turn_s = histogram("turn_duration_seconds", "How long a turn took.", TURN_BUCKETS)
        self._rebalances = counter("rebalances", "Rebalances that are over.", "group", "trigger", "result")
        self._rebalance_s = histogram(
            "rebalance_duration_seconds", "From its start to its result.", REBALANCE_BUCKETS, "trigger", "result"
        )
        self._stop_s = histogram(
            "rebalance_stop_duration_seconds", "Until the last stop was acknowledged.", REBALANCE_BUCKETS, "trigger"
        )
        self._assignments = counter("assignments", "Asks to leaders by result.", "group", "result")
        self._assignment_s = histogram(
            "assignment_duration_seconds", "From an ask to its adoption or failure.", REBALANCE_BUCKETS, "result"
        )
        self._evictions = counter("evictions", "Consumers that were evicted.", "group")
        self._sent = counter("commands_sent", "Commands put into channels.", "group", "option")
        self._withdrawn = counter("commands_withdrawn", "Commands taken out again.", "group", "option")
        self._stale = counter("commands_stale", "Of those withdrawn, the ones that nobody may apply.", "group")
        self._bad_data = counter("bad_data_found", "Times that something unusable was found in a znode.")
        self._bad_paths = gauge("bad_data_paths", "Znodes that cannot be used now.")

        groups = gauge("groups", "Groups by state.", "state")
        for state in GROUP_STATES:
            groups.labels(state).set_function(partial(self._count, state))
        self._failed = gauge("rebalance_failed", "1 while the group is RebalanceFailed.", "group")
        self._members = gauge("members", "Consumers in the group's target.", "group")
        self._partitions = gauge("assigned_partitions", "Partitions in the group's target.", "group")
        self._generation = gauge("generation", "The group's generation.", "group")
        self._segments = counter("collected_segments", "Segments removed that every query had finished.", "group")
        self._channels = counter("collected_channels", "Channels removed whose consumers are long gone.", "group")
        self._checkpoints = counter("checkpoints", "Checkpoints that have ended.", "region", "result")
        self._checkpoint_s = histogram(
            "checkpoint_duration_seconds", "From its begin to its end.", REBALANCE_BUCKETS, "result"
        )
        self._checkpoint_age = gauge("checkpoint_age_seconds", "Since the last complete checkpoint.", "region")
        self._resets = counter("region_resets", "Resets of a region.", "region", "cause")
        self._region_state = gauge("region_state", "1 for the state that the region is in.", "region", "state")
        self._of_regions = (self._checkpoints, self._checkpoint_age, self._resets, self._region_state)
        self._regions: set[str] = set()
        self._gauges = (self._failed, self._members, self._partitions, self._generation)
        self._counters = (
            self._turns, self._rebalances, self._evictions, self._sent, self._withdrawn, self._stale,
            self._segments, self._channels, self._assignments,
        )  # fmt: skip

    # ---- the term

    def elected(self, epoch: int, queue: Queue, lease: HasLease) -> None:
        """A term has begun. What was counted of groups in an earlier one begins anew: they may be gone by now."""
        for family in (*self._gauges, *self._counters, *self._of_regions):
            family.clear()
        self._regions.clear()
        self._states.clear()
        self._queue, self._lease = queue, lease
        self._elections.inc()
        self._epoch.set(epoch)
        self._active.set(1)

    def resigned(self) -> None:
        """The term is over: what groups are like is another node's to say."""
        self._active.set(0)
        self._epoch.set(0)
        self._queue = self._lease = None
        self._states.clear()
        self._regions.clear()
        for family in (*self._gauges, self._checkpoint_age, self._region_state):
            family.clear()

    # ---- turns

    def turn_taken(self, group: str, seconds: float, state: GroupState | None) -> None:
        """A turn has ended well, and this is the group's state now."""
        self._turns.labels(group, TAKEN).inc()
        self._turn_s.observe(seconds)
        if state is None or self._queue is None:
            return
        if self._states.get(group) != state.state:
            self._states[group] = state.state
            self._failed.labels(group).set(state.state == FAILED)
        self._generation.labels(group).set(state.generation)
        self._members.labels(group).set(len(state.target))
        threads = (parts for target in state.target.values() for parts in target.threads.values())
        self._partitions.labels(group).set(sum(map(len, threads)))

    def turn_put_off(self, group: str) -> None:
        """A turn could not be taken now: the lease has lapsed, or ZooKeeper did not answer."""
        self._turns.labels(group, PUT_OFF).inc()

    def turn_failed(self, group: str) -> None:
        """A turn has failed, and is tried again with backoff."""
        self._turns.labels(group, FAILED_TURN).inc()

    def turn_written(self, snapshot: Snapshot, decided: Plan) -> None:
        """What a turn decided stands in ZooKeeper."""
        group = snapshot.group
        for end in decided.ends:
            if end.evicted:
                self._evictions.labels(group).inc()
        for _, command in decided.commands:
            self._sent.labels(group, command.option).inc()
        for consumer, sent in decided.withdrawn:
            self._withdrawn.labels(group, sent.command.option if sent.command else UNREADABLE).inc()
            if _is_stale(snapshot, consumer, sent):
                self._stale.labels(group).inc()
        if decided.region is not None and decided.region.is_reset:
            cause = OF_A_GENERATION if decided.is_new_generation else OF_A_RESTART
            self.region_reset(decided.region.name, cause)
        if decided.region is not None and decided.region.aborted:
            self.checkpoint_ended(decided.region.name, ABORTED, decided.region.open_s)
        self._rebalanced(snapshot, decided)
        self._assigned(snapshot, decided)

    def _assigned(self, snapshot: Snapshot, decided: Plan) -> None:
        """What became of the ask that was out, under client-side assignment."""
        before, after, made = snapshot.state.client, decided.state.client, decided.asking.made
        result, name = "", ""
        if after is not None and decided.asking.is_adopted:
            result, name = ADOPTED, after.ask
        elif after is not None and after.failed_ask != (before.failed_ask if before is not None else ""):
            result, name = FAILED_ASSIGNMENT, after.failed_ask
        elif made is not None and made[1].outdated:
            result = OUTDATED
        if result:
            self._assignments.labels(snapshot.group, result).inc()
        for ask in (view.ask for view in snapshot.asks if view.name == name and view.ask is not None):
            self._assignment_s.labels(result).observe(_seconds(ask.since_ms, snapshot.now_ms))

    def _rebalanced(self, snapshot: Snapshot, decided: Plan) -> None:
        before, now = snapshot.rebalance, decided.rebalance
        if decided.is_new_generation and before is not None and before.finished_ms is None:
            self._over(snapshot.group, before, REPLACED, snapshot.now_ms)
        if now is None:
            return
        # A rebalance that nobody had to stop for has no time to the last stop.
        if before is not None and before.generation == now.generation and before.stopped_ms is None and now.stopped_ms:
            self._stop_s.labels(kind_of(now)).observe(_seconds(now.started_ms, now.stopped_ms))
        if now.finished_ms is not None:
            self._over(snapshot.group, now, COMPLETED, now.finished_ms)

    def rebalance_failed(self, group: str, trigger: str, seconds: float) -> None:
        """Every retry has failed too, for so many seconds; the group is RebalanceFailed."""
        kind = trigger_kind(trigger)
        self._rebalances.labels(group, kind, FAILED_REBALANCE).inc()
        self._rebalance_s.labels(kind, FAILED_REBALANCE).observe(seconds)
        if self._queue is not None:
            self._states[group] = FAILED
            self._failed.labels(group).set(1)

    def group_gone(self, group: str) -> None:
        """There is no such group, or not yet."""
        self._states.pop(group, None)
        for family in (*self._gauges, *self._counters):
            family.remove_by_labels({"group": group})

    # ---- consistent regions

    def region_seen(self, region: str, state: str, age_s: Callable[[], float]) -> None:
        """A region's turn has read it, or written this state.

        :param age_s: seconds since its last complete checkpoint; called when metrics are read.
        """
        if self._queue is None:
            return
        if region not in self._regions:
            self._regions.add(region)
            self._checkpoint_age.labels(region).set_function(age_s)
        for each in REGION_STATES:
            self._region_state.labels(region, each).set(each == state)

    def checkpoint_ended(self, region: str, result: str, seconds: float) -> None:
        """A checkpoint was completed or aborted, so many seconds after its begin."""
        self._checkpoints.labels(region, result).inc()
        self._checkpoint_s.labels(result).observe(seconds)

    def region_reset(self, region: str, cause: str) -> None:
        """A reset has begun."""
        self._resets.labels(region, cause).inc()

    def region_gone(self, region: str) -> None:
        """There is no such region any more."""
        self._regions.discard(region)
        for family in self._of_regions:
            family.remove_by_labels({"region": region})

    # ---- what else there is to tell

    def bad_data_found(self, paths: int) -> None:
        """A znode cannot be used; `paths` cannot by now."""
        self._bad_data.inc()
        self._bad_paths.set(paths)

    def bad_data_mended(self, paths: int) -> None:
        """A znode can be used again, or is gone; `paths` cannot be used still."""
        self._bad_paths.set(paths)

    def collected(self, group: str, *, segments: int = 0, channels: int = 0) -> None:
        """So much of a group was removed."""
        if group in self._states:
            self._segments.labels(group).inc(segments)
            self._channels.labels(group).inc(channels)

    def _over(self, group: str, rebalance: Rebalance, result: str, at_ms: int) -> None:
        kind = kind_of(rebalance)
        self._rebalances.labels(group, kind, result).inc()
        self._rebalance_s.labels(kind, result).observe(_seconds(rebalance.started_ms, at_ms))

    # ---- read by whoever reads metrics, in another thread: each field once

    def _lease_left_s(self) -> float:
        lease = self._lease
        return lease.left_s if lease is not None else 0.0

    def _queue_size(self) -> float:
        queue = self._queue
        return len(queue) if queue is not None else 0

    def _queue_age_s(self) -> float:
        queue = self._queue
        return queue.oldest_due_s() if queue is not None else 0.0

    def _count(self, state: str) -> int:
        return list(self._states.copy().values()).count(state)


def _is_stale(snapshot: Snapshot, consumer: str, sent: SentCommand) -> bool:
    """Whether an earlier epoch sent it, it is for another incarnation, or cannot be read."""
    view = snapshot.channels.get(consumer)
    if sent.command is None or view is None or view.channel is None:
        return True
    return sent.command.epoch != snapshot.epoch or sent.command.incarnation != view.channel.incarnation


def _seconds(from_ms: int, to_ms: int) -> float:
    """Of wall clocks, which may be two nodes'."""
    return max(0, to_ms - from_ms) / 1000
