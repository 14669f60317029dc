"""Errors of a consumer besides `zk_group.coordinator.zk.errors`; the words are Kafka's.

CoordinatorError
├── UsageError
│   ├── ForeignFolder                    a group's or region's folder of files belongs to another chroot
│   ├── Closed                           a call after `close`
│   ├── ConcurrentModification           a call while another thread's call runs
│   └── Inherited                        a call in a process that was forked since the object was made
├── Fenced
│   └── IncarnationOver
│       ├── UnknownMemberId              membership lost; it rejoins inside a later `poll`
│       ├── IllegalGeneration            of one commit or seal: a partition was revoked; the incarnation lives on
│       ├── FencedInstanceId             a newer process has the name: this one must not register again
│       ├── InconsistentGroupProtocol    refused: the members have no strategy in common
│       ├── GroupMaxSizeReached          refused: the group is full
│       ├── InconsistentRegion           refused: the group is in another consistent region, or in none
│       └── ChannelGone                  its channel was removed or overwritten by an operator
├── NoOffsetForPartition                 auto_offset_reset is none, and the group has no offset for a partition
├── DrainFailed                          in a consistent region: the application gave no state; the member has left
├── ProcessFailed                        a consumer operator's `process` raised: it has left without a checkpoint
├── AssignmentFailed                     under client-side assignment: the group's leader gave no assignment
├── CommitFailed                         a commit came too late; its cause is one of these
└── SegmentError                         a sealed segment is missing, damaged or was deleted
"""

from __future__ import annotations

import os

from zk_group.coordinator.zk.errors import CoordinatorError, IncarnationOver, UsageError
from zk_group.coordinator.zk.znodes.records import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INCONSISTENT_REGION,
    Channel,
)


class ForeignFolder(UsageError):
    """A group's or region's folder of files belongs to another chroot: nothing is written or removed in it."""


class Closed(UsageError):
    """A call of a consumer, member or operator that is closed; the message is Kafka's."""


class ConcurrentModification(UsageError):
    """A call while another thread's call runs, as Kafka's ConcurrentModificationException; the message names both."""


class Inherited(UsageError):
    """A call in a process that was forked since the object was made: make a consumer, producer or pool in each."""


def refuse_inherited(what: str, made_in: int) -> None:
    """
    :raises Inherited: in another process than `made_in`, from which it was forked: threads, sessions and buffers of
        the object are that process's.
    """
    if os.getpid() != made_in:
        made = f"This {what} was made in process {made_in}, from which this one ({os.getpid()}) was forked"
        raise Inherited(f"{made}: make a {what} in each process.")


class UnknownMemberId(IncarnationOver):
    """No longer a member: evicted, removed, session expired, or `max_poll_interval_ms` exceeded."""


class IllegalGeneration(IncarnationOver):
    """A commit or seal of a partition that was revoked: the generation has moved on."""


class FencedInstanceId(IncarnationOver):
    """A newer process has registered under this consumer's name."""


class InconsistentGroupProtocol(IncarnationOver):
    """None of its strategies is supported by every member of the group. The next poll tries again."""


class GroupMaxSizeReached(IncarnationOver):
    """The group has its maximum number of members. The next poll tries again."""


class InconsistentRegion(IncarnationOver):
    """The group is in another consistent region, or in none. The next poll tries again."""


class ChannelGone(IncarnationOver):
    """The channel was removed or overwritten. The owner znodes of its partitions go only with the session."""


class NoOffsetForPartition(CoordinatorError):
    """The group has no offset for a partition, and `auto_offset_reset` is `none`. The next poll reads it again."""


class DrainFailed(CoordinatorError):
    """The application gave no contribution to a checkpoint: its member has left, and the region is reset."""


class ProcessFailed(CoordinatorError):
    """A consumer operator's `process` raised `__cause__` at the partition and offset that the message names.

    The member has left without a checkpoint: the record is processed again by the next owner, with the last state.
    """


class AssignmentFailed(CoordinatorError):
    """The leader's assignor failed, or timed out. The group keeps its assignment; polling continues.

    :ivar ask: its request.
    """

    def __init__(self, reason: str, ask: str) -> None:
        super().__init__(f"{reason} ({ask})")
        self.ask = ask


class CommitFailed(CoordinatorError):
    """Offsets were not committed, or the outcome is unknown.

    When it is permanent, the message begins with the name of the refusal, which is `__cause__`: `UnknownMemberId`,
    `IllegalGeneration`, `FencedInstanceId`, `InconsistentGroupProtocol`, `GroupMaxSizeReached` or `ChannelGone`.
    """


class SegmentError(CoordinatorError):
    """A sealed segment cannot be read; the message names it and its offsets."""


TURNED_AWAY = (InconsistentGroupProtocol, GroupMaxSizeReached, InconsistentRegion)
"""The group refuses the member as it is; `poll` raises them, and the next `poll` tries again."""

_BY_WORD: dict[str, type[IncarnationOver]] = {
    FENCED_INSTANCE_ID: FencedInstanceId,
    INCONSISTENT_GROUP_PROTOCOL: InconsistentGroupProtocol,
    GROUP_MAX_SIZE_REACHED: GroupMaxSizeReached,
    INCONSISTENT_REGION: InconsistentRegion,
}


def refusal_in(channel: Channel) -> IncarnationOver:
    """The error of a consumer whose channel was ended by another process: `error` has its class, `ended` the reason.

    A missing or unknown `error`, as of another release, means `UnknownMemberId`.
    """
    return _BY_WORD.get(channel.error, UnknownMemberId)(channel.ended or "the incarnation is over")
