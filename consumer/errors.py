"""What a consumer may raise besides `coordinator.zk.errors`; the words are Kafka's.

CoordinatorError
├── Fenced
│   └── IncarnationOver
│       ├── UnknownMemberId              it is no member any more; it rejoins inside a later `poll`
│       ├── IllegalGeneration            of one commit or seal: a partition is no longer its own; it lives on
│       ├── FencedInstanceId             a newer process has the name: this one must not come back under it
│       ├── InconsistentGroupProtocol    refused: the members have no strategy in common
│       ├── GroupMaxSizeReached          refused: the group is full
│       ├── InconsistentRegion           refused: the group is in another consistent region, or in none
│       └── ChannelGone                  its channel was removed or overwritten, as only a hand does
├── NoOffsetForPartition                 auto_offset_reset is none, and the group has no offset for a partition
├── DrainFailed                          in a consistent region: the application could not give its state; it has left
├── ProcessFailed                        a consumer operator's `process` raised: it has left, without a checkpoint
├── AssignmentFailed                     under client-side assignment: the group's leader gave no assignment
├── CommitFailed                         a commit came too late; its cause is one of these
└── SegmentError                         a sealed segment is missing, damaged or was collected
"""

from __future__ import annotations

from coordinator.zk.errors import CoordinatorError, IncarnationOver
from coordinator.zk.records import Channel
from coordinator.zk.refusals import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INCONSISTENT_REGION,
)


class UnknownMemberId(IncarnationOver):
    """It is no member any more: evicted, removed, its session ended, or it left because nobody polled."""


class IllegalGeneration(IncarnationOver):
    """A commit or seal of a partition that the consumer no longer runs: the generation has moved on."""


class FencedInstanceId(IncarnationOver):
    """A newer process has registered under this consumer's name."""


class InconsistentGroupProtocol(IncarnationOver):
    """None of its strategies is supported by every member of the group. Polling again is another try."""


class GroupMaxSizeReached(IncarnationOver):
    """The group has as many members as it may have. Polling again is another try."""


class InconsistentRegion(IncarnationOver):
    """The group is in another consistent region, or in none. Polling again is another try."""


class ChannelGone(IncarnationOver):
    """The channel was removed or overwritten. What it said ran has owners that go only with the session."""


class NoOffsetForPartition(CoordinatorError):
    """The group has no offset for a partition, and `auto_offset_reset` is `none`. Polling again looks again."""


class DrainFailed(CoordinatorError):
    """The application could not contribute to a checkpoint: its member has left, and the region is reset."""


class ProcessFailed(CoordinatorError):
    """A consumer operator's `process` raised, which is `__cause__`, at the partition and offset that the message names.

    The member has left without a checkpoint: the record comes again, to the next owner, with the state of the last one.
    """


class AssignmentFailed(CoordinatorError):
    """The leader's assignor failed, or it did not answer in time. The group runs on as it was; polling again goes on.

    :ivar ask: which ask it was.
    """

    def __init__(self, reason: str, ask: str) -> None:
        super().__init__(f"{reason} ({ask})")
        self.ask = ask


class CommitFailed(CoordinatorError):
    """Offsets were not committed, or nobody answered whether they were.

    When it is for good, the message begins with the name of the refusal, which is `__cause__`: `UnknownMemberId`,
    `IllegalGeneration`, `FencedInstanceId`, `InconsistentGroupProtocol`, `GroupMaxSizeReached` or `ChannelGone`.
    """


class SegmentError(CoordinatorError):
    """A sealed segment cannot be read; the message names it and its offsets."""


TURNED_AWAY = (InconsistentGroupProtocol, GroupMaxSizeReached, InconsistentRegion)
"""The group does not take it as it is; `poll` raises them, and another `poll` tries again."""

_BY_WORD: dict[str, type[IncarnationOver]] = {
    FENCED_INSTANCE_ID: FencedInstanceId,
    INCONSISTENT_GROUP_PROTOCOL: InconsistentGroupProtocol,
    GROUP_MAX_SIZE_REACHED: GroupMaxSizeReached,
    INCONSISTENT_REGION: InconsistentRegion,
}


def refusal_in(channel: Channel) -> IncarnationOver:
    """What a consumer is told whose channel was ended by somebody else: `error` says which, `ended` why.

    A word that is missing or not known, as of another release, stands for `UnknownMemberId`.
    """
    return _BY_WORD.get(channel.error, UnknownMemberId)(channel.ended or "the incarnation is over")
