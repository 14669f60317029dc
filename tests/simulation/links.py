"""A connection between one client and one server of the modelled ZooKeeper, and the requests that go over it.

In either direction nothing overtakes anything. The connection ends for its two sides separately: what is on its way
when one of them, or the network, breaks it may still arrive at the server, but no answer comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.scheduler import Thread
from tests.simulation.znodes import REFUSED, Event
from zk_group.coordinator.zk.store import Listing, Node, Watch

if TYPE_CHECKING:
    from tests.simulation.servers import SimulatedServer
    from tests.simulation.sessions import SimulatedSession
    from tests.simulation.store import SimStore
    from tests.simulation.zookeeper import SimulatedEnsemble

GET, LIST, EXISTS, READ, ACLS, SYNC, COMMIT, CLOSE = range(8)
"""Kinds of requests. The first three read each of some paths and may leave a watch; READ is a multiRead."""

_STEP_S = 1e-9
"""So much later, at least, comes what comes behind something else."""

EVEN = "even"
WIDE = "wide"
"""How long packets take: evenly short, or as between machines that are near, far, and sometimes overloaded."""

_BASES_S = (0.0002, 0.0005, 0.002, 0.01, 0.06)
_WEIGHTS = (5, 4, 3, 2, 1)
_SIGMA = 1.0
_STALLS = 0.01
_SHORTEST_STALL_S = 0.2
_LONGEST_STALL_S = 2.0


class WideLatency:
    """That of one connection: a base that is drawn for it, times a factor that is drawn for each packet; and stalls."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.base_s = random.choices(_BASES_S, _WEIGHTS)[0]

    def hop_s(self) -> float:
        """What the next packet takes."""
        taken = self.base_s * self._random.lognormvariate(0.0, _SIGMA)
        if self._random.random() < _STALLS:
            taken += self._random.uniform(_SHORTEST_STALL_S, _LONGEST_STALL_S)
        return taken


@dataclass(slots=True, eq=False, repr=False)
class LinkRequest:
    """One request on its way, and its answer.

    :ivar what: paths, or operations.
    :ivar waiter: the thread that waits for the answer, once it does.
    :ivar is_ready: its outcome stands; at the server it may still have to wait for those before it.
    :ivar is_over: its sender has what it will ever get.
    :ivar is_late: its connection broke before it arrived, and it is still on its way.
    """

    kind: int
    what: Sequence[Any]
    watch: Watch | None = None
    link: SimulatedLink = None  # type: ignore[assignment]
    result: Any = None
    error: Exception | None = None
    waiter: Thread | None = None
    is_ready: bool = False
    is_over: bool = False
    is_late: bool = False
    sent_at: float = 0.0
    zxid: int = 0

    def arrive(self) -> None:
        """Reach the server."""
        self.link.server.receive(self)

    def answer(self) -> None:
        """Reach the client."""
        link = self.link
        if not link.is_connected:
            return
        process = link.client.process
        if process.is_paused or process.is_dead:
            process.receive(self.answer)
        elif link.client.loses_reply(self):
            link.break_off()
        else:
            link.client.on_reply(self)


