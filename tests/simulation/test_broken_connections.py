"""What a session is told when its connection breaks or it ends: the same by the model and by a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from tests.simulation.alone import Alone
from tests.simulation.ensembles import ModelledClient, RealClient
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from zk_group.coordinator.zk.errors import ConnectionLost, OutcomeUnknown, SessionLost, TooLarge
from zk_group.coordinator.zk.store import Create, Delete, SetData
from zk_group.drills.faults.proxy import MULTI

SESSION_S = 2.0
LONGEST_S = 10.0


class Modelled:
    """On the modelled ZooKeeper: a session, and what can be done to its connection.

    :ivar client: the session.
    :ivar other: one on a connection that nothing is done to.
    """

    def __init__(self, seed: int = 1) -> None:
        self._world = Alone(seed, tick_s=0.2)
        self.client, self.other = (ModelledClient(self._world, self._world.open(SESSION_S)) for _ in range(2))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        self._world.until(condition, f"what was to come; heard {self.client.heard.all}", LONGEST_S)

    def drop_connection(self) -> None:
        """Break the connection; it comes back."""
        assert self.client.store.drop_connection()

    def lose_next_commit(self) -> None:
        """The next commit does not reach the server."""
        self.client.store.lose_next_request(only_commit=True)

    def lose_next_reply(self) -> None:
        """The answer to the next commit does not reach the client."""
        self.client.store.lose_next_reply(only_commit=True)

    def expire(self) -> None:
        """The servers end the session."""
        assert self._world.ensemble.expire(self.client.store.session_id)

    def fall_silent(self) -> None:
        """The server goes on existing, and answers nothing."""
        for server in self._world.ensemble.servers:
            server.pause()

    def go_away(self) -> None:
        """There is no server."""
        assert self._world.ensemble.stop()

    def come_back(self) -> None:
        """After `fall_silent` or `go_away`."""
        self._world.ensemble.start()
        for server in self._world.ensemble.servers:
            server.resume()

    def close(self) -> None:
        """Free everything."""
        self._world.scheduler.close()


class Real:
    """The same on a real server, through a proxy."""

    def __init__(self, zk: str) -> None:
        self._server, _, chroot = zk.partition("/")
        self._proxy = Proxy(self._server).start()
        self.client = RealClient(f"{self._proxy.hosts}/{chroot}", SESSION_S)
        self.other = RealClient(zk, SESSION_S)

    def until(self, condition: Callable[[], bool]) -> None:
        eventually(condition, LONGEST_S, f"what was to come; heard {self.client.heard.all}")

    def drop_connection(self) -> None:
        self._proxy.cut()

    def lose_next_commit(self) -> None:
        self._proxy.drop_request(MULTI)

    def lose_next_reply(self) -> None:
        self._proxy.drop_reply(MULTI)

    def expire(self) -> None:
        """A second handle on the session closes it."""
        handle = self.client.store._client.client_id  # type: ignore[attr-defined]
        client = KazooClient(hosts=self._server, client_id=handle)
        client.start(timeout=10)
        client.stop()
        client.close()

    def fall_silent(self) -> None:
        self._proxy.hold()

    def go_away(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()

    def come_back(self) -> None:
        self._proxy.resume()

    def close(self) -> None:
        self._proxy.resume()
        self.client.store.close()
        self.other.store.close()
        self._proxy.stop()


Side = Modelled | Real


@pytest.fixture(params=["modelled", "real"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """A session with either."""
    its: Side = Modelled() if request.param == "modelled" else Real(request.getfixturevalue("zk"))
    its.client.ask(lambda: its.client.store.commit([Create("/a"), Create("/a/mine", ephemeral=True), Create("/b")]))
    yield its
    its.close()


def _watch_everything(side: Side) -> None:
    ask, store, heard = side.client.ask, side.client.store, side.client.heard
    ask(lambda: store.get("/a", heard.watch("data")))
    ask(lambda: store.get("/a", heard.watch("data")))
    ask(lambda: store.children("/a", heard.watch("children")))
    ask(lambda: store.children("/missing", heard.watch("children")))


ALL = ["children /a", "children /missing", "data /a"]


def test_who_loses_the_connection_hears_from_every_watch_once_and_has_it_back(side: Side) -> None:
    _watch_everything(side)
    session = side.client.store.session_id

    side.drop_connection()
    side.until(lambda: "connected" in side.client.heard.all)

    assert side.client.heard.all[0] == "suspended"
    side.until(lambda: len(side.client.heard.all) == 5)
    assert sorted(side.client.heard.all) == sorted([*ALL, "suspended", "connected"])
    assert side.client.store.session_id == session
    side.other.write("/a", b"1")
    side.client.sync()
    assert side.client.read("/a") == b"1"
    assert len(side.client.heard.all) == 5, "no watch is left from before"


@pytest.mark.parametrize("happens", [False, True])
def test_a_commit_that_or_whose_answer_got_lost_has_an_unknown_outcome(side: Side, happens: bool) -> None:
    (side.lose_next_reply if happens else side.lose_next_commit)()

    with pytest.raises(OutcomeUnknown):
        side.client.create("/c")

    side.until(lambda: "connected" in side.client.heard.all)
    side.client.sync()
    assert (side.client.node("/c") is not None) == happens


def test_who_is_expired_hears_that_it_lost_the_connection_and_then_the_session(side: Side) -> None:
    _watch_everything(side)

    side.expire()
    side.until(lambda: side.client.heard.all.count("lost") == 2)

    assert side.client.heard.all.index("suspended") < side.client.heard.all.index("lost")
    assert sorted(side.client.heard.all) == sorted([*ALL, "suspended", "lost", "lost"])
    assert side.client.store.lost
    with pytest.raises(SessionLost):
        side.client.sync()
    with pytest.raises(SessionLost):
        side.client.read("/a")
    with pytest.raises(SessionLost):
        side.client.write("/a", b"")
    assert side.other.node("/a/mine") is None


def test_who_closes_its_session_takes_its_ephemerals_along_at_once(side: Side) -> None:
    side.client.ask(side.client.store.close)

    assert side.client.heard.all == ["lost"]
    assert side.other.ask(lambda: side.other.store.children("/a")).names == []
    assert side.client.store.lost
    with pytest.raises(SessionLost):
        side.client.node("/a")
    side.client.ask(side.client.store.close)


def test_what_is_asked_while_no_server_is_there_is_answered_when_one_is(side: Side) -> None:
    side.go_away()
    side.until(lambda: side.client.heard.all == ["suspended"])

    read = side.client.start(lambda: side.client.store.get("/b"))
    written = side.client.start(lambda: side.client.store.commit([Create("/c")]))
    side.come_back()

    side.until(lambda: len(read) == len(written) == 1)
    assert read[0].data == b""
    assert written == [["/c"]]


def test_who_gets_no_answer_gives_the_connection_up(side: Side) -> None:
    side.fall_silent()

    read = side.client.start(lambda: side.client.store.get("/b"))
    written = side.client.start(lambda: side.client.store.commit([Create("/c")]))

    side.until(lambda: len(read) == len(written) == 1)
    assert isinstance(read[0], ConnectionLost)
    assert isinstance(written[0], OutcomeUnknown)
    assert side.client.heard.all == ["suspended"]


def test_a_commit_over_the_size_of_a_request_is_not_sent(side: Side) -> None:
    with pytest.raises(TooLarge):
        side.client.write("/a", b"x" * 1_000_000)

    assert side.client.heard.all == []
    side.client.write("/a", b"x" * 999_000)


def test_a_server_closes_the_connection_on_a_request_that_is_too_large(side: Side) -> None:
    with pytest.raises(ConnectionLost):
        side.client.ask(lambda: side.client.store.get_many([f"/{'x' * 70_000}{n}" for n in range(16)]))

    side.until(lambda: side.client.heard.all == ["suspended", "connected"])
    assert side.client.node("/a") is not None


def test_deleted_znode_fires_once_for_its_data_and_once_for_its_children(side: Side) -> None:
    both = side.client.heard.watch("both")
    for _ in range(2):
        side.client.ask(lambda: side.client.store.get("/b", both))
        side.client.ask(lambda: side.client.store.children("/b", both))
    side.client.ask(lambda: side.client.store.get("/b", side.client.heard.watch("data")))

    side.other.ask(lambda: side.other.store.commit([SetData("/a", b""), Delete("/b"), Create("/b")]))

    side.client.sync()
    side.until(lambda: len(side.client.heard.all) >= 3)
    assert sorted(side.client.heard.all) == ["both /b", "both /b", "data /b"]
    assert side.client.ask(lambda: side.client.store.get("/b", both)) is not None
