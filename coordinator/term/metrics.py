"""A coordinator's metrics for Prometheus; docs/metrics.md documents each.

One object per process. It owns its registry, which the metrics server may serve.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from zk_group import __version__

from ..planning.plan import Plan
from ..planning.rebalance_history import kind_of, trigger_kind
from ..planning.snapshot import SentCommand, Snapshot
from ..zk.lease import Lease
from ..zk.znodes.group_state import FAILED, GROUP_STATES, GroupState, Rebalance
from ..zk.znodes.regions import REGION_STATES
from .request_queue import RequestQueue

TAKEN, PUT_OFF, FAILED_TURN = "taken", "put_off", "failed"
COMPLETED, REPLACED, FAILED_REBALANCE = "completed", "replaced", "failed"
ADOPTED, FAILED_ASSIGNMENT, OUTDATED = "adopted", "failed", "outdated"
UNREADABLE = "unreadable"
ABORTED = "aborted"
OF_A_GENERATION, OF_A_RESTART, OF_AN_APPLICATION, OF_AN_OPERATOR = "generation", "restart", "application", "operator"
COSTLY_S, MOST_COSTLY, OTHERS = 1.0, 200, "*"
"""Seconds of turns from which a group has a series of its own, and the limit of these; the rest is counted as one."""
TURN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
REBALANCE_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


# Large: an attribute for each family in docs/metrics.md, so that a wrong name is a type error.
class CoordinatorMetrics:
    """Methods are events, named in the words of the calling code. Thread-safe."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._states: dict[str, str] = {}
        self._cheap: dict[str, float] = {}
        self._costly: set[str] = set()
        self._is_elected = False

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
        self._lease_left_s = gauge("coordinator_lease_left_seconds", "Seconds until the lease expires.")
        self._queue_size = gauge("event_queue_size", "Groups waiting for a turn, including those in backoff.")
        self._queue_age_s = gauge(
            "event_queue_age_seconds", "Seconds for which the oldest request has been due, 0 without one."
        )

        self._turns = counter("turns", "Turns by result.", "group", "result")
        self._group_turns = counter("group_turn_seconds", "Seconds that the turns of the group took.", "group")
        self._turn_s = histogram("turn_duration_seconds", "Duration of a turn.", TURN_BUCKETS)
        self._rebalances = counter("rebalances", "Finished rebalances.", "group", "trigger", "result")
        self._rebalance_s = histogram(
            "rebalance_duration_seconds", "From its start to its result.", REBALANCE_BUCKETS, "trigger", "result"
        )
        self._stop_s = histogram(
            "rebalance_stop_duration_seconds", "Until the last stop was acknowledged.", REBALANCE_BUCKETS, "trigger"
        )
        self._downtime_s = histogram(
            "rebalance_standstill_seconds", "Longest time without a fetcher.", REBALANCE_BUCKETS, "trigger"
        )
        self._assignments = counter("assignments", "Assignment requests by result.", "group", "result")
        self._assignment_s = histogram(
            "assignment_duration_seconds", "From a request to its adoption or failure.", REBALANCE_BUCKETS, "result"
        )
        self._refused = counter("plans_refused", "Plans that broke an invariant and were not written.", "group")
        self._evictions = counter("evictions", "Consumers that were evicted.", "group")
        self._sent = counter("commands_sent", "Commands sent to channels.", "group", "option")
        self._withdrawn = counter("commands_withdrawn", "Commands withdrawn from channels.", "group", "option")
        self._stale = counter("commands_stale", "Withdrawn commands that were stale.", "group")
        self._bad_data = counter("bad_data_found", "Unusable data found in znodes.")
        self._bad_paths = gauge("bad_data_paths", "Znodes with unusable data.")

        groups = gauge("groups", "Groups by state.", "state")
        for state in GROUP_STATES:
            groups.labels(state).set_function(partial(self._count, state))
        self._failed = gauge("rebalance_failed", "1 while the group is RebalanceFailed.", "group")
        self._members = gauge("members", "Consumers in the group's target.", "group")
        self._partitions = gauge("assigned_partitions", "Partitions in the group's target.", "group")
        self._generation = gauge("generation", "The group's generation.", "group")
        self._segments = counter("collected_segments", "Segments removed that every query had finished.", "group")
        self._channels = counter("collected_channels", "Channels of ended consumers removed.", "group")
        self._offsets = counter("collected_offsets", "Offsets of deleted topics removed.", "group")
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
            self._segments, self._channels, self._offsets, self._assignments, self._group_turns,
        )  # fmt: skip

    # ---- the term

    def elected(self, epoch: int, queue: RequestQueue, lease: Lease) -> None:
        """A term has begun. Its group metrics start from zero: groups of an earlier term may be gone."""
        for family in (*self._gauges, *self._counters, *self._of_regions):
            family.clear()
        self._regions.clear()
        self._states.clear()
        self._cheap.clear()
        self._costly.clear()
        self._is_elected = True
        self._lease_left_s.set_function(lambda: lease.left_s)
        self._queue_size.set_function(lambda: len(queue))
        self._queue_age_s.set_function(queue.oldest_due_s)
        self._elections.inc()
        self._epoch.set(epoch)
        self._active.set(1)

    def resigned(self) -> None:
        """The term is over: the group metrics are another node's."""
        self._active.set(0)
        self._epoch.set(0)
        self._is_elected = False
        for of_the_term in (self._lease_left_s, self._queue_size, self._queue_age_s):
            of_the_term.set_function(lambda: 0)
        self._states.clear()
        self._regions.clear()
        for family in (*self._gauges, self._checkpoint_age, self._region_state):
            family.clear()

    # ---- turns

    def turn_taken(self, group: str, seconds: float, state: GroupState | None) -> None:
        """A turn has succeeded, and this is the group's state now."""
        self._turns.labels(group, TAKEN).inc()
        self._turn_s.observe(seconds)
        if state is None or not self._is_elected:
            return
        if self._states.get(group) != state.state:
            self._states[group] = state.state
            self._failed.labels(group).set(state.state == FAILED)
        self._generation.labels(group).set(state.generation)
        self._members.labels(group).set(len(state.target))
        threads = (parts for target in state.target.values() for parts in target.threads.values())
        self._partitions.labels(group).set(sum(map(len, threads)))

    def turns_took(self, group: str, seconds: float) -> None:
        """A handler was busy with a turn of `group`. A group has a series from its first second on."""
        if group not in self._costly:
            total = self._cheap.get(group, 0.0) + seconds
            if total < COSTLY_S or len(self._costly) >= MOST_COSTLY:
                self._cheap[group] = total
                self._group_turns.labels(OTHERS).inc(seconds)
                return
            self._cheap.pop(group, None)
            self._costly.add(group)
        self._group_turns.labels(group).inc(seconds)

    def turn_put_off(self, group: str) -> None:
        """A turn was deferred: the lease has lapsed, or ZooKeeper did not answer."""
        self._turns.labels(group, PUT_OFF).inc()

    def turn_failed(self, group: str) -> None:
        """A turn has failed, and is retried with backoff."""
        self._turns.labels(group, FAILED_TURN).inc()

    def plan_refused(self, group: str) -> None:
        """A plan broke an invariant, and is not written: a fault of this project."""
        self._refused.labels(group).inc()

    def turn_written(self, snapshot: Snapshot, decided: Plan) -> None:
        """A turn's plan was written to ZooKeeper."""
        group = snapshot.group
        for end in decided.terminations:
            if end.evicted:
                self._evictions.labels(group).inc()
        for _, command in decided.commands:
            self._sent.labels(group, command.option).inc()
        for consumer, sent in decided.withdrawn:
            self._withdrawn.labels(group, sent.option or UNREADABLE).inc()
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
        """The outcome of the pending ask, under client-side assignment."""
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
        for ask in (view.ask for view in snapshot.requests.asks if view.name == name and view.ask is not None):
            self._assignment_s.labels(result).observe(_seconds(ask.since_ms, snapshot.coordinator.now_ms))

    def _rebalanced(self, snapshot: Snapshot, decided: Plan) -> None:
        before, now = snapshot.history.last, decided.rebalance
        if decided.is_new_generation and before is not None and before.finished_ms is None:
            self._over(snapshot.group, before, REPLACED, snapshot.coordinator.now_ms)
        if now is None:
            return
        # A rebalance without stops has no time to the last stop.
        if before is not None and before.generation == now.generation and before.stopped_ms is None and now.stopped_ms:
            self._stop_s.labels(kind_of(now)).observe(_seconds(now.started_ms, now.stopped_ms))
        is_over_already = before is not None and before.generation == now.generation and before.finished_ms is not None
        if now.finished_ms is not None and not is_over_already:
            self._over(snapshot.group, now, COMPLETED, now.finished_ms)
        if now.standstill_ms is not None:
            self._downtime_s.labels(kind_of(now)).observe(now.standstill_ms / 1000)

    def rebalance_failed(self, group: str, trigger: str, seconds: float) -> None:
        """All retries have failed, after this many seconds; the group is RebalanceFailed."""
        kind = trigger_kind(trigger)
        self._rebalances.labels(group, kind, FAILED_REBALANCE).inc()
        self._rebalance_s.labels(kind, FAILED_REBALANCE).observe(seconds)
        if self._is_elected:
            self._states[group] = FAILED
            self._failed.labels(group).set(1)

    def group_gone(self, group: str) -> None:
        """The group does not exist (yet)."""
        self._states.pop(group, None)
        self._cheap.pop(group, None)
        self._costly.discard(group)
        for family in (*self._gauges, *self._counters):
            family.remove_by_labels({"group": group})

    # ---- consistent regions

    def region_seen(self, region: str, state: str, age_s: Callable[[], float]) -> None:
        """A region's turn has read it, or written this state.

        :param age_s: seconds since its last complete checkpoint; called when metrics are read.
        """
        if not self._is_elected:
            return
        if region not in self._regions:
            self._regions.add(region)
            self._checkpoint_age.labels(region).set_function(age_s)
        for each in REGION_STATES:
            self._region_state.labels(region, each).set(each == state)

    def checkpoint_ended(self, region: str, result: str, seconds: float) -> None:
        """A checkpoint was completed or aborted, this many seconds after its begin."""
        self._checkpoints.labels(region, result).inc()
        self._checkpoint_s.labels(result).observe(seconds)

    def region_reset(self, region: str, cause: str) -> None:
        """A reset has begun."""
        self._resets.labels(region, cause).inc()

    def region_gone(self, region: str) -> None:
        """The region does not exist any more."""
        self._regions.discard(region)
        for family in self._of_regions:
            family.remove_by_labels({"region": region})

    # ---- other metrics

    def bad_data_found(self, paths: int) -> None:
        """A znode is unusable; `paths` are in total."""
        self._bad_data.inc()
        self._bad_paths.set(paths)

    def bad_data_mended(self, paths: int) -> None:
        """A znode is usable again, or gone; `paths` are still unusable."""
        self._bad_paths.set(paths)

    def collected(self, group: str, *, segments: int = 0, channels: int = 0, offsets: int = 0) -> None:
        """Counts of a group's removals."""
        if group in self._states:
            self._segments.labels(group).inc(segments)
            self._channels.labels(group).inc(channels)
            self._offsets.labels(group).inc(offsets)

    def _over(self, group: str, rebalance: Rebalance, result: str, at_ms: int) -> None:
        kind = kind_of(rebalance)
        self._rebalances.labels(group, kind, result).inc()
        self._rebalance_s.labels(kind, result).observe(_seconds(rebalance.started_ms, at_ms))

    def _count(self, state: str) -> int:
        return list(self._states.copy().values()).count(state)


def _is_stale(snapshot: Snapshot, consumer: str, sent: SentCommand) -> bool:
    """Whether it is of an earlier epoch, for another incarnation, or unreadable."""
    view = snapshot.members.channels.get(consumer)
    if sent.command is None or view is None or view.channel is None:
        return True
    return sent.command.epoch != snapshot.coordinator.epoch or sent.command.incarnation != view.channel.incarnation


def _seconds(from_ms: int, to_ms: int) -> float:
    """Between wall clocks, possibly of two nodes."""
    return max(0, to_ms - from_ms) / 1000
