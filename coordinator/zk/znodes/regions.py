"""Consistent regions in ZooKeeper: the region, its checkpoints with their contributions, and requests (sources R20).

A checkpoint is a consistent cut: an offset of every partition, and its member's state after exactly the records below.
States are opaque bytes: base64 here, or in a file when they are larger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from ..errors import BadData
from ..store import Create, Operation, SetData
from . import forms
from .forms import Form, Record
from .json_fields import Fields, only
from .partitions import TopicPartition, nested
from .paths import RegionPaths, is_name

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


_NAME = forms.text(250).checked(is_name, "the name of a region")
_KIND = forms.text().checked(KINDS.__contains__, f"one of {', '.join(KINDS)}")
_STATE = forms.text().checked(REGION_STATES.__contains__, f"one of {', '.join(REGION_STATES)}")
_GROUPS = Form(lambda fields, key, _: tuple(sorted(set(fields.strings(key)))), sorted).checked(
    lambda groups: all(map(is_name, groups)), "a list of names of groups"
)


@dataclass(frozen=True, slots=True)
class RegionMembership(Record):
    """A member's region and its kind."""

    name: Annotated[str, _NAME]
    kind: Annotated[str, _KIND] = CONSUMERS


@dataclass(frozen=True, slots=True)
class GroupRegion(Record):
    """`region` in a group's state.

    :ivar name: its region.
    :ivar ready: the reset whose states all present members have restored; 0 while one has not.
    :ivar away: static members of the target that have left, and keep their seats.
    """

    name: Annotated[str, _NAME]
    ready: Annotated[int, forms.count()] = 0
    away: Annotated[tuple[str, ...], forms.STRINGS.optional] = ()


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """`region` in a channel.

    :ivar reset: the reset of the last start applied.
    :ivar ready: the reset whose state the member has restored.
    :ivar drained: its last checkpoint with its contribution.
    """

    reset: Annotated[int, forms.count()] = 0
    ready: Annotated[int, forms.count()] = 0
    drained: Annotated[int, forms.count()] = 0


@dataclass(frozen=True, slots=True)
class Order(Record):
    """`region` in a command.

    :ivar reset: its reset.
    :ivar checkpoint: of a start the cut to restore, 0 for the initial state; of a drain its own.
    :ivar sources: of a start, the contributions of that cut with the partitions, and the member's own.
    :ivar inherited: of a start, contributions of departed members: this member gets their state.
    """

    reset: Annotated[int, forms.count(0)]
    checkpoint: Annotated[int, forms.count()] = INITIAL
    sources: Annotated[tuple[str, ...], forms.STRINGS.named("from").optional] = ()
    inherited: Annotated[tuple[str, ...], forms.STRINGS.named("gone").optional] = ()


def by_group(read: Callable[[Fields, str], Any]) -> Form:
    """Group -> value; other names are ignored."""

    def values(fields: Fields, key: str, _: object) -> dict[str, Any]:
        found = Fields(f"{fields.where}: {key}", fields.mapping(key))
        return {group: read(found, group) for group in found.values if is_name(group)}

    return Form(values, lambda groups: dict(sorted(groups.items())))


@dataclass(frozen=True, slots=True)
class Region(Record):
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

    kind: Annotated[str, _KIND] = CONSUMERS
    state: Annotated[str, _STATE] = RESETTING
    sequence: Annotated[int, forms.count()] = INITIAL
    next_sequence: Annotated[int, forms.count(least=1)] = 1
    open: Annotated[int, forms.count()] = 0
    reset: Annotated[int, forms.count(least=1)] = 1
    groups: Annotated[tuple[str, ...], _GROUPS] = ()
    consecutive_resets: Annotated[int, forms.count()] = 0
    reason: Annotated[str | None, forms.optional_text()] = None
    since_ms: Annotated[int, forms.number()] = 0
    interval_ms: Annotated[int, forms.number()] = 0
    first: Annotated[Mapping[str, int], by_group(Fields.count)] = field(default_factory=dict)

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


def _participants(fields: Fields, key: str, _: object) -> dict[str, dict[str, str]]:
    return fields.named(key, lambda group: {name: group.text(name, most=64) for name in group.values if is_name(name)})


