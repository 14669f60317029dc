"""How a client of the modelled ZooKeeper finds a server, as kazoo does: each once, then a pause, and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.links import WIDE, SimulatedLink, WideLatency
from tests.simulation.servers import SimulatedServer

if TYPE_CHECKING:
    from tests.simulation.store import SimStore
    from tests.simulation.zookeeper import SimulatedEnsemble

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


@dataclass
class Connector:
    """Tries servers until one takes the session, or says that it is over, or it is told to stop."""

    _ensemble: SimulatedEnsemble
    _store: SimStore
    _hosts: list[SimulatedServer] = field(default_factory=list)
    _pause_s: float = 0.0
    _attempt: _Attempt | None = None
    _is_stopped: bool = False

    def stop(self) -> None:
        """Try no more."""
        self._is_stopped = True
        if self._attempt is not None:
            self._attempt.is_over = True

    def begin(self) -> None:
        """Try the next server, now; after all of them, wait a little first."""
        if self._is_stopped or self._store.process.is_dead:
            return
        scheduler = self._ensemble.scheduler
        delay_s = 0.0
        if not self._hosts:
            self._hosts = list(self._store.hosts)
            scheduler.random.shuffle(self._hosts)
            delay_s = self._pause_s * scheduler.random.uniform(0.6, 1.4)
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        attempt = self._attempt = _Attempt(self, self._ensemble, self._store, self._hosts.pop())
        scheduler.after(delay_s, attempt.send)

    def failed(self, attempt: _Attempt) -> None:
        """That server did not take it."""
        if attempt is self._attempt and not attempt.is_over:
            attempt.is_over = True
            self.begin()

    def succeeded(self, link: SimulatedLink) -> None:
        """A server took it."""
        self._pause_s = _FIRST_PAUSE_S
        self._store.on_connected(link)

    def ended(self) -> None:
        """A server said that the session is over."""
        self._store.on_expired()


@dataclass(eq=False)
class _Attempt:
    """One try with one server."""

    _connector: Connector
    _ensemble: SimulatedEnsemble
    _store: SimStore
    _server: SimulatedServer
    _link: SimulatedLink | None = None
    is_over: bool = False

    def __post_init__(self) -> None:
        ensemble = self._ensemble
        self._latency = WideLatency(ensemble.scheduler.random) if ensemble.latency == WIDE else None

    def send(self) -> None:
        process = self._store.process
        if process.is_paused or process.is_dead:
            process.receive(self.send)
        elif not self.is_over:
            scheduler = self._ensemble.scheduler
            scheduler.after(self._hop_s(), self._arrive)
            share_s = self._store.wanted_timeout_s / len(self._ensemble.servers)
            scheduler.after(process.virtual_s(share_s), self._fail)

    def _hop_s(self) -> float:
        ensemble = self._ensemble
        if self._latency is not None and ensemble.latency == WIDE:
            return self._latency.hop_s()
        return ensemble.hop_s + ensemble.scheduler.random.random() * ensemble.hop_spread_s

    def _arrive(self) -> None:
        """Reach the server."""
        ensemble, server, store = self._ensemble, self._server, self._store
        if server.is_paused or (server.is_running and server.is_cut and not server.has_given_up):
            return  # nobody answers before the leader was asked
        after = ensemble.scheduler.after
        if not server.is_in_touch:
            after(self._hop_s(), self._fail)
            return
        server.catch_up()
        if server.tree.zxid < store.last_zxid:
            after(self._hop_s(), self._fail)
            return
        session = store.session
        delay_s = server.confirms_in_s
        if session is None:
            session = ensemble.new_session(store.process, store.wanted_timeout_s)
            delay_s = server.behind_s  # it is welcome when the server has applied that
        elif session.is_over:
            after(self._hop_s(), self._end)
            return
        old, self._link = session.link, SimulatedLink(server, session, store, self._latency)
        session.move(self._link)
        if old is not None:
            old.break_off()
        self._link.deliver(self._welcome, delay_s)

    def _fail(self) -> None:
        process = self._store.process
        if process.is_paused or process.is_dead:
            process.receive(self._fail)
        elif not self.is_over:
            self._connector.failed(self)
            if self._link is not None:
                self._link.break_off()

    def _end(self) -> None:
        process = self._store.process
        if process.is_paused or process.is_dead:
            process.receive(self._end)
        elif not self.is_over:
            self.is_over = True
            self._connector.ended()

    def _welcome(self) -> None:
        process, link = self._store.process, self._link
        assert link is not None
        if process.is_paused or process.is_dead:
            process.receive(self._welcome)
        elif self.is_over:
            link.break_off()
        elif not link.is_connected:
            self._fail()
        else:
            self.is_over = True
            self._connector.succeeded(link)
