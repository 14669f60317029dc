"""A member's part in client-side assignment: as the leader it answers requests; it reads its own assignment.

SyncGroup (sources G3) is a number of multis below the ask, each under the leader's own fence, and each refused
when the coordinator has withdrawn the command or removed the ask. The last creates `answer` and removes the command, so
an answer is complete or absent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from zk_group.coordinator.zk.errors import BadData, Refused, StoreError, UsageError
from zk_group.coordinator.zk.store import MAX_COMMIT_BYTES, Check, Create, Delete, Operation, SetData, Store
from zk_group.coordinator.zk.update import ROOM, batches
from zk_group.coordinator.zk.values import in_chunks
from zk_group.coordinator.zk.znodes.group_state import (
    CLIENT,
    MAX_ANSWER_BYTES,
    MAX_GROUP_METADATA_BYTES,
    MAX_MEMBER_STATE_BYTES,
    MAX_METADATA_BYTES,
    Answer,
    Ask,
    ClientProtocols,
    MemberAnswer,
    SyncRequest,
    decoded,
    decoded_bytes,
)
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import ANSWER, MEMBER_PREFIX, GroupPaths, error_text, shown
from zk_group.coordinator.zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, STATIC, Channel, Command, Registration

from ..config import COORDINATOR_SIDE, Subscription
from ..errors import AssignmentFailed
from .call_guard import MemberContext
from .channel import FencedChannel
from .roles import Role

log = logging.getLogger(__name__)

IDS_AT_ONCE = 25


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """What a leader knows of a member: its registration, and its metadata for the protocol."""

    registration: Registration
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Decision:
    """A leader's answer.

    :ivar entries: consumer -> its assignment.
    :ivar topics: topic -> id, and `partitions` their partition counts, of the assigned topics.
    """

    entries: Mapping[str, MemberAnswer]
    topics: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, frozenset[int]] = field(default_factory=dict)
    is_cooperative: bool = False


class ProtocolType(Protocol):
    """What depends on the protocol type of the group. All methods are called inside `poll`."""

    def offer(self, subscription: Subscription | None) -> ClientProtocols:
        """The content of the member's registration.

        :param subscription: None for a member that consumes no topics.
        """

    def assign(self, store: Store, name: str, ask: Ask, members: Mapping[str, MemberMetadata]) -> Decision:
        """The assignment; any exception but a `StoreError` is the leader's failure.

        :param name: of the ask.
        """

    def assigned(self, protocol: str, entry: MemberAnswer, channel: Channel) -> None:
        """The member's part of the assignment that it is to run."""

    def stopped(self) -> None:
        """The member is about to acknowledge a stop: all work on its part must end."""
        return None

    def lost(self, reason: str) -> None:
        """The incarnation is over: other members may have its part."""

    def wants_rebalance(self, store: Store) -> str:
        """Why the leader requests a rebalance; empty when it does not."""
        return ""

    def requested(self) -> None:
        """A rebalance was requested, by this member or another: the next ask answers both."""
        return None


