"""The bare group protocol: a group that assigns something other than partitions, such as named jobs (sources G7).

A member joins with its metadata for each protocol that it supports. One member, the leader, receives all metadata
and answers with a state for each member; each member receives its own. A new assignment stops every member before it
starts any, so each piece of work runs on one member at a time, provided that members work only while `may_run`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.store import Store, StoreFactory
from zk_group.coordinator.zk.values import seconds
from zk_group.coordinator.zk.znodes.group_state import (
    CONSUMER,
    MAX_METADATA_BYTES,
    Ask,
    ClientProtocols,
    MemberAnswer,
    decoded,
    encoded,
)
from zk_group.coordinator.zk.znodes.paths import checked_name, shown
from zk_group.coordinator.zk.znodes.records import Channel

from .config import CLIENT_SIDE, ConsumerConfig, Subscription
from .errors import AssignmentFailed
from .membership.call_guard import CallGuard, MemberContext, exclusive, shared
from .membership.client_assignment import ClientAssignment, Decision, MemberMetadata, ProtocolType
from .membership.member import ConsumerMember

log = logging.getLogger(__name__)

BACKOFF_LOOK_S = 0.1

Assign = Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]]
"""Called on the leader with the protocol and the metadata of every member: member -> its state."""


class Given(NamedTuple):
    """The assignment of one member.

    :ivar state: the leader's bytes for it; empty when the leader omitted it.
    :ivar generation: of the group.
    """

    protocol: str
    state: bytes
    generation: int


class MemberCallbacks:
    """Callbacks of a `GroupMember`. All are called inside `poll` or `close`."""

    def on_assigned(self, given: Given) -> None:
        """This member's assignment, from now on."""

    def on_revoked(self) -> None:
        """A stop is acknowledged after this call: when it returns, all work has stopped."""

    def on_lost(self) -> None:
        """The member was evicted or its session has expired: stop at once."""


class GroupMember:
    """One member of a group of another protocol type than `consumer`.

    `poll` is for one thread at a time, and no call for a forked process. After `close` every call raises `Closed`,
    `may_run` is False and `assignment` None.

    :param protocols: protocol -> this member's metadata for it, the preferred first; 64 kB in total.
    :param assign: called when this member is the leader; an exception fails the assignment.
    :param options: `member`, its name: the newest process with a name owns it; host, process and random digits by
        default. And those of `ConsumerConfig`, as `session_timeout_ms`, `max_poll_interval_ms`, `group_instance_id`.
    :raises UsageError: when an option or a name is wrong.
    """

    def __init__(
        self,
        zk: str,
        group: str,
        protocol_type: str,
        protocols: Mapping[str, bytes],
        assign: Assign,
        callbacks: MemberCallbacks | None = None,
        **options: Any,
    ) -> None:
        if checked_name("protocol type", protocol_type) == CONSUMER:
            raise UsageError("protocol type consumer is for consumers of partitions: use Consumer")
        checked = _checked(protocols)
        known: dict[str, Any] = {"zk": zk, "group": group, "assignment": CLIENT_SIDE, "protocols": tuple(checked)}
        if member := options.pop("member", ""):
            known["consumer"] = member
        if without := sorted(options.keys() & {"metrics_port", "metrics_host", "history_dir"}):
            raise UsageError(f"a GroupMember has no {without[0]}: leave it out")
        self._runtime: Runtime = options.pop("runtime", None) or ThreadRuntime()
        open_store: StoreFactory | None = options.pop("open_store", None)
        config = ConsumerConfig(**known, **options).named(self._runtime)
        opener = open_store or config.opener(f"member {config.consumer}")
        context = MemberContext(config, self._runtime)
        self._calls = context.calls
        self._protocol = _Protocol(self._calls, protocol_type, checked, assign, callbacks or MemberCallbacks())
        self._client = ClientAssignment(context, self._protocol)
        self.name = config.consumer
        self._member = ConsumerMember(context, opener, None, [self._client])

    @property
    def assignment(self) -> Given | None:
        """This member's assignment; None while there is none."""
        return self._protocol.given

    @property
    def may_run(self) -> bool:
        """Whether the assignment is valid now: check it before each piece of work. Thread-safe.

        False also after the lease has expired: without an answer of ZooKeeper for so long, other members may have
        this member's assignment.

        :raises Inherited: in a process that was forked since.
        """
        self._calls.refuse_inherited()
        return self._protocol.given is not None and self._member.may_fetch

    @exclusive
    def poll(self, timeout_ms: int = 0) -> Given | None:
        """Apply the coordinator's commands, and assign when this member is the leader; return the assignment.

        Returns at once when the assignment has changed, else after `timeout_ms` milliseconds. Call it at least once
        in `max_poll_interval_ms`.

        :raises AssignmentFailed: when the leader gave no assignment, once for each failure.
        :raises FencedInstanceId: when a newer process has this member's name; so does every later call.
        :raises InconsistentGroupProtocol: when the group has no protocol in common with this member.
        :raises GroupMaxSizeReached: when the group is full.
        :raises ZooKeeperUnreachable: when no server has answered since the member was made.
        :raises NotAuthorized: when an ACL refuses the first registration, or credentials are required.
        """
        deadline = self._runtime.monotonic() + seconds(timeout_ms)
        changes = self._protocol.changes
        while not self._calls.is_closing:
            self._member.tend()
            left_s = deadline - self._runtime.monotonic()
            if left_s <= 0 or self._protocol.changes != changes:
                return self._protocol.given
            is_out = self._member.channel is None  # it registers again after a backoff, without a wake-up
            self._calls.wait(min(left_s, BACKOFF_LOOK_S) if is_out else left_s)
        return None

    @shared
    def update(self, protocols: Mapping[str, bytes]) -> None:
        """Rejoin with other metadata; the next poll writes the registration, which causes a rebalance.

        :raises UsageError: when there is no protocol, a name is invalid, or the metadata exceeds its limit.
        """
        self._protocol.protocols = _checked(protocols)
        self._member.rejoin()

    @shared
    def enforce_rebalance(self) -> None:
        """Request a rebalance although nothing has changed; the next poll sends the request."""
        self._client.enforce_rebalance()
        self._member.rejoin()

    def close(self) -> None:
        """Leave: `on_revoked`, then the other members are assigned this member's work.

        Safe in a signal handler and in another thread: see `Consumer.close`.
        """
        self._calls.close(self._member.close)

    def __enter__(self) -> GroupMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(eq=False)
