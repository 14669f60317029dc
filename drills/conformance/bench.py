"""The stage of one scenario: its processes, its conditions to wait for, and the kit's writes to the group."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count as numbers_from
from pathlib import Path
from typing import TypeVar

from zk_group.coordinator.admin.control import pause, resume
from zk_group.coordinator.admin.groups import ShownGroup
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.store import Create, Delete, Store
from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, Registration, Topic, parsed_channel

from ..base.processes import INTERRUPTS, NotReached, Process, wait_for
from ..base.settings import Settings
from ..environments.base import Environment
from ..faults.proxy import MULTI, Loss, op_code
from ..testbed.commands import READY_S
from ..testbed.testbed import Stage
from .event_lines import ENDED, EventLines, NotConforming, Trial, Trials, require

T = TypeVar("T")
GROUP, TOPIC = "g", "t"
LONG_SESSION_FACTOR = 3


STATIC_MEMBERS = "static-members"
WILDCARDS = "wildcards"
OPTIONAL = (STATIC_MEMBERS, WILDCARDS)
"""Optional features of a consumer."""


@dataclass(frozen=True)
class Scenario:
    """One scenario, made of a function by `@partial(Scenario, NAME, TITLE)`.

    :ivar title: the required behaviour of the consumer.
    :ivar act: starts the processes, acts, and compares.  :raises NotConforming: with the consumer's deviation.
    :ivar needs: the feature that it requires of the consumer; "" for none.
    :ivar partitions: of the topic.
    :ivar nodes: coordinators started before it.
    :ivar long_sessions: whether sessions outlast the scenario's suspensions.
    :ivar max_poll_interval_ms: of its consumers.
    :ivar repeats: whether a consumer may repeat records in it.
    """

    name: str
    title: str
    act: Callable[[Bench], None]
    needs: str = ""
    partitions: int = 4
    nodes: int = 1
    long_sessions: bool = False
    max_poll_interval_ms: int = 60_000
    repeats: bool = False


@dataclass(frozen=True)
class Ground:
    """The common context of a run's scenarios.

    :ivar folder: gets a folder for each scenario.
    :ivar consumer: the command line of the consumer under trial.
    """

    environment: Environment
    folder: Path
    consumer: Sequence[str]
    session_timeout_ms: int


class Bench(Stage):
    """One scenario's processes. The context manager ends all of them.

    :ivar topics: the created topics by name, the newest of each name.
    :ivar written: as in `trials`.
    """

    def __init__(self, scenario: Scenario, ground: Ground) -> None:
        session_ms = ground.session_timeout_ms * (LONG_SESSION_FACTOR if scenario.long_sessions else 1)
        sizes = Settings(nodes=scenario.nodes, partitions=scenario.partitions, group=GROUP, topic=TOPIC)
        poll_ms = scenario.max_poll_interval_ms
        settings = replace(sizes, session_timeout_ms=session_ms, max_poll_interval_ms=poll_ms)
        chroot = ground.environment.chroot_of(f"kit-{scenario.name}")
        super().__init__(ground.environment, ground.folder / scenario.name, chroot, settings, 0, "conformance")
        self.scenario = scenario
        self.paths = GroupPaths(GROUP)
        self.topics: dict[str, Topic] = {}
        self.trials = Trials()
        self.written = self.trials.written
        self._consumer = ground.consumer

    # ---- processes

    def start_all(self) -> None:
        """Create the topic, and start coordinators."""
        self.topic()
        for number in range(self.settings.nodes):
            self.start_node(f"node-{number + 1}")

    def start_node(self, name: str, *more: str) -> Process:
        return super().start_node(name, "--group-initial-rebalance-delay-ms", "0", *more)

    def consumer(self, name: str, process: str = "", **options: str) -> Trial:
        """Start a process of the consumer under trial.

        :param process: its name as a process; that of the consumer by default.
        :param options: replaced or added options; an empty one is left out.
        """
        process = process or name
        given = {
            "zk": self._proxies.hosts(process), "group": GROUP, "consumer": name, "topics": f"{TOPIC}:1",
            "log-dir": str(self.folder / "log"), "session-timeout-ms": str(self.settings.session_timeout_ms),
            "max-poll-interval-ms": str(self.settings.max_poll_interval_ms), "protocols": "range",
            **{option.replace("_", "-"): value for option, value in options.items()},
        }  # fmt: skip
        words = [word for option, value in given.items() if value for word in (f"--{option}", value)]
        started = self._start(process, [*self._consumer, *words, "--events"])
        trial = self.trials[process] = Trial(name, started)
        return trial

    def leave(self, trial: Trial) -> EventLines:
        """SIGTERM; the consumer leaves, prints `shutdown_complete`, and ends with exit code 0. Returns its events."""
        trial.process.terminate()
        code = trial.process.wait(READY_S)
        require(code is not None, f"{trial.process.name} does not end within {READY_S:.0f} s of SIGTERM")
        require(code == 0, f"{trial.process.name} ends with exit code {code} after SIGTERM, not with 0")
        events = trial.events()
        require(ENDED in events.names, f"{trial.process.name} ends without shutdown_complete")
        self.gone(trial.process, "left")
        return events

    # ---- faults

    def suspend(self, trial: Trial) -> None:
        """SIGSTOP, until the scenario sends SIGCONT."""
        self.fault("pause", READY_S, process=trial.process.who)
        trial.process.pause()

    def mute(self, trial: Trial) -> None:
        """Hold back all replies of ZooKeeper to a consumer, except those to pings, until `join`."""
        self.fault("mute", READY_S, process=trial.process.who)
        for proxy in self._proxies.of[trial.process.name]:
            proxy.mute()

    def withdraw_at(self, trial: Trial, nth: int) -> Loss:
        """Lose the nth multi with a command from now on of a consumer, and withdraw the command before it notices."""
        prefix = self.paths.command_prefix(trial.name).encode()
        found = numbers_from(1)

        def is_it(request: bytes) -> bool:
            return op_code(request) == MULTI and prefix in request and next(found) == nth

        def withdraw() -> None:
            for name in self.commands(trial.name):
                self.store.commit([Delete(self.paths.command(trial.name, name))])

        return self.lose(trial.process.name, Loss(is_it, is_request=True, then=withdraw))

    # ---- topics and records

    def topic(self, name: str = TOPIC) -> None:
        """Create a topic with the scenario's partitions."""
        self.topics[name] = create_topic(self.store, Brokers(), name, self.settings.partitions)

    def produce(self, count: int = 20, topic: str = TOPIC, partitions: Sequence[int] | None = None) -> None:
        """Write `count` records into each partition of the topic, or into each of `partitions`."""
        from zk_group.consumer.logs.embedded.producer import Producer  # a command that is only listed loads no pyarrow

        producer = Producer.for_store(self.store, self.folder / "log", Brokers())
        for number in partitions if partitions is not None else range(self.settings.partitions):
            part = TopicPartition(topic, number)
            first = self.written.get(part, 0)
            producer.send_batch(topic, number, [str(first + each).encode() for each in range(count)])
            self.written[part] = first + count

    def consumed(self) -> None:
        """Wait until all produced records are consumed, and committed in ZooKeeper."""
        what = "all records are consumed and their offsets committed"
        pairs = self.written.items()
        self.wait(lambda: pairs <= {(each.partition, each.offset) for each in self.group().partitions}, what)
        self.wait(lambda: not self.trials.unconsumed(), "the lines show all records")

    def flow(self, *names: str) -> None:
        """Write records into each partition once the group is settled, and wait until they are consumed.

        :param names: the members; without any the present ones, settled or not.
        """
        if names:
            self.settled(*names)
        self.produce()
        self.consumed()

    def consuming(self, partitions: Sequence[int] | None = None) -> tuple[Trial, str]:
        """The consumer c1, after it has consumed and committed records of these partitions or all; its incarnation."""
        self.settled("c1")
        self.produce(partitions=partitions)
        self.consumed()
        trial = self.trials["c1"]
        self.wait(lambda: trial.events().committed == self.written, "c1 prints offsets_committed for all records")
        return trial, self.channel("c1").incarnation

    # ---- the znodes

    def channel(self, name: str) -> Channel:
        """The channel of a consumer.

        :raises NotConforming: when it cannot be read.
        """
        return _record(self.store, self.paths.channel(name), parsed_channel)[0]

    def registration(self, name: str) -> tuple[Registration, int]:
        """The registration of a consumer, and the session that holds it.

        :raises NotConforming: when there is none, or it cannot be read.
        """
        return _record(self.store, self.paths.id(name), Registration.parse)

    def commands(self, name: str) -> frozenset[str]:
        """All children of a consumer's channel."""
        listing = self.store.children(self.paths.channel(name))
        return frozenset(listing.names) if listing is not None else frozenset()

    # ---- the kit's writes to the group

    def hold_still(self) -> None:
        """Pause the group: the coordinator sends and withdraws nothing, so that only the kit's commands count."""
        pause(self.store, GROUP, "the conformance kit", 0, None)
        logs = list((self.folder / "logs").glob("node-*.log"))
        line = f"paused: group={GROUP}"
        self.wait(lambda: any(line in path.read_text() for path in logs), "the coordinator has paused the group")

    def go_on(self) -> None:
        """Resume it."""
        resume(self.store, GROUP)

    def send(self, name: str, **fields: object) -> None:
        """Create a command in a consumer's channel, of its incarnation, epoch, generation and topic.

        :param fields: replaced or added fields.
        """
        channel = self.channel(name)
        own = {"version": 1, "epoch": channel.epoch, "generation": channel.generation}
        of = {"incarnation": channel.incarnation, "topics": {TOPIC: self.topics[TOPIC].id}}
        self.send_raw(name, json.dumps({**own, **of, **fields}).encode())

    def send_raw(self, name: str, data: bytes) -> None:
        """Create a command with any data in a consumer's channel."""
        self.store.commit([Create(self.paths.command_prefix(name), data, sequential=True)])

    # ---- waiting

    def wait(self, look: Callable[[], T | None], what: str, timeout_s: float = READY_S) -> T:
        """The first truthy result of `look`.

        :raises NotReached: after `timeout_s`, or when the kit is interrupted.
        """

        def looked() -> T | None:
            if INTERRUPTS.is_ending:
                raise NotReached("interrupted")
            return look()

        return wait_for(looked, timeout_s, what)

    def stand_still(self, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        """Call `look` repeatedly for `seconds`; it raises at a deviation."""
        deadline = time.monotonic() + seconds

        def is_over() -> bool:
            look()
            return time.monotonic() >= deadline

        self.wait(is_over, "the time passes", seconds + READY_S)

    def removed(self, name: str) -> None:
        """Wait until a consumer's channel has no command."""
        self.wait(lambda: not self.commands(name), f"{name} removes every command of its channel")

    def settled(self, *names: str, topics: Sequence[str] = (TOPIC,), timeout_s: float = READY_S) -> ShownGroup:
        """The group, once it is Stable with exactly these members, and their lines agree with their channels.

        :param names: the members; missing processes are started.
        :param topics: all their partitions must run.
        """
        for name in sorted(set(names) - {trial.name for trial in self.trials.values()}):
            self.consumer(name)
        every = {part for topic in topics for part in self.partitions(topic)}

        def is_settled() -> ShownGroup | None:
            shown = self.group()
            running = {m.consumer: set(m.channel.running) if m.channel else set() for m in shown.members}
            parts = [part for name in names for part in running.get(name, ())]
            is_stable = shown.state.state == STABLE and set(shown.state.target) == set(names)
            if not is_stable or any(member.commands for member in shown.members) or not each_runs_once(parts, every):
                return None
            held = {trial.name: trial.events().held for trial in self.trials.values()}  # of the last process of each
            return shown if all(held.get(name, set()) == running.get(name, set()) for name in names) else None

        return self.wait(is_settled, f"the group is Stable with {', '.join(names)}, whose lines agree", timeout_s)


def each_runs_once(running: Collection[TopicPartition], wanted: set[TopicPartition]) -> bool:
    """Whether every wanted partition runs, and none in two channels."""
    return len(running) == len(set(running)) and wanted <= set(running)


def _record(store: Store, path: str, parse: Callable[[str, bytes], T]) -> tuple[T, int]:
    node = store.get(path)
    if node is None:
        raise NotConforming(f"{path} does not exist")
    try:
        return parse(path, node.data), node.stat.ephemeral_owner
    except BadData as error:
        raise NotConforming(f"{path} cannot be read: {error}") from error
