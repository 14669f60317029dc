"""Consistent regions in ZooKeeper: the region, its checkpoints with their contributions, and requests (seed 002).

A checkpoint is a consistent cut: of every partition an offset, and the state that its member had after exactly the
records below. States are bytes of the application's: base64 here, or in a file when they are larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .fields import Fields, compact
from .names import is_name
from .partitions import TopicPartition
from .ranges import is_partition

CONSUMERS = "consumers"
SLOTS = "slots"
KINDS = (CONSUMERS, SLOTS)
"""Members that keep state, and go back together; or members that seal, of which a checkpoint cuts the segments."""

RUNNING = "Running"
RESETTING = "Resetting"
FAILED = "Failed"
REGION_STATES = (RUNNING, RESETTING, FAILED)

COMPLETED = "completed"
ABORTED = "aborted"
ABANDONED = "abandoned"
ENDS = (COMPLETED, ABORTED, ABANDONED)

INITIAL = 0
"""The sequence of the initial state: nothing has been taken in."""

PATTERN_PREFIX = "region:"
"""Before `pattern` in the registration of a region's member: releases without regions leave it out."""

MAX_STATE_BYTES = 4096
"""States of one contribution that stand in its znode; larger ones are in a file."""
MAX_NUMBER_OF_PARTICIPANTS = 5000
MAX_CHECKPOINT_BYTES = 250_000
"""A checkpoint's own znode, which has the name and the incarnation of every participant."""


class RegionMembership(NamedTuple):
    """Which region a member registers for, and what kind it is of."""

    name: str
    kind: str = CONSUMERS

    @classmethod
    def read(cls, fields: Fields) -> RegionMembership:
        name, kind = fields.text("name", most=250), fields.text("kind", CONSUMERS)
        if not is_name(name) or kind not in KINDS:
            raise fields.bad("name", f"the name of a region, and `kind` one of {', '.join(KINDS)}")
        return cls(name, kind)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind}


class GroupRegion(NamedTuple):
    """`region` in a group's state.

    :ivar name: which region it is bound to.
    :ivar ready: the reset of which all its members that are there have their state back; 0 while one has not.
    :ivar away: static members of the target that have left, and keep their seats.
    """

    name: str
    ready: int = 0
    away: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: Fields) -> GroupRegion:
        name = fields.text("name", most=250)
        if not is_name(name):
            raise fields.bad("name", "the name of a region")
        return cls(name, fields.number("ready", 0), tuple(map(str, fields.items("away"))))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "ready": self.ready, **({"away": list(self.away)} if self.away else {})}


class Progress(NamedTuple):
    """`region` in a channel.

    :ivar reset: the reset of the last start applied: what runs is of it.
    :ivar ready: the reset of which the member has its state back.
    :ivar drained: the last checkpoint that it has contributed to.
    """

    reset: int = 0
    ready: int = 0
    drained: int = 0

    @classmethod
    def read(cls, fields: Fields) -> Progress:
        return cls(fields.number("reset", 0), fields.number("ready", 0), fields.number("drained", 0))

    def to_json(self) -> dict[str, Any]:
        return {"reset": self.reset, "ready": self.ready, "drained": self.drained}


class Order(NamedTuple):
    """`region` in a command.

    :ivar reset: the reset that it belongs to.
    :ivar checkpoint: of a start the cut that it begins from, 0 for the initial state; of a drain its own.
    :ivar sources: of a start, the contributions of that cut that have the partitions, and the member's own.
    :ivar inherited: of a start, contributions whose members are gone: this one is given their state.
    """

    reset: int
    checkpoint: int = INITIAL
    sources: tuple[str, ...] = ()
    inherited: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: Fields) -> Order:
        return cls(
            fields.number("reset", 0),
            fields.number("checkpoint", 0),
            tuple(str(name) for name in fields.items("from")),
            tuple(str(name) for name in fields.items("gone")),
        )

    def to_json(self) -> dict[str, Any]:
        lists = {"from": list(self.sources), "gone": list(self.inherited)}
        return {
            "reset": self.reset,
            "checkpoint": self.checkpoint,
            **{name: names for name, names in lists.items() if names},
        }


