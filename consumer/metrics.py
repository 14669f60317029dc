"""What consumers and slots count and measure, for Prometheus; docs/metrics.md says what each means.

One `ConsumerMetrics` for a process owns the registry, which somebody else serves, or nobody; each consumer in the
process gets a `Meter` of its own. Nothing here is called for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import coordinator
from coordinator.zk.commands import OPTIONS
from coordinator.zk.partitions import TopicPartition

LABELS = ("group", "consumer")
BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

ASSIGNED, ERROR = "assigned", "error"
"""Results of an ask that this consumer answered."""

MOST_PARTITIONS = 100
"""Of one consumer, partitions that have a series of their own: those that are furthest behind."""


class PartitionLags(Collector):
    """The lag of each partition that a consumer holds when it is asked: what it gives up has no series any more."""

    def __init__(self) -> None:
        # The server's thread reads while others write: each touches it by one operation, which is done or not.
        self._readers: dict[tuple[str, str], Callable[[], Mapping[TopicPartition, int]]] = {}

    def reads(self, group: str, consumer: str, lags: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Where a consumer's are read from."""
        self._readers[group, consumer] = lags

    def forget(self, group: str, consumer: str) -> None:
        """Show nothing of a consumer any more."""
        self._readers.pop((group, consumer), None)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The family without a series: nothing is read from a log when the registry is made."""
        meaning = "The same, of each partition; of the 100 that are furthest behind."
        labels = (*LABELS, "topic", "partition")
        return [GaugeMetricFamily("zk_group_consumer_partition_records_lag", meaning, labels=labels)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The family, of all consumers."""
        (family,) = self.describe()
        for own, lags in self._readers.copy().items():
            for partition, lag in furthest_behind(lags()):
                family.add_metric([*own, partition.topic, str(partition.partition)], lag)
        return [family]


def furthest_behind(lags: Mapping[TopicPartition, int]) -> list[tuple[TopicPartition, int]]:
    """`MOST_PARTITIONS` at most, by topic and number."""
    return sorted(sorted(lags.items(), key=lambda item: (-item[1], item[0]))[:MOST_PARTITIONS])


