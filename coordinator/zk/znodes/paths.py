"""Every path in ZooKeeper, built only here (`zk_paths.md` describes them), and the names allowed in a path.

Every name from outside is checked here before it becomes part of a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, ParamSpec

from ..errors import UsageError
from ..store import Store
from ..values import shown as shown

P = ParamSpec("P")

ROOT = "/"
CONSUMERS = "/consumers"
COORDINATOR = "/consumers/coordinator"
COORDINATOR_EPOCH = "/consumers/coordinator_epoch"
NODES = "/consumers/nodes"
PAUSED = "/consumers/paused"
TURN_TIMES = "/consumers/turn_times"
GROUPS = "/consumers/groups"
ACL_POLICY = "/consumers/acl"
REGIONS = "/consumers/regions"
DRILL = "/consumers/drill"
COMMAND_PREFIX = "command-"
SEGMENT_PREFIX = "segment-"
REBALANCE_PREFIX = "rebalance-"
ASK_PREFIX = "ask-"
MEMBER_PREFIX = "member-"
ANSWER = "answer"
CHECKPOINT_PREFIX = "checkpoint-"
LONGEST_NUMBER = 18


class Child:
    """The path of a znode below the `root` of brokers, a group or a region."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: Brokers | GroupPaths | RegionPaths, kind: type) -> str:
        return f"{paths.root}/{self._name}"


class Below(Generic[P]):
    """Likewise of a znode with names or numbers in its path, as `paths.channel(consumer)`.

    :param form: its path below the root, as for `str.format`.
    """

    def __init__(self, form: str) -> None:
        self._form = form

    def __get__(self, paths: Brokers | GroupPaths | RegionPaths, kind: type) -> Callable[P, str]:
        return lambda *names, **_: f"{paths.root}/{self._form.format(*names)}"


@dataclass(frozen=True, slots=True)
class Brokers:
    """The parent of topics and brokers: `/brokers` unless Kafka has its own chroot."""

    root: str = "/brokers"

    topics = Child("topics")
    topic = Below[str]("topics/{}")
    ids = Child("ids")
    id = Below[str]("ids/{}")


def node_path(session: int) -> str:
    """The znode of a node's session."""
    return f"{NODES}/{session & 2**64 - 1:016x}"


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """The paths of one group."""

    group: str

    @property
    def root(self) -> str:
        return f"{GROUPS}/{self.group}"

    acl = Child("acl")
    state = Child("state")
    request = Child("request")
    sync = Child("sync")
    ask = Below[str]("sync/{}")
    member_answer = Below[str, str](f"sync/{{}}/{MEMBER_PREFIX}{{}}")
    answer = Below[str](f"sync/{{}}/{ANSWER}")
    sync_request = Child("sync_request")
    history = Child("history")
    rebalance = Below[int](f"history/{REBALANCE_PREFIX}{{:010d}}")
    ids = Child("ids")
    id = Below[str]("ids/{}")
    seats = Child("seats")
    seat = Below[str]("seats/{}")
    channels = Child("channel")
    channel = Below[str]("channel/{}")
    command = Below[str, str]("channel/{}/{}")
    command_prefix = Below[str](f"channel/{{}}/{COMMAND_PREFIX}")
    owners = Child("owners")
    owners_of = Below[str]("owners/{}")
    owner = Below[str, int]("owners/{}/{}")
    offsets = Child("offsets")
    offsets_of = Below[str]("offsets/{}")
    offset = Below[str, int]("offsets/{}/{}")
    segments = Child("segments")
    segment = Below[str]("segments/{}")
    segment_prefix = Child(f"segments/{SEGMENT_PREFIX}")
    queries = Child("queries")
    query = Below[str]("queries/{}")
    pools = Child("pools")
    pool = Below[str]("pools/{}")

    @property
    def skeleton(self) -> tuple[str, ...]:
        """The persistent parents of a group, in order of creation."""
        own = (self.root, self.ids, self.seats, self.channels, self.owners, self.offsets, self.segments, self.queries)
        return (CONSUMERS, GROUPS, *own, self.history, self.pools)


