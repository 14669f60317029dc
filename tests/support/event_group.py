"""A group of real `zk-consumer run --events` processes, held against the rules of events whenever it is looked at."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.events import GroupEvents, replayed
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.wait import Waiting, eventually
from tests.support.world import World, parts
from zk_group.consumer.logs.embedded.producer import Producer

PARTITIONS = 6
SOME = 100
"""More records that show continued consumption."""


class Producing:
    """Writes into topic `t` all the time."""

    def __init__(self, world: World, log_dir: Path) -> None:
        self._producer = Producer.for_store(world.store, log_dir, world.brokers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for partition in range(PARTITIONS):
                self._producer.send_batch("t", partition, [b"x"] * 20)
            self._producer.flush()

    def stop(self) -> int:
        """Write no more; how many records there are."""
        self._stop.set()
        self._thread.join(10)
        return self._producer.written


class EventGroup:
    """The consumers of group `g`, each a process, and a producer."""

    def __init__(self, world: World, folder: Path, processes: ExitStack) -> None:
        self.world = world
        self._folder = folder
        self._stack = processes
        self._consumers: dict[str, ProjectProcess] = {}
        self.fenced: set[str] = set()
        self.everything = parts("t", *range(PARTITIONS))
        world.topic("t", PARTITIONS)
        self.producing = Producing(world, folder / "log")
        processes.callback(self.producing.stop)

    def node(self, name: str, *options: str) -> ProjectProcess:
        """Start a coordinator node."""
        return self._stack.enter_context(node_process(self._folder, self.world.zk, name, 1000, *options))

    def start(self, names: Iterable[str], *options: str, as_file: str = "") -> None:
        """Start these consumers."""
        for name in names:
            process = consumer_process(
                self._folder, self.world.zk, "g", name, self._folder / "log", "--events", *options, as_file=as_file
            )
            self._consumers[as_file or name] = self._stack.enter_context(process)

    def stop(self, names: Iterable[str]) -> None:
        """Stop these consumers cleanly."""
        some = [self._consumers[name] for name in names]
        for process in some:
            process.signal(signal.SIGTERM)
        for process in some:
            assert process.ends() == 0, process.said()

    def terminate(self) -> None:
        """Tell all that still run to end."""
        for process in self._consumers.values():
            process.signal(signal.SIGTERM)

    def process(self, name: str) -> ProjectProcess:
        return self._consumers[name]

    def events(self) -> GroupEvents:
        """Their events so far, which keep the rules."""
        return replayed({name: process.lines() for name, process in self._consumers.items()}, self.fenced)

    def joined(self, names: Sequence[str], timeout_s: float = 15.0, wait: Waiting = eventually) -> GroupEvents:
        """Once the group is settled, exactly these are joined, and each partition has exactly one of them."""
        self.world.stable("g", len(names), timeout_s, wait=wait)

        def look() -> GroupEvents:
            events = self.events()
            assert events.joined() == set(names)
            assert sorted(events.owners()) == sorted(self.everything)
            assert [owners for owners in events.owners().values() if len(owners) != 1] == []
            return events

        return wait(look, timeout_s, f"{', '.join(names)} have joined", pause_s=0.1)

    def consumes(self, more: int = SOME, timeout_s: float = 10.0) -> GroupEvents:
        """Once `more` records have been consumed than now, of each partition."""
        before = self.events().position

        def look() -> GroupEvents:
            events = self.events()
            for partition in self.everything:
                assert events.position.get(partition, 0) >= before.get(partition, 0) + more, partition
            return events

        return eventually(look, timeout_s, f"{more} more records of each partition are consumed", pause_s=0.1)

    def consumes_everything(self) -> GroupEvents:
        """Stop producing; once all that was produced is consumed and committed."""
        written = self.producing.stop()

        def look() -> GroupEvents:
            events = self.events()
            assert (sum(events.position.values()), sum(events.committed.values())) == (written, written)
            return events

        return eventually(look, 10, "everything is consumed and committed", pause_s=0.1)