class ClientAssignment(Role):
    """The role of a member in client-side assignment.

    :param protocol: the part that depends on the protocol type.
    """

    commands = (ASSIGN, ASSIGNMENT_FAILED)

    def __init__(self, context: MemberContext, protocol: ProtocolType) -> None:
        self._sides = context.config.sides
        self._paths = context.paths
        self._consumer = context.consumer
        self._runtime = context.runtime
        self._meter = context.meter
        self._protocol = protocol
        self._rejoins = 0
        self._read_ask = ""
        self._failures: list[AssignmentFailed] = []
        self._failed_asks: set[str] = set()

    def describe(self, registration: Registration, subscription: Subscription | None) -> Registration:
        """A coordinator of an earlier release ignores a consumer that supports only client-side protocols."""
        offered = replace(self._protocol.offer(subscription), rejoins=self._rejoins)
        if (size := offered.metadata_bytes) > MAX_METADATA_BYTES:
            raise UsageError(f"member metadata of {size} bytes, limit is {MAX_METADATA_BYTES}")
        if COORDINATOR_SIDE in self._sides:
            return replace(registration, client=offered)
        topics = registration.subscription if registration.pattern == STATIC else {}
        return replace(registration, client=offered, pattern=CLIENT, subscription=topics)

    def enforce_rebalance(self) -> None:
        """Register the same again, as a rejoin: it causes a rebalance although nothing has changed."""
        self._rejoins += 1

    def stopping(self, is_whole: bool) -> None:
        if is_whole:
            self.leaving()

    def leaving(self) -> None:
        self._read_ask = ""
        self._protocol.stopped()

    def lost(self, reason: str) -> None:
        self._read_ask = ""
        self._failed_asks.clear()
        self._protocol.lost(reason)

    def started(self, name: str, command: Command) -> None:
        if command.ask:  # its entry must be read
            self._read_ask = ""

    def raise_failure(self) -> None:
        """
        :raises AssignmentFailed: when the group's assignment has failed; once for each failure.
        """
        if self._failures:
            raise self._failures.pop(0)

    def tend(self, store: Store, fenced: FencedChannel) -> None:
        """Read the member's own entry if needed, and request a rebalance when the leader needs one.

        :raises StoreError: when ZooKeeper did not answer; call again.
        """
        if fenced.channel.ask and fenced.channel.ask != self._read_ask:
            self._read_entry(store, fenced.channel)
        if reason := self._protocol.wants_rebalance(store):
            request = SyncRequest(self._consumer, fenced.incarnation, reason)
            try:
                fenced.guarded([Create(self._paths.sync_request, request.to_bytes())])
            except Refused as refused:
                if refused.path != self._paths.sync_request:
                    raise
            self._protocol.requested()
            log.info("rebalance requested: group=%s consumer=%s reason=%s", self._paths.group, self._consumer, reason)

    def apply(self, store: Store, fenced: FencedChannel, name: str, command: Command) -> bool:
        """Answer an ask, or note that one has failed."""
        if command.option != ASSIGN:
            if command.ask not in self._failed_asks:
                self._failed_asks.add(command.ask)
                self._failures.append(AssignmentFailed(command.reason, command.ask))
                self._meter.assignment_failed()
            fenced.commit(_heard(fenced.channel, name, command), [Delete(self._paths.command(self._consumer, name))])
            return True
        store.sync()
        if (ask := self._ask(store, command.ask)) is None:
            return False
        log.info(
            "assignment started: group=%s consumer=%s ask=%s protocol=%s members=%d",
            self._paths.group, self._consumer, command.ask, ask.protocol, len(ask.members),
        )  # fmt: skip
        began = self._runtime.monotonic()
        answer, entries = self._decided(store, command.ask, ask)
        self._write(store, fenced, name, command, answer, entries)
        self._meter.assignment_answered(self._runtime.monotonic() - began, answer.error is not None)
        log.info(
            "assignment answered: group=%s consumer=%s ask=%s error=%s",
            self._paths.group, self._consumer, command.ask, answer.error or "-",
        )  # fmt: skip
        return True

    # ---- the member's own entry

    def _read_entry(self, store: Store, channel: Channel) -> None:
        """Read the member's own entry. Without one the leader omitted this member, or a later ask is adopted."""
        name, where = channel.ask, self._paths.member_answer(channel.ask, self._consumer)
        node = store.get(where)
        entry = readable(MemberAnswer.parse, where, node, log) if node is not None else MemberAnswer()
        protocol = entry.protocol if entry is not None else ""
        if entry is not None and not protocol:
            ask = self._ask(store, name)
            protocol = ask.protocol if ask is not None else ""
        self._read_ask = name
        if entry is not None and protocol:  # else the next start names a later ask
            self._protocol.assigned(protocol, entry, channel)

    # ---- the leader

    def _ask(self, store: Store, name: str) -> Ask | None:
        return readable(Ask.parse, self._paths.ask(name), store.get(self._paths.ask(name)), log)

    def _decided(self, store: Store, name: str, ask: Ask) -> tuple[Answer, Mapping[str, MemberAnswer]]:
        """The answer, which reports the error when the assignor failed.

        :raises StoreError: when ZooKeeper did not answer.
        """
        try:
            decision = self._protocol.assign(store, name, ask, self._members(store, ask))
            entries = {name: replace(entry, protocol=ask.protocol) for name, entry in decision.entries.items()}
            size = 0
            for member, entry in sorted(entries.items()):
                if member not in ask.members:
                    raise BadData(f"it names {shown(member)}, which is no member of the ask")
                if (state := decoded_bytes(entry.member_state)) > MAX_MEMBER_STATE_BYTES:
                    raise BadData(
                        f"the state of {member} has {state} bytes, over the {MAX_MEMBER_STATE_BYTES} that it may have"
                    )
                if (one := len(entry.to_bytes())) > MAX_COMMIT_BYTES // 2:
                    raise BadData(f"the entry of {member} has {one} bytes, over the {MAX_COMMIT_BYTES // 2} that fit")
                size += one
            if size > MAX_ANSWER_BYTES:
                raise BadData(f"the assignment has {size} bytes, over the {MAX_ANSWER_BYTES} that it may have")
            names = tuple(sorted(entries))
            answer = Answer(names, decision.topics, decision.partitions, decision.is_cooperative)
            if (size := len(answer.to_bytes())) > MAX_COMMIT_BYTES // 2:
                raise BadData(
                    f"the answer has {size} bytes beside its entries, over the {MAX_COMMIT_BYTES // 2} that fit"
                )
            return answer, entries
        except StoreError:
            raise
        except (Exception, SystemExit) as error:  # of third-party code
            log.exception("assignor failed: group=%s protocol=%s", self._paths.group, ask.protocol)
            return Answer(error=error_text(error)), {}

    def _members(self, store: Store, ask: Ask) -> dict[str, MemberMetadata]:
        """The ask's members that still exist, with their metadata for its protocol."""
        members: dict[str, MemberMetadata] = {}
        size = 0
        for batch in in_chunks(sorted(ask.members), IDS_AT_ONCE):
            nodes = store.get_many([self._paths.id(name) for name in batch])
            seats = store.get_many([self._paths.seat(name) for name, one in zip(batch, nodes, strict=True) if not one])
            away = iter(seats)
            for name, node in zip(batch, nodes, strict=True):
                there = node or next(away)
                known = self._known(ask, name, there.data) if there is not None else None
                if known is not None:
                    members[name] = known
                    size += len(known.metadata)
            if size > MAX_GROUP_METADATA_BYTES:
                raise BadData(f"the group's metadata has more than {MAX_GROUP_METADATA_BYTES} bytes")
        return members

    def _known(self, ask: Ask, name: str, data: bytes) -> MemberMetadata | None:
        """None for another incarnation than the ask's, and for one that does not support the protocol."""
        try:
            registration = Registration.parse(self._paths.id(name), data)
            asked = ask.members[name].identity
            if registration.client is None or (not asked.startswith("seat-") and asked != registration.incarnation):
                return None
            text = registration.client.metadata.get(ask.protocol)
            return MemberMetadata(registration, decoded(self._paths.id(name), text)) if text is not None else None
        except BadData as error:
            log.warning("ignoring unreadable znode: path=%s problem=%s", self._paths.id(name), error)
            return None

    def _write(
        self,
        store: Store,
        fenced: FencedChannel,
        name: str,
        command: Command,
        answer: Answer,
        entries: Mapping[str, MemberAnswer],
    ) -> None:
        """The entries in as many multis as needed, and the answer with the last."""
        paths, ask = self._paths, command.ask
        still_asked: list[Operation] = [Check(paths.ask(ask), -1), Check(paths.command(self._consumer, name), -1)]
        listing = store.children(paths.ask(ask))
        units = _entry_units(paths, ask, entries, listing.names if listing else ())
        *early, last = list(batches(units, ROOM, MAX_COMMIT_BYTES // 2)) or [[]]
        if len(answer.to_bytes()) > MAX_COMMIT_BYTES // 4:
            early, last = [*early, last], []
        for batch in early:
            # Set, not checked: a late write must not overwrite the entries of a second try.
            fenced.commit(replace(fenced.channel, touched=fenced.channel.touched + 1), [*still_asked, *batch])
        acknowledged = Delete(paths.command(self._consumer, name))
        answered: list[Operation] = [Create(paths.answer(ask), answer.to_bytes()), acknowledged]
        fenced.commit(_heard(fenced.channel, name, command), [Check(paths.ask(ask), -1), *last, *answered])


def _entry_units(
    paths: GroupPaths, ask: str, entries: Mapping[str, MemberAnswer], there: Sequence[str]
) -> list[list[Operation]]:
    """Create each entry, or replace that of an earlier try; remove other entries of that try."""
    above, earlier = paths.ask(ask), set(there) - {ANSWER}
    target = {f"{MEMBER_PREFIX}{consumer}": entry.to_bytes() for consumer, entry in sorted(entries.items())}
    units: list[list[Operation]] = [[Delete(f"{above}/{child}")] for child in sorted(earlier - target.keys())]
    for child, data in target.items():
        path = f"{above}/{child}"
        units.append([SetData(path, data) if child in earlier else Create(path, data)])
    return units


def _heard(channel: Channel, name: str, command: Command) -> Channel:
    """The channel after a command that changes neither `running` nor its generation."""
    return replace(channel, epoch=command.epoch, command=name)