def parents_of(path: str) -> tuple[str, ...]:
    """The parents of an owner, an offset, a rebalance or a segment, below its group: an operator may have removed them.

    Empty for all other paths. Without the group itself: a deleted group stays deleted.
    """
    root, _, rest = path.partition(f"{GROUPS}/")
    group, *names = rest.split("/")
    paths = GroupPaths(group)
    parent = f"{paths.root}/{names[0]}" if names else ""
    if root or parent not in (paths.owners, paths.offsets, paths.history, paths.segments):
        return ()
    return tuple("/".join((paths.root, *names[:depth])) for depth in range(1, len(names)))


@dataclass(frozen=True, slots=True)
class RegionPaths:
    """The paths of one region."""

    region: str

    @property
    def root(self) -> str:
        return f"{REGIONS}/{self.region}"

    request = Child("request")
    initial = Child("initial")
    initial_of_group = Below[str]("initial/{}")
    initial_of = Below[str, str]("initial/{}/{}")
    initial_offset = Below[str, str, int]("initial/{}/{}/{}")
    checkpoints = Child("checkpoints")
    checkpoint = Below[int](f"checkpoints/{CHECKPOINT_PREFIX}{{:010d}}")
    contribution = Below[int, str, str](f"checkpoints/{CHECKPOINT_PREFIX}{{:010d}}/{{}}~{{}}")
    end = Below[int, str](f"checkpoints/{CHECKPOINT_PREFIX}{{:010d}}/{{}}")

    skeleton = (CONSUMERS, REGIONS)
    """The persistent parents of a region, in order of creation; its own znode has data."""


def contribution_name(group: str, name: str) -> str:
    """The name of a contribution; group and consumer names have no tilde."""
    return f"{group}~{name}"


def segment_name(number: int) -> str:
    """ZooKeeper's name of the segment with this number."""
    return f"{SEGMENT_PREFIX}{number:010d}"


def ask_name(number: int) -> str:
    """The name of the assignment request with this number."""
    return f"{ASK_PREFIX}{number:010d}"


def _counted(name: str, prefix: str) -> int:
    """A number counted by the coordinator; 0 for any other name. It has ten digits or more, unlike a `sequence`."""
    digits = name[len(prefix) :]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER
    number = int(digits) if is_number else 0
    return number if f"{prefix}{number:010d}" == name else 0


checkpoint_number = partial(_counted, prefix=CHECKPOINT_PREFIX)
"""The sequence of a checkpoint, by its name; 0 for any other name."""
history_generation = partial(_counted, prefix=REBALANCE_PREFIX)
"""The generation of a record of a group's history, likewise."""
ask_number = partial(_counted, prefix=ASK_PREFIX)
"""The number of an assignment request, likewise."""


_SEQUENTIAL = re.compile(r"[^-]*-(-?[0-9]{10})")


def sequence(name: str) -> int | None:
    """The number in a sequential znode's name, None for any other name.

    ZooKeeper counts the parent's creates in 32 bits; the number is negative after 2^31 of them.
    """
    match = _SEQUENTIAL.fullmatch(name)
    return int(match[1]) if match else None


MAX_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_name(text: str) -> bool:
    """Whether `text` may name a group, consumer, topic or query: Kafka's rule for topics, valid in ZooKeeper too."""
    return bool(_NAME.fullmatch(text)) and text not in (".", "..")


def names_below(store: Store, path: str) -> list[str]:
    """The valid names of a znode's children, sorted."""
    listing = store.children(path)
    return sorted(name for name in (listing.names if listing else ()) if is_name(name))


def checked_name(kind: str, text: str) -> str:
    """`text` itself.

    :raises UsageError: when it is not a valid name (`kind` is for the message).
    """
    if not isinstance(text, str) or not is_name(text):
        raise UsageError(
            f"{shown(text)} cannot name a {kind}: use 1 to {MAX_NAME} letters, digits, dots, underscores and dashes, "
            "not `.` or `..`"
        )
    return text


def printable(value: object) -> str:
    """`value` for a terminal or a log: unprintable characters (znodes may have any) are escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(value))


LONGEST_FAULT = 300
"""Maximum characters of an assignor's error; the rest is cut."""


def error_text(error: BaseException) -> str:
    """A foreign error's type and message, bounded and printable."""
    try:
        text = printable(str(error)[:LONGEST_FAULT])
    except Exception:  # noqa: BLE001  a foreign `__str__`
        text = ""
    kind = printable(type(error).__name__[:LONGEST_FAULT])
    return f"{kind}: {text[:LONGEST_FAULT]}" if text else kind
