"""A group that nobody consumes with: how an admin command finds that out, and how its commits hold on to it.

A member can register at any moment, and its multi does not touch `state`. But before it is told to run anything the
coordinator writes `state`, and every start of a fetcher goes with a write of it. So a commit that checks the version
at which `state` was Empty is refused as soon as somebody may fetch; one that must not land beside a registration
either removes `ids` and makes it anew: ZooKeeper refuses that while `ids` has a child.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .zk.errors import BadData, CoordinatorError
from .zk.names import is_name
from .zk.partitions import TopicPartition
from .zk.paths import GroupPaths
from .zk.ranges import is_partition
from .zk.records import Channel, parsed_channel
from .zk.seats import Seat
from .zk.state import DEAD, EMPTY, GroupState
from .zk.store import Check, Create, Delete, Node, Operation, Store

INACTIVE = (EMPTY, DEAD)


class GroupIdNotFound(CoordinatorError):
    """There is no group of this name."""


class GroupNotEmpty(CoordinatorError):
    """Somebody uses the group; the message says who."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Who uses a group, as it was read: `state` first, so that whatever changes after it is refused by its version.

    :ivar exists: whether it has any znode.
    :ivar state: Dead without one.
    :ivar version: the data version of `state`, None when there is no such znode.
    :ivar members: who is registered.
    :ivar seats: static members that keep a seat (for one that cannot be read nothing is kept).
    :ivar channels: consumer -> what it says of itself, None when it cannot be read.
    :ivar owned: partitions that have an owner znode.
    :ivar has_ids: whether the parent of the registrations is there.
    """

    paths: GroupPaths
    exists: bool
    state: GroupState
    version: int | None
    members: tuple[str, ...] = ()
    seats: tuple[str, ...] = ()
    channels: tuple[tuple[str, Channel | None], ...] = ()
    owned: tuple[TopicPartition, ...] = ()
    has_ids: bool = False

    @property
    def used_by(self) -> str | None:
        """Who still uses the group, whatever `state` calls it; None when nobody does."""
        if self.members:
            return f"{_some('consumer', self.members)} registered"
        if self.seats:
            return f"{_some('static member', self.seats)} expected back on its seat"
        held = [consumer for consumer, channel in self.channels if channel is not None and channel.running]
        if held:
            return f"the hold of {held[0]} on its partitions is not ended yet (an elected coordinator does that)"
        if self.owned:
            return f"partition {self.owned[0]} has an owner znode"
        return None

    @property
    def is_inactive(self) -> bool:
        """Whether nobody uses it, and the coordinator knows."""
        return self.state.state in INACTIVE and self.used_by is None

    @property
    def hint(self) -> str:
        """What an operator may wait for, where `state` is behind; a sentence that follows another, or nothing."""
        if self.state.state in INACTIVE or self.members:
            return ""
        return " Nobody is registered any more: it is Empty after the next turn, which takes an elected coordinator."

    def state_fence(self) -> list[Operation]:
        """Refused when `state` is not as it was read. (Where there was none, it is made and removed at once.)"""
        if self.version is None:
            return [Create(self.paths.state), Delete(self.paths.state)]
        return [Check(self.paths.state, self.version)]

    def vacancy_fence(self) -> list[Operation]:
        """Refused when anybody is registered at the moment of the commit."""
        return [Delete(self.paths.ids), Create(self.paths.ids)] if self.has_ids else []


def look(store: Store, group: str) -> Standing:
    """Who uses a group now.

    :raises BadData: when its state cannot be read.
    """
    paths = GroupPaths(group)
    if not is_name(group) or store.get(paths.root) is None:
        return Standing(paths, exists=False, state=GroupState(state=DEAD), version=None)
    node = store.get(paths.state)
    state = GroupState.parse(paths.state, node.data) if node is not None else GroupState(state=DEAD)
    ids, seats, channels, owners = store.children_many([paths.ids, paths.seats, paths.channels, paths.owners])
    topics = sorted(name for name in (owners.names if owners else ()) if is_name(name))
    owned = store.children_many([paths.owners_of(topic) for topic in topics])
    return Standing(
        paths,
        exists=True,
        state=state,
        version=node.stat.version if node is not None else None,
        members=tuple(sorted(ids.names)) if ids else (),
        seats=tuple(_seats(store, paths, seats.names if seats else ())),
        channels=tuple(_channels(store, paths, channels.names if channels else ())),
        owned=tuple(
            TopicPartition(topic, int(name))
            for topic, listing in zip(topics, owned, strict=True)
            for name in sorted(listing.names if listing else ())
            if is_partition(name)
        ),
        has_ids=ids is not None,
    )


def _channels(store: Store, paths: GroupPaths, names: Iterable[str]) -> Iterable[tuple[str, Channel | None]]:
    wanted = sorted(name for name in names if is_name(name))
    nodes = store.get_many([paths.channel(name) for name in wanted])
    for name, node in zip(wanted, nodes, strict=True):
        try:
            if node is not None:
                yield name, parsed_channel(paths.channel(name), node.data)
        except BadData:
            yield name, None


def _seats(store: Store, paths: GroupPaths, names: Iterable[str]) -> Iterable[str]:
    wanted = sorted(name for name in names if is_name(name))
    nodes = store.get_many([paths.seat(name) for name in wanted])
    return [name for name, node in zip(wanted, nodes, strict=True) if node is not None and is_seat(node)]


def is_seat(node: Node) -> bool:
    """Whether it keeps a seat: nothing is kept for one that cannot be read."""
    try:
        return bool(Seat.parse("", node.data))
    except BadData:
        return False


def _some(what: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"{what} {names[0]}{more}"
