"""Histories made by hand, for the checker's tests: a builder that writes what the product would, and one whole story.

The builder keeps a small tree, so that versions, sequences and czxids are right, and virtual time: leases are renewed
every second of it, by everybody who lives. A test takes the story, and lets something happen at one of its points
(`POINTS`) that must not happen; or changes the events of the whole story.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zk_group.coordinator.zk.store import Check, Create, Delete, Operation, SetData
from zk_group.coordinator.zk.znodes import ranges
from zk_group.coordinator.zk.znodes.group_state import COMPLETING, STABLE, ClientProtocols, GroupState, Mark, Target
from zk_group.coordinator.zk.znodes.json_fields import compact
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition, by_topic, partition_set
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, Brokers, GroupPaths
from zk_group.coordinator.zk.znodes.records import (
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    CoordinatorRecord,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Registration,
    Topic,
)
from zk_group.coordinator.zk.znodes.segments import Query, SealedRange, Segment, SegmentsRecord

BOUNDS = {
    "session_timeout": 6.0,
    "tick": 0.5,
    "sweep": 5.0,
    "lease": 4.0,
    "poll_interval": 9.0,
    "seal_interval": 0.2,
    "channel_retention": 20.0,
    "collection": 8.0,
    "notice": 7.0,
}
Made = dict[str, Any]
Shares = Mapping[str, Mapping[str, str]]
"""Consumer -> topic -> partition ranges."""
Happening = Callable[[Any], object]
"""A test's change of a history at one of its points."""


class MadeLife:
    """One incarnation of a consumer, as its process knows it."""

    def __init__(self, who: str, group: str, name: str, kind: str) -> None:
        self.who, self.group, self.name, self.kind = who, group, name, kind
        self.channel = Channel(incarnation="")
        self.session = 0
        self.files = 0

    @property
    def paths(self) -> GroupPaths:
        return GroupPaths(self.group)


