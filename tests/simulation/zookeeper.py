"""A modelled ZooKeeper: a leader, followers that may be behind, sessions, and what can go wrong with them.

A write is done at the leader the moment it arrives there; each follower does the same a little later, in the same
order, and the client is answered by its own server. Reads are answered from whatever state the client's server has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.links import CLOSE, COMMIT, EVEN, SYNC, LinkRequest
from tests.simulation.scheduler import Scheduler, SimulatedProcess
from tests.simulation.servers import SimulatedServer
from tests.simulation.sessions import SimulatedSession, boundary_after
from tests.simulation.store import SimStore
from tests.simulation.znodes import Change, Delta, SetAcl
from zk_group.coordinator.zk.errors import Refused, ZooKeeperUnreachable
from zk_group.coordinator.zk.store import Check, Create, Operation, SetData

Record = Callable[[str, str, dict[str, Any]], None]
"""Puts an event (who, what, its fields) into the history."""

_FIRST_SESSION = 0x1000_0000_0000


class SimulatedEnsemble:
    """The servers.

    :param tick_s: a session lasts two of these at least, and 20 at most unless `longest_session_s` is changed.
    :param record: gets `session`, `commit` and `closed` of every transaction that takes effect, in the order of zxids.
    :param on_fault: gets the kind of each fault when it does something.
    :ivar leader: None while there is none.
    :ivar epoch: the number of the last election.
    :ivar hop_s: a packet takes this long at least, and up to `hop_spread_s` more.
    :ivar latency: `EVEN`, or `WIDE`: as long as it is, each connection is as slow as is drawn for it (`links.py`).
    :ivar lag_spread_s: followers are behind the leader by up to this.
    :ivar splitting: how likely requests that are sent together do not arrive together.
    :ivar election_s: how long the servers are without a leader, shortest and longest.
    :ivar longest_session_s: no session is granted more.
    :ivar on_read: called with each request to read, when a server answers it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        servers: int = 3,
        tick_s: float = 2.0,
        record: Record | None = None,
        on_fault: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self.scheduler = scheduler
        self.tick_s = tick_s
        self.on_fault = on_fault
        self.hop_s = 0.0001
        self.hop_spread_s = 0.0009
        self.latency = EVEN
        self.lag_spread_s = 0.002
        self.splitting = 0.05
        self.election_s = (0.2, 2.0)
        self.longest_session_s = 20 * tick_s
        self.sessions: dict[int, SimulatedSession] = {}
        self.servers = [SimulatedServer(self, number) for number in range(servers)]
        self.leader: SimulatedServer | None = scheduler.random.choice(self.servers)
        self.on_read: list[Callable[[LinkRequest], None]] = []
        self._record = record
        self._tick_phase_s = scheduler.random.random() * tick_s
        self._report_phase_s = scheduler.random.random() * tick_s
        self.epoch = 1
        self._zxid = 1 << 32
        self._is_electing = False
        self._next_session = _FIRST_SESSION
        self._hand: SimulatedSession | None = None

    # ---- clients

    def open(
        self,
        process: SimulatedProcess,
        timeout_s: float,
        connect_timeout_s: float = 15.0,
        hosts: Sequence[SimulatedServer] | None = None,
        identities: Sequence[str] = (),
    ) -> SimStore:
        """Open a session; the calling thread waits for it.

        :param hosts: the servers in its connect string; None for all.
        :param identities: of its credentials, as ACLs have them.
        :raises ZooKeeperUnreachable: when no server answers within `connect_timeout_s` of the process's clock.
        """
        store = SimStore(self, process, timeout_s, identities)
        store.hosts = hosts if hosts is not None else self.servers
        store.open(connect_timeout_s)
        return store

    def new_session(self, process: SimulatedProcess | None, timeout_s: float) -> SimulatedSession:
        """A transaction that opens a session."""
        granted_s = min(max(timeout_s, 2 * self.tick_s), self.longest_session_s)
        self._next_session += 1
        session = self.sessions[self._next_session] = SimulatedSession(self, self._next_session, process, granted_s)
        self._publish(Delta(self._next_zxid()), None, None)
        self._tell(session.who, "session", session=session.id, timeout=granted_s)
        return session

    def by_hand(self, operations: Sequence[Operation]) -> list[str]:
        """Commit as somebody at zkCli: at the leader, at once, on a session of its own.

        :returns: as `Store.commit`.
        :raises Refused: as `Store.commit`.
        :raises ZooKeeperUnreachable: when there is no leader.
        """
        if self.leader is None:
            raise ZooKeeperUnreachable("there is no leader")
        if self._hand is None:
            self._hand = self.new_session(None, 20 * self.tick_s)
        return self._commit(operations, self._hand, None).paths

    # ---- the leader

    def lead(self, request: LinkRequest) -> None:
        """A write or a sync has reached the leader."""
        link = request.link
        session = link.session
        if self.leader is None or session.is_over or session.link is not link:
            return
        if request.kind == SYNC:
            self._publish(None, request, None)
        elif request.kind == CLOSE:
            self.end(session, "closed", request)
        else:
            try:
                request.result = self._commit(request.what, session, request).paths
            except Refused as refused:
                request.error = refused
                self._publish(Delta(self._next_zxid()), request, None)

    def receive_late(self, request: LinkRequest) -> None:
        """A request has come over a connection that is broken by now.

        A write may still be done, perhaps a good while later; but not once the session has another connection, nor
        once the server has closed its end, as it does in an election.
        """
        link = request.link
        if request.kind != COMMIT or not link.server.is_able or link.server.resets != link.resets:
            return
        random = self.scheduler.random
        fate = 1.0 if request.is_late else random.random()
        if fate > 0.7:
            self.lead(request)
        elif fate > 0.4:
            request.is_late = True
            self.scheduler.after(random.random() ** 4 * link.session.timeout_s, request.arrive)

    def end(self, session: SimulatedSession, why: str, request: LinkRequest | None = None) -> None:
        """A transaction that ends a session: `closed`, `killed` or `expired`."""
        assert self.leader is not None
        paths = self.leader.tree.ephemerals(session.id)
        self.scheduler.random.shuffle(paths)
        session.end()
        del self.sessions[session.id]
        zxid = self._next_zxid()
        delta = self.leader.tree.removal(paths, zxid)
        who = session.who if why == "closed" else "server"
        self._tell(who, "closed", session=session.id, zxid=zxid, why=why, paths=paths)
        self._publish(delta, request, session)

    def _commit(self, operations: Sequence[Change], session: SimulatedSession, request: LinkRequest | None) -> Delta:
        assert self.leader is not None
        identities = request.link.client.identities if request is not None else ()
        delta = self.leader.tree.transaction(
            operations, self._zxid + 1, self.scheduler.wall_ms(), session.id, identities
        )
        self._zxid += 1
        if self._record is not None:
            steps = zip(operations, delta.paths, delta.versions, strict=True)
            ops = [_told(operation, path, version) for operation, path, version in steps]
            self._record(session.who, "commit", {"session": session.id, "zxid": delta.zxid, "ops": ops})
        if request is not None:
            request.result = delta.paths
        self._publish(delta, request, None)
        return delta

    def _publish(self, delta: Delta | None, request: LinkRequest | None, session: SimulatedSession | None) -> None:
        leader = self.leader
        assert leader is not None
        own = request.link.server if request is not None else None
        leader.apply(delta, request if own is leader else None, session)
        for server in self.servers:
            if server is not leader and (delta is not None or server is own):
                server.follow(delta, request if server is own else None, session)

    def _next_zxid(self) -> int:
        self._zxid += 1
        return self._zxid

    def _tell(self, who: str, event: str, **fields: Any) -> None:
        if self._record is not None:
            self._record(who, event, fields)

    def tick_after(self, moment: float) -> float:
        """When the leader next looks for sessions that have expired, after `moment`; not before now."""
        return max(boundary_after(moment, self.tick_s, self._tick_phase_s), self.scheduler.now)

    def report_after(self, moment: float) -> float:
        """When followers next report, after `moment`, whom they have heard."""
        return boundary_after(moment, self.tick_s / 2, self._report_phase_s)

    # ---- elections

    def review(self) -> None:
        """Something has happened to a server: see whether there still is, or is again, a leader."""
        has_quorum = sum(server.is_able for server in self.servers) * 2 > len(self.servers)
        if self.leader is not None and not (has_quorum and self.leader.is_able):
            self._depose()
        if self.leader is None and has_quorum and not self._is_electing:
            self._is_electing = True
            shortest_s, longest_s = self.election_s
            self.scheduler.after(self.scheduler.random.uniform(shortest_s, longest_s), self._elect)

    def _depose(self) -> None:
        """Whoever notices that there is no leader serves nobody; who is cut off does not notice."""
        self.leader = None
        for server in self.servers:
            if server.is_able:
                server.drop_links()
            else:
                server.review_sessions()

    def _elect(self) -> None:
        self._is_electing = False
        able = [server for server in self.servers if server.is_able]
        if len(able) * 2 <= len(self.servers):
            return
        for server in able:
            server.catch_up(math.inf)
        self.leader = self.scheduler.random.choice(able)
        self.epoch += 1
        self._zxid = self.epoch << 32
        self._tick_phase_s = self.scheduler.random.random() * self.tick_s
        self._report_phase_s = self.scheduler.random.random() * self.tick_s
        for session in self.sessions.values():
            if session is not self._hand:
                session.restart()

    # ---- faults

    def expire(self, session_id: int) -> bool:
        """Somebody who has its password ends a session now."""
        session = self.sessions.get(session_id)
        if session is None or self.leader is None:
            return False
        self.end(session, "killed")
        self.on_fault("expire")
        return True

    def cut(self, server: SimulatedServer, gives_up_s: float | None = None) -> bool:
        """Cut a server off from the others; its clients still reach it, and it answers reads from what it has.

        :param gives_up_s: after so long it notices, and serves nobody; None for never.
        """
        if server.is_cut or not server.is_running:
            return False
        self.on_fault("cut")
        server.leave(is_cut=True)
        if gives_up_s is not None:
            self.scheduler.after(gives_up_s, server.give_up)
        return True

    def heal(self, server: SimulatedServer) -> bool:
        """Let it hear the others again. What was held up on its way to the leader goes on."""
        if not server.is_cut:
            return False
        server.is_cut = False
        server.rejoin()
        return True

    def change_leader(self) -> bool:
        """Hold an election; all clients are disconnected."""
        if self.leader is None:
            return False
        self.on_fault("leader-change")
        self._depose()
        self.review()
        return True

    def stop(self) -> bool:
        """ZooKeeper is away."""
        stopped = [server.end() for server in self.servers]
        if any(stopped):
            self.on_fault("zookeeper-stop")
        return any(stopped)

    def start(self) -> bool:
        """ZooKeeper comes back, with all that it had."""
        started = [server.start() for server in self.servers]
        return any(started)


def _told(operation: Change, path: str, version: int) -> dict[str, Any]:
    """An operation as a history has it."""
    if isinstance(operation, Create):
        data = operation.data.decode(errors="backslashreplace")
        return {"op": "create", "path": path, "data": data, "ephemeral": operation.ephemeral}
    if isinstance(operation, SetData):
        data = operation.data.decode(errors="backslashreplace")
        return {"op": "set", "path": operation.path, "data": data, "version": version}
    if isinstance(operation, Check):
        return {"op": "check", "path": operation.path, "version": version}
    return {"op": "acl" if isinstance(operation, SetAcl) else "delete", "path": operation.path}
