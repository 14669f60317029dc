"""Slips of a consumer's life: its registration, its commands, its lease and its offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import consumer.membership.channel
import consumer.membership.claims
import consumer.membership.member
import consumer.membership.offsets
import consumer.membership.registration
from consumer.consumer import Consumer
from consumer.membership.channel import FencedChannel
from consumer.membership.member import CommandDrain, ConsumerMember
from consumer.membership.offsets import CommittedOffsets
from consumer.membership.registration import Keeper, Registrar
from coordinator.zk.errors import CoordinatorError, OutcomeUnknown, Refused
from coordinator.zk.lease import Heard, Lease
from coordinator.zk.store import Delete, SetData
from coordinator.zk.znodes.records import UNKNOWN_MEMBER_ID, OffsetRecord
from tests.simulation import fences
from tests.simulation.mutation import Mutation, Patch, constant, of, replaced

# ---- registration


def _without_version(original: Any) -> Any:
    def beginning(*args: Any) -> Any:
        fence, *others = original(*args)
        return [replace(fence, version=-1), *others]

    return beginning


def _deletes_only(original: Any) -> Any:
    return lambda *args: [op for op in original(*args) if isinstance(op, Delete)]


def _deletes_nothing(original: Any) -> Any:
    return lambda *args: [op for op in original(*args) if not isinstance(op, Delete)]


def _not_fenced_first(original: Any) -> Any:
    def next_of_the_end(paths: Any, name: str, before: Any) -> Any:
        if not before.channel.is_live:
            return original(paths, name, before)
        ended = replace(before, channel=replace(before.channel, ended="taken over", error=UNKNOWN_MEMBER_ID))
        operations = original(paths, name, ended)
        left = sorted(before.channel.running)[: consumer.membership.registration.PARTITIONS_A_STEP]
        live = before.channel.without(left).to_bytes()
        return [replace(op, data=live) if _is_fence(op, paths.channel(name)) else op for op in operations]

    return next_of_the_end


def _is_fence(operation: Any, path: str) -> bool:
    return isinstance(operation, SetData) and operation.path == path


SMALL_TAKE_OVERS: tuple[Patch, ...] = (
    *fences.SMALL_STEPS,
    constant(consumer.membership.registration, "PARTITIONS_A_STEP", 2),
)


# ---- commands


def _stale_by_generation(original: Any) -> Any:
    def is_stale(self: CommandDrain, channel: Any, command: Any) -> bool:
        return bool(command.incarnation != channel.incarnation or command.generation < channel.generation)

    return is_stale


def _removes_later(original: Any) -> Any:
    """A stop in one multi, the removal of its command in the next."""

    def commit(self: FencedChannel, after: Any, operations: Any = ()) -> None:
        removed = [op for op in operations if isinstance(op, Delete) and "/command-" in op.path]
        if not removed or after.running.keys() >= self.channel.running.keys():
            original(self, after, operations)
            return
        original(self, after, [op for op in operations if op not in removed])
        self.guarded(removed)

    return commit


def _no_owners(original: Any) -> Any:
    return lambda *args: []


def _refused_not_listed(original: Any) -> Any:
    return lambda channel, name, command, refused=frozenset(): original(channel, name, command)


def _any_topic_id(original: Any) -> Any:
    def standing(self: CommittedOffsets, partition: Any, channel: Any, node: Any) -> OffsetRecord | None:
        return OffsetRecord.parse("", node.data) if node is not None else None

    return standing


def _unknown_is_done(original: Any) -> Any:
    def send(self: FencedChannel, operations: Any, after: Any) -> None:
        try:
            self._store.commit(operations)
        except Refused as refused:
            if refused.path == self._path:
                self._read()
            raise
        except OutcomeUnknown:
            pass
        if after is not None:
            self._version += 1
            self.channel = after

    return send


def _known_at_once(_: Any) -> Any:
    def settle(self: FencedChannel) -> None:
        if self.over is not None:
            raise self.over
        if self._is_unsure:
            self._is_unsure = self.is_ending = False
            self._store.sync()
            self._read()

    return settle


# ---- the lease, and signs of life


def _counts_from_its_own_sync(original: Any) -> Any:
    def lease(self: Registrar, store: Any, read_fence: Any) -> Lease:
        heard = self._last_lease.heard if self._last_lease else None
        self._last_lease = Lease(store, self._context.runtime, read_fence, "consumer", heard)
        return self._last_lease

    return lease


def _as_long_as_the_session(_: Any) -> Any:
    return lambda self, timeout_s: (self.certain if self.before is None else self.before) + timeout_s


def _never_touches(original: Any) -> Any:
    def touch_or_leave(self: Keeper, store: Any, fenced: Any) -> None:
        if self._runtime.monotonic() - self.last_poll >= self._config.max_poll_interval_ms / 1000:
            self._leave(store, fenced, "left by itself: poll was not called")

    return touch_or_leave


def _stays_unpolled(original: Any) -> Any:
    def leave(self: Keeper, store: Any, fenced: Any, reason: str) -> None:
        if self._runtime.monotonic() - self.last_commit >= self._config.max_poll_interval_ms / 3000:
            fenced.touch()
            self.last_commit = self._runtime.monotonic()

    return leave


def _leaves_first(original: Any) -> Any:
    def leave(self: ConsumerMember, reason: str = "left", for_good: bool = False) -> None:
        fenced = self._registrar.fenced
        if fenced is not None and fenced.over is None:
            running = frozenset(fenced.channel.running)
            try:
                fenced.settle()
                self._end(fenced, reason, for_good)
                self._holding.give_up(running)
            except (CoordinatorError, OSError):
                pass
        original(self, reason, for_good)

    return leave


class _Unfenced:
    """A channel whose fence is not checked."""

    def __init__(self, fenced: FencedChannel, store: Any) -> None:
        self.channel = fenced.channel
        self._store = store

    def guarded(self, operations: Any) -> None:
        self._store.commit(operations)


def _publishes_unfenced(original: Any) -> Any:
    def publish_if_due(self: ConsumerMember, store: Any, fenced: FencedChannel, at_once: bool) -> None:
        original(self, store, _Unfenced(fenced, store), at_once)

    return publish_if_due


def _commits_this_poll(original: Any) -> Any:
    def polled(self: Consumer, max_records: int | None) -> Any:
        records = original(self, max_records)
        self._auto_commit.if_due()
        return records

    return polled


_REGISTRATION = consumer.membership.registration

LIFE: tuple[Mutation, ...] = (
    Mutation(
        "a registration is no compare-and-set",
        "Life 1",
        (replaced(_REGISTRATION, "_beginning", _without_version),),
        of("S1", "S5"),
        ("aimed", "storm"),
    ),
    Mutation(
        "the predecessor's offsets are not written",
        "Life 1",
        (replaced(_REGISTRATION, "release_operations", _deletes_only),),
        of("S5"),
        ("aimed", "storm"),
    ),
    Mutation(
        "the predecessor's owners stay",
        "Life 1",
        (replaced(_REGISTRATION, "release_operations", _deletes_nothing),),
        of("S1", "S7", "L1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a large take-over does not begin with the fence",
        "Life 1",
        (replaced(_REGISTRATION, "_next_of_the_end", _not_fenced_first),),
        of("S1", "S5", "L1", "L2"),
        ("large", "aimed"),
        SMALL_TAKE_OVERS,
    ),
    Mutation(
        "a command of an older epoch is applied",
        "Life 2",
        (replaced(CommandDrain, "_is_stale", _stale_by_generation),),
        of("S3", "S6"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a stop writes no offsets",
        "Life 3",
        (replaced(consumer.membership.offsets, "release_operations", _deletes_only),),
        of("S5"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a stop leaves its owners",
        "Life 3",
        (replaced(consumer.membership.offsets, "release_operations", _deletes_nothing),),
        of("S1", "S7", "L1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a stop and its removal are two multis",
        "Life 3",
        (replaced(FencedChannel, "commit", _removes_later),),
        of("S3", "S6", "L1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "a claim creates no owners",
        "Life 4",
        (replaced(consumer.membership.member, "claim_operations", _no_owners),),
        of("S1", "S2", "L1", "L4"),
        ("calm", "aimed"),
    ),
    Mutation(
        "a claim takes an owner that is in the way",
        "Life 4",
        fences.NO_OWNERS_IN_THE_WAY,
        of("S1"),
        ("aimed", "storm"),
    ),
    Mutation(
        "refused partitions are not listed",
        "Life 4",
        (replaced(consumer.membership.member, "after_command", _refused_not_listed),),
        of("S6", "L1"),
        ("storm", "aimed"),
        fences.OWNERS_NOT_ASKED,
    ),
    Mutation(
        "an offset of another topic id is used",
        "Life 4",
        (replaced(CommittedOffsets, "_standing", _any_topic_id),),
        of("S5"),
        ("storm", "aimed"),
    ),
    Mutation(
        "a consumer's unknown outcome is taken for done",
        "Life 7",
        (replaced(FencedChannel, "_send", _unknown_is_done),),
        of("S1", "S5", "S6"),
        ("aimed", "storm"),
    ),
    Mutation(
        "an outcome counts as known before its sync is answered",
        "Life 7",
        (replaced(FencedChannel, "_settle", _known_at_once),),
        of("S1", "S5", "S6"),
        ("aimed", "storm"),
    ),
    Mutation(
        "the first lease of a session counts from its own sync",
        "Life 8",
        (replaced(Registrar, "_lease", _counts_from_its_own_sync),),
        of("S1"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "a lease is as long as the session",
        "Life 8",
        (replaced(Heard, "until", _as_long_as_the_session),),
        of("S1"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "a consumer gives no sign of life",
        "Life 9",
        (replaced(Keeper, "_touch_or_leave", _never_touches),),
        of("L1", "L4"),
        ("calm", "aimed"),
    ),
    Mutation(
        "a consumer whose application does not poll stays",
        "Life 9",
        (replaced(Keeper, "_leave", _stays_unpolled),),
        of("L1", "L4", "S1"),
        ("aimed", "pauses"),
    ),
    Mutation(
        "a consumer leaves while it still fetches",
        "Life 10",
        (replaced(ConsumerMember, "leave", _leaves_first),),
        of("S1", "S5"),
        ("aimed", "storm"),
    ),
    Mutation(
        "offsets are published outside the fence",
        "The two fences",
        (replaced(ConsumerMember, "_publish_if_due", _publishes_unfenced),),
        of("S5"),
        ("aimed", "storm"),
    ),
    Mutation(
        "the poll in progress is committed",
        "Offsets",
        (replaced(Consumer, "_polled", _commits_this_poll),),
        of("S5"),
        ("storm", "pauses"),
    ),
)