class History:
    """Writes a history.

    :ivar now: virtual seconds.
    :ivar lives: the newest life of each consumer name.
    :ivar states: the coordinator's decision for each group.
    """

    def __init__(self) -> None:
        self.events: list[Made] = []
        self.now = 0.0
        self.zxid = 0
        self.tree: dict[str, tuple[str, int, int, int]] = {}
        self.sequences: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        self.roles: dict[str, str] = {}
        self.lives: dict[str, MadeLife] = {}
        self.states: dict[str, GroupState] = {}
        self.coordinator = ""
        self.epoch = 0
        self.fence = 0
        self.ids: dict[str, str] = {}
        self._opened = 0
        self.event("run", "server", version=1, seed=1, profile="made", bounds=dict(BOUNDS))

    # ---- time and events

    def event(self, what: str, who: str, /, **fields: Any) -> Made:
        found = {"at": round(self.now, 3), "who": who, "event": what, **fields}
        self.events.append(found)
        return found

    def to(self, at: float) -> None:
        """Let time pass; leases are renewed on every whole second."""
        while int(self.now) + 1 <= at:
            self.now = float(int(self.now) + 1)
            for who, role in self.roles.items():
                self.lease(who, role)
        self.now = max(self.now, at)

    def pass_(self, seconds: float) -> None:
        """Let this much time pass."""
        self.to(self.now + seconds)

    def lease(self, who: str, role: str) -> Made:
        return self.event("lease", who, role=role, session=self.sessions[who], until=round(self.now + 4.0, 3))

    def session(self, who: str) -> int:
        self._opened += 1
        self.sessions[who] = 0x100 + self._opened
        self.event("session", "server", session=self.sessions[who], timeout=6.0)
        return self.sessions[who]

    # ---- ZooKeeper

    def commit(self, who: str, *operations: Operation) -> Made:
        """A transaction; it takes 10 ms."""
        self.pass_(0.01)
        self.zxid += 1
        session = self.sessions.get(who)
        ops = [self._apply(operation, session or 0) for operation in operations]
        return self.event("commit", who, session=session, zxid=self.zxid, ops=ops)

    def _apply(self, operation: Operation, session: int) -> Made:
        path = operation.path
        match operation:
            case Create():
                if operation.sequential:
                    number = self.sequences[path] = self.sequences.get(path, -1) + 1
                    path = f"{path}{number:010d}"
                text = operation.data.decode()
                self.tree[path] = (text, 0, session if operation.ephemeral else 0, self.zxid)
                return {"op": "create", "path": path, "data": text, "ephemeral": operation.ephemeral}
            case SetData():
                _, version, owner, czxid = self.tree.get(path, ("", -1, 0, self.zxid))
                self.tree[path] = (operation.data.decode(), version + 1, owner, czxid)
                return {"op": "set", "path": path, "data": operation.data.decode(), "version": version + 1}
            case Delete():
                self.tree.pop(path, None)
                return {"op": "delete", "path": path}
            case Check():
                return {"op": "check", "path": path, "version": operation.version}

    def put(self, path: str, data: bytes, ephemeral: bool = False) -> Operation:
        """Creates a znode, or sets the one that is there."""
        return SetData(path, data) if path in self.tree else Create(path, data, ephemeral)

    def close(self, who: str, why: str = "killed") -> Made:
        """The session of a process ends."""
        session = self.sessions.pop(who)
        self.roles.pop(who, None)
        gone = sorted(path for path, (_, _, owner, _) in self.tree.items() if owner == session)
        for path in gone:
            del self.tree[path]
        self.pass_(0.01)
        self.zxid += 1
        return self.event("closed", "server", session=session, zxid=self.zxid, why=why, paths=gone)

    def hand(self, *operations: Operation) -> Made:
        """An operator with zkCli."""
        return self.commit("hand", *operations)

    # ---- nodes

    def node(self, who: str) -> None:
        self.event("start", who, kind="node")
        self.session(who)

    def elect(self, who: str) -> Made:
        self.epoch += 1
        name = who.partition("#")[0]
        made = self.commit(
            who,
            Create(COORDINATOR, CoordinatorRecord(name, "host", self.epoch).to_bytes(), ephemeral=True),
            self.put(COORDINATOR_EPOCH, EpochRecord(self.epoch).to_bytes()),
        )
        self.fence = self.tree[COORDINATOR_EPOCH][1]
        self.coordinator = who
        self.roles[who] = "coordinator"
        self.event("elected", who, epoch=self.epoch, session=self.sessions[who])
        self.lease(who, "coordinator")
        return made

    def die(self, who: str) -> None:
        """A process is killed."""
        self.event("fault", "server", kind="kill", process=who)
        self.event("exit", who, why="killed")
        self.roles.pop(who, None)

    def topic(self, name: str, topic_id: str, partitions: int) -> Made:
        self.ids[name] = topic_id
        return self.hand(self.put(Brokers().topic(name), Topic(name, topic_id, tuple(range(partitions))).to_bytes()))

    # ---- the coordinator's turns

    def fenced(self, group: str, state: GroupState, *operations: Operation, who: str | None = None) -> Made:
        """One multi of a turn."""
        self.states[group] = state
        path = GroupPaths(group).state
        return self.commit(
            who or self.coordinator, Check(COORDINATOR_EPOCH, self.fence), self.put(path, state.to_bytes()), *operations
        )

    def target(self, shares: Shares) -> dict[str, Target]:
        return {
            name: Target(self.lives[name].channel.incarnation, {f"{name}-0": parted(share)})
            for name, share in shares.items()
        }

    def rebalance(self, group: str, shares: Shares, **more: Any) -> GroupState:
        """The state of a new generation."""
        before = self.states.get(group, GroupState())
        topics = {topic: self.ids[topic] for share in shares.values() for topic in share}
        return replace(
            before, state=COMPLETING, generation=before.generation + 1, epoch=self.epoch, strategy="range",
            target=self.target(shares), topics=topics, **more,
        )  # fmt: skip

    def stable(self, group: str, **more: Any) -> Made:
        return self.fenced(group, replace(self.states[group], state=STABLE, epoch=self.epoch, **more))

    def start(self, consumer: str, share: Mapping[str, str], **more: Any) -> Operation:
        """A `start-fetcher` for a consumer, everything that it shall run."""
        life = self.lives[consumer]
        topics = {topic: self.ids[topic] for topic in share}
        return self._command(life, START_FETCHER, topics, threads={f"{consumer}-0": parted(share)}, **more)

    def stop(self, consumer: str, share: Mapping[str, str] | None = None, **more: Any) -> Operation:
        """A `stop-fetcher`; without a share for all."""
        life = self.lives[consumer]
        return self._command(life, STOP_FETCHER, dict(life.channel.topics), partitions=parted(share or {}), **more)

    def _command(self, life: MadeLife, option: str, topics: Mapping[str, str], **more: Any) -> Operation:
        fields = {"incarnation": life.channel.incarnation, "epoch": self.epoch, **more}
        fields.setdefault("generation", self.states[life.group].generation)
        command = Command(option=option, topics=topics, **fields)
        return Create(life.paths.command_prefix(life.name), command.to_bytes(), sequential=True)

    def end_of(self, life: MadeLife, reason: str) -> list[Operation]:
        """The operations by which a coordinator ends an incarnation."""
        channel = replace(life.channel, running={}, topics={}, ended=reason)
        ended = [SetData(life.paths.channel(life.name), channel.to_bytes()), *self.released(life, life.channel.running)]
        life.channel = channel
        return ended

    # ---- consumers

    def consumer(self, who: str, group: str, kind: str = "slot") -> MadeLife:
        """A process of a consumer, not yet registered."""
        life = MadeLife(who, group, who.partition("#")[0], kind)
        self.event("start", who, kind=kind, group=group, consumer=life.name)
        life.session = self.session(who)
        return life

    def register(self, life: MadeLife, incarnation: str, **wants: Any) -> Made:
        """The one multi of a registration; the name's previous process is fenced."""
        paths, before = life.paths, self.lives.get(life.name)
        operations: list[Operation] = []
        if before is not None and before.channel.running:
            operations += self.released(before, before.channel.running)
        operations += [Delete(path) for path in sorted(self.tree) if path.startswith(f"{paths.channel(life.name)}/")]
        if paths.id(life.name) in self.tree:
            operations.append(Delete(paths.id(life.name)))
        wants.setdefault("subscription", {"flights": 1})
        seals = 200 if life.kind == "slot" else 0
        registration = Registration(
            incarnation, lease_ms=4000, max_poll_interval_ms=9000, seal_interval_ms=seals, **wants
        )
        life.channel = Channel(incarnation=incarnation)
        if paths.channel(life.name) not in self.tree:
            self.commit(life.who, Create(paths.channel(life.name)))
        made = self.commit(
            life.who,
            SetData(paths.channel(life.name), life.channel.to_bytes()),
            *operations,
            Create(paths.id(life.name), registration.to_bytes(), ephemeral=True),
        )
        self.lives[life.name] = life
        self.roles[life.who] = "consumer"
        life.session = self.sessions[life.who]
        self.event(
            "registered", life.who, group=life.group, consumer=life.name, incarnation=incarnation, session=life.session
        )
        self.lease(life.who, "consumer")
        return made

    def released(self, life: MadeLife, partitions: Any) -> list[Operation]:
        """Offsets written, owners removed."""
        found: list[Operation] = []
        for part in sorted(partitions):
            offset = life.channel.running[part]
            if offset is not None:
                found.append(self.put(life.paths.offset(*part), self.offset(life, part, offset)))
        owners = [life.paths.owner(*part) for part in sorted(partitions)]
        return found + [Delete(path) for path in owners if path in self.tree]

    def offset(self, life: MadeLife, part: TopicPartition, offset: int) -> bytes:
        channel = life.channel
        return OffsetRecord(offset, channel.topics.get(part.topic, ""), channel.generation).to_bytes()

    def command_of(self, consumer: str) -> str:
        """The path of the command in a channel."""
        life = self.lives[consumer]
        return max(path for path in self.tree if path.startswith(f"{life.paths.channel(life.name)}/"))

    def set_channel(self, life: MadeLife, channel: Channel, *operations: Operation) -> Made:
        life.channel = channel
        return self.commit(life.who, SetData(life.paths.channel(life.name), channel.to_bytes()), *operations)

    def obey(self, consumer: str, begins: bool = True) -> Made:
        """A consumer applies the command in its channel; with `begins` it then reads offsets and fetches."""
        life, path = self.lives[consumer], self.command_of(consumer)
        command = Command.parse(path, self.tree[path][0].encode())
        name = path.rpartition("/")[2]
        done = replace(life.channel, epoch=command.epoch, generation=command.generation, command=name)
        if command.option == STOP_FETCHER:
            given_up = command.partitions or frozenset(life.channel.running)
            self.halt(life, given_up, "revoked")
            released = self.released(life, given_up)
            return self.set_channel(life, done.without(given_up), *released, Delete(path))
        missing = sorted(command.started - frozenset(life.channel.running))
        running = {**life.channel.running, **dict.fromkeys(missing)}
        claimed = replace(done, running=running, topics={**life.channel.topics, **command.topics})
        owner = OwnerRecord(f"{consumer}-0", consumer, claimed.incarnation, claimed.generation).to_bytes()
        owners = [Create(life.paths.owner(*part), owner, ephemeral=True) for part in missing]
        made = self.set_channel(life, claimed, *owners, Delete(path))
        if begins:
            self.begin(life, missing)
        return made

    def begin(self, life: MadeLife, parts: Sequence[TopicPartition], at: int | None = None) -> Made:
        """Offsets are read, and fetching begins; or `at` another one."""
        found: dict[str, dict[str, int]] = {}
        for part in parts:
            found.setdefault(part.topic, {})[str(part.partition)] = self._stands(life, part) if at is None else at
        read = {TopicPartition(topic, int(n)): at for topic, some in found.items() for n, at in some.items()}
        life.channel = replace(life.channel, running={**life.channel.running, **read})
        return self.event(
            "begin", life.who, group=life.group, consumer=life.name, incarnation=life.channel.incarnation,
            generation=life.channel.generation, partitions=found,
            topics={topic: life.channel.topics.get(topic, "") for topic in found},
        )  # fmt: skip

    def _stands(self, life: MadeLife, part: TopicPartition) -> int:
        path = life.paths.offset(*part)
        if path not in self.tree:
            return 0
        record = OffsetRecord.parse(path, self.tree[path][0].encode())
        return record.offset if record.topic_id == life.channel.topics.get(part.topic) else 0

    def halt(self, life: MadeLife, parts: PartitionSet, why: str) -> Made | None:
        if not parts:
            return None
        return self.event(
            "halt", life.who, group=life.group, consumer=life.name, incarnation=life.channel.incarnation,
            partitions=by_topic(parts), why=why,
        )  # fmt: skip

    def fetch(self, consumer: str, rows: int, *parts: int, topic: str = "flights") -> list[SealedRange]:
        """Records of some partitions are produced."""
        life = self.lives[consumer]
        found = []
        for number in parts:
            at = life.channel.running[TopicPartition(topic, number)] or 0
            found.append(SealedRange(topic, life.channel.topics[topic], number, at, at + rows))
        self.event(
            "fetch", life.who, group=life.group, consumer=life.name, incarnation=life.channel.incarnation,
            ranges=[item._asdict() for item in found],
        )  # fmt: skip
        return found

    def advance(self, consumer: str, rows: int, *parts: int, topic: str = "flights") -> Made:
        """A plain consumer fetches and commits."""
        life, found = self.lives[consumer], self.fetch(consumer, rows, *parts, topic=topic)
        moved = {TopicPartition(item.topic, item.partition): item.next for item in found}
        return self.set_channel(life, replace(life.channel, running={**life.channel.running, **moved}))

    def seal(self, consumer: str, rows: int, *parts: int, topic: str = "flights") -> Made:
        """A slot fetches and seals."""
        return self.sealed(consumer, self.fetch(consumer, rows, *parts, topic=topic))

    def sealed(self, consumer: str, found: Sequence[SealedRange], to: Sequence[SealedRange] | None = None) -> Made:
        """A seal of `found`; the channel moves to the ends of `to`, which are its own but for a test."""
        life = self.lives[consumer]
        life.files += 1
        file = f"{life.group}/{life.name}/{life.channel.incarnation}-{life.files:010d}.arrow"
        rows = sum(item.next - item.first for item in found)
        segment = Segment(
            file, "/segments", rows, rows * 100, tuple(found), life.name, life.channel.incarnation,
            life.channel.generation,
        )  # fmt: skip
        moved = {TopicPartition(item.topic, item.partition): item.next for item in (found if to is None else to)}
        after = replace(life.channel, running={**life.channel.running, **moved}, sealed=file)
        return self.set_channel(life, after, Create(life.paths.segment_prefix, segment.to_bytes(), sequential=True))

    def leave(self, consumer: str) -> Made:
        """A consumer leaves, and its process ends."""
        life = self.lives[consumer]
        self.halt(life, frozenset(life.channel.running), "revoked")
        released = self.released(life, life.channel.running)
        ended = replace(life.channel, running={}, topics={}, ended="left")
        made = self.set_channel(life, ended, *released, Delete(life.paths.id(consumer)))
        self.roles.pop(life.who, None)
        self.event("exit", life.who, why="left")
        self.close(life.who, "closed")
        return made

    # ---- queries

    def query(self, who: str, group: str, query: str, run: str, finished: int, ephemeral: bool = False) -> Made:
        """A run of a query registers."""
        if who not in self.sessions:
            self.event("start", who, kind="query", group=group, query=query)
            self.session(who)
        paths = GroupPaths(group)
        data = Query(run, finished, 0).to_bytes()
        return self.commit(who, self.put(paths.queries, b""), self.put(paths.query(query), data, ephemeral))

    def finished(self, who: str, group: str, query: str, run: str, finished: int) -> Made:
        return self.commit(who, SetData(GroupPaths(group).query(query), Query(run, finished, 0).to_bytes()))

    def batch(self, who: str, group: str, query: str, run: str, number: int, after: int, **more: Any) -> Made:
        """A query has finished a batch of everything that is sealed."""
        prefix = GroupPaths(group).segment_prefix
        known = sorted((czxid, path) for path, (_, _, _, czxid) in self.tree.items() if path.startswith(prefix))
        some = [(czxid, path) for czxid, path in known if czxid > after]
        rows = [item._asdict() for _, path in some for item in self.segment(path).ranges]
        fields = {
            "after": after,
            "upto": some[-1][0] if some else after,
            "segments": [path.rpartition("/")[2] for _, path in some],
            "rows": rows,
        }
        return self.event("batch", who, group=group, query=query, run=run, batch=number, **{**fields, **more})

    def segment(self, path: str) -> Segment:
        return Segment.parse(path, self.tree[path][0].encode())

    def collect(self, group: str, upto: int, who: str | None = None) -> Made:
        """The coordinator removes segments up to a czxid."""
        paths = GroupPaths(group)
        known = sorted((czxid, path) for path, (_, _, _, czxid) in self.tree.items() if "/segment-" in path)
        gone = [path for czxid, path in known if czxid <= upto and path.startswith(paths.segment_prefix)]
        return self.commit(
            who or self.coordinator,
            Check(COORDINATOR_EPOCH, self.fence),
            self.put(paths.segments, SegmentsRecord(upto).to_bytes()),
            *(Delete(path) for path in gone),
        )

    def mark(self, life: MadeLife) -> Mark:
        return Mark(life.name, life.channel.incarnation, frozenset(life.channel.running), 4000, "evicted")


