"""Client-side assignment in tests: scripted assignors, members that a test polls, commits that it intercepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tests.support.hand import SESSION_MS, Hand, ManualStage, Wrap
from tests.support.hand_polled import HandPolled
from tests.support.memlog import MemoryLog, from_the_beginning
from tests.support.stores import Act, FrontStore, nothing
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.assignment.base import Assignment, ClientAssignor, Cluster
from zk_group.consumer.assignment.consumers import ConsumerProtocol, client_assignors
from zk_group.consumer.assignment.metadata import ConsumerMetadata
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.errors import AssignmentFailed
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.consumer.membership.channel import FencedChannel
from zk_group.consumer.membership.client_assignment import ClientAssignment
from zk_group.consumer.membership.member import CommandDrain
from zk_group.consumer.membership.offsets import CommittedOffsets
from zk_group.coordinator.rebalance.rebalancer import Turn
from zk_group.coordinator.zk.errors import SessionLost
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Create, Operation, SetData, Store
from zk_group.coordinator.zk.znodes.group_state import CLIENT, STABLE, Ask, ClientProtocols, GroupState, encoded
from zk_group.coordinator.zk.znodes.partitions import PartitionSet
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import ASSIGN, Command, parsed_channel

F = TypeVar("F", bound=FrontStore)
PATHS = GroupPaths("g")
Given = Mapping[str, Assignment]
Match = Callable[[Sequence[Operation]], bool]


class ProcessKilled(BaseException):
    """The process ends here: no handler catches it."""


def unchanged(found: Given) -> Given:
    return found


class Scripted(ClientAssignor):
    """Decides as a built-in strategy does; before it the test acts, and after it the test may change the answer.

    :ivar before: called when the leader begins to assign.  :ivar answer: makes of the strategy's answer what is given.
    :ivar writes: makes of the member's metadata what is registered.
    :ivar calls: how often it was asked.  :ivar seen: the metadata of each call.
    :ivar heard: (member state, generation) of each `on_assignment`.
    """

    def __init__(self, like: str = "range", name: str = "scripted") -> None:
        strategy = client_assignors()[like]
        self.name, self.is_cooperative, self._strategy = name, strategy.is_cooperative, strategy
        self.before: Act = nothing
        self.answer: Callable[[Given], Given] = unchanged
        self.writes: Callable[[bytes], bytes] = bytes
        self.calls = 0
        self.seen: list[Mapping[str, bytes]] = []
        self.heard: list[tuple[bytes, int]] = []

    def metadata(self, subscription: ConsumerMetadata) -> bytes:
        return self.writes(self._strategy.metadata(subscription))

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Given:
        self.calls += 1
        self.seen.append(dict(metadata))
        self.before()
        found = self._strategy.assign(cluster, metadata)
        return self.answer({name: Assignment(one.threads, f"for {name}".encode()) for name, one in found.items()})

    def on_assignment(self, assignment: Assignment, member_state: bytes, generation: int) -> None:
        self.heard.append((member_state, generation))


class ThreadGate:
    """A point at which a thread waits for the test."""

    def __init__(self) -> None:
        self.reached = ThreadRuntime().event()
        self._open = ThreadRuntime().event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


# ---- members that the test polls


class Polled(HandPolled):
    """One with client-side assignment that takes part only while the test polls it."""

    def __init__(self, world: World, name: str, assignor: ClientAssignor, wrap: Wrap, **options: Any) -> None:
        opener = kazoo_factory(world.zk, SESSION_MS)
        options = {"assignment": "client", "session_timeout_ms": SESSION_MS, **options}
        super().__init__(world, name, MemoryLog(), ("t",), lambda: wrap(opener()), [assignor], **options)
        self.name = name
        self._world = world
        self.failures: list[AssignmentFailed] = []
        self.obey()

    @property
    def stops(self) -> list[PartitionSet]:
        """What it has stopped, or lost, each time."""
        return [partitions for what, partitions in self.events if what != "assigned"]

    def obey(self) -> None:
        """Register, and apply every command in the channel, with or without its watch event."""
        self.consumer.member.wake.set()
        try:
            self.poll(0)
        except AssignmentFailed as failure:
            self.failures.append(failure)

    def commands(self) -> list[Command]:
        """The commands in its channel, the oldest first."""
        return self._world.commands("g", self.name)

    @property
    def held(self) -> PartitionSet:
        return self.consumer.assignment()


class HandStage:
    """Group `g` of members that the test polls, with coordinators whose every turn it takes.

    :param like: the strategy of the members' assignors.
    :ivar members: those that take part.  :ivar hand: the newest coordinator.  :ivar front: the store in front of it.
    :ivar fronts: the store in front of each member's newest session.
    :ivar before: the state in which the group began.  :ivar first_ask: the ask whose answer that is.
    """

    hand: Hand
    front: Hooked
    before: GroupState
    first_ask: str

    def __init__(self, world: World, stage: ManualStage, like: str = "range") -> None:
        self.world = world
        self.stage = stage
        self.members: list[Polled] = []
        self.assignors: dict[str, Scripted] = {}
        self.fronts: dict[str, Hooked] = {}
        self._like = like
        self._closing: list[Polled] = []

    def topic(self, name: str, partitions: int) -> None:
        self.stage.topics[name] = self.world.topic(name, partitions)

    def more_partitions(self, name: str, partitions: int) -> None:
        """The number of partitions that coordinators and other readers use from now on."""
        self.world.more_partitions(name, partitions)
        self.stage.topics[name] = replace(self.stage.topics[name], partitions=tuple(range(partitions)))

    def member(self, name: str, **options: Any) -> Polled:
        """A member of topic `t` that has registered; its assignor is `assignors[name]`."""

        def wrap(store: Store) -> Store:
            self.fronts[name] = Hooked(store)
            return self.fronts[name]

        assignor = self.assignors.setdefault(name, Scripted(self._like))
        made = Polled(self.world, name, assignor, wrap, **options)
        self.members.append(made)
        self._closing.append(made)
        return made

    def coordinator(self, node: str = "second") -> None:
        """The next coordinator is elected."""
        fronts = Fronts(Hooked)
        self.hand = self.stage.hand(node, wrap=fronts)
        self.front = fronts[0]

    def fails_over(self) -> None:
        """The coordinator dies between two turns, and the next is elected."""
        self.hand.close()
        self.coordinator()

    def begins(self, **leader: Any) -> None:
        """A first coordinator makes a group of c1, which leads, and c2."""
        self.coordinator("first")
        self.member("c1", **leader)
        self.member("c2")
        self.before = self.settled()
        assert self.before.client is not None
        self.first_ask = self.before.client.ask
        assert (self.before.generation, self.calls) == (1, 1)
        for member in self.members:
            member.events.clear()

    @property
    def state(self) -> GroupState:
        return self.world.state("g")

    @property
    def stops(self) -> list[int]:
        """How often each member has stopped something, or lost it."""
        return [len(member.stops) for member in self.members]

    @property
    def failures(self) -> list[int]:
        """Of how many failures of a leader each member was notified."""
        return [len(member.failures) for member in self.members]

    @property
    def calls(self) -> int:
        """How often any leader's assignor was called."""
        return sum(assignor.calls for assignor in self.assignors.values())

    def turn(self) -> Turn:
        return self.hand.turn("g")

    def dies(self) -> None:
        """A turn in which the coordinator is killed."""
        with pytest.raises(SessionLost):
            self.turn()

    def asked(self, leader: str) -> Command:
        """Turns until an unread `assign` command is in the leader's channel; the command."""

        def look() -> list[Command]:
            self.turn()
            return [each for each in self.world.commands("g", leader) if each.option == ASSIGN]

        return eventually(look, 5, f"{leader} is asked")[0]

    def settled(self) -> GroupState:
        """Turns, with the members obeying in between, until the group is Stable without commands."""

        def step() -> bool:
            state = self.turn().state
            is_over = state is not None and state.state == STABLE and not any(one.commands() for one in self.members)
            for one in self.members:
                one.obey()
            return is_over

        eventually(step, 10, "g is Stable")
        return self.state

    def shares(self, everything: PartitionSet) -> None:
        """Each partition has one holder."""
        assert sorted(part for member in self.members for part in member.held) == sorted(everything)

    def close(self) -> None:
        for member in self._closing:
            with suppress(Exception):
                member.close()