def _sorted_participants(groups: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {group: dict(sorted(incarnations.items())) for group, incarnations in sorted(groups.items())}


@dataclass(frozen=True, slots=True)
class Checkpoint(Record):
    """`checkpoints/checkpoint-[sequence]`.

    :ivar base: the cut before it.
    :ivar participants: group -> consumer -> incarnation, of the contributing members.
    :ivar away: group -> static members that were away at its begin: their part of `base` is copied.
    """

    trigger: Annotated[str, forms.text(default="")]
    reset: Annotated[int, forms.count()]
    base: Annotated[int, forms.count(0)]
    participants: Annotated[Mapping[str, Mapping[str, str]], Form(_participants, _sorted_participants)]
    since_ms: Annotated[int, forms.number()] = 0
    away: Annotated[Mapping[str, tuple[str, ...]], by_group(Fields.strings)._replace(write=dict)] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class StateFile(Record):
    """The file of states too large for a znode: an Arrow IPC stream in `checkpoint_dir`."""

    name: Annotated[str, forms.text(1024)]
    size: Annotated[int, forms.number()]
    crc32: Annotated[int, forms.number(most=2**32 - 1)]

    @property
    def checkpoint(self) -> int:
        """Its checkpoint; 0 when its name has none."""
        number = self.name.split("/")[-2:][0]
        return int(number) if number.isascii() and number.isdigit() else 0


Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Contribution(Record):
    """`checkpoints/checkpoint-[sequence]/[group]~[consumer]`: offsets and states of one member.

    :ivar offsets: partition -> the next offset: the states are those after exactly the records below.
    :ivar topics: the ids of their topics.
    :ivar states: partition -> base64 of its state.  :ivar member_state: base64 of the member's own.
    :ivar file: the file with the states instead.
    """

    incarnation: Annotated[str, forms.text(64)]
    reset: Annotated[int, forms.count()]
    offsets: Annotated[Offsets, _by_partition(lambda value: type(value) is int and 0 <= value < 2**63)] = field(
        default_factory=dict
    )
    topics: Annotated[Mapping[str, str], forms.TEXTS] = field(default_factory=dict)
    states: Annotated[Mapping[TopicPartition, str], _by_partition(lambda value: isinstance(value, str)).optional] = (
        field(default_factory=dict)
    )
    member_state: Annotated[str, forms.text(2 * MAX_STATE_BYTES).optional] = ""
    file: Annotated[StateFile | None, forms.inner(StateFile).optional] = None
    drain_ms: Annotated[int, forms.number()] = 0


def _by_partition(is_good: Callable[[Any], bool]) -> Form:
    read = only(is_good)
    return Form(lambda fields, key, _: fields.mapping(key) and fields.by_partition(key, read, "value"), nested)


_NUMBERS = Form(lambda fields, key, _: tuple(fields.items(key)), list).checked(
    lambda numbers: all(type(number) is int for number in numbers), "a list of numbers"
)


@dataclass(frozen=True, slots=True)
class CheckpointEnd(Record):
    """`completed`, `aborted` or `abandoned` below a checkpoint; written once.

    :ivar reason: why it was aborted or abandoned.
    :ivar duration_ms: from its begin to its end.
    :ivar files: of a complete one: earlier checkpoints whose files its copies name.
    """

    at_ms: Annotated[int, forms.number()] = 0
    duration_ms: Annotated[int, forms.number()] = 0
    reason: Annotated[str, forms.text()] = ""
    files: Annotated[tuple[int, ...], _NUMBERS.optional] = ()


def ended_checkpoint(paths: RegionPaths, sequence: int, data: bytes, how: str, end: CheckpointEnd) -> list[Operation]:
    """The operations that end a checkpoint: its version is bumped, so that later contributions are refused."""
    return [SetData(paths.checkpoint(sequence), data), Create(paths.end(sequence, how), end.to_bytes())]


CHECKPOINT = "checkpoint"
RESET = "reset"
FAIL = "fail"
REQUESTS = (CHECKPOINT, RESET, FAIL)


@dataclass(frozen=True, slots=True)
class RegionRequest(Record):
    """`request` below a region: a checkpoint, a reset, or a failed member.

    :ivar sequence: of a reset: the target cut; None for the region's current one.
    :ivar by_application: whether a reset counts for `max_consecutive_resets`.
    :ivar reset: of a member's request: its current reset; a later reset voids the request. 0 for any.
    """

    what: Annotated[str, forms.text(64).checked(REQUESTS.__contains__, f"one of {', '.join(REQUESTS)}")]
    by: Annotated[str, forms.text(250)] = ""
    reason: Annotated[str, forms.text(1000)] = ""
    sequence: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    by_application: Annotated[bool, forms.FLAG.optional] = False
    reset: Annotated[int, forms.count().optional] = 0


def is_replaced(where: str, data: bytes, asked: RegionRequest) -> bool:
    """Whether an existing request gives way to `asked`.

    A checkpoint request gives way to a reset or a failure, a request of an earlier reset to a later one's, an
    unreadable request to any.
    """
    try:
        existing = RegionRequest.parse(where, data)
    except BadData:
        return True
    if asked.what != CHECKPOINT and existing.what == CHECKPOINT:
        return True
    return 0 < existing.reset < asked.reset