class Enough(Exception):
    """Raised by a happening after which the story ends, without an `end`."""


class Story(History):
    """A history in chapters, with points at which a test may spoil it.

    :ivar reached: its points so far.
    """

    def __init__(self, point: str = "", happening: Happening | None = None) -> None:
        super().__init__()
        self._point, self._happening = point, happening
        self.reached: list[str] = []

    def point(self, name: str) -> None:
        """A test's happening is inserted here."""
        self.reached.append(name)
        if name == self._point and self._happening is not None:
            self._happening(self)

    @classmethod
    def made(cls, point: str = "", happening: Happening | None = None) -> list[Made]:
        """The events of the story, with what `happening` does at a point of it."""
        history = cls(point, happening)
        assert not point or point in history.reached, f"there is no point {point}"
        return history.events


def metadata(*topics: str, pattern: str = "static") -> str:
    """Of protocol type `consumer`, as in a registration."""
    return b64encode(compact({"topics": list(topics), "pattern": pattern})).decode()


def offer(*topics: str, pattern: str = "static") -> ClientProtocols:
    """A member's offered assignors."""
    text = metadata(*(topics or ("flights",)), pattern=pattern)
    return ClientProtocols(("range",), {"range": text}, digest=text[:8])


def parted(share: Mapping[str, str]) -> PartitionSet:
    """Topic -> ranges as a set."""
    return partition_set({topic: ranges.decode(text) for topic, text in share.items()})


def edited(text: str, **fields: Any) -> str:
    """A znode's JSON with other values in it."""
    return json.dumps({**json.loads(text), **fields}, separators=(",", ":"))
