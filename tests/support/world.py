"""Coordinators and consumers in threads of the test: real parts, quick to start, on a modelled or a real ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from kazoo.client import KazooClient

from tests.simulation.store import SimStore
from tests.support.memlog import MemoryLog
from tests.support.terms import only
from tests.support.wait import FAR_OFF_MS, Waiting, eventually
from zk_group.consumer.assignment.base import ClientAssignor
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from zk_group.consumer.errors import AssignmentFailed
from zk_group.consumer.logs.base import Log
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.zk.errors import CoordinatorError, Refused
from zk_group.coordinator.zk.runtime import Task, ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory, open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import GroupState, Rebalance
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import (
    Channel,
    Command,
    CoordinatorRecord,
    OffsetRecord,
    Topic,
    parsed_channel,
)

F = TypeVar("F", bound=Store)

SESSION_MS = 2000


class PollingConsumer(Callbacks):
    """A consumer whose thread polls and commits until it is closed; it remembers what happened."""

    def __init__(
        self,
        zk: str,
        group: str,
        name: str,
        topics: dict[str, int],
        pattern: str = "static",
        log: Log | None = None,
        opener: Any = None,
        assignors: Sequence[ClientAssignor] = (),
        **options: Any,
    ) -> None:
        options.setdefault("session_timeout_ms", SESSION_MS)
        config = ConsumerConfig(zk=zk, group=group, consumer=name, **options)
        runtime = ThreadRuntime()
        self.name = name
        self.events: list[tuple[str, PartitionSet]] = []
        self.records: list[tuple[TopicPartition, int]] = []
        self.error: BaseException | None = None
        self.is_stuck = runtime.event()
        self._hangs = runtime.event()
        self.failures: list[AssignmentFailed] = []
        self.consumer = Consumer(
            config,
            Subscription(topics, pattern),
            self,
            source=log or MemoryLog(),
            open_store=opener,
            assignors=assignors,
        )
        self.polled: set[tuple[TopicPartition, int]] = set()
        self._stop = runtime.event()
        self.thread = runtime.spawn(self._run, f"poll-{name}")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.is_stuck.is_set():
                    self._hangs.set()
                    self._stop.wait(0.01)
                    continue
                try:
                    found = self.consumer.poll(50)
                except AssignmentFailed as failure:
                    self.failures.append(failure)
                    continue
                if found:
                    self.polled |= {(p, record.offset) for p, records in found.items() for record in records}
                    with suppress(CoordinatorError):
                        self.consumer.commit()
                        self.records += [(p, record.offset) for p, records in found.items() for record in records]
        except BaseException as error:  # noqa: BLE001  a test looks at it
            self.error = error

    def on_partitions_assigned(self, partitions: PartitionSet) -> None:
        self.events.append(("assigned", partitions))

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self.events.append(("revoked", partitions))

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self.events.append(("lost", partitions))

    def hang(self) -> None:
        """Poll no more until `is_stuck` is cleared; the poll that runs has returned when this does."""
        self._hangs.clear()
        self.is_stuck.set()
        eventually(self._hangs.is_set, 10, f"{self.name} has ended its poll")

    @property
    def held(self) -> PartitionSet:
        return self.consumer.assignment()

    def close(self) -> None:
        self._stop.set()
        self.thread.join(10)
        self.consumer.close()

    def vanish(self) -> None:
        """End without a word to the group: the session is closed, nothing else is written."""
        self._stop.set()
        self.thread.join(10)
        store = self.consumer.member.store
        if store is not None:
            store.close()


class World:
    """A ZooKeeper chroot with everything that a test starts in it."""

    def __init__(self, zk: str, store: Store | None = None) -> None:
        self.zk = zk
        self.brokers = Brokers()
        self.store: Store = store or open_kazoo(zk, 30_000)  # the observer's session outlives the observed processes
        self._services: list[tuple[CoordinatorService, Task]] = []
        self._sessions: dict[CoordinatorService, Store] = {}
        self.consumers: list[PollingConsumer] = []

    # ---- starting things

    def coordinator(
        self,
        node: str = "",
        zk: str | None = None,
        assignor: Assignor | None = None,
        wrap: Callable[[Store], Store] = lambda store: store,
        metrics: CoordinatorMetrics | None = None,
        **options: Any,
    ) -> CoordinatorService:
        options.setdefault("session_timeout_ms", SESSION_MS)
        options.setdefault("group_initial_rebalance_delay_ms", 0)
        for rescue in ("sweep_interval_ms", "assignment_timeout_ms", "checkpoint_interval_ms", "drain_timeout_ms"):
            options.setdefault(rescue, FAR_OFF_MS)
        config = CoordinatorConfig(zk=zk or self.zk, node=node or f"node-{ThreadRuntime().random_id()[:6]}", **options)
        opener = kazoo_factory(config.zk, config.session_timeout_ms, access=config.access)

        def open_and_note() -> Store:
            self._sessions[service] = wrap(opener())
            return self._sessions[service]

        assignors = None if assignor is None else only(assignor)
        service = CoordinatorService(config, open_and_note, ThreadRuntime(), assignors, metrics)
        self._services.append((service, ThreadRuntime().spawn(service.run, config.node)))
        return service

    @property
    def has_coordinator(self) -> bool:
        """Whether one was ever started."""
        return bool(self._services)

    def session_of(self, service: CoordinatorService) -> Store:
        """The session that a coordinator has now."""
        return self._sessions[service]

    def front(self, kind: type[F]) -> F:
        """The store in front of the session of the only coordinator, which was started with `wrap=kind`."""
        ((service, _),) = self._services
        found = self.session_of(self.elected(service))
        assert isinstance(found, kind)
        return found

    def elected(
        self,
        *services: CoordinatorService,
        above: int = 0,
        timeout_s: float = 15.0,
        wait: Waiting = eventually,
    ) -> CoordinatorService:
        """The one of `services` that is elected, once it is, in an epoch above `above`."""

        def look() -> CoordinatorService:
            found = [(service, term) for service in services if (term := service.term) and term.epoch > above]
            assert len(found) == 1, [service.term for service in services]
            node = self.store.get(COORDINATOR)
            assert node is not None and CoordinatorRecord.parse(COORDINATOR, node.data).epoch == found[0][1].epoch
            return found[0][0]

        return wait(look, timeout_s, "exactly one node is elected")

    def elected_node(self, epoch: int, timeout_s: float = 20.0, wait: Waiting = eventually) -> str:
        """The node that is elected in `epoch`, once one is, in whichever process."""

        def look() -> str | None:
            data = self.data(COORDINATOR)
            record = CoordinatorRecord.parse(COORDINATOR, data) if data else None
            return record.node if record and record.epoch == epoch else None

        return wait(look, timeout_s, f"a node is elected in epoch {epoch}") or ""

    def stop_coordinator(self, service: CoordinatorService) -> None:
        service.stop()
        next(thread for other, thread in self._services if other is service).join(10)

    def topic(self, name: str, partitions: int) -> Topic:
        return create_topic(self.store, self.brokers, name, partitions)

    def more_partitions(self, name: str, partitions: int) -> None:
        """Let a topic have `partitions`, as Kafka does: in the data of its znode."""
        path = self.brokers.topic(name)
        node = self.store.get(path)
        assert node is not None
        topic = Topic.parse(path, name, node.data, node.stat.czxid)
        self.put(path, replace(topic, partitions=tuple(range(partitions))).to_bytes())

    def consumer(self, group: str, name: str, topics: dict[str, int], **options: Any) -> PollingConsumer:
        made = PollingConsumer(options.pop("zk", self.zk), group, name, topics, **options)
        self.consumers.append(made)
        return made

    # ---- what an operator, or bad luck, does

    def put(self, path: str, data: bytes = b"") -> None:
        """Make a znode with its parents, or overwrite its data, as with zkCli."""
        parents = path.split("/")[1:-1]
        ensure(self.store, ["/" + "/".join(parents[: depth + 1]) for depth in range(len(parents))])
        node = self.store.get(path)
        self.store.commit([Create(path, data) if node is None else SetData(path, data)])

    def remove(self, path: str) -> None:
        """Remove a znode with everything below it, as zkCli's `deleteall`, while others may be writing there."""

        def is_gone() -> bool:
            listing = self.store.children(path)
            for name in listing.names if listing else []:
                self.remove(f"{path}/{name}")
            if listing is not None:
                self.store.commit([Delete(path)])
            return True

        eventually(is_gone, 10, f"{path} is gone", ignoring=(Refused,))

    # ---- looking

    def data(self, path: str) -> bytes | None:
        node = self.store.get(path)
        return node.data if node is not None else None

    def names(self, path: str) -> list[str]:
        listing = self.store.children(path)
        return sorted(listing.names) if listing else []

    def commands(self, group: str, consumer: str) -> list[Command]:
        """The commands in a channel, the oldest first."""
        paths = GroupPaths(group)
        found = [self.data(paths.command(consumer, name)) for name in self.names(paths.channel(consumer))]
        return [Command.parse("command", data) for data in found if data is not None]

    def created_commands(self, group: str, consumer: str) -> int:
        """How many commands have ever been sent to a consumer."""
        return self._ever_created(GroupPaths(group).channel(consumer))

    def registrations(self, group: str) -> int:
        """How often consumers have ever registered."""
        return self._ever_created(GroupPaths(group).ids)

    def _ever_created(self, path: str) -> int:
        # cversion counts created and deleted children.
        node = self.store.get(path)
        assert node is not None
        return (node.stat.cversion + node.stat.children) // 2

    def history(self, group: str) -> list[Rebalance]:
        paths = GroupPaths(group)
        found = [self.data(f"{paths.history}/{name}") for name in self.names(paths.history)]
        return [Rebalance.parse("history", data) for data in found if data is not None]

    def state(self, group: str) -> GroupState:
        node = self.store.get(GroupPaths(group).state)
        return GroupState.parse("state", node.data) if node else GroupState()

    def channel(self, group: str, consumer: str) -> Channel:
        node = self.store.get(GroupPaths(group).channel(consumer))
        return parsed_channel("channel", node.data if node else b"")

    def stable(
        self, group: str, members: int, timeout_s: float = 15.0, above: int = 0, wait: Waiting = eventually
    ) -> GroupState:
        """The group's state, once it is Stable with so many members, in a generation above `above`."""

        def look() -> GroupState:
            state = self.state(group)
            assert (state.state, len(state.target)) == ("Stable", members), state
            assert state.generation > above, state
            return state

        return wait(look, timeout_s, f"{group} is Stable with {members} members")

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """A group's offsets: of running partitions from the channels, of the others from `offsets/`.

        Channels are read first: what ends meanwhile goes from there to `offsets/`, in one multi.
        """
        paths = GroupPaths(group)
        running = [self.channel(group, name).running for name in self.names(paths.channels)]
        found = {
            TopicPartition(topic, int(number)): OffsetRecord.parse("", data).offset
            for topic in self.names(paths.offsets)
            for number in self.names(paths.offsets_of(topic))
            if (data := self.data(paths.offset(topic, int(number)))) is not None
        }
        return found | {part: offset for some in running for part, offset in some.items() if offset is not None}

    def owners(self, group: str) -> dict[TopicPartition, str]:
        paths = GroupPaths(group)
        found: dict[TopicPartition, str] = {}
        topics = self.store.children(paths.owners)
        for topic in topics.names if topics else []:
            listing = self.store.children(paths.owners_of(topic))
            for number in listing.names if listing else []:
                node = self.store.get(paths.owner(topic, int(number)))
                if node is not None:
                    found[TopicPartition(topic, int(number))] = node.data.decode()
        return found

    def delivered_once(self, topic: str, partitions: int, end: int, *, again: int = 0) -> None:
        """S5: of `topic`, every record up to `end` was polled, and none was committed twice.

        :param again: so many may have been.
        """
        wanted = {(TopicPartition(topic, number), offset) for number in range(partitions) for offset in range(end)}
        polled = {item for consumer in self.consumers for item in consumer.polled.copy() if item[0].topic == topic}
        assert wanted - polled == set(), f"{len(wanted - polled)} records were never polled"
        committed = Counter(item for c in self.consumers for item in c.records if item[0].topic == topic)
        twice = sorted(item for item, times in committed.items() if times > 1)
        assert len(twice) <= again, f"{len(twice)} records were committed twice: {twice[:5]}"

    def close(self) -> None:
        for consumer in self.consumers:
            with suppress(Exception):
                consumer.close()
        for service, thread in self._services:
            service.stop()
            thread.join(10)
        self.store.close()


@contextmanager
def a_world(zk: str) -> Iterator[World]:
    """A world that is taken down after the test, also after a failure."""
    world = World(zk)
    try:
        yield world
    finally:
        world.close()


def parts(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    """Partitions of one topic."""
    return frozenset(TopicPartition(topic, number) for number in numbers)


def expire(store: Store) -> None:
    """End a session as the server does at its timeout."""
    if isinstance(store, SimStore):
        store.expire()
        return
    client: Any = store._client  # type: ignore[attr-defined]
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    twin = KazooClient(hosts=hosts, client_id=client.client_id, timeout=client.negotiated_ms / 1000)
    twin.start(timeout=10)
    twin.stop()
    twin.close()
