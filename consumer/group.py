"""The bare group protocol: a group that assigns something other than partitions, such as named jobs (seed 001).

A member joins with its metadata for each protocol that it knows. One member, the leader, is given everybody's and
answers with everybody's state; each is told its own. A new assignment stops every member before it starts any, so what
was assigned to one runs nowhere else: as long as each does its work only while `may_run`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple

from coordinator.zk.errors import UsageError
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.names import checked_name
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel
from coordinator.zk.runtime import Runtime, ThreadRuntime
from coordinator.zk.store import Store, StoreFactory
from coordinator.zk.sync import CONSUMER, MAX_METADATA_BYTES, Ask, ClientProtocols, MemberAnswer, decoded, encoded

from .assignment.client import ClientAssignment, Decision, Known
from .config import CLIENT_SIDE, ConsumerConfig, Subscription
from .errors import AssignmentFailed
from .holder import Start
from .member import Member

log = logging.getLogger(__name__)

BACKOFF_LOOK_S = 0.1

Assign = Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]]
"""Called on the leader with the protocol and the metadata of every member: member -> its state."""


class Given(NamedTuple):
    """What a member has been assigned.

    :ivar state: the leader's bytes for it; empty when the leader has left it out.
    :ivar generation: of the group.
    """

    protocol: str
    state: bytes
    generation: int


class GroupMember:
    """One member of a group of another protocol type than `consumer`. Not for several threads, but for `may_run`.

    :param protocols: protocol -> this member's metadata for it, the preferred first; 64 kB over all.
    :param assign: what this member answers when it is the leader; what it raises fails the assignment.
    :param member: its name; the newest process under a name has it. Host and process number when not given.
    :param on_assigned: called inside `poll` with what this member has been assigned.
    :param on_revoked: called inside `poll` before a stop is acknowledged: when it returns, nothing may run any more.
    :param on_lost: called inside `poll` when the member was evicted or its session is over: stop at once.
    :param options: of `ConsumerConfig`, as `session_timeout_ms`, `max_poll_interval_ms`, `group_instance_id`.
    :raises UsageError: when an option or a name is wrong.
    """

    def __init__(
        self,
        zk: str,
        group: str,
        protocol_type: str,
        protocols: Mapping[str, bytes],
        assign: Assign,
        *,
        member: str = "",
        on_assigned: Callable[[Given], None] | None = None,
        on_revoked: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        open_store: StoreFactory | None = None,
        runtime: Runtime | None = None,
        **options: int | str,
    ) -> None:
        if checked_name("protocol type", protocol_type) == CONSUMER:
            raise UsageError("protocol type consumer is for consumers of partitions: use Consumer")
        names = {"consumer": member} if member else {}
        known = {"zk": zk, "group": group, "assignment": CLIENT_SIDE, "protocols": tuple(protocols)}
        if without := sorted(options.keys() & {"metrics_port", "metrics_host", "history_dir"}):
            raise UsageError(f"a GroupMember has no {without[0]}: leave it out")
        config = ConsumerConfig(**known, **names, **options)  # type: ignore[arg-type]
        self._runtime = runtime or ThreadRuntime()
        self._role = _Role(protocol_type, protocols, assign, on_assigned, on_revoked, on_lost)
        opener = open_store or kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
        self._client = ClientAssignment(GroupPaths(group), config.consumer, self._role)
        self.name = config.consumer
        self._member = Member(config, None, opener, self._runtime, _NoPartitions(), None, client=self._client)

    @property
    def assignment(self) -> Given | None:
        """What this member has been assigned; None while it has to run nothing."""
        return self._role.given

    @property
    def may_run(self) -> bool:
        """Whether the assignment is good now: look at this before each piece of work. For any thread.

        False also while the lease has lapsed: ZooKeeper has not answered for so long that others may have been
        assigned what this member has.
        """
        return self._role.given is not None and self._member.may_fetch

    def poll(self, timeout_ms: int = 0) -> Given | None:
        """Obey the coordinator, and assign when this member is the leader; return the assignment.

        Returns at once when the assignment has changed, else when `timeout_ms` milliseconds are over. To be called
        once in `max_poll_interval_ms`.

        :raises AssignmentFailed: when the leader gave no assignment, once for each failure.
        :raises FencedInstanceId: when a newer process has this member's name; so does every later call.
        :raises InconsistentGroupProtocol: when the group has no protocol in common with this member.
        :raises GroupMaxSizeReached: when the group is full.
        :raises ZooKeeperUnreachable: when no server has answered since the member was made.
        """
        deadline = self._runtime.monotonic() + timeout_ms / 1000
        changes = self._role.changes
        while True:
            self._member.tend()
            left_s = deadline - self._runtime.monotonic()
            if left_s <= 0 or self._role.changes != changes:
                return self._role.given
            is_out = self._member.channel is None  # it registers again after a backoff, of which nothing wakes
            self._member.wake.wait(min(left_s, BACKOFF_LOOK_S) if is_out else left_s)

    def update(self, protocols: Mapping[str, bytes]) -> None:
        """Rejoin with other metadata; the next poll tells the group, which is assigned anew.

        :raises UsageError: when there is no protocol, one has no name that may be, or the metadata is over its limit.
        """
        self._role.protocols = _checked(protocols)
        self._member.rejoin()

    def enforce_rebalance(self) -> None:
        """Let the group's leader assign again although nothing has changed; the next poll asks for it."""
        self._client.enforce_rebalance()
        self._member.rejoin()

    def close(self) -> None:
        """Leave: `on_revoked`, then the others are assigned what this member had."""
        self._member.close()

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Role:
    """See `assignment.client.Role`."""

    def __init__(
        self,
        protocol_type: str,
        protocols: Mapping[str, bytes],
        assign: Assign,
        on_assigned: Callable[[Given], None] | None,
        on_revoked: Callable[[], None] | None,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self.protocol_type = protocol_type
        self.protocols = _checked(protocols)
        self.given: Given | None = None
        self.changes = 0
        self._assign = assign
        self._on_assigned, self._on_revoked, self._on_lost = on_assigned, on_revoked, on_lost

    def offer(self, subscription: Subscription | None) -> ClientProtocols:
        metadata = {name: encoded(data) for name, data in self.protocols.items()}
        return ClientProtocols(tuple(self.protocols), metadata, self.protocol_type)

    def assign(self, store: Store, name: str, ask: Ask, members: Mapping[str, Known]) -> Decision:
        states = self._assign(ask.protocol, {member: known.metadata for member, known in sorted(members.items())})
        return Decision({member: MemberAnswer({}, encoded(state)) for member, state in states.items()})

    def assigned(self, protocol: str, entry: MemberAnswer, channel: Channel) -> None:
        self._change(Given(protocol, decoded("the member state", entry.member_state), channel.generation))
        if self._on_assigned is not None and self.given is not None:
            self._on_assigned(self.given)

    def stopped(self) -> None:
        if self.given is not None and self._on_revoked is not None:
            self._on_revoked()
        self._change(None)

    def lost(self, reason: str) -> None:
        had = self.given
        self._change(None)
        if had is not None and self._on_lost is not None:
            self._on_lost()

    def wants_rebalance(self, store: Store) -> str:
        return ""

    def requested(self) -> None:
        """It never asks."""

    def _change(self, given: Given | None) -> None:
        self.changes += given != self.given
        self.given = given


def _checked(protocols: Mapping[str, bytes]) -> dict[str, bytes]:
    if not protocols:
        raise UsageError("name at least one protocol, with the metadata of this member for it")
    for name in protocols:
        checked_name("protocol", name)
    if (size := sum(map(len, protocols.values()))) > MAX_METADATA_BYTES:
        raise UsageError(f"member metadata of {size} bytes, limit is {MAX_METADATA_BYTES}")
    return dict(protocols)


class _NoPartitions:
    """See `Holder`: a member that is never given any."""

    def assigned(self, starts: Mapping[TopicPartition, Start]) -> None: ...
    def revoke(self, partitions: PartitionSet) -> None: ...
    def lost(self, partitions: PartitionSet) -> None: ...


__all__ = ["Assign", "AssignmentFailed", "Given", "GroupMember"]
