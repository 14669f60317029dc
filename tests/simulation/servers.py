"""One server of the modelled ZooKeeper: its state of the tree, which may be behind, and the watches left with it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.links import ACLS, LIST, READ, SYNC, LinkRequest, SimulatedLink, leaves_watch
from tests.simulation.scheduler import Scheduler
from tests.simulation.sessions import SimulatedSession
from tests.simulation.znodes import CHILDREN, DELETED, REFUSED, Delta, Event, ServerTree, allows
from zk_group.coordinator.zk.security import policy
from zk_group.coordinator.zk.store import Listing
from zk_group.coordinator.zk.wire import OPEN_ACL

if TYPE_CHECKING:
    from tests.simulation.zookeeper import SimulatedEnsemble

_ROUNDING_S = 1e-9

Pending = tuple[float, Delta | None, LinkRequest | None, SimulatedSession | None]
"""When it is due, a transaction (None for a sync), the request that waits for it here, the session that it ends."""


@dataclass(eq=False, repr=False)
class SimulatedServer:
    """A server. Faults are its public methods; each says whether it changed anything.

    :ivar lag_s: how much later than usual it applies what the leader sends.
    :ivar has_slow_disk: what it applies so late has arrived in time, as when only its disk is slow.
    :ivar is_cut: it and the other servers do not hear each other.
    :ivar has_given_up: it has noticed that it is cut off, and serves nobody.
    :ivar resets: how often it has closed every connection.
    """

    ensemble: SimulatedEnsemble
    number: int
    tree: ServerTree = field(default_factory=ServerTree)
    links: dict[SimulatedLink, None] = field(default_factory=dict)
    is_running: bool = True
    is_paused: bool = False
    is_cut: bool = False
    has_given_up: bool = False
    lag_s: float = 0.0
    has_slow_disk: bool = False
    resets: int = 0
    _lag_is_told: bool = True
    _pending: deque[Pending] = field(default_factory=deque)
    _last_due: float = 0.0
    _is_armed: bool = False
    _held: list[LinkRequest] = field(default_factory=list)
    _epoch_heard: int = 0
    _data_watches: dict[str, dict[SimulatedLink, None]] = field(default_factory=dict)
    _child_watches: dict[str, dict[SimulatedLink, None]] = field(default_factory=dict)

    @property
    def _scheduler(self) -> Scheduler:
        return self.ensemble.scheduler

    @property
    def is_in_touch(self) -> bool:
        """Whether it serves, and hears the leader."""
        return self.is_running and not self.is_paused and not self.is_cut and self.ensemble.leader is not None

    @property
    def is_able(self) -> bool:
        """Whether it can take part in an election."""
        return self.is_running and not self.is_paused and not self.is_cut

    @property
    def confirms_in_s(self) -> float:
        """How long it takes until the leader's word about a session is here: behind all that was sent before."""
        return 0.0 if self.has_slow_disk else max(0.0, self.behind_s - self.ensemble.lag_spread_s)

    @property
    def behind_s(self) -> float:
        """How long it takes until it has applied what the leader has sent so far."""
        return max(0.0, self._last_due - self._scheduler.now) if self._pending else 0.0

    # ---- requests

    def receive(self, request: LinkRequest) -> None:
        """A request has arrived."""
        link = request.link
        if not link.is_open:
            self.ensemble.receive_late(request)
            return
        if self.is_paused:
            self._held.append(request)
            return
        if not self.is_cut:
            link.session.touch()
        if request.kind < SYNC and not link.waiting:
            self.catch_up()
            if link.is_open:
                self._read(request)
                link.reply(request)
            return
        link.waiting.append(request)
        if request.kind < SYNC:
            return
        if self.is_cut:
            self._held.append(request)
        else:
            self.ensemble.lead(request)

    def done(self, request: LinkRequest) -> None:
        """The outcome of a write or a sync stands, and this server has applied all up to it."""
        request.is_ready = True
        link = request.link
        waiting = link.waiting
        while waiting and link.is_open:
            first = waiting[0]
            if first.kind < SYNC:
                self._read(first)
            elif not first.is_ready:
                return
            waiting.popleft()
            link.reply(first)

    def _read(self, request: LinkRequest) -> None:
        kind, watch = request.kind, request.watch
        tree, identities = self.tree, request.link.client.identities
        for observer in tuple(self.ensemble.on_read):
            observer(request)
        if kind == LIST:
            request.result = [self._listing(path, identities) for path in request.what]
        elif kind == ACLS:
            request.result = [tree.acl(path, identities) for path in request.what]
        else:
            request.result = [tree.read(path, identities) for path in request.what]
        if watch is None or kind == READ:
            return
        table = self._child_watches if kind == LIST else self._data_watches
        for path, found in zip(request.what, request.result, strict=True):
            if leaves_watch(kind, found):
                table.setdefault(path, {})[request.link] = None
        if self._pending and not self._is_armed:
            self._arm(self._pending[0][0])

    def _listing(self, path: str, identities: Sequence[str]) -> Listing | None:
        node = self.tree.read(path, identities)
        if node is None:
            return None
        if node is REFUSED:
            return Listing([], node.stat, denied=path)
        names, random = self.tree.names(path), self._scheduler.random
        if len(names) > 8:
            first = int(random.random() * len(names))
            names = names[first:] + names[:first]
        elif len(names) > 1:
            random.shuffle(names)
        return Listing(names, node.stat)

    # ---- following the leader

    def follow(self, delta: Delta | None, request: LinkRequest | None, session: SimulatedSession | None) -> None:
        """The leader has committed something: it takes effect here a little later, in the leader's order."""
        if self.is_able:
            scheduler = self._scheduler
            lag_s = self.lag_s + scheduler.random.random() * self.ensemble.lag_spread_s
            due = self._last_due = max(self._last_due, scheduler.now + lag_s)
            if not self._lag_is_told:
                self._lag_is_told = True
                self.ensemble.on_fault("lag")
        else:
            due = math.inf
        self._pending.append((due, delta, request, session))
        if not self._is_armed and (request is not None or session is not None or self._is_watched(delta)):
            self._arm(due)

    def catch_up(self, until: float | None = None) -> None:
        """Apply all that is due by now, or by `until`."""
        limit = (self._scheduler.now if until is None else until) + _ROUNDING_S
        pending = self._pending
        while pending and pending[0][0] <= limit:
            _, delta, request, session = pending.popleft()
            self.apply(delta, request, session)

    def apply(self, delta: Delta | None, request: LinkRequest | None, session: SimulatedSession | None) -> None:
        """Let a transaction take effect here: events first, then the answer."""
        if delta is not None:
            self.tree.apply(delta)
            if self._data_watches or self._child_watches:
                self._fire(delta)
        if request is not None:
            self.done(request)
        if session is not None and session.link is not None and session.link.server is self:
            session.link.close()

    def _arm(self, due: float) -> None:
        if due < math.inf:
            self._is_armed = True
            self._scheduler.after(due - self._scheduler.now, self._on_due)

    def _on_due(self) -> None:
        self._is_armed = False
        if self.is_paused:
            return
        self.catch_up()
        if self._pending and not self._is_armed:
            self._arm(self._pending[0][0])

    # ---- watches

    def _is_watched(self, delta: Delta | None) -> bool:
        if delta is None:
            return False
        data, child = self._data_watches, self._child_watches
        return any(path in data or path in child for _, path in delta.events)

    def _fire(self, delta: Delta) -> None:
        told: dict[SimulatedLink, list[Event]] = {}
        for event, acl in zip(delta.events, delta.acls, strict=True):
            kind, path = event
            links = (self._child_watches if kind == CHILDREN else self._data_watches).pop(path, None)
            if kind == DELETED:
                more = self._child_watches.pop(path, None)
                links = {**links, **more} if links and more else links or more
            for link in links or ():
                if acl is OPEN_ACL or allows(acl, policy.READ, link.client.identities):
                    told.setdefault(link, []).append(event)
        for link, its in told.items():
            if link.is_open:
                link.tell(its)

    # ---- faults

    def lag(self, seconds: float, has_slow_disk: bool = False) -> bool:
        """Apply what the leader sends so much later from now on."""
        self.lag_s = seconds
        self.has_slow_disk = has_slow_disk
        self._lag_is_told = seconds == 0.0
        return self.is_running and self is not self.ensemble.leader

    def hurry(self) -> None:
        """Apply now what a lag that is over has held up."""
        now = self._scheduler.now
        self._pending = deque((min(due, now), *rest) for due, *rest in self._pending)  # type: ignore[misc]
        self._last_due = now
        self._is_armed = False  # for a moment that is too late
        if not self.is_paused:
            self.catch_up()

    def pause(self) -> bool:
        """Answer nobody, as after SIGSTOP. Clients notice when they have heard nothing for long enough."""
        if not self.is_running or self.is_paused:
            return False
        self.ensemble.on_fault("server-pause")
        self.leave(is_paused=True)
        for link in self.links:
            link.fall_silent()
        return True

    def resume(self) -> bool:
        """Go on after `pause`."""
        if not self.is_paused:
            return False
        self.is_paused = False
        self.rejoin()
        return True

    def stop(self) -> bool:
        """End the process; what it has stays."""
        if not self.end():
            return False
        self.ensemble.on_fault("server-stop")
        return True

    def end(self) -> bool:
        """`stop`, as a part of a larger fault."""
        if not self.is_running:
            return False
        self.is_running = False
        self.is_paused = self.has_given_up = False
        self.drop_links()
        self.ensemble.review()
        return True

    def start(self) -> bool:
        """Start the process again."""
        if self.is_running:
            return False
        self.is_running = True
        self.rejoin()
        return True

    def leave(self, is_cut: bool = False, is_paused: bool = False) -> None:
        """Hear the others no more."""
        if self.is_able and self.ensemble.leader is not None:
            self._epoch_heard = self.ensemble.epoch
        self.is_cut |= is_cut
        self.is_paused |= is_paused
        self.review_sessions()
        self.ensemble.review()

    def give_up(self) -> None:
        """Notice to be cut off: serve nobody before the leader is heard again."""
        if self.is_cut and self.is_running:
            self.has_given_up = True
            self.drop_links()

    def rejoin(self) -> None:
        """Hear the others again, if it can. What was missed comes first, then what was held up goes its way."""
        ensemble = self.ensemble
        if not self.is_able or ensemble.leader is None or ensemble.epoch != self._epoch_heard:
            self.drop_links()
        if not self.is_able:
            return
        self.has_given_up = False
        ensemble.review()
        self.hurry()
        self.review_sessions()
        held, self._held = self._held, []
        for request in held:
            if request.kind >= SYNC and request in request.link.waiting:
                ensemble.lead(request)
            else:
                self.receive(request)

    def review_sessions(self) -> None:
        """See who is still heard of through this server."""
        for link in tuple(self.links):
            link.session.review()

    def drop_links(self) -> None:
        """Every connection ends, and the watches with them."""
        self.resets += 1
        self._held.clear()
        links, self.links = self.links, {}
        for link in links:
            link.close()
        self._data_watches.clear()
        self._child_watches.clear()
