"""A group for benchmarks: a real ZooKeeper server, coordinator nodes in processes, members in threads or processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from common import start_node
from demo.secured import secure

from consumer.config import COORDINATOR_SIDE, ConsumerConfig, Subscription
from consumer.consumer import Consumer
from coordinator.admin.topics import alter_topic, create_topic, get_topic
from coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from coordinator.zk.security.access import ZooKeeperAccess, environment_of
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Node as Znode
from coordinator.zk.znodes.group_state import STABLE, GroupState
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, Brokers, GroupPaths
from coordinator.zk.znodes.records import EpochRecord, OwnerRecord, parsed_channel
from drills.base.processes import Process, end_all, module_command, wait_for

T = TypeVar("T")

GROUP = "bench"
TOPIC = "load"
LOOK_S = 0.02
PATIENCE_S = 120.0
LEAVE_S = 30.0


class Owner(NamedTuple):
    """A partition's owner: the znode's `czxid`, and its creation time."""

    consumer: str
    czxid: int
    since_ms: int


def says(folder: Path, process: Process, what: str) -> bool:
    """Whether the log of a process has a line with `what`."""
    return what in (folder / f"{process.name}.log").read_text(errors="replace")


class Member(Process):
    """A consumer in its own process."""

    def end(self) -> None:
        """Leave the group."""
        self.terminate()
        if self.wait(LEAVE_S) is None:
            self.kill()


class ThreadMember:
    """A consumer whose thread in this process polls.

    :param most: records of a poll.
    """

    def __init__(self, config: ConsumerConfig, topic: str = TOPIC, most: int | None = None) -> None:
        self.consumer = Consumer(config, Subscription({topic: 1}))
        self._most = most
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name=config.consumer, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self.consumer.poll(1000, self._most)

    def end(self) -> None:
        """Leave the group."""
        self._stopping.set()
        self.consumer.member.wake.set()
        self._thread.join()
        self.consumer.close()


class Group:
    """One group with its servers and processes. The context manager stops all of them.

    :param is_secure: TLS, SASL, and ACLs of a policy that is closed for reading.
    """

    def __init__(
        self,
        folder: Path,
        partitions: int,
        session_timeout_ms: int,
        as_processes: bool,
        strategy: str,
        assignment: str = COORDINATOR_SIDE,
        is_secure: bool = False,
    ) -> None:
        self._is_secure = is_secure
        self.assignment = assignment
        self.folder = folder
        self.partitions = partitions
        self.session_timeout_ms = session_timeout_ms
        self._as_processes = as_processes
        self._strategy = strategy
        self._ensemble = Ensemble(folder / "zookeeper", EnsembleConfig(servers=1, tls=is_secure, auth=is_secure))
        self._count = 0
        self.paths = GroupPaths(GROUP)
        self.nodes: list[Process] = []
        self.members: dict[str, ThreadMember | Member] = {}

    def __enter__(self) -> Self:
        self._ensemble.__enter__()
        try:
            self.store = open_kazoo(self.hosts, 30_000, access=self._access("operator"))
            if self._is_secure:
                secure(self.store, self._ensemble.identities, {GROUP: "team-a"})
            create_topic(self.store, Brokers(), TOPIC, self.partitions)
            for _ in range(2):
                self.add_node()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members.values():
            with contextlib.suppress(Exception):
                member.end()
        end_all(self.nodes)
        with contextlib.suppress(Exception):
            self.store.close()
        self._ensemble.__exit__(kind, error, trace)

    def _access(self, identity: str) -> ZooKeeperAccess:
        return self._ensemble.identities.access(identity)

    def _variables(self, identity: str) -> dict[str, str]:
        return environment_of(self._access(identity))

    @property
    def hosts(self) -> str:
        """The server's address, for `--zk`."""
        return self._ensemble.hosts

    @property
    def negotiated_timeout_s(self) -> float:
        """The session timeout that ZooKeeper grants: between 2 and 20 ticks."""
        tick_s = self._ensemble.config.tick_ms / 1000
        return min(max(self.session_timeout_ms / 1000, 2 * tick_s), 20 * tick_s)

    @property
    def tick_s(self) -> float:
        """ZooKeeper's tick."""
        return self._ensemble.config.tick_ms / 1000

    # ---- nodes

    def add_node(self) -> Process:
        """Start another coordinator node, which joins the election."""
        self._count += 1
        name = f"node-{self._count}"
        options = ["--session-timeout-ms", str(self.session_timeout_ms)]
        made = start_node(self.folder, name, self.hosts, *options, variables=self._variables("coordinator"))
        self.nodes.append(made)
        eventually(lambda: says(self.folder, made, "election joined"), f"{name} joins the election")
        return made

    def elected(self) -> Process:
        """The elected node."""
        found = eventually(lambda: self.store.get(COORDINATOR), "a node is elected")
        return next(node for node in self.nodes if f'"{node.name}"'.encode() in found.data)

    def epoch(self) -> int:
        """The epoch of the last election."""
        node = self.store.get(COORDINATOR_EPOCH)
        return EpochRecord.parse(COORDINATOR_EPOCH, node.data).epoch if node else 0

    # ---- members

    def add_member(self) -> str:
        """Start another member; returns when it starts to register."""
        self._count += 1
        name = f"member-{self._count:04d}"
        self.members[name] = self.start_member(name)
        return name

    def start_member(self, name: str) -> ThreadMember | Member:
        """A member that starts to register."""
        hosts, timeout = self.hosts, self.session_timeout_ms
        if self._as_processes:
            options = ["run", "--zk", hosts, "--group", GROUP, "--consumer", name, "--topics", TOPIC]
            options += [
                "--log-dir",
                str(self.folder / "log"),
                "--session-timeout-ms",
                str(timeout),
                "--protocols",
                self._strategy,
            ]
            options += ["--assignment", self.assignment]
            return Member(self.folder, name, module_command("consumer.cli", options), self._variables("team-a"))
        config = ConsumerConfig(
            zk=hosts,
            group=GROUP,
            consumer=name,
            log_dir=str(self.folder / "log"),
            assignment=self.assignment,
            protocols=(self._strategy,),
            session_timeout_ms=timeout,
            **asdict(self._access("team-a")),
        )
        return ThreadMember(config)

    def remove_member(self, name: str) -> None:
        """Stop it in order: it leaves the group."""
        self.members.pop(name).end()

    # ---- the state of the group

    def state(self) -> GroupState:
        """The group's current state."""
        return self.state_node()[0]

    def state_node(self) -> tuple[GroupState, Znode | None]:
        """The group's state with its znode."""
        node = self.store.get(self.paths.state)
        return (GroupState.parse(self.paths.state, node.data) if node else GroupState()), node

    def settled(self, above: int) -> GroupState:
        """The state, once it is Stable with all members and partitions in a generation above `above`."""

        def look() -> GroupState | None:
            state = self.state()
            done = state.state == STABLE and state.generation > above and set(state.target) == set(self.members)
            return state if done else None

        state = eventually(look, f"{len(self.members)} members are settled")
        held = [part for target in state.target.values() for part in target.partitions]
        partitions = len(self._topic_partitions())
        if len(held) != partitions or len(set(held)) != partitions or len(self.owner_times()) != partitions:
            raise RuntimeError(f"Stable, but {len(held)} of {partitions} partitions are assigned")
        return state

    def _topic_partitions(self) -> tuple[int, ...]:
        return get_topic(self.store, Brokers(), TOPIC).partitions

    def add_partition(self) -> None:
        """A change that only a coordinator acts on."""
        alter_topic(self.store, Brokers(), TOPIC, len(self._topic_partitions()) + 1)

    def owner_times(self) -> list[int]:
        """The creation time of each owner znode, on ZooKeeper's clock."""
        return [owner.since_ms for owner in self.owners().values()]

    def owners(self) -> dict[int, Owner]:
        """The owner of each partition."""
        listing = self.store.children(self.paths.owners_of(TOPIC))
        numbers = [int(name) for name in (listing.names if listing else [])]
        nodes = self.store.get_many([self.paths.owner(TOPIC, number) for number in numbers])
        found = {}
        for number, node in zip(numbers, nodes, strict=True):
            if node is not None:
                consumer = OwnerRecord.parse("an owner", node.data).consumer
                found[number] = Owner(consumer, node.stat.czxid, node.stat.ctime_ms)
        return found

    def written_at(self, name: str) -> int:
        """The time of the last write to a member's channel, on ZooKeeper's clock."""
        node = self.store.get(self.paths.channel(name))
        return node.stat.mtime_ms if node is not None else 0

    def commands_ever(self) -> int:
        """The number of commands sent to the current members since their channels exist."""
        nodes = self.store.get_many([self.paths.channel(name) for name in self._channels()])
        # cversion counts created and deleted children.
        return sum((node.stat.cversion + node.stat.children) // 2 for node in nodes if node)

    def left_at(self, name: str) -> int:
        """The end of a member's incarnation, on ZooKeeper's clock."""
        node = self.store.get(self.paths.channel(name))
        if node is None or parsed_channel(name, node.data).is_live:
            raise RuntimeError(f"{name} has not left")
        return node.stat.mtime_ms

    def joined_at(self, name: str) -> int:
        """The commit of a member's registration, on ZooKeeper's clock."""
        return eventually(lambda: self.store.get(self.paths.id(name)), f"{name} is registered").stat.ctime_ms

    def _channels(self) -> list[str]:
        listing = self.store.children(self.paths.channels)
        return listing.names if listing else []


def eventually(look: Callable[[], T | None], what: str) -> T:
    """The first truthy result of `look`."""
    return wait_for(look, PATIENCE_S, what, LOOK_S)