@dataclass(slots=True, eq=False, repr=False)
class SimulatedLink:
    """One connection.

    :ivar is_open: the server has it.
    :ivar is_connected: the client has it.
    :ivar resets: the server's count when it was opened.
    :ivar latency: how long its packets take, None for the ensemble's `hop_s` and `hop_spread_s`.
    :ivar waiting: what has arrived, and is not answered because a write before it is not done.
    """

    server: SimulatedServer
    session: SimulatedSession
    client: SimStore
    latency: WideLatency | None
    is_open: bool = True
    is_connected: bool = True
    waiting: deque[LinkRequest] = field(default_factory=deque)
    resets: int = 0
    _ensemble: SimulatedEnsemble = field(init=False)
    _last_arrival: float = 0.0
    _last_delivery: float = 0.0
    _loses_all: bool = False

    def __post_init__(self) -> None:
        self._ensemble, self.resets = self.server.ensemble, self.server.resets
        self.server.links[self] = None

    def send(self, request: LinkRequest, later_s: float = 0.0) -> None:
        """Send a request to the server.

        :param later_s: how much more time goes by before it arrives.
        """
        request.link = self
        if self._loses_all:
            return
        scheduler = self._ensemble.scheduler
        now = scheduler.now
        at = max(now + self._hop_s() + later_s, self._last_arrival + _STEP_S)
        self._last_arrival = at
        scheduler.after(at - now, request.arrive)

    def lose(self, request: LinkRequest) -> None:
        """The request gets lost with all behind it, and the connection breaks when it should have arrived."""
        request.link = self
        self._loses_all = True
        self._ensemble.scheduler.after(self._hop_s(), self.break_off)

    def reply(self, request: LinkRequest) -> None:
        """Send an answer to the client."""
        if self.is_open:
            request.zxid = self.server.tree.zxid
            later_s = 0.0
            if (slow := self.client.slows_reply(request)) is not None:
                later_s, cut_s = slow
                self._ensemble.scheduler.after(cut_s, self.break_off)
            self.deliver(request.answer, later_s)

    def tell(self, events: list[Event]) -> None:
        """Send the events of one transaction to the client."""
        client, ensemble = self.client, self._ensemble
        if client.lose_watches:
            kept = [event for event in events if ensemble.scheduler.random.random() >= client.lose_watches]
            if len(kept) < len(events):
                ensemble.on_fault("lose-watch")
            events = kept
        if not events:
            return
        later_s = 0.0
        if client.late_watches_s:
            later_s = ensemble.scheduler.random.random() * client.late_watches_s
            ensemble.on_fault("late-watch")
        self.deliver(partial(self._notify, events), later_s)

    def _notify(self, events: list[Event]) -> None:
        if not self.is_connected:
            return
        process = self.client.process
        if process.is_paused or process.is_dead:
            process.receive(partial(self._notify, events))
        else:
            self.client.on_events(events)

    def deliver(self, call: Callable[[], None], later_s: float) -> None:
        """Call `call` when a packet that the server sends now arrives, or `later_s` later."""
        scheduler = self._ensemble.scheduler
        now = scheduler.now
        at = max(now + self._hop_s() + later_s, self._last_delivery + _STEP_S)
        self._last_delivery = at
        scheduler.after(at - now, call)

    def _hop_s(self) -> float:
        ensemble, latency = self._ensemble, self.latency
        random = ensemble.scheduler.random.random
        if latency is not None and ensemble.latency == WIDE:
            taken = latency.hop_s()
        else:
            taken = ensemble.hop_s + random() * ensemble.hop_spread_s
        client = self.client
        if client.slow_until > ensemble.scheduler.now:
            taken += min(random() * client.slow_s, client.slow_until - ensemble.scheduler.now)
            if not client.slow_is_told:
                client.slow_is_told = True
                ensemble.on_fault("slow")
        return taken

    def close(self) -> None:
        """The server closes it; the client notices behind all that was sent to it before."""
        if self.is_open:
            self._leave()
            self.deliver(self.end, 0.0)

    def break_off(self) -> None:
        """The client, or the network, ends it; what the server has sent and has not arrived is lost."""
        if self.is_open:
            self._leave()
        self.end()

    def _leave(self) -> None:
        self.is_open = False
        self.waiting.clear()
        self.server.links.pop(self, None)
        self.session.review()

    def fall_silent(self) -> None:
        """The server answers no more: unless that changes, the client ends it after 2/3 of its timeout at most."""
        scheduler = self._ensemble.scheduler
        share = (1 + scheduler.random.random()) / 3
        scheduler.after(share * self.session.timeout_s, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.server.is_paused or self.client.slow_until > self._ensemble.scheduler.now:
            self.break_off()

    def end(self) -> None:
        """The client notices that it is over."""
        if not self.is_connected:
            return
        process = self.client.process
        if process.is_paused or process.is_dead:
            process.receive(self.end)
            return
        self.is_connected = False
        self.client.on_end(self)


def leaves_watch(kind: int, found: Node | Listing | None) -> bool:
    """Whether a read leaves its watch: where there was something, or its absence was the question."""
    if found is None:
        return kind == EXISTS
    return found is not REFUSED and not (isinstance(found, Listing) and found.denied)