@dataclass(frozen=True, slots=True)
class Region:
    """`/consumers/regions/[region]`.

    :ivar sequence: the cut that it stands on: a reset goes back to it.
    :ivar next_sequence: of the next checkpoint; none is used again.
    :ivar open: the checkpoint that has begun and not ended, 0 without one.
    :ivar reset: counts resets: a member obeys none of an earlier one.
    :ivar groups: the groups that are bound to it.
    :ivar consecutive_resets: resets that the application has asked for since the last cut.
    :ivar reason: why the state is what it is, None when all is well.
    :ivar since_ms: when the state came, wall clock, for people.
    :ivar first: group -> the first checkpoint with contributions of it; what stands in earlier ones is of a group that
        was bound under its name before. 1 where it is missing.
    :ivar interval_ms: from one checkpoint to the next, as the coordinator that acts is configured; 0: not known.
    """

    kind: str = CONSUMERS
    state: str = RESETTING
    sequence: int = INITIAL
    next_sequence: int = 1
    open: int = 0
    reset: int = 1
    groups: tuple[str, ...] = ()
    consecutive_resets: int = 0
    reason: str | None = None
    since_ms: int = 0
    interval_ms: int = 0
    first: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, data: bytes) -> Region:
        fields = Fields.parse(where, data)
        kind, state = fields.text("kind", CONSUMERS), fields.text("state", RESETTING)
        groups = fields.items("groups")
        if (
            kind not in KINDS
            or state not in REGION_STATES
            or not all(isinstance(g, str) and is_name(g) for g in groups)
        ):
            raise fields.bad("state", "a region's state, with its `kind` and its `groups`")
        return cls(
            kind,
            state,
            fields.number("sequence", 0),
            fields.number("next_sequence", 1, least=1),
            fields.number("open", 0),
            fields.number("reset", 1, least=1),
            tuple(sorted(set(groups))),
            fields.number("consecutive_resets", 0),
            fields.optional_text("reason"),
            fields.number("since_ms", 0),
            fields.number("interval_ms", 0),
            _first(fields),
        )

    def to_bytes(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__slots__}
        return compact({**values, "groups": sorted(self.groups), "first": dict(sorted(self.first.items()))})

    def cut_of(self, group: str) -> int:
        """The checkpoint that a group begins from; none where the region stands on one from before the group came."""
        return self.sequence if self.sequence >= self.first.get(group, 1) else INITIAL

    def including(self, group: str, is_new: bool = True) -> Region:
        """With a group bound to it.

        :param is_new: False for one that says itself that it is: a hand has taken it out.
        """
        if group in self.groups:
            return self
        is_later = is_new and self.next_sequence > 1
        first = {**self.first, group: self.next_sequence} if is_later else self.first
        return replace(self, groups=(*self.groups, group), first=first)

    def without(self, group: str) -> Region:
        """With a group bound to it no more."""
        groups = tuple(each for each in self.groups if each != group)
        return replace(self, groups=groups, first={each: n for each, n in self.first.items() if each in groups})


