"""Sessions of the modelled ZooKeeper, and when they expire.

No pings are simulated. A session counts as heard of for as long as its client runs and is connected to a server that is
in touch with the leader. When that ends, the last ping is somewhere in the third of the timeout before, by lot.

What comes by way of a follower does not count at the leader, be it a write or a sync: the follower reports, when the
leader pings it, twice a tick, from whom it has heard since the last report. One that is cut off takes with it what it
has not reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.scheduler import SimulatedProcess, Timer

if TYPE_CHECKING:
    from tests.simulation.links import SimulatedLink
    from tests.simulation.zookeeper import SimulatedEnsemble


@dataclass(slots=True, eq=False, repr=False)
class SimulatedSession:
    """One session, as the leader knows it.

    :ivar process: whose it is; None for a person's, which does not expire.
    :ivar link: its newest connection, which may be over.
    :ivar is_heard: whether its client talks to a server in touch, for now without an end.
    :ivar is_over: closed or expired.
    """

    _ensemble: SimulatedEnsemble
    id: int
    process: SimulatedProcess | None
    timeout_s: float
    link: SimulatedLink | None = None
    is_heard: bool = False
    is_over: bool = False
    who: str = "hand"
    _timer: Timer | None = None
    _due: float = math.inf
    _heard_since: float = 0.0
    _report_at: float = 0.0
    _stamp: float = field(init=False)
    """When the leader heard of it last, as far as that is not to be drawn yet."""

    def __post_init__(self) -> None:
        self._stamp = self._ensemble.scheduler.now
        self.is_heard = self.process is None
        if self.process is not None:
            self.who = self.process.life
            self._arm()

    def move(self, link: SimulatedLink) -> None:
        """It has a new connection; the leader was asked, and so has heard of it."""
        self.link = link
        self.restart()
        self.review()

    def restart(self) -> None:
        """From now on it has its whole timeout."""
        self._stamp = self._ensemble.scheduler.now
        self._report_at = 0.0
        if not self.is_heard:
            self._arm()

    def review(self) -> None:
        """Something has happened to the client, its connection or its server: see whether it is still heard of."""
        process, link = self.process, self.link
        if self.is_over or process is None:
            return
        is_heard = (
            link is not None
            and link.is_open
            and link.server.is_in_touch
            and not process.is_paused
            and not process.is_dead
        )
        if is_heard == self.is_heard:
            return
        self.is_heard = is_heard
        if is_heard:
            self._heard_since = self._ensemble.scheduler.now
            self.touch()
        else:
            self._stamp = max(self._stamp, self._last_stamp())
            self._arm()

    def touch(self) -> None:
        """A packet has come to its server, which is in touch."""
        ensemble = self._ensemble
        now = ensemble.scheduler.now
        assert self.link is not None
        if self.link.server is ensemble.leader:
            self._stamp = known_at = now
        elif self._report_at > now:
            known_at = self._report_at
        else:
            self._stamp = max(self._stamp, self._report_at)
            self._report_at = known_at = ensemble.report_after(now)
        if self._timer is not None and self._due > known_at:
            if self.is_heard:
                self._disarm()
            else:
                self._stamp = known_at
                self._arm()

    def _last_stamp(self) -> float:
        """When the leader heard of it last, now that it does not any more."""
        ensemble, link = self._ensemble, self.link
        now = ensemble.scheduler.now
        ping_s = ensemble.scheduler.random.random() * self.timeout_s / 3
        assert link is not None
        if link.server is ensemble.leader:
            return now - ping_s if now - ping_s >= self._heard_since else self._stamp
        # The last report is the one to come, or the last before the follower was cut off.
        last = ensemble.report_after(now)
        if not link.server.is_in_touch:
            last -= ensemble.tick_s / 2
        said_at = min(last, now) - ping_s
        stamp = ensemble.report_after(said_at) if said_at >= self._heard_since else 0.0
        return max(stamp, self._report_at) if self._report_at <= last else stamp

    def end(self) -> None:
        """It is over."""
        self.is_over = True
        self._disarm()

    def _arm(self) -> None:
        self._disarm()
        ensemble = self._ensemble
        self._due = ensemble.tick_after(self._stamp + self.timeout_s)
        self._timer = ensemble.scheduler.after(self._due - ensemble.scheduler.now, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.is_cancelled = True
            self._timer = None
            self._due = math.inf

    def _expire(self) -> None:
        if self._ensemble.leader is not None:
            self._ensemble.end(self, "expired")


def boundary_after(moment: float, length_s: float, phase_s: float) -> float:
    """The first boundary after `moment` of those that are `length_s` apart."""
    return (math.floor((moment - phase_s) / length_s) + 1) * length_s + phase_s