# ---- znodes


def asks(world: World) -> list[str]:
    """The asks there are, in the order in which they were made."""
    return world.names(PATHS.sync)


def answered(world: World) -> list[str]:
    """Those that have an answer."""
    return [name for name in asks(world) if world.data(PATHS.answer(name)) is not None]


# ---- sessions


def writes(path: str, data: bytes = b"", *kinds: type[Create | SetData]) -> Match:
    """A commit that creates or sets such a znode: `path` and `data` anywhere in its path and data."""
    return lambda operations: any(
        isinstance(each, kinds or (Create, SetData)) and path in each.path and data in each.data for each in operations
    )


def creates(path: str, data: bytes = b"") -> Match:
    """A commit that creates such a znode."""
    return writes(path, data, Create)


class Hooked(FrontStore):
    """A session at whose commits the test does something, and which notes them.

    :ivar commits: the commits so far.  :ivar sent: how many commits were sent since the test's last reset.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._before: list[tuple[Match, Act]] = []
        self._after: list[tuple[Match, Act]] = []
        self.commits: list[Sequence[Operation]] = []
        self.sent = 0
        self.is_over = False

    def before(self, match: Match, action: Act) -> None:
        """Do this once, just before a commit that matches is sent."""
        self._before.append((match, action))

    def after(self, match: Match, action: Act) -> None:
        """Do this once, just after it has happened and before its sender knows."""
        self._after.append((match, action))

    @property
    def has_acted(self) -> bool:
        """Whether all that it was to do has been done."""
        return not self._before and not self._after

    def die(self) -> None:
        """The process is killed: its session ends, and nothing more is sent."""
        self.is_over = True
        self.behind.close()
        raise SessionLost("the test has killed the process")

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if self.is_over:
            raise SessionLost("the test has killed the process")
        self._do(self._before, operations)
        done = self.behind.commit(operations)
        self.sent += 1
        self.commits.append(tuple(operations))
        self._do(self._after, operations)
        return done

    def _do(self, hooks: list[tuple[Match, Act]], operations: Sequence[Operation]) -> None:
        for hook in hooks.copy():
            if hook[0](operations):
                hooks.remove(hook)
                hook[1]()

    # ---- what a coordinator has written

    def written(self, under: str, *kinds: type[Create | SetData]) -> list[Create | SetData]:
        """What these operations have written below a path, in order."""
        operations = [each for commit in self.commits for each in commit]
        return [each for each in operations if isinstance(each, kinds) and each.path.startswith(under)]

    def states(self) -> list[GroupState]:
        """Every state of group `g`, in order, without those that repeat the one before."""
        found = [GroupState.parse("state", each.data) for each in self.written(PATHS.state, Create, SetData)]
        return [state for place, state in enumerate(found) if found[place - 1 : place] != [state]]

    def sent_commands(self) -> list[tuple[str, Command]]:
        """Every command that was sent in group `g`, with its consumer, in order."""
        made = [each for each in self.written(PATHS.channels, Create) if "/command-" in each.path]
        return [(each.path.split("/")[-2], Command.parse("command", each.data)) for each in made]

    def made_asks(self) -> list[Ask]:
        """Every ask that was made."""
        return [Ask.parse("ask", each.data) for each in self.written(f"{PATHS.sync}/ask-", Create)]


class Fronts(list[F]):
    """Makes such a store in front of each session; those that it has made, in order."""

    def __init__(self, make: Callable[[Store], F]) -> None:
        super().__init__()
        self._make = make

    def __call__(self, store: Store) -> F:
        self.append(self._make(store))
        return self[-1]


def switches(states: Sequence[GroupState]) -> list[tuple[str, bool]]:
    """The strategies that a group has used, and whether a leader decided, one behind the other."""
    found: list[tuple[str, bool]] = []
    for state in states:
        now = (state.strategy, state.client is not None and bool(state.client.ask))
        if state.target and (not found or found[-1] != now):
            found.append(now)
    return found


# ---- members whose znodes are made by hand


class MadeLeader:
    """The leader's part of a member whose znodes were made by hand: all of it is real but the registration."""

    def __init__(self, store: Store, name: str, assignors: Sequence[ClientAssignor]) -> None:
        runtime, node = ThreadRuntime(), store.get(PATHS.channel(name))
        assert node is not None
        channel = parsed_channel("channel", node.data)
        self.fenced = FencedChannel(store, runtime, PATHS, name, channel, node.stat.version)
        config = ConsumerConfig(zk="none", group="g", consumer=name, assignment="client")
        context = MemberContext(config, runtime)
        client = ClientAssignment(context, ConsumerProtocol(context, MemoryLog(), assignors))
        self._store = store
        self._drain = CommandDrain(context, CommittedOffsets(runtime, PATHS, from_the_beginning), [client])

    def obey(self) -> None:
        """Apply every command in the channel."""
        self._drain.drain(self._store, self.fenced)


def offering(metadata: bytes, protocol: str = "range") -> dict[str, Any]:
    """Of a registration: client-side assignment by one protocol, and nothing else."""
    return {"pattern": CLIENT, "client": ClientProtocols((protocol,), {protocol: encoded(metadata)})}


def padded(size: int) -> Callable[[bytes], bytes]:
    """Makes of metadata so many bytes that say the same."""
    return lambda data: data[:-1] + b',"pad":"' + b"x" * (size - len(data) - 9) + b'"}'


def states(size: int) -> Callable[[Given], Given]:
    """Gives every member a state of so many bytes."""
    return lambda found: {name: Assignment(one.threads, b"x" * size) for name, one in found.items()}