class ConsumerMetrics:
    """The metrics of all consumers in this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: list[Gauge | Counter | Histogram] = []
        version = ("version",)
        build = Gauge("zk_group_build_info", "1, with the version of this project.", version, registry=self.registry)
        build.labels(coordinator.__version__).set(1)
        self.assigned = self._gauge("assigned_partitions", "Partitions that are held.")
        self.consumed_topics = self._gauge("consumed_topics", "Topics of these.")
        self.refused = self._gauge("refused_partitions", "Partitions not claimed: an owner is in the way.")
        self.failing = self._gauge("failing_partitions", "Partitions that are held, and that the log refuses.")
        self.outages = self._gauge("log_outages", "How often the servers of the log did not answer any more.")
        self.generation = self._gauge("generation", "The generation of the last command that was obeyed.")
        self.lag = self._gauge("records_lag", "Records between what was fetched and the end of the log.")
        self.lag_max = self._gauge("records_lag_max", "The same, of the partition that is furthest behind.")
        self.partition_lags = PartitionLags()
        self.registry.register(self.partition_lags)
        self.lease_left = self._gauge("lease_left_seconds", "What may be fetched for without hearing more.")
        self.last_poll = self._gauge("last_poll_age_seconds", "Since the last poll.")
        self.waiting = self._gauge("retained_records", "Records fetched and not returned yet.")
        self.waiting_bytes = self._gauge("retained_bytes", "The memory of these.")
        self.paused = self._gauge("paused_partitions", "Partitions that the application has paused.")
        self.queued = self._gauge("queued_records", "Records that wait in a consumer operator's message queue.")
        self.last_drain_s = self._gauge("last_drain_seconds", "The last drain, in a consistent region.")
        self.longest_drain_s = self._gauge("longest_drain_seconds", "The longest one.")
        self.region_resets = self._counter("region_resets", "States restored, in a consistent region.")
        self.polls = self._counter("polls", "Polls of the application, or rounds of a slot.")
        self.records = self._counter("records_consumed", "Records fetched.")
        self.bytes = self._counter("bytes_consumed", "Arrow memory of the records fetched.")
        self.commit_s = self._histogram("commit_duration_seconds", "Commits that moved offsets, seals included.")
        self.seal_s = self._histogram("seal_duration_seconds", "From the writing of a file to its seal.")
        self.sealed_records = self._counter("sealed_records", "Records sealed.")
        self.sealed_bytes = self._counter("sealed_bytes", "Bytes of the files sealed.")
        self.seal_failures = self._counter("seal_failures", "Tries to seal that failed.")
        self.refetched = self._counter("refetched_records", "Records dropped before they were sealed, to come again.")
        self.offset_resets = self._counter("offset_resets", "Positions that the log did not have, and that were moved.")
        self.registrations = self._counter("registrations", "Incarnations that began.")
        self.rebalances = self._counter("rebalances", "Generations that were taken part in.")
        self.assignments = self._counter("assignments", "Asks answered as the leader.", "result")
        self.assignment_s = self._histogram("assignment_duration_seconds", "From the start of an ask to its answer.")
        self.failed_assignments = self._counter("failed_assignments", "Failures of the leader heard.")
        self.applied = self._counter("commands_applied", "Commands obeyed.", "option")
        self.stale = self._counter("commands_stale", "Commands removed unapplied.")

    def of(self, group: str, consumer: str) -> Meter:
        """The meter of one consumer."""
        return Meter(self, group, consumer)

    def forget(self, group: str, consumer: str) -> None:
        """Show nothing of a consumer any more."""
        self.partition_lags.forget(group, consumer)
        for family in self._families:
            family.remove_by_labels({"group": group, "consumer": consumer})

    def _gauge(self, name: str, meaning: str) -> Gauge:
        made = Gauge(f"zk_group_consumer_{name}", meaning, LABELS, registry=self.registry)
        self._families.append(made)
        return made

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        made = Counter(f"zk_group_consumer_{name}", meaning, (*LABELS, *labels), registry=self.registry)
        self._families.append(made)
        return made

    def _histogram(self, name: str, meaning: str) -> Histogram:
        made = Histogram(f"zk_group_consumer_{name}", meaning, LABELS, buckets=BUCKETS, registry=self.registry)
        self._families.append(made)
        return made


class Meter:
    """What one consumer reports, in the words of the code that calls it, until it is `gone`.

    The series are looked up once: what is called for each poll and batch only adds.
    """

    def __init__(self, metrics: ConsumerMetrics, group: str, consumer: str) -> None:
        own = (group, consumer)
        self._metrics = metrics
        self._own = own
        self._assigned, self._refused = metrics.assigned.labels(*own), metrics.refused.labels(*own)
        self._consumed_topics, self._queued = metrics.consumed_topics.labels(*own), metrics.queued.labels(*own)
        self._last_drain_s, self._longest_drain_s = (
            family.labels(*own) for family in (metrics.last_drain_s, metrics.longest_drain_s)
        )
        self._region_resets = metrics.region_resets.labels(*own)
        self._failing, self._generation = metrics.failing.labels(*own), metrics.generation.labels(*own)
        self._outages = metrics.outages.labels(*own)
        self._lag, self._lag_max = metrics.lag.labels(*own), metrics.lag_max.labels(*own)
        self._lease_left, self._last_poll = metrics.lease_left.labels(*own), metrics.last_poll.labels(*own)
        self._waiting, self._waiting_bytes = metrics.waiting.labels(*own), metrics.waiting_bytes.labels(*own)
        self._paused = metrics.paused.labels(*own)
        self._polls, self._records, self._bytes = (
            family.labels(*own) for family in (metrics.polls, metrics.records, metrics.bytes)
        )
        self._commit_s, self._seal_s = metrics.commit_s.labels(*own), metrics.seal_s.labels(*own)
        self._sealed_records = metrics.sealed_records.labels(*own)
        self._sealed_bytes = metrics.sealed_bytes.labels(*own)
        self._seal_failures, self._refetched = metrics.seal_failures.labels(*own), metrics.refetched.labels(*own)
        self._offset_resets = metrics.offset_resets.labels(*own)
        self._registrations, self._rebalances = metrics.registrations.labels(*own), metrics.rebalances.labels(*own)
        self._applied = {option: metrics.applied.labels(*own, option) for option in OPTIONS}
        self._stale = metrics.stale.labels(*own)
        self._assignments = {result: metrics.assignments.labels(*own, result) for result in (ASSIGNED, ERROR)}
        self._assignment_s = metrics.assignment_s.labels(*own)
        self._failed_assignments = metrics.failed_assignments.labels(*own)
        self._last_held = (0, 0, 0, 0)

    # ---- what is read when somebody wants to know

    def reads_member(self, lease_left_s: Callable[[], float], last_poll_age_s: Callable[[], float]) -> None:
        """Where the lease and the last poll are read from; other threads call these."""
        self._lease_left.set_function(lease_left_s)
        self._last_poll.set_function(last_poll_age_s)

    def reads_log(
        self,
        lag: Callable[[], float],
        lag_max: Callable[[], float],
        failing: Callable[[], float],
        outages: Callable[[], float] = lambda: 0,
        lag_of_each: Callable[[], Mapping[TopicPartition, int]] = dict,
    ) -> None:
        """Where the lag, how many partitions cannot be fetched, outages, and the lag of each partition are read from.

        Other threads call these.
        """
        self._metrics.partition_lags.reads(*self._own, lag_of_each)
        self._lag.set_function(lag)
        self._lag_max.set_function(lag_max)
        self._failing.set_function(failing)
        self._outages.set_function(outages)

    def reads_buffer(self, retained: Callable[[], tuple[int, int]], paused: Callable[[], int]) -> None:
        """Where it is read how many records, and bytes of them, wait to be returned, and how many partitions pause."""
        self._waiting.set_function(lambda: retained()[0])
        self._waiting_bytes.set_function(lambda: retained()[1])
        self._paused.set_function(paused)

    def reads_queue(self, queued: Callable[[], int]) -> None:
        """Where it is read how many records wait to be processed."""
        self._queued.set_function(queued)

    def reads_drains(self, last_ms: Callable[[], int], longest_ms: Callable[[], int]) -> None:
        """Where it is read how long the last drain took, and the longest."""
        self._last_drain_s.set_function(lambda: last_ms() / 1000)
        self._longest_drain_s.set_function(lambda: longest_ms() / 1000)

    # ---- what happens

    def registered(self) -> None:
        """A new incarnation has begun."""
        self._registrations.inc()

    def holds(self, assigned: int, refused: int, generation: int, topics: int = 0) -> None:
        """How many partitions are held, and could not be claimed, in which generation; and of how many topics."""
        held = (assigned, refused, generation, topics)
        if held == self._last_held:
            return
        if generation > self._last_held[2]:
            self._rebalances.inc()
        self._last_held = held
        self._assigned.set(assigned)
        self._consumed_topics.set(topics)
        self._refused.set(refused)
        self._generation.set(generation)

    def restored(self) -> None:
        """The application was given the state of a checkpoint."""
        self._region_resets.inc()

    def polled(self) -> None:
        """The application has asked for records, or a slot has."""
        self._polls.inc()

    def fetched(self, records: int, size: int) -> None:
        """One fetch has brought so much."""
        self._records.inc(records)
        self._bytes.inc(size)

    def offset_reset(self) -> None:
        """A position was out of range, and has been moved into it."""
        self._offset_resets.inc()

    def committed(self, seconds: float) -> None:
        """Offsets have moved."""
        self._commit_s.observe(seconds)

    def sealed(self, seconds: float, records: int, size: int) -> None:
        """A file has become everybody's, so long after it was begun."""
        self._seal_s.observe(seconds)
        self._sealed_records.inc(records)
        self._sealed_bytes.inc(size)

    def seal_failed(self) -> None:
        """A try to seal has failed."""
        self._seal_failures.inc()

    def dropped(self, records: int) -> None:
        """Records were fetched, never sealed, and will be fetched again."""
        self._refetched.inc(records)

    def command_applied(self, option: str) -> None:
        """A command was obeyed."""
        self._applied[option].inc()

    def command_removed(self) -> None:
        """A command was removed unapplied."""
        self._stale.inc()

    def assignment_answered(self, seconds: float, is_error: bool = False) -> None:
        """As the leader: an ask was answered, so long after it was taken up.

        :param is_error: whether the answer says only that the assignor failed.
        """
        self._assignments[ERROR if is_error else ASSIGNED].inc()
        self._assignment_s.observe(seconds)

    def assignment_failed(self) -> None:
        """The coordinator said that the leader gave no assignment."""
        self._failed_assignments.inc()

    def gone(self) -> None:
        """The consumer has ended: nothing of it is shown any more."""
        self._metrics.forget(*self._own)


def unread() -> Meter:
    """A meter that nobody reads."""
    return ConsumerMetrics().of("", "")
