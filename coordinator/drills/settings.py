"""What a drill is run with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..zk.config import require
from ..zk.lease import LEASE_SHARE
from ..zk.names import checked_name

GROUP = "drill"
POOL = "p"
TOPIC = "numbers"
QUERY = "q"
REGION = "drill"
HOLD_S = 5.0
"""For so long a generation of a group in a consistent region may wait for a checkpoint, once the faults are over."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked when built.

    :ivar session_timeout_ms: what every process asks for.
    :ivar nodes: coordinators.  :ivar slots: fetchers.  :ivar partitions: of the topic.
    :ivar rate: records a second into each partition.
    :ivar sweep_interval_ms: how often a coordinator reads everything again.
    :ivar max_poll_interval_ms: a fetcher that hangs for so long is given up.
    :ivar spark: `pool` for slots in executors with a query, `query` for a query beside slots, "" for neither.
    :ivar segments_mb: the segments stand on a disk of so many MiB; 0 for the folder's own.
    :ivar kafka: the records are in a Kafka broker of the drill's own, not in the embedded log.
    :ivar strategy: of client-side assignment, where a fetcher leads the group; "" for the coordinator's own.
    :ivar misbehaves: what a leader's assignor does between SIGUSR1 and SIGUSR2: `hangs` or `raises`; "" for neither.
    :ivar state_bytes: of the state that such an assignor gives each member.
    :ivar assignment_timeout_ms: how long a leader has to answer.
    :ivar region: the consistent region that the fetchers are in: applications that count; "" for slots in none.
    :ivar steady_s: how long all is well before the fault.
    :ivar group: whom it is done to.  :ivar topic: what they fetch.
    """

    session_timeout_ms: int = 2000
    nodes: int = 2
    slots: int = 3
    partitions: int = 6
    rate: int = 40
    sweep_interval_ms: int = 2000
    max_poll_interval_ms: int = 6000
    spark: str = ""
    segments_mb: int = 0
    kafka: bool = False
    strategy: str = ""
    misbehaves: str = ""
    state_bytes: int = 0
    assignment_timeout_ms: int = 30_000
    region: str = ""
    steady_s: float = 1.0
    group: str = GROUP
    topic: str = TOPIC

    def __post_init__(self) -> None:
        require(500 <= self.session_timeout_ms <= 60_000, "session_timeout_ms must be from 500 to 60000")
        require(1 <= self.nodes <= 5, "nodes must be from 1 to 5")
        require(1 <= self.slots <= 20, "slots must be from 1 to 20")
        checked_name("group", self.group)
        checked_name("topic", self.topic)
        require(1 <= self.partitions <= 200, "partitions must be from 1 to 200")

    def bounds(self, tick_s: float) -> dict[str, float]:
        """What the checker and the promises measure by, in seconds."""
        session_s, sweep_s = self.session_timeout_ms / 1000, self.sweep_interval_ms / 1000
        return {
            "session_timeout": session_s,
            "tick": tick_s,
            "sweep": sweep_s,
            "lease": session_s * LEASE_SHARE,
            "poll_interval": self.max_poll_interval_ms / 1000,
            "assignment_timeout": self.assignment_timeout_ms / 1000,
            "hold": HOLD_S,
            "seal_interval": 0.2,
            "channel_retention": 86_400.0,
            "collection": 2 * sweep_s + 2 * session_s,
            "notice": 2 * sweep_s + 1.0,
        }

    def to_json(self) -> dict[str, Any]:
        """As run.json has it."""
        return asdict(self)
