"""A lying member: it registers by `zk_paths.md`, and breaks one of its rules, in its own process.

The simulation runs the same member in virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zk_group.coordinator.zk.errors import CoordinatorError, OutcomeUnknown, Refused
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime, recorder_in
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, Node, Operation, SetData, Store
from zk_group.coordinator.zk.znodes.json_fields import Fields
from zk_group.coordinator.zk.znodes.partitions import TopicPartition, nested, partition_set, range_texts
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.ranges import decode
from zk_group.coordinator.zk.znodes.records import START_FETCHER, Command, OwnerRecord, Topic

from .process import HangGate, emit, topics_of

LOOK_S = 0.05
LARGEST = (1 << 53) - 1
"""The largest generation of a record."""

GENERATIONS = {"largest-generation": LARGEST, "impossible-generation": 1 << 63}
DAY_MS = 86_400_000
STRATEGIES = ("range", "round-robin", "sticky", "cooperative-sticky")
BOMB = "0-999999"


@dataclass
class LyingMember:
    """One incarnation of a member with one kind of lie: it breaks one rule.

    :ivar topics: topic -> threads, its subscription.
    :ivar lie: one of `zk_group.drills.base.settings.LIES`.
    :ivar lies: number of lies so far.
    """

    store: Store
    runtime: Runtime
    group: str
    consumer: str
    topics: Mapping[str, int]
    lie: str
    poll_ms: int
    lies: int = 0

    def __post_init__(self) -> None:
        self._paths = GroupPaths(self.group)
        self._path = self._paths.channel(self.consumer)
        self._incarnation = "" if self.lie == "no-incarnation" else self.runtime.random_id()
        self._channel: dict[str, Any] = {}
        self._running: dict[TopicPartition, int | None] = {}
        self._topic_ids: dict[str, str] = {}
        self._version = -1

    # ---- registration

    def register(self) -> None:
        """Register, over an earlier incarnation of the name.

        :raises StoreError: when that was refused or not answered.
        """
        store, channel, member = self.store, self._path, self._paths.id(self.consumer)
        self.runtime.record("lies", lie=self.lie, session=store.session_id)
        if store.get(channel) is None:
            store.commit([Create(channel)])
        node = store.get(channel)
        assert node is not None
        self._channel = {"version": 1, "incarnation": self._incarnation, "epoch": 0, "generation": 0, "command": ""}
        self._channel |= {"running": {}, "topics": {}, "ended": None}
        if self.lie == "ended-while-registered":
            self._channel["ended"] = "it has left"
        old = [Delete(path) for path in self._commands()]
        ids = [Delete(member)] if store.get(member) is not None else []
        set_channel = SetData(channel, _json(self._channel), node.stat.version)
        store.commit([set_channel, *old, *ids, Create(member, _json(self._registration()), ephemeral=True)])
        self._version = node.stat.version + 1

    def _registration(self) -> dict[str, Any]:
        lease_ms = DAY_MS if self.lie == "longest-lease" else round(self.store.negotiated_timeout_s * 2000 / 3)
        return {
            "version": 1, "subscription": dict(self.topics), "pattern": "static",
            "incarnation": "another" if self.lie == "another-incarnation" else self._incarnation,
            "host": "liar", "protocols": list(STRATEGIES), "lease_ms": lease_ms, "max_poll_interval_ms": self.poll_ms,
        }  # fmt: skip

    # ---- its life

    def look(self) -> bool:
        """Read the channel, and answer its commands with a lie; False once this incarnation is over."""
        node = self.store.get(self._path)
        if node is None or self._is_over(node):
            return False
        self._version = node.stat.version
        if self.lie == "scribbles":
            path = self._path if self.lies % 2 else self._paths.id(self.consumer)
            self.lies += 1
            self._commit([SetData(path, b'{"version":1,"incarnation":[' * 50)])
            return True
        if self.lie == "commands-itself":
            self._commit([Create(f"{self._path}/command-", self._stolen().to_bytes(), sequential=True)])
        elif self.lie in GENERATIONS and self._channel["generation"] <= LARGEST // 2:
            self._channel["generation"] = GENERATIONS[self.lie]
            self._write([])
        for path in self._commands():
            command = self.store.get(path)
            if command is not None:
                self._answer(path, json.loads(command.data))
        return True

    def _commands(self) -> list[str]:
        listing = self.store.children(self._path)
        return [f"{self._path}/{name}" for name in sorted(listing.names if listing is not None else ())]

    def _is_over(self, node: Node) -> bool:
        if self.lie in ("ended-while-registered", "scribbles"):
            return self.store.get(self._paths.id(self.consumer)) is None
        data = json.loads(node.data or b"{}")
        return bool(data.get("ended")) or data.get("incarnation") != self._incarnation

    def _answer(self, path: str, command: Mapping[str, Any]) -> None:
        """Acknowledge a command by the lie; by the rules where the lie is of another kind."""
        removed: list[Operation] = [Delete(path)]
        if command.get("incarnation") != self._incarnation or self.lie == "removes-only":
            self.lies += self.lie == "removes-only"
            self._commit(removed)
            return
        self._channel |= {"command": path.rpartition("/")[2], "epoch": command["epoch"]}
        if self._channel["generation"] < LARGEST:
            self._channel["generation"] = command["generation"]
        is_stop = command["option"] == "stop-fetcher"
        self._write([*removed, *(self._stop(command) if is_stop else self._start(command))])

    def _stop(self, command: Mapping[str, Any]) -> list[Operation]:
        if self.lie == "keeps-what-was-stopped":
            self.lies += 1
            return []
        named = _named([command["partitions"]]) if command.get("partitions") else sorted(self._running)
        held = [part for part in named if part in self._running]
        for part in held:
            del self._running[part]
        return [operation for part in held for operation in self._released(part)]

    def _start(self, command: Mapping[str, Any]) -> list[Operation]:
        given = _named(command["ownershipMap"].values())
        self._channel["refused"] = {}
        if self.lie in ("acknowledges-only", "refuses-everything"):
            self.lies += 1
            if self.lie == "refuses-everything":
                self._channel["refused"] = {part.topic: BOMB for part in given}
            return []
        done: list[Operation] = []
        refused: set[TopicPartition] = set()
        for part in given:
            is_owned = self.store.get(self._paths.owner(*part)) is not None
            if is_owned and part not in self._running:
                refused.add(part)
            elif not is_owned:
                done += self._claimed(part, command)
                offset = self.store.get(self._paths.offset(*part))
                self._running[part] = json.loads(offset.data)["offset"] if offset is not None else None
                self._topic_ids[part.topic] = command["topics"][part.topic]
        self._channel["refused"] = range_texts(refused)
        return done

    def _claimed(self, part: TopicPartition, command: Mapping[str, Any]) -> list[Operation]:
        parent = self._paths.owners_of(part.topic)
        if self.store.get(parent) is None:
            self._commit([Create(parent)])
        owner = OwnerRecord(f"{self.consumer}-0", self.consumer, self._incarnation, command["generation"])
        return [Create(self._paths.owner(*part), owner.to_bytes(), ephemeral=True)]

    def _released(self, part: TopicPartition) -> list[Operation]:
        """Its owner znode removed. Its offset stays unchanged: it has fetched nothing."""
        owner = self._paths.owner(*part)
        node = self.store.get(owner)
        is_own = node is not None and json.loads(node.data or b"{}").get("incarnation") == self._incarnation
        return [Delete(owner)] if is_own else []

    # ---- lies beside commands

    def _stolen(self) -> Command:
        """A command that gives it everything."""
        self.lies += 1
        nodes = {topic: self.store.get(Brokers().topic(topic)) for topic in self.topics}
        topics = [Topic.parse("a topic", name, node.data, node.stat.czxid) for name, node in nodes.items() if node]
        everything = partition_set({topic.name: topic.partitions for topic in topics})
        epoch, generation = self._channel["epoch"], self._channel["generation"]
        threads, ids = {f"{self.consumer}-0": everything}, {topic.name: topic.id for topic in topics}
        return Command(START_FETCHER, epoch, generation, self._incarnation, threads=threads, topics=ids)

    def _write(self, also: Sequence[Operation]) -> None:
        self.lies += self._channel["generation"] > LARGEST // 2
        held = {part.topic for part in self._running}
        self._channel["running"] = nested(self._running)
        self._channel["topics"] = {topic: topic_id for topic, topic_id in self._topic_ids.items() if topic in held}
        if self._commit([SetData(self._path, _json(self._channel), self._version), *also]):
            self._version += 1

    def _commit(self, operations: Sequence[Operation]) -> bool:
        try:
            self.store.commit(operations)
        except (Refused, OutcomeUnknown):
            return False
        return True


def lie_until(is_over: Callable[[], bool], member: LyingMember, runtime: Runtime) -> str:
    """Lie until the process is stopped, or the member evicted; the reason of the end."""
    try:
        while not is_over():
            if not member.look():
                return "evicted"
            runtime.sleep(LOOK_S)
    except CoordinatorError as error:
        return f"error: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"what it has read is not as expected: {error!r}"
    return "stopped"


def _named(topics: Iterable[Mapping[str, str]]) -> list[TopicPartition]:
    return sorted({part for each in topics for part in partition_set({t: decode(text) for t, text in each.items()})})


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def main(fields: Fields) -> None:
    """Lie until SIGTERM, or an eviction. `lie` is the kind; the rest is as in `ConsumerConfig`."""
    gate, group, consumer = HangGate(), fields.text("group"), fields.text("consumer")
    recorder = recorder_in(fields.text("history_dir"), consumer, kind="liar", group=group, consumer=consumer)
    runtime = ThreadRuntime(recorder)
    store = open_kazoo(fields.text("zk"), fields.number("session_timeout_ms"))
    poll_ms = fields.number("max_poll_interval_ms")
    member = LyingMember(store, runtime, group, consumer, topics_of(fields), fields.text("lie"), poll_ms)
    member.register()
    why = lie_until(gate.ended.is_set, member, runtime)
    emit("ended", lies=member.lies, reason=why)
    store.close()
