"""The state of one assigned partition in this process, as aiokafka's `subscription_state.py` has it."""

from __future__ import annotations

from dataclasses import dataclass

from ..logs.base import Jump, OffsetOutOfRange, Position


@dataclass(slots=True, eq=False)
class PartitionState:
    """One partition from its assignment to its end; a later assignment of the partition has another object.

    Its committed offset is in the channel, under the fence. Written by the consumer's thread, read by any.

    :ivar position: of the next record that `poll` returns. A slot returns none: its channel has the position.
    :ivar fetched: of the next record to fetch, ahead of `position` by the buffered records.
    :ivar is_paused: whether its records are neither returned nor fetched.
    :ivar reset: `fetched` is out of range: where it continues, or the error without an offset reset. Else None.
    :ivar problem: why it cannot be fetched now; empty while it can.
    """

    position: Position
    fetched: Position
    is_paused: bool = False
    reset: Jump | OffsetOutOfRange | None = None
    problem: str = ""

    def seek(self, offset: int) -> None:
        """Continue at `offset`: a pending reset is over."""
        self.position = self.fetched = self.fetched._replace(offset=offset)
        self.reset = None

    def returned(self, offset: int) -> None:
        """The records before `offset` were returned."""
        self.position = self.position._replace(offset=offset)
