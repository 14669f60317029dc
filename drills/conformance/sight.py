"""What the kit sees of one scenario: the group in ZooKeeper, and the lines of the processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from coordinator.admin.control import await_election
from coordinator.admin.groups import Reading, ShownGroup, read_group
from coordinator.zk.errors import BadData
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Store
from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import GroupPaths
from coordinator.zk.znodes.records import Channel, CoordinatorRecord, Registration, parsed_channel

from ..base.processes import Process
from ..base.waiting import NotReached, wait_for
from .definition import NotConforming, Scenario, require
from .event_lines import Batch, EventLines, read_lines

T = TypeVar("T")
GROUP, TOPIC = "g", "t"
WAIT_S = 30.0


class Trial:
    """One process of the consumer under trial.

    :ivar name: the consumer's name.
    :ivar former: number of its batches that were of a topic which is removed.
    """

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.former = 0

    def events(self) -> EventLines:
        """What it has printed so far.

        :raises NotConforming: when it breaks a rule of a process.
        """
        return read_lines(self.process.name, self.process.lines())

    def batches(self) -> list[Batch]:
        """What it has consumed so far, of the topics as they are now."""
        return self.events().batches[self.former :]


class Sight:
    """Reads, and waits.

    :ivar written: partition -> records produced, of the topics as they are now.
    :ivar trials: process name -> consumer process.
    """

    def __init__(self, scenario: Scenario, store: Store, stopping: threading.Event) -> None:
        self.scenario = scenario
        self.store = store
        self.paths = GroupPaths(GROUP)
        self.trials: dict[str, Trial] = {}
        self.written: dict[TopicPartition, int] = {}
        self._stopping = stopping

    def partitions(self, topic: str = TOPIC) -> frozenset[TopicPartition]:
        """The scenario's partitions of a topic."""
        return frozenset(TopicPartition(topic, number) for number in range(self.scenario.partitions))

    # ---- what stands in ZooKeeper

    def group(self) -> ShownGroup:
        """The group."""
        return read_group(Reading(self.store), GROUP)

    @property
    def generation(self) -> int:
        """The group's generation."""
        return self.group().state.generation

    def channel(self, name: str) -> Channel:
        """The channel of a consumer.

        :raises NotConforming: when it cannot be read.
        """
        path = self.paths.channel(name)
        node = self.store.get(path)
        require(node is not None, f"{path} does not exist")
        assert node is not None
        try:
            return parsed_channel(path, node.data)
        except BadData as error:
            raise NotConforming(f"{path} cannot be read: {error}") from error

    def registration(self, name: str) -> tuple[Registration, int]:
        """The registration of a consumer, and the session that holds it.

        :raises NotConforming: when there is none, or it cannot be read.
        """
        path = self.paths.id(name)
        node = self.store.get(path)
        require(node is not None, f"{path} does not exist")
        assert node is not None
        try:
            return Registration.parse(path, node.data), node.stat.ephemeral_owner
        except BadData as error:
            raise NotConforming(f"{path} cannot be read: {error}") from error

    def commands(self, name: str) -> frozenset[str]:
        """All children of a consumer's channel."""
        listing = self.store.children(self.paths.channel(name))
        return frozenset(listing.names) if listing is not None else frozenset()

    # ---- waiting

    def wait(self, look: Callable[[], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """The first truthy result of `look`.

        :raises NotReached: after `timeout_s`, or when the kit is interrupted.
        """

        def looked() -> T | None:
            if self._stopping.is_set():
                raise NotReached("interrupted")
            return look()

        return wait_for(looked, timeout_s, what)

    def stand_still(self, seconds: float, look: Callable[[], None]) -> None:
        """Call `look`, which raises when something is wrong, again and again for `seconds`."""
        deadline = time.monotonic() + seconds

        def is_over() -> bool:
            look()
            return time.monotonic() >= deadline

        self.wait(is_over, "the time passes", seconds + WAIT_S)

    def settled(self, *names: str, topics: Sequence[str] = (TOPIC,), timeout_s: float = WAIT_S) -> ShownGroup:
        """The group, once it is Stable with exactly these members, and their lines say what their channels run.

        :param topics: whose partitions must all run.
        """
        every = {part for topic in topics for part in self.partitions(topic)}

        def is_settled() -> ShownGroup | None:
            shown = self.group()
            running = {m.consumer: set(m.channel.running) if m.channel else set() for m in shown.members}
            parts = [part for name in names for part in running.get(name, ())]
            is_stable = shown.state.state == STABLE and set(shown.state.target) == set(names)
            if not is_stable or any(member.commands for member in shown.members) or not each_runs_once(parts, every):
                return None
            held = self.held()
            return shown if all(held.get(name, set()) == running.get(name, set()) for name in names) else None

        return self.wait(is_settled, f"the group is Stable with {', '.join(names)}, whose lines agree", timeout_s)

    def held(self) -> Mapping[str, set[TopicPartition]]:
        """Consumer -> what its last process holds, by its lines."""
        return {trial.name: trial.events().held for trial in self.trials.values()}

    def elected(self, above: int = 0) -> CoordinatorRecord:
        """The coordinator, once there is one of an epoch above `above`."""
        runtime, what = ThreadRuntime(), f"a coordinator is elected in an epoch above {above}"
        return self.wait(lambda: await_election(self.store, runtime, above, 0.0), what)

    def consumed(self) -> None:
        """Wait until everything that was produced is consumed, and committed in ZooKeeper."""

        def is_committed() -> bool:
            shown = {each.partition: each.offset for each in self.group().partitions}
            return all(shown.get(part) == count for part, count in self.written.items())

        self.wait(is_committed, "all records are consumed and their offsets committed")
        self.wait(lambda: not self.unconsumed(), "the lines show all records")

    def unconsumed(self) -> list[str]:
        """The records that no process has printed as consumed."""
        found = []
        for part, count in sorted(self.written.items()):
            end = 0
            for first, after in sorted(self._spans(part)):
                end = max(end, after) if first <= end else end
            if end < count:
                found.append(f"{part} from {end} to {count - 1}")
        return found

    def forget(self) -> None:
        """Reset the record counts of a recreated topic."""
        self.written = {}
        for trial in self.trials.values():
            trial.former = len(trial.events().batches)

    def require_once(self) -> None:
        """
        :raises NotConforming: when a record was consumed twice.
        """
        for part in self.written:
            spans = sorted(self._spans(part))
            for (_, end), (first, _) in pairwise(spans):
                require(first >= end, f"the records of {part} from {first} to {end - 1} were consumed twice")

    def _spans(self, part: TopicPartition) -> list[tuple[int, int]]:
        batches = [batch for trial in self.trials.values() for batch in trial.batches()]
        return [(batch.first, batch.end) for batch in batches if batch.partition == part]


def each_runs_once(running: Collection[TopicPartition], wanted: set[TopicPartition]) -> bool:
    """Whether every wanted partition runs, and none in two channels."""
    return len(running) == len(set(running)) and wanted <= set(running)
