"""Inactive groups: how an admin command detects them, and how its commits fence against new members.

A member can register at any moment, and its multi does not change `state`. But before it receives a command the
coordinator writes `state`, and every start of a fetcher is committed with a write of it. So a commit that checks the
version at which `state` was Empty is refused as soon as a member may fetch; a commit that must exclude even a
registration also removes and re-creates `ids`: ZooKeeper refuses that while `ids` has a child.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..zk.errors import CoordinatorError
from ..zk.store import Check, Create, Delete, Node, Operation, Store
from ..zk.znodes.group_state import DEAD, EMPTY, GroupState
from ..zk.znodes.json_fields import readable
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import GroupPaths, is_name
from ..zk.znodes.records import Channel, Seat, parsed_channel
from .groups import existing, partitions_below

INACTIVE = (EMPTY, DEAD)


class GroupIdNotFound(CoordinatorError):
    """The group does not exist."""


class GroupNotEmpty(CoordinatorError):
    """The group is in use; the message contains by which consumer."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The users of a group, as read: `state` first, so that its version fences later changes.

    :ivar exists: whether it has any znode.
    :ivar state: Dead without one.
    :ivar version: the data version of `state`, None when there is no such znode.
    :ivar members: registered consumers.
    :ivar seats: static members with a seat (an unreadable one does not count).
    :ivar channels: consumer -> its channel, None when unreadable.
    :ivar owned: partitions that have an owner znode.
    :ivar has_ids: whether the parent of the registrations exists.
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
        """The current user of the group, independent of `state`; None when there is none."""
        if self.members:
            return f"{_named('consumer', self.members)} registered"
        if self.seats:
            return f"{_named('static member', self.seats)} expected back on its seat"
        held = [consumer for consumer, channel in self.channels if channel is not None and channel.running]
        if held:
            return f"{held[0]} has not been removed from its partitions yet (an elected coordinator does that)"
        if self.owned:
            return f"partition {self.owned[0]} has an owner znode"
        return None

    @property
    def in_use(self) -> str | None:
        """Why the group counts as in use, None when it is unused and `state` records it."""
        if self.used_by is not None or self.state.state in INACTIVE:
            return self.used_by
        return f"the current state is {self.state.state}"

    @property
    def hint(self) -> str:
        """What an operator may wait for while `state` is behind; a sentence after another, or empty."""
        if self.state.state in INACTIVE or self.members:
            return ""
        return " It has no member any more: it is Empty after the next turn of an elected coordinator."

    def state_fence(self) -> list[Operation]:
        """Refused when `state` has changed. (Without a `state`, one is created and removed at once.)"""
        if self.version is None:
            return [Create(self.paths.state), Delete(self.paths.state)]
        return [Check(self.paths.state, self.version)]

    def vacancy_fence(self) -> list[Operation]:
        """Refused when a consumer is registered at the moment of the commit."""
        return [Delete(self.paths.ids), Create(self.paths.ids)] if self.has_ids else []


def look(store: Store, group: str) -> Standing:
    """Read the current users of a group.

    :raises BadData: when its state cannot be read.
    """
    paths = GroupPaths(group)
    if not is_name(group) or store.get(paths.root) is None:
        return Standing(paths, exists=False, state=GroupState(state=DEAD), version=None)
    node = store.get(paths.state)
    state = GroupState.parse(paths.state, node.data) if node is not None else GroupState(state=DEAD)
    ids, *others = store.children_many([paths.ids, paths.seats, paths.channels, paths.owners])
    seats, consumers, topics = (sorted(filter(is_name, each.names if each else ())) for each in others)
    owned = partitions_below(store, topics, paths.owners_of)
    by_seat = existing(store, {name: paths.seat(name) for name in seats})
    channels = existing(store, {name: paths.channel(name) for name in consumers})
    return Standing(
        paths,
        exists=True,
        state=state,
        version=node.stat.version if node is not None else None,
        members=tuple(sorted(ids.names)) if ids else (),
        seats=tuple(name for name, seat in by_seat.items() if is_seat(seat)),
        channels=tuple((name, readable(parsed_channel, paths.channel(name), one)) for name, one in channels.items()),
        owned=tuple(owned),
        has_ids=ids is not None,
    )


def is_seat(node: Node) -> bool:
    """Whether it keeps a seat: an unreadable one does not."""
    return readable(Seat.parse, "", node) is not None


def _named(what: str, names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"{what} {names[0]}{more}"
