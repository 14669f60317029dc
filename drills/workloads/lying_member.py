"""A member that lies: it registers as `zk_paths.md` says, and breaks one of its rules, in its own process.

The simulation runs the same member in virtual time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coordinator.zk.errors import CoordinatorError, OutcomeUnknown, Refused
from coordinator.zk.runtime import Runtime, ThreadRuntime, recorder_in
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create, Delete, Node, Operation, SetData, Store
from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.partitions import TopicPartition, nested, partition_set, range_texts
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from coordinator.zk.znodes.ranges import decode
from coordinator.zk.znodes.records import START_FETCHER, Command, OwnerRecord, Topic

from .process import HangGate, emit, topics_of

LOOK_S = 0.05
LARGEST = (1 << 53) - 1
"""The largest generation that a record may have."""

GENERATIONS = {"largest-generation": LARGEST, "impossible-generation": 1 << 63}
DAY_MS = 86_400_000
STRATEGIES = ("range", "round-robin", "sticky", "cooperative-sticky")
BOMB = "0-999999"


# Large: one member obeys all rules but one, so each lie is a branch of the rule that it breaks.
class LyingMember:
    """One incarnation of a member that tells one kind of lie.

    :param topics: topic -> threads, its subscription.
    :param lie: one of `drills.base.settings.LIES`.
    :ivar lies: number of lies so far.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        group: str,
        consumer: str,
        topics: Mapping[str, int],
        lie: str,
        poll_ms: int,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._paths = GroupPaths(group)
        self._consumer = consumer
        self._topics = topics
        self._lie = lie
        self._poll_ms = poll_ms
        self._incarnation = "" if lie == "no-incarnation" else runtime.random_id()
        self._channel: dict[str, Any] = {}
        self._running: dict[TopicPartition, int | None] = {}
        self._topic_ids: dict[str, str] = {}
        self._version = -1
        self.lies = 0

    # ---- registration

    def register(self) -> None:
        """Register, over an earlier incarnation of the name.

        :raises StoreError: when that was refused or not answered.
        """
        paths, store = self._paths, self._store
        self._runtime.record("lies", lie=self._lie, session=store.session_id)
        channel, member = paths.channel(self._consumer), paths.id(self._consumer)
        if store.get(channel) is None:
            store.commit([Create(channel)])
        node = store.get(channel)
        assert node is not None
        self._channel = {"version": 1, "incarnation": self._incarnation, "epoch": 0, "generation": 0, "command": ""}
        self._channel |= {"running": {}, "topics": {}, "ended": None}
        if self._lie == "ended-while-registered":
            self._channel["ended"] = "it has left"
        listing = store.children(channel)
        old = [Delete(f"{channel}/{name}") for name in sorted(listing.names if listing is not None else ())]
        ids = [Delete(member)] if store.get(member) is not None else []
        set_channel = SetData(channel, _json(self._channel), node.stat.version)
        store.commit([set_channel, *old, *ids, Create(member, _json(self._registration()), ephemeral=True)])
        self._version = node.stat.version + 1

    def _registration(self) -> dict[str, Any]:
        incarnation = "another" if self._lie == "another-incarnation" else self._incarnation
        return {
            "version": 1,
            "subscription": dict(self._topics),
            "pattern": "static",
            "incarnation": incarnation,
            "host": "liar",
            "protocols": list(STRATEGIES),
            "lease_ms": DAY_MS if self._lie == "longest-lease" else round(self._store.negotiated_timeout_s * 2000 / 3),
            "max_poll_interval_ms": self._poll_ms,
        }

    # ---- its life

    def look(self) -> bool:
        """Look at the channel, and answer its commands with a lie; False once this incarnation is over."""
        channel = self._paths.channel(self._consumer)
        node = self._store.get(channel)
        if node is None or self._is_over(node):
            return False
        self._version = node.stat.version
        if self._lie == "scribbles":
            self._scribble(channel)
            return True
        if self._lie == "commands-itself":
            self._commit([Create(f"{channel}/command-", self._stolen().to_bytes(), sequential=True)])
        elif self._lie in GENERATIONS and self._channel["generation"] <= LARGEST // 2:
            self._channel["generation"] = GENERATIONS[self._lie]
            self._write([])
        listing = self._store.children(channel)
        for name in sorted(listing.names if listing is not None else ()):
            command = self._store.get(f"{channel}/{name}")
            if command is not None:
                self._answer(name, json.loads(command.data))
        return True

    def _is_over(self, node: Node) -> bool:
        if self._lie in ("ended-while-registered", "scribbles"):
            return self._store.get(self._paths.id(self._consumer)) is None
        data = json.loads(node.data or b"{}")
        return bool(data.get("ended")) or data.get("incarnation") != self._incarnation

    def _answer(self, name: str, command: Mapping[str, Any]) -> None:
        """Acknowledge a command in the way of the lie; by the rules where the lie is another one."""
        removed: list[Operation] = [Delete(f"{self._paths.channel(self._consumer)}/{name}")]
        if command.get("incarnation") != self._incarnation or self._lie == "removes-only":
            self.lies += self._lie == "removes-only"
            self._commit(removed)
            return
        self._channel |= {"command": name, "epoch": command["epoch"]}
        if self._channel["generation"] < LARGEST:
            self._channel["generation"] = command["generation"]
        is_stop = command["option"] == "stop-fetcher"
        self._write([*removed, *(self._stop(command) if is_stop else self._start(command))])

    def _stop(self, command: Mapping[str, Any]) -> list[Operation]:
        if self._lie == "keeps-what-was-stopped":
            self.lies += 1
            return []
        named = _named([command["partitions"]]) if command.get("partitions") else sorted(self._running)
        done: list[Operation] = []
        for part in named:
            if part in self._running:
                del self._running[part]
                done += self._released(part)
        return done

    def _start(self, command: Mapping[str, Any]) -> list[Operation]:
        given = _named(command["ownershipMap"].values())
        self._channel["refused"] = {}
        if self._lie == "acknowledges-only":
            self.lies += 1
            return []
        if self._lie == "refuses-everything":
            self.lies += 1
            self._channel["refused"] = {part.topic: BOMB for part in given}
            return []
        done: list[Operation] = []
        refused: set[TopicPartition] = set()
        for part in given:
            is_owned = self._store.get(self._paths.owner(*part)) is not None
            if is_owned and part not in self._running:
                refused.add(part)
            elif not is_owned:
                done += self._claimed(part, command)
                self._running[part] = self._offset(part)
                self._topic_ids[part.topic] = command["topics"][part.topic]
        self._channel["refused"] = range_texts(refused)
        return done

    def _claimed(self, part: TopicPartition, command: Mapping[str, Any]) -> list[Operation]:
        parent = self._paths.owners_of(part.topic)
        if self._store.get(parent) is None:
            self._commit([Create(parent)])
        owner = OwnerRecord(f"{self._consumer}-0", self._consumer, self._incarnation, command["generation"])
        return [Create(self._paths.owner(*part), owner.to_bytes(), ephemeral=True)]

    def _released(self, part: TopicPartition) -> list[Operation]:
        """Its owner znode removed. Its offset stays as it is: it has fetched nothing."""
        owner = self._paths.owner(*part)
        node = self._store.get(owner)
        is_own = node is not None and json.loads(node.data or b"{}").get("incarnation") == self._incarnation
        return [Delete(owner)] if is_own else []

    def _offset(self, part: TopicPartition) -> int | None:
        node = self._store.get(self._paths.offset(*part))
        return json.loads(node.data)["offset"] if node is not None else None

    # ---- lies beside commands

    def _scribble(self, channel: str) -> None:
        path = channel if self.lies % 2 else self._paths.id(self._consumer)
        self.lies += 1
        self._commit([SetData(path, b'{"version":1,"incarnation":[' * 50)])

    def _stolen(self) -> Command:
        """A command that gives it everything."""
        self.lies += 1
        nodes = {topic: self._store.get(Brokers().topic(topic)) for topic in self._topics}
        topics = [Topic.parse("a topic", name, node.data, node.stat.czxid) for name, node in nodes.items() if node]
        everything = partition_set({topic.name: topic.partitions for topic in topics})
        return Command(
            START_FETCHER,
            self._channel["epoch"],
            self._channel["generation"],
            self._incarnation,
            threads={f"{self._consumer}-0": everything},
            topics={topic.name: topic.id for topic in topics},
        )

    def _write(self, also: Sequence[Operation]) -> None:
        self.lies += self._channel["generation"] > LARGEST // 2
        held = {part.topic for part in self._running}
        self._channel["running"] = nested(self._running)
        self._channel["topics"] = {topic: topic_id for topic, topic_id in self._topic_ids.items() if topic in held}
        if self._commit([SetData(self._paths.channel(self._consumer), _json(self._channel), self._version), *also]):
            self._version += 1

    def _commit(self, operations: Sequence[Operation]) -> bool:
        try:
            self._store.commit(operations)
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
    runtime = ThreadRuntime(
        recorder_in(fields.text("history_dir"), consumer, kind="liar", group=group, consumer=consumer)
    )
    store = open_kazoo(fields.text("zk"), fields.number("session_timeout_ms"))
    poll_ms = fields.number("max_poll_interval_ms")
    member = LyingMember(store, runtime, group, consumer, topics_of(fields), fields.text("lie"), poll_ms)
    member.register()
    why = lie_until(gate.ended.is_set, member, runtime)
    emit("ended", lies=member.lies, reason=why)
    store.close()
