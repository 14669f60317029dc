"""The processes of a drill, the proxies between them and the ensemble, and probes of the group and of the records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from zk_group.coordinator.admin.groups import Reading, ShownGroup, read_group
from zk_group.coordinator.zk.embedded.kafka import Broker
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes import paths
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord

from ..base.processes import NotReached, Process, Variables, held, module_command, wait_for
from ..base.settings import POOL, QUERY, Settings
from ..environments.base import COORDINATOR, MEMBER, connect_string
from ..faults.proxy import Proxy, ZxidClock

Produced = dict[str, dict[str, dict[str, int]]]
"""Topic -> its id -> partition -> records."""

READY_S = 30.0
SPARK_READY_S = 180.0
DRAINED_S = 20.0


def slot(number: int) -> str:
    """The consumer name of a slot."""
    return f"{POOL}-slot-{number}"


def has_remnants(group: ShownGroup) -> bool:
    """Whether there are commands, partitions or owners of ended incarnations, to be removed by a turn."""
    live: set[tuple[str, TopicPartition]] = set()
    for member in group.members:
        channel, commands = member.channel, [sent.command for sent in member.commands]
        if channel is None:
            continue
        if not channel.is_live and (channel.running or commands):
            return True
        if any(command is not None and command.incarnation != channel.incarnation for command in commands):
            return True
        live |= {(member.consumer, part) for part in channel.running}
    return any((each.consumer, each.partition) not in live for each in group.partitions if each.consumer is not None)


class Proxies(ExitStack):
    """Started on first use, and closed together.

    :param clock: sees the progress of the servers.
    :param access: the TLS to the servers; None for none.
    :ivar of: process -> its proxies.
    """

    def __init__(
        self, addresses: Sequence[str], chroot: str, clock: ZxidClock | None, access: ZooKeeperAccess | None = None
    ) -> None:
        super().__init__()
        self._addresses = addresses
        self._chroot = chroot
        self._clock = clock
        self._access = access
        self.of: dict[str, list[Proxy]] = {}

    def hosts(self, name: str) -> str:
        """The connect string of a process."""
        if name not in self.of:
            # One after the other: a chosen port is free for the next proxy until it is bound.
            proxies = (Proxy(address, self._clock, self._access) for address in self._addresses)
            self.of[name] = [self.enter_context(proxy) for proxy in proxies]
        return connect_string([proxy.hosts for proxy in self.of[name]], self._chroot)


CHECKPOINT_MS = 500
MOST_SLOTS = 50
"""The pool size includes slots that join later."""


# Large: one method for each kind of process, and for each thing to wait for.
class Processes:
    """Starts the processes of a drill, and probes the group and the records.

    :param store: the drill's own session, behind proxies without faults.
    :param proxies: between the processes and ZooKeeper.
    :param variables: of their environment, by role.
    :ivar processes: the processes not ended by the drill.
    :ivar partition_count: of the topic, current.
    :ivar segments_dir: the folder of the segments.
    :ivar quota_bytes: the segments' quota, enforced by each fetcher; 0 for none.
    :ivar broker: the Kafka broker of the records, if any.
    :ivar applications: whether consumers without segments have taken part.
    :ivar has_liars: whether members that lie have taken part.
    """

    def __init__(
        self, store: Store, folder: Path, settings: Settings, proxies: Proxies, variables: Callable[[str], Variables]
    ) -> None:
        self.store = store
        self.folder = folder
        self.settings = settings
        self.histories = folder / "histories"
        self.segments_dir = folder / "segments"
        self.processes: dict[str, Process] = {}
        self.partition_count = settings.partitions
        self.quota_bytes = 0
        self.broker: Broker | None = None
        self.applications = False
        self.has_liars = False
        self._proxies = proxies
        self._variables = variables
        self._started: list[Process] = []

    # ---- starting

    def _start(self, name: str, command: Sequence[str], role: str = MEMBER) -> Process:
        """Start a process, which authenticates as this role."""
        with held():  # so that a started process is always registered
            process = Process(self.folder / "logs", name, command, self._variables(role))
            self.processes[name] = process
            self._started.append(process)
        return process

    def start_node(self, name: str, *more: str) -> Process:
        """Start a coordinator; `more` are further options."""
        options = {
            "zk": self._proxies.hosts(name), "node": name, "history-dir": self.histories,
            "session-timeout-ms": self.settings.session_timeout_ms,
            "sweep-interval-ms": self.settings.sweep_interval_ms,
            "assignment-timeout-ms": self.settings.assignment_timeout_ms, "checkpoint-interval-ms": CHECKPOINT_MS,
        }  # fmt: skip
        words = ["run", *(word for option, value in options.items() for word in (f"--{option}", str(value))), *more]
        return self._start(name, module_command("zk_group.coordinator.cli", words), COORDINATOR)

    def start_pool(self) -> Process:
        """Start the driver's part of the pool: it declares the slots as running."""
        pool = {"pool": POOL, "run": "drill", "slots": MOST_SLOTS}
        return self._workload("pool", "slot.keep_pool", **self._consumer_fields("pool"), **pool)

    def start_slot(self, number: int) -> Process:
        """Start a fetcher; in a consistent region a counting application."""
        name = slot(number)
        if self.settings.region:
            return self._member(name, "application.count", region=self.settings.region)
        pool = {"pool": POOL, "segments_dir": str(self.segments_dir), "slots": MOST_SLOTS, "number": number}
        fields = {**self._consumer_fields(name), **pool, "run": "drill", "quota_bytes": self.quota_bytes}
        return self._workload(name, "slot.main", **fields)

    def start_application(self, name: str, hangs: str) -> Process:
        """Start an application with a consumer that hangs on request, at `hangs`."""
        self.applications = True
        return self._member(name, "application.main", hangs=hangs)

    def start_lying_member(self, name: str, lie: str) -> Process:
        """Start a member with this kind of lie."""
        self.has_liars = True
        return self._member(name, "lying_member.main", lie=lie)

    def start_spark(self) -> Process:
        """Start the Spark application, with a query, and with the pool if slots run in executors."""
        options = self._consumer_fields("spark")
        fields = {"folder": str(self.folder), "zk": options.pop("zk"), "group": options.pop("group"), "query": QUERY}
        if self.settings.spark == "pool":
            pool = {"pool": POOL, "segments_dir": str(self.segments_dir), "slots": self.settings.slots}
            fields["pool"] = {**options, **pool}
        return self._workload("spark", "spark_app.main", **fields)

    def start_churn(self, times: int, seed: int) -> Process:
        """Start consumers that join and leave, `times` times."""
        self.applications = True
        return self._workload("churn", "application.churn", **self._consumer_fields("churn"), times=times, seed=seed)

    def start_producer(self) -> Process:
        """Start the producer of numbered records for every partition."""
        fields = {"zk": self._proxies.hosts("producer"), **self._log(), "rate": self.settings.rate}
        if self.broker is None:
            return self._workload("producer", "producer.main", **fields)
        return self._workload("producer", "kafka_client.main", **fields, **self._kafka(self.broker))

    def _kafka(self, broker: Broker) -> dict[str, object]:
        return {"servers": broker.address, "partitions": self.settings.partitions}

    def _log(self) -> dict[str, object]:
        log_dir = "kafka:" if self.settings.kafka else str(self.folder / "log")
        return {"log_dir": log_dir, "topics": {self.settings.topic: 1}}

    def _consumer_fields(self, name: str) -> dict[str, object]:
        """The configuration of a consumer; `name` is its process."""
        settings = self.settings
        fields = {
            "zk": self._proxies.hosts(name), "group": settings.group, **self._log(), "history_dir": str(self.histories),
            "session_timeout_ms": settings.session_timeout_ms, "max_poll_interval_ms": settings.max_poll_interval_ms,
        }  # fmt: skip
        if settings.strategy:
            fields |= {"assignment": "client", "protocols": "drill" if settings.misbehaves else settings.strategy}
            fields |= {"strategy": settings.strategy, "misbehaves": settings.misbehaves}
            fields["state_bytes"] = settings.state_bytes
        return fields

    def _member(self, name: str, main: str, **fields: object) -> Process:
        return self._workload(name, main, **self._consumer_fields(name), consumer=name, **fields)

    def _workload(self, name: str, main: str, **fields: object) -> Process:
        return self._start(name, module_command("zk_group.drills.workloads", [main, json.dumps(fields)]))

    # ---- probes

    def group(self) -> ShownGroup:
        return read_group(Reading(self.store), self.settings.group)

    def elected(self) -> CoordinatorRecord | None:
        """The coordinator; None without one."""
        node = self.store.get(paths.COORDINATOR)
        try:
            return CoordinatorRecord.parse(paths.COORDINATOR, node.data) if node is not None else None
        except BadData:
            return None

    def wait_settled(self, consumers: set[str], timeout_s: float = READY_S) -> None:
        """Wait until the group is Stable with exactly these consumers, and every partition runs.

        :raises NotReached: after `timeout_s`.
        """
        every = self.partitions()

        def is_settled() -> bool:
            shown = self.group()
            running = {part for member in shown.members if member.channel for part in member.channel.running}
            return shown.state.state == STABLE and set(shown.state.target) == consumers and running >= every

        wait_for(is_settled, timeout_s, f"the group is Stable with {', '.join(sorted(consumers))}")

    def lives(self) -> dict[str, str]:
        """Consumer -> its incarnation, for consumers with a target."""
        return {name: target.incarnation for name, target in self.group().state.target.items()}

    def wait_back(self, before: Mapping[str, str], timeout_s: float = READY_S) -> None:
        """Wait until each of these consumers has a target under a new incarnation.

        :raises NotReached: after `timeout_s`.
        """

        def are_back() -> bool:
            now = self.lives()
            return all(now.get(name, life) != life for name, life in before.items())

        wait_for(are_back, timeout_s, f"a new incarnation of each of {', '.join(sorted(before))}")

    def partitions(self, topic: str = "") -> PartitionSet:
        """Every partition of the topic, or of another with as many."""
        of = topic or self.settings.topic
        return frozenset(TopicPartition(of, number) for number in range(self.partition_count))

    def slots(self) -> set[str]:
        """The slots that run, or are to run in Spark."""
        if self.settings.spark == "pool":
            return {slot(number) for number in range(self.settings.slots)}
        return {name for name in self.processes if name.startswith(f"{POOL}-slot-")}

    def slot_processes(self) -> dict[str, int]:
        """`name#process id` of every slot so far -> its process id."""
        stems = [path.stem for path in self.histories.glob(f"{POOL}-slot-*#*.jsonl")]
        return {who: int(who.rpartition("#")[2]) for who in stems}

    def streamed(self) -> list[dict[str, object]] | None:
        """The batches that the query has delivered; None without a query."""
        if not self.settings.spark:
            return None
        batches = sorted((self.folder / "batches").glob("*.json"), key=lambda path: int(path.stem))
        return [row for path in batches for row in json.loads(path.read_text())]

    def produced(self) -> Produced:
        """The producers' counts, the newest of a topic's ids last."""
        ends: Produced = {}
        for line in self._producer().printed():
            for topic, ids in line["ends"].items():
                for topic_id, numbers in ids.items():
                    ends.setdefault(topic, {}).setdefault(topic_id, {}).update(numbers)
        return ends

    def produced_by_partition(self) -> Counter[TopicPartition]:
        """The number of records of each partition, over all of its topic's ids."""
        counts: Counter[TopicPartition] = Counter()
        for topic, ids in self.produced().items():
            for numbers in ids.values():
                counts.update({TopicPartition(topic, int(number)): count for number, count in numbers.items()})
        return counts

    def stop_producing(self) -> None:
        producer = self._producer()
        if not producer.is_running:
            raise NotReached("the producer ended unexpectedly")
        producer.terminate()
        if producer.wait() is None:
            raise NotReached("the producer does not stop")

    def _producer(self) -> Process:
        if "producer" not in self.processes:
            raise NotReached("no producer was started")
        return self.processes["producer"]

    def ended(self) -> list[str]:
        """The processes that ended unexpectedly."""
        return sorted(name for name, each in self.processes.items() if name != "producer" and not each.is_running)

    def sealed_offsets(self) -> dict[TopicPartition, int]:
        """Partition -> the sealed offset."""
        return {
            part: offset
            for member in self.group().members
            if member.channel is not None and member.channel.is_live
            for part, offset in member.channel.running.items()
            if offset is not None
        }

    def wait_sealed(self, partitions: PartitionSet, timeout_s: float) -> None:
        """Wait for a sealed record of each of these partitions.

        :raises NotReached: after `timeout_s`.
        """
        what = "records of every partition are sealed"
        wait_for(lambda: all(map(self.sealed_offsets().get, partitions)), timeout_s, what)

    def drained(self) -> None:
        """Wait until all produced records are sealed.

        :raises NotReached: when they are not in time.
        """
        newest = [(topic, list(ids.values())[-1]) for topic, ids in self.produced().items()]
        wanted = Counter({TopicPartition(topic, int(n)): count for topic, ends in newest for n, count in ends.items()})
        wait_for(lambda: wanted <= Counter(self.sealed_offsets()), DRAINED_S, "every produced record is sealed")

    def caught_up(self, timeout_s: float) -> None:
        """Wait until the query, if there is one, has delivered all produced records.

        :raises NotReached: after `timeout_s`.
        """
        wanted = self.produced_by_partition().total()
        if self.settings.spark:
            what = "the query has delivered every record"
            wait_for(lambda: sum(int(str(each["rows"])) for each in self.streamed() or ()) >= wanted, timeout_s, what)
