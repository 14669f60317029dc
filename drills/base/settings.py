"""The settings of a drill, and the lies of its members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zk_group.coordinator.zk.lease import LEASE_SHARE
from zk_group.coordinator.zk.values import require
from zk_group.coordinator.zk.znodes.paths import checked_name

GROUP = "drill"
POOL = "p"
TOPIC = "numbers"
QUERY = "q"
REGION = "drill"
HOLD_S = 5.0
"""The longest wait of a generation of a region's group for a checkpoint, after the last fault."""
RESET_S = 5.0
"""The longest reset of a consistent region after its groups are Stable."""


LIES: Mapping[str, str] = {
    "largest-generation": "it writes the largest generation that there is into its channel",
    "impossible-generation": "it writes a generation beyond the bound of the format",
    "acknowledges-only": "it acknowledges every command and claims nothing",
    "removes-only": "it removes every command, and its channel names none",
    "keeps-what-was-stopped": "it acknowledges a stop and keeps what it was to stop",
    "refuses-everything": "it refuses every partition of a start, and a million more",
    "longest-lease": "it registers with a lease of a day",
    "another-incarnation": "its registration names another incarnation than its channel",
    "no-incarnation": "its incarnation is empty",
    "ended-while-registered": "its channel is ended while it stays registered",
    "scribbles": "it writes unreadable data, by turns into its registration and its channel",
    "commands-itself": "it sends commands to its own channel",
}
"""Kind of lie of `drills/workloads/lying_member.py` -> its description."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked when built.

    :ivar session_timeout_ms: the requested session timeout of every process.
    :ivar nodes: coordinators.  :ivar slots: fetchers.  :ivar partitions: of the topic.
    :ivar rate: records a second into each partition.
    :ivar sweep_interval_ms: the coordinator's sweep interval.
    :ivar max_poll_interval_ms: after it a hanging fetcher leaves the group.
    :ivar spark: `pool` for slots in executors with a query, `query` for a query beside slots, "" for neither.
    :ivar segments_mb: size of the segments' disk in MiB; 0 for the folder's own disk.
    :ivar kafka: the records are in the drill's Kafka broker, not in the embedded log.
    :ivar strategy: of client-side assignment; "" for assignment by the coordinator.
    :ivar misbehaves: how a leader's assignor fails between SIGUSR1 and SIGUSR2: `hangs` or `raises`; "" for neither.
    :ivar state_bytes: size of each member's state from the assignor.
    :ivar assignment_timeout_ms: how long a leader has to answer.
    :ivar region: the consistent region of the fetchers, which are counting applications; "" for slots without a region.
    :ivar steady_s: duration of the steady state before the fault.
    :ivar group: the group.  :ivar topic: its topic.
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
        require(1 <= self.partitions <= 1000, "partitions must be from 1 to 1000")

    def bounds(self, tick_s: float) -> dict[str, float]:
        """The bounds of the checker and the promises, in seconds."""
        session_s, sweep_s = self.session_timeout_ms / 1000, self.sweep_interval_ms / 1000
        return {
            "session_timeout": session_s, "tick": tick_s, "sweep": sweep_s, "lease": session_s * LEASE_SHARE,
            "poll_interval": self.max_poll_interval_ms / 1000,
            "assignment_timeout": self.assignment_timeout_ms / 1000,
            "hold": HOLD_S, "reset_timeout": RESET_S, "seal_interval": 0.2,
            "channel_retention": 86_400.0, "segment_retention": 3600.0,
            "collection": 2 * sweep_s + 2 * session_s, "notice": 2 * sweep_s + 1.0,
        }  # fmt: skip