def _first(fields: Fields) -> dict[str, int]:
    inner = Fields(f"{fields.where}: first", fields.mapping("first"))
    return {group: inner.number(group) for group in inner.values if is_name(group)}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`checkpoints/checkpoint-[sequence]`.

    :ivar base: the cut before it.
    :ivar participants: group -> consumer -> incarnation, of those who contribute.
    :ivar away: group -> static members that were away when it began: what they have in `base` is copied for them.
    """

    trigger: str
    reset: int
    base: int
    participants: Mapping[str, Mapping[str, str]]
    since_ms: int = 0
    away: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, data: bytes) -> Checkpoint:
        fields = Fields.parse(where, data)
        return cls(
            fields.text("trigger", ""),
            fields.number("reset"),
            fields.number("base", 0),
            fields.named("participants", lambda group: {n: group.text(n, most=64) for n in group.values if is_name(n)}),
            fields.number("since_ms", 0),
            {
                group: tuple(map(str, names))
                for group, names in fields.mapping("away").items()
                if isinstance(names, list)
            },
        )

    def to_bytes(self) -> bytes:
        participants = {group: dict(sorted(some.items())) for group, some in sorted(self.participants.items())}
        values = {name: getattr(self, name) for name in self.__slots__}
        return compact({**values, "participants": participants})


@dataclass(frozen=True, slots=True)
class StateFile:
    """Where states are that do not fit into a znode: an Arrow IPC stream in `checkpoint_dir`."""

    name: str
    size: int
    crc32: int

    @property
    def checkpoint(self) -> int:
        """The checkpoint that it was written for; 0 where its name does not say."""
        number = self.name.split("/")[-2:][0]
        return int(number) if number.isascii() and number.isdigit() else 0

    @classmethod
    def read(cls, fields: Fields) -> StateFile:
        return cls(fields.text("name", most=1024), fields.number("size"), fields.number("crc32", most=2**32 - 1))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "size": self.size, "crc32": self.crc32}


Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Contribution:
    """`checkpoints/checkpoint-[sequence]/[group]~[consumer]`: where one member is, and its states.

    :ivar offsets: partition -> the next offset: the states are those after exactly the records below.
    :ivar topics: the ids of their topics.
    :ivar states: partition -> base64 of its state.  :ivar member_state: base64 of the member's own.
    :ivar file: where the states are instead.
    """

    incarnation: str
    reset: int
    offsets: Offsets = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[TopicPartition, str] = field(default_factory=dict)
    member_state: str = ""
    file: StateFile | None = None
    drain_ms: int = 0

    @classmethod
    def parse(cls, where: str, data: bytes) -> Contribution:
        fields = Fields.parse(where, data)
        return cls(
            fields.text("incarnation", most=64),
            fields.number("reset"),
            _by_partition(fields, "offsets", lambda value: type(value) is int and 0 <= value < 2**63),
            fields.texts("topics"),
            _by_partition(fields, "states", lambda value: isinstance(value, str)),
            fields.text("member_state", "", most=2 * MAX_STATE_BYTES),
            fields.inner("file", StateFile.read),
            fields.number("drain_ms", 0),
        )

    def to_bytes(self) -> bytes:
        return compact(
            {
                "incarnation": self.incarnation,
                "reset": self.reset,
                "offsets": _json_of(self.offsets),
                "topics": dict(sorted(self.topics.items())),
                **({"states": _json_of(self.states)} if self.states else {}),
                **({"member_state": self.member_state} if self.member_state else {}),
                **({"file": self.file.to_json()} if self.file is not None else {}),
                "drain_ms": self.drain_ms,
            }
        )


def _by_partition(fields: Fields, name: str, is_good: Any) -> dict[TopicPartition, Any]:
    found: dict[TopicPartition, Any] = {}
    for topic, values in fields.mapping(name).items():
        if not is_name(topic) or not isinstance(values, dict):
            raise fields.bad(name, "an object topic -> partition -> value")
        for key, value in values.items():
            if not is_partition(key) or not is_good(value):
                raise fields.bad(name, "an object topic -> partition -> value")
            found[TopicPartition(topic, int(key))] = value
    return found


def _json_of(values: Mapping[TopicPartition, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(values.items()):
        found.setdefault(topic, {})[str(partition)] = value
    return found


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """`completed`, `aborted` or `abandoned` below a checkpoint; written once.

    :ivar reason: why it was aborted or abandoned.
    :ivar duration_ms: from its begin to its end.
    :ivar files: of one that completed: earlier checkpoints of which its copies name files.
    """

    at_ms: int = 0
    duration_ms: int = 0
    reason: str = ""
    files: tuple[int, ...] = ()

    @classmethod
    def parse(cls, where: str, data: bytes) -> CheckpointEnd:
        fields = Fields.parse(where, data)
        files = fields.items("files")
        if not all(type(number) is int for number in files):
            raise fields.bad("files", "a list of numbers")
        return cls(fields.number("at_ms", 0), fields.number("duration_ms", 0), fields.text("reason", ""), tuple(files))

    def to_bytes(self) -> bytes:
        files = {"files": list(self.files)} if self.files else {}
        return compact({"at_ms": self.at_ms, "duration_ms": self.duration_ms, "reason": self.reason, **files})
