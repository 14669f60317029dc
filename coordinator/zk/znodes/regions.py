"""Consistent regions in ZooKeeper: the region, its checkpoints with their contributions, and requests (seed 002).

A checkpoint is a consistent cut: an offset of every partition, and its member's state after exactly the records below.
States are opaque bytes: base64 here, or in a file when they are larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..store import Create, Operation, SetData
from .json_fields import Fields, compact
from .names import is_name
from .partitions import TopicPartition, nested
from .paths import RegionPaths
from .ranges import is_partition

CONSUMERS = "consumers"
SLOTS = "slots"
KINDS = (CONSUMERS, SLOTS)
"""Members that keep state, and reset together; or members that seal, whose segments a checkpoint cuts."""

RUNNING = "Running"
RESETTING = "Resetting"
FAILED = "Failed"
REGION_STATES = (RUNNING, RESETTING, FAILED)

COMPLETED = "completed"
ABORTED = "aborted"
ABANDONED = "abandoned"
ENDS = (COMPLETED, ABORTED, ABANDONED)

INITIAL = 0
"""The sequence of the initial state, before any record."""

PATTERN_PREFIX = "region:"
"""Prefix of `pattern` in the registration of a region's member: releases without regions then ignore it."""

MAX_STATE_BYTES = 4096
"""Bytes of states of one contribution in its znode; larger ones are in a file."""
MAX_NUMBER_OF_PARTICIPANTS = 5000
MAX_CHECKPOINT_BYTES = 250_000
"""Bytes of a checkpoint's own znode, which has the name and the incarnation of every participant."""


class RegionMembership(NamedTuple):
    """A member's region and its kind."""

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

    :ivar name: its region.
    :ivar ready: the reset whose states all present members have restored; 0 while one has not.
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
        return cls(name, fields.count("ready", 0), fields.strings("away"))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "ready": self.ready, **({"away": list(self.away)} if self.away else {})}


class Progress(NamedTuple):
    """`region` in a channel.

    :ivar reset: the reset of the last start applied.
    :ivar ready: the reset whose state the member has restored.
    :ivar drained: the last checkpoint that it has contributed to.
    """

    reset: int = 0
    ready: int = 0
    drained: int = 0

    @classmethod
    def read(cls, fields: Fields) -> Progress:
        return cls(fields.count("reset", 0), fields.count("ready", 0), fields.count("drained", 0))

    def to_json(self) -> dict[str, Any]:
        return {"reset": self.reset, "ready": self.ready, "drained": self.drained}


class Order(NamedTuple):
    """`region` in a command.

    :ivar reset: its reset.
    :ivar checkpoint: of a start the cut to restore, 0 for the initial state; of a drain its own.
    :ivar sources: of a start, the contributions of that cut with the partitions, and the member's own.
    :ivar inherited: of a start, contributions of departed members: this member gets their state.
    """

    reset: int
    checkpoint: int = INITIAL
    sources: tuple[str, ...] = ()
    inherited: tuple[str, ...] = ()

    @classmethod
    def read(cls, fields: Fields) -> Order:
        return cls(
            fields.count("reset", 0),
            fields.count("checkpoint", 0),
            fields.strings("from"),
            fields.strings("gone"),
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

    :ivar sequence: the current cut: a reset restores it.
    :ivar next_sequence: of the next checkpoint; none is reused.
    :ivar open: the checkpoint in progress, 0 without one.
    :ivar reset: number of resets: members ignore commands of an earlier one.
    :ivar groups: its groups.
    :ivar consecutive_resets: resets requested by the application since the last cut.
    :ivar reason: why the state is not normal, else None.
    :ivar since_ms: when the state was entered, wall clock, for people.
    :ivar first: group -> its first checkpoint; contributions in earlier ones are of a previous group of the same name.
        1 where it is missing.
    :ivar interval_ms: the acting coordinator's checkpoint interval; 0: unknown.
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
            fields.count("sequence", 0),
            fields.count("next_sequence", 1, least=1),
            fields.count("open", 0),
            fields.count("reset", 1, least=1),
            tuple(sorted(set(groups))),
            fields.count("consecutive_resets", 0),
            fields.optional_text("reason"),
            fields.number("since_ms", 0),
            fields.number("interval_ms", 0),
            _first(fields),
        )

    def to_bytes(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__slots__}
        return compact({**values, "groups": sorted(self.groups), "first": dict(sorted(self.first.items()))})

    def cut_of(self, group: str) -> int:
        """The checkpoint that a group restores; `INITIAL` when the region's cut is from before the group joined."""
        return self.sequence if self.sequence >= self.first.get(group, 1) else INITIAL

    def including(self, group: str, is_new: bool = True) -> Region:
        """With a group added.

        :param is_new: False for a group that is bound by its own state: a manual edit has removed it here.
        """
        if group in self.groups:
            return self
        is_later = is_new and self.next_sequence > 1
        first = {**self.first, group: self.next_sequence} if is_later else self.first
        return replace(self, groups=(*self.groups, group), first=first)

    def without(self, group: str) -> Region:
        """Without a group."""
        groups = tuple(each for each in self.groups if each != group)
        return replace(self, groups=groups, first={each: n for each, n in self.first.items() if each in groups})


