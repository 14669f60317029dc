"""Prometheus metrics of consumers and slots; docs/metrics.md describes each.

One `ConsumerMetrics` for a process owns the registry, which the process may serve; each consumer has its own
`Meter`. Nothing here is called for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import zk_group
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import OPTIONS

Family = TypeVar("Family", Gauge, Counter, Histogram)

LABELS = ("group", "consumer")
BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

ASSIGNED, ERROR = "assigned", "error"
"""Results of an assignment request that this consumer answered."""

MOST_PARTITIONS = 100
"""Partitions of one consumer that have their own series: those with the largest lag."""


class PartitionLags(Collector):
    """The lag of each partition that a consumer holds at the scrape; a revoked partition has no series.

    :ivar readers: group and consumer -> its lags.
    """

    def __init__(self) -> None:
        # The server's thread reads while others write: each operation on it is atomic.
        self.readers: dict[tuple[str, str], Callable[[], Mapping[TopicPartition, int]]] = {}

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The family without a series: creating the registry reads no log."""
        meaning = "The lag of each partition, for the 100 with the largest."
        labels = (*LABELS, "topic", "partition")
        return [GaugeMetricFamily("zk_group_consumer_partition_records_lag", meaning, labels=labels)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The family, of all consumers."""
        (family,) = self.describe()
        for own, lags in self.readers.copy().items():
            furthest_behind = sorted(lags().items(), key=lambda item: (-item[1], item[0]))[:MOST_PARTITIONS]
            for partition, lag in sorted(furthest_behind):
                family.add_metric([*own, partition.topic, str(partition.partition)], lag)
        return [family]


class ConsumerMetrics:
    """The metrics of all consumers in this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leases: dict[tuple[str, str], Callable[[], float]] = {}
        self._families: dict[str, Gauge | Counter | Histogram] = {}
        version = ("version",)
        build = Gauge("zk_group_build_info", "1, with the version of this project.", version, registry=self.registry)
        build.labels(zk_group.__version__).set(1)
        self.partition_lags = PartitionLags()
        self.registry.register(self.partition_lags)
        self.of("", "").gone()  # every family exists before the first consumer

    def of(self, group: str, consumer: str) -> Meter:
        """The meter of one consumer."""
        return Meter(self, group, consumer)

    def unhealthy(self) -> str:
        """Why a consumer is not at work, empty when every one is a member. For any thread."""
        leases = dict(self.leases)
        lapsed = sorted(name for (_, name), left_s in leases.items() if left_s() <= 0)
        return "" if leases and not lapsed else f"no membership with a lease: {', '.join(lapsed) or 'no consumer'}"

    def forget(self, group: str, consumer: str) -> None:
        """Remove a consumer's series."""
        self.leases.pop((group, consumer), None)
        self.partition_lags.readers.pop((group, consumer), None)
        for family in self._families.values():
            family.remove_by_labels({"group": group, "consumer": consumer})

    def family(self, kind: type[Family], name: str, meaning: str, *labels: str, **options: Any) -> Family:
        """A family, the same for each consumer.

        :param labels: those after `LABELS`.
        """
        if name not in self._families:
            full = f"zk_group_consumer_{name}"
            self._families[name] = kind(full, meaning, (*LABELS, *labels), registry=self.registry, **options)
        return cast(Family, self._families[name])


# Large: an attribute for each metric, so that a wrong name is a type error; its series is looked up once.
class Meter:
    """The metrics of one consumer, until it is `gone`.

    Each series is an attribute, or the event that changes it: what is called for each poll and batch only adds.
    """

    def __init__(self, metrics: ConsumerMetrics, group: str, consumer: str) -> None:
        self._metrics = metrics
        self._own = own = (group, consumer)
        self._last_held = (0, 0, 0, 0)

        def gauge(name: str, meaning: str) -> Gauge:
            return metrics.family(Gauge, name, meaning).labels(*own)

        def counter(name: str, meaning: str) -> Counter:
            return metrics.family(Counter, name, meaning).labels(*own)

        def histogram(name: str, meaning: str) -> Histogram:
            return metrics.family(Histogram, name, meaning, buckets=BUCKETS).labels(*own)

        self._assigned = gauge("assigned_partitions", "Assigned partitions.")
        self._consumed_topics = gauge("consumed_topics", "Topics of the assigned partitions.")
        self._refused = gauge("refused_partitions", "Partitions not claimed: an owner znode exists.")
        self._failing = gauge("failing_partitions", "Assigned partitions that cannot be fetched.")
        self._outages = gauge("log_outages", "Outages of all brokers of the log.")
        self._generation = gauge("generation", "The generation of the last applied command.")
        self._lag = gauge("records_lag", "Records between the position and the end of the log.")
        self._lag_max = gauge("records_lag_max", "The largest lag of a partition.")
        self._lease_left = gauge("lease_left_seconds", "Seconds until the lease expires.")
        self._last_poll = gauge("last_poll_age_seconds", "Seconds since the last poll.")
        self._waiting = gauge("retained_records", "Records fetched and not returned yet.")
        self._waiting_bytes = gauge("retained_bytes", "Memory of the retained records.")
        self._paused = gauge("paused_partitions", "Partitions paused by the application.")
        self.reads_queue = gauge("queued_records", "Records in a consumer operator's message queue.").set_function
        self._last_drain_s = gauge("last_drain_seconds", "Duration of the last drain, in a consistent region.")
        self._longest_drain_s = gauge("longest_drain_seconds", "Duration of the longest drain.")
        self.restored = counter("region_resets", "States restored, in a consistent region.").inc
        self.polled = counter("polls", "Polls of the application, or rounds of a slot.").inc
        self._records = counter("records_consumed", "Records fetched.")
        self._bytes = counter("bytes_consumed", "Arrow memory of the records fetched.")
        self.committed = histogram("commit_duration_seconds", "Commits that moved offsets, seals included.").observe
        self._seal_s = histogram("seal_duration_seconds", "From the writing of a file to its seal.")
        self._sealed_records = counter("sealed_records", "Records sealed.")
        self._sealed_bytes = counter("sealed_bytes", "Bytes of the files sealed.")
        self.seal_failed = counter("seal_failures", "Failed seals.").inc
        self.dropped = counter("refetched_records", "Records dropped before their seal, and fetched again.").inc
        self.offset_reset = counter("offset_resets", "Positions out of range that were reset.").inc
        self.registered = counter("registrations", "Incarnations that began.").inc
        self._rebalances = counter("rebalances", "Generations that the consumer joined.")
        answered = metrics.family(Counter, "assignments", "Assignment requests answered as the leader.", "result")
        self._assignments = {result: answered.labels(*own, result) for result in (ASSIGNED, ERROR)}
        self._assignment_s = histogram("assignment_duration_seconds", "From an assignment request to its answer.")
        self.assignment_failed = counter("failed_assignments", "Reported failures of the leader.").inc
        applied = metrics.family(Counter, "commands_applied", "Commands applied.", "option")
        self._applied = {option: applied.labels(*own, option) for option in OPTIONS}
        self.command_removed = counter("commands_stale", "Commands removed unapplied.").inc

    # ---- read at a scrape

    def reads_member(self, lease_left_s: Callable[[], float], last_poll_age_s: Callable[[], float]) -> None:
        """Set the sources of the lease and of the last poll; other threads call these."""
        self._lease_left.set_function(lease_left_s)
        self._metrics.leases[self._own] = lease_left_s
        self._last_poll.set_function(last_poll_age_s)

    def reads_log(
        self,
        lags: Callable[[], Mapping[TopicPartition, int]],
        failing: Callable[[], float],
        outages: Callable[[], float],
    ) -> None:
        """Set the sources of each partition's lag, failing partitions, and outages; other threads call these."""
        self._metrics.partition_lags.readers[self._own] = lags
        self._lag.set_function(lambda: sum(lags().values()))
        self._lag_max.set_function(lambda: max(lags().values(), default=0))
        self._failing.set_function(failing)
        self._outages.set_function(outages)

    def reads_buffer(self, retained: Callable[[], tuple[int, int]], paused: Callable[[], int]) -> None:
        """Set the sources of buffered records and bytes, and of paused partitions."""
        self._waiting.set_function(lambda: retained()[0])
        self._waiting_bytes.set_function(lambda: retained()[1])
        self._paused.set_function(paused)

    def reads_drains(self, last_ms: Callable[[], int], longest_ms: Callable[[], int]) -> None:
        """Set the sources of the last and the longest drain time."""
        self._last_drain_s.set_function(lambda: last_ms() / 1000)
        self._longest_drain_s.set_function(lambda: longest_ms() / 1000)

    # ---- events

    def holds(self, assigned: int, refused: int, generation: int, topics: int = 0) -> None:
        """Partitions held and refused, their generation, and their topics."""
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

    def fetched(self, records: int, size: int) -> None:
        """One fetch returned so much."""
        self._records.inc(records)
        self._bytes.inc(size)

    def sealed(self, seconds: float, records: int, size: int) -> None:
        """A file was sealed, this long after it was begun."""
        self._seal_s.observe(seconds)
        self._sealed_records.inc(records)
        self._sealed_bytes.inc(size)

    def command_applied(self, option: str) -> None:
        """A command was applied."""
        self._applied[option].inc()

    def assignment_answered(self, seconds: float, is_error: bool = False) -> None:
        """As the leader: an assignment request was answered, after this time.

        :param is_error: whether the answer only reports that the assignor failed.
        """
        self._assignments[ERROR if is_error else ASSIGNED].inc()
        self._assignment_s.observe(seconds)

    def gone(self) -> None:
        """The consumer has ended: its series are removed."""
        self._metrics.forget(*self._own)


def unread() -> Meter:
    """A meter without a reader."""
    return ConsumerMetrics().of("", "")
