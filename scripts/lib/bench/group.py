"""A group for benchmarks: a real ZooKeeper server, coordinator nodes in processes, members in threads or processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from common import secure, start_node

from zk_group.consumer.config import COORDINATOR_SIDE, ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.topics import alter_topic, create_topic, usable_topics
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.security.access import environment_of
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Node as Znode
from zk_group.coordinator.zk.values import load
from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import EpochRecord, OwnerRecord, parsed_channel
from zk_group.drills.base.processes import Process, end_all, module_command, wait_for

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

    :param is_secure: TLS, SASL, and ACLs of a policy closed for reading.
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
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._ensemble)
            self.store = open_kazoo(self.hosts, 30_000, access=self._ensemble.identities.access("operator"))
            stack.callback(self.store.close)
            stack.callback(self._end)
            if self._is_secure:
                secure(self.store, self._ensemble.identities, {GROUP: "team-a"})
            create_topic(self.store, Brokers(), TOPIC, self.partitions)
            for _ in range(2):
                self.add_node()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        for member in self.members.values():
            with contextlib.suppress(Exception):
                member.end()
        end_all(self.nodes)

    @property
    def hosts(self) -> str:
        """The server's address, for `--zk`."""
        return self._ensemble.hosts

    @property
    def kill_bound_ms(self) -> int:
        """The longest detection of a killed coordinator: the session timeout granted by ZooKeeper, which is between
        2 and 20 ticks, 2 ticks and 0.5 s."""
        tick_ms = self._ensemble.config.tick_ms
        return min(max(self.session_timeout_ms, 2 * tick_ms), 20 * tick_ms) + 2 * tick_ms + 500

    # ---- nodes

    def add_node(self) -> Process:
        """Start another coordinator node, which joins the election."""
        self._count += 1
        name = f"node-{self._count}"
        options = ["--session-timeout-ms", str(self.session_timeout_ms)]
        variables = environment_of(self._ensemble.identities.access("coordinator"))
        made = start_node(self.folder, name, self.hosts, *options, variables=variables)
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

    def fields(self, name: str) -> dict[str, str | int]:
        """The configuration of a member."""
        return {
            "zk": self.hosts,
            "group": GROUP,
            "consumer": name,
            "log_dir": str(self.folder / "log"),
            "assignment": self.assignment,
            "protocols": self._strategy,
            "session_timeout_ms": self.session_timeout_ms,
        }

    def start_member(self, name: str) -> ThreadMember | Member:
        """A member at the begin of its registration."""
        access, fields = self._ensemble.identities.access("team-a"), self.fields(name)
        if self._as_processes:
            words = [f"--{field.replace('_', '-')}={value}" for field, value in fields.items()]
            command = module_command("zk_group.consumer.cli", ["run", "--topics", TOPIC, *words])
            return Member(self.folder, name, command, environment_of(access))
        return ThreadMember(load(ConsumerConfig, fields | asdict(access), env={}))

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
        if len(held) != partitions or len(set(held)) != partitions or len(self.owners()) != partitions:
            raise RuntimeError(f"Stable, but {len(held)} of {partitions} partitions are assigned")
        return state

    def _topic_partitions(self) -> tuple[int, ...]:
        return usable_topics(Reading(self.store), Brokers())[TOPIC].partitions

    def add_partition(self) -> None:
        """A change handled only by a coordinator."""
        alter_topic(self.store, Brokers(), TOPIC, len(self._topic_partitions()) + 1)

    def claimed_at(self) -> int:
        """The creation of the last owner znode, on ZooKeeper's clock."""
        return max(owner.since_ms for owner in self.owners().values())

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
        listing = self.store.children(self.paths.channels)
        nodes = self.store.get_many([self.paths.channel(name) for name in (listing.names if listing else [])])
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


def eventually(look: Callable[[], T | None], what: str) -> T:
    """The first truthy result of `look`."""
    return wait_for(look, PATIENCE_S, what, LOOK_S)