def _first(fields: Fields) -> dict[str, int]:
    inner = Fields(f"{fields.where}: first", fields.mapping("first"))
    return {group: inner.count(group) for group in inner.values if is_name(group)}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`checkpoints/checkpoint-[sequence]`.

    :ivar base: the cut before it.
    :ivar participants: group -> consumer -> incarnation, of the contributing members.
    :ivar away: group -> static members that were away at its begin: their part of `base` is copied.
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
            fields.count("reset"),
            fields.count("base", 0),
            fields.named("participants", lambda group: {n: group.text(n, most=64) for n in group.values if is_name(n)}),
            fields.number("since_ms", 0),
            _away(fields),
        )

    def to_bytes(self) -> bytes:
        participants = {
            group: dict(sorted(incarnations.items())) for group, incarnations in sorted(self.participants.items())
        }
        values = {name: getattr(self, name) for name in self.__slots__}
        return compact({**values, "participants": participants})


def _away(fields: Fields) -> dict[str, tuple[str, ...]]:
    inner = Fields(f"{fields.where}: away", fields.mapping("away"))
    return {group: inner.strings(group) for group in inner.values if is_name(group)}


@dataclass(frozen=True, slots=True)
class StateFile:
    """The file of states too large for a znode: an Arrow IPC stream in `checkpoint_dir`."""

    name: str
    size: int
    crc32: int

    @property
    def checkpoint(self) -> int:
        """The checkpoint that it was written for; 0 when its name has none."""
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
    """`checkpoints/checkpoint-[sequence]/[group]~[consumer]`: offsets and states of one member.

    :ivar offsets: partition -> the next offset: the states are those after exactly the records below.
    :ivar topics: the ids of their topics.
    :ivar states: partition -> base64 of its state.  :ivar member_state: base64 of the member's own.
    :ivar file: the file with the states instead.
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
            fields.count("reset"),
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
                "offsets": nested(self.offsets),
                "topics": dict(sorted(self.topics.items())),
                **({"states": nested(self.states)} if self.states else {}),
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


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """`completed`, `aborted` or `abandoned` below a checkpoint; written once.

    :ivar reason: why it was aborted or abandoned.
    :ivar duration_ms: from its begin to its end.
    :ivar files: of a complete one: earlier checkpoints whose files its copies name.
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


def ended_checkpoint(paths: RegionPaths, sequence: int, data: bytes, how: str, end: CheckpointEnd) -> list[Operation]:
    """The operations that end a checkpoint: its version is bumped, so that later contributions are refused."""
    return [SetData(paths.checkpoint(sequence), data), Create(paths.end(sequence, how), end.to_bytes())]