class _Protocol(ProtocolType):
    """Calls the application's callbacks.

    :ivar given: its assignment, None without one; `changes` counts its changes.
    """

    calls: CallGuard
    protocol_type: str
    protocols: Mapping[str, bytes]
    decide: Assign
    callbacks: MemberCallbacks
    given: Given | None = None
    changes: int = 0

    def offer(self, subscription: Subscription | None) -> ClientProtocols:
        metadata = {name: encoded(data) for name, data in self.protocols.items()}
        return ClientProtocols(tuple(self.protocols), metadata, self.protocol_type)

    def assign(self, store: Store, name: str, ask: Ask, members: Mapping[str, MemberMetadata]) -> Decision:
        with self.calls.callback("assign"):
            states = self.decide(ask.protocol, {member: known.metadata for member, known in sorted(members.items())})
        return Decision({member: MemberAnswer({}, encoded(state)) for member, state in states.items()})

    def assigned(self, protocol: str, entry: MemberAnswer, channel: Channel) -> None:
        given = Given(protocol, decoded("the member state", entry.member_state), channel.generation)
        self._change(given)
        with self.calls.callback("on_assigned"):
            self.callbacks.on_assigned(given)

    def stopped(self) -> None:
        if self.given is not None:
            with self.calls.callback("on_revoked"):
                self.callbacks.on_revoked()
        self._change(None)

    def lost(self, reason: str) -> None:
        had = self.given
        self._change(None)
        if had is not None:
            with self.calls.callback("on_lost"):
                self.callbacks.on_lost()

    def _change(self, given: Given | None) -> None:
        self.changes += given != self.given
        self.given = given


def _checked(protocols: Mapping[str, bytes]) -> dict[str, bytes]:
    if not isinstance(protocols, Mapping) or not all(isinstance(data, bytes) for data in protocols.values()):
        raise UsageError(f"protocols must be a mapping of names and bytes, not {shown(protocols)}")
    if not protocols:
        raise UsageError("name at least one protocol, with the metadata of this member for it")
    for name in protocols:
        checked_name("protocol", name)
    if (size := sum(map(len, protocols.values()))) > MAX_METADATA_BYTES:
        raise UsageError(f"member metadata of {size} bytes, limit is {MAX_METADATA_BYTES}")
    return dict(protocols)


__all__ = ["Assign", "AssignmentFailed", "Given", "GroupMember", "MemberCallbacks"]
