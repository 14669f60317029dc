"""What clients see of three servers that fail, lag and elect: the same of the model and of real ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.simulation.ensembles import ModelledServers, RealServers, Servers
from tests.simulation.quorum_links import LinkedEnsemble, linked_ensemble
from zk_group.coordinator.zk.errors import ConnectionLost, OutcomeUnknown, SessionLost
from zk_group.coordinator.zk.store import Create, Node, SetData

MODELLED = ["modelled-1", "modelled-2", "modelled-3", "modelled-4"]
SHORT_S = 3.0
"""A session's timeout where a test waits for its end."""

QUIET_S = 0.3
"""Nothing that could happen takes so long."""


@pytest.fixture(scope="module")
def real_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedEnsemble]:
    """Three servers whose connections to each other can be held up."""
    with linked_ensemble(tmp_path_factory.mktemp("linked")) as ensemble:
        yield ensemble


@pytest.fixture(params=[*MODELLED, pytest.param("real", marks=pytest.mark.integration)])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Three servers that serve."""
    _, _, seed = request.param.partition("-")
    its: Servers = ModelledServers(int(seed)) if seed else RealServers(request.getfixturevalue("real_ensemble"))
    yield its
    its.close()


# ---- a follower that lags


def test_lagging_follower_answers_from_its_past_until_it_has_synced(servers: Servers) -> None:
    quick, slow = servers.open(servers.leader()), servers.open(servers.followers[0])
    quick.create("/a", b"old")
    slow.sync()
    assert slow.watch("/a") == b"old"
    servers.lag(servers.followers[0])

    quick.write("/a", b"new")

    assert (quick.read("/a"), slow.read("/a"), slow.events) == (b"new", b"old", [])
    synced = slow.start(slow.store.sync)
    read = slow.start(lambda: slow.store.get("/a"))
    servers.lapse(QUIET_S)
    assert synced == read == [], "an answer waits for those before it"
    servers.catch_up(servers.followers[0])
    servers.until(lambda: synced and read, "the answers come")
    assert synced == [None]
    assert isinstance(read[0], Node) and read[0].data == b"new"
    servers.until(lambda: slow.events, "its watch is called")
    assert slow.events == ["/a"]
    assert slow.states == []


def test_write_through_a_lagging_follower_waits_until_it_can_be_read_there(servers: Servers) -> None:
    quick, slow = servers.open(servers.leader()), servers.open(servers.followers[0])
    servers.lag(servers.followers[0])

    outcome = slow.start(lambda: slow.store.commit([Create("/a", b"1")]))

    servers.until(lambda: quick.read("/a") == b"1", "the leader has it")
    assert outcome == []
    servers.catch_up(servers.followers[0])
    servers.until(lambda: outcome, "it is answered")
    assert outcome == [["/a"]]
    assert slow.read("/a") == b"1"


def test_session_moves_to_a_lagging_follower_only_once_that_has_what_it_has_seen(servers: Servers) -> None:
    leader, follower = servers.leader(), servers.followers[0]
    writer, ahead, behind = servers.open(leader), servers.open(leader), servers.open(leader)
    writer.create("/a", b"old")
    ids = [client.store.session_id for client in (ahead, behind)]
    assert (ahead.read("/a"), behind.read("/a")) == (b"old", b"old")
    servers.lag(follower)
    writer.write("/a", b"new")
    assert ahead.read("/a") == b"new"

    for client in (ahead, behind):
        client.move(follower)
    servers.until(lambda: ahead.states == behind.states == ["suspended"], "they have left")
    read = [client.start(partial(client.store.get, "/a")) for client in (ahead, behind)]
    servers.lapse(QUIET_S)
    assert read == [[], []], "neither who has seen more than it has, nor whom the leader is to confirm"
    servers.catch_up(follower)

    servers.until(lambda: all(read), "they are let in")
    assert read[0][0].data == b"new"
    assert read[1][0].data in (b"old", b"new"), "the leader's word may be there before all is applied"
    behind.sync()
    assert behind.read("/a") == b"new"
    assert [client.store.session_id for client in (ahead, behind)] == ids
    assert ahead.states == behind.states == ["suspended", "connected"]


def test_nobody_goes_back_in_time_by_moving_between_servers(servers: Servers) -> None:
    follower = servers.followers[0]
    writer, reader = servers.open(servers.leader()), servers.open(servers.followers[1])
    writer.create("/a", b"0")
    reader.sync()
    seen = []
    for number, place in enumerate([servers.leader(), follower, servers.followers[1], follower]):
        servers.lag(follower)
        writer.write("/a", b"%d" % number)
        reader.move(place)
        servers.until(lambda n=number: reader.states.count("suspended") == n + 1, "it has left")  # type: ignore[misc]
        servers.catch_up(follower)
        servers.until(lambda n=number: reader.states.count("connected") == n + 1, "it is back")  # type: ignore[misc]
        node = reader.node("/a")
        assert node is not None
        seen.append(node.stat.mzxid)
        if number % 2:
            reader.sync()
    assert seen == sorted(seen)


# ---- elections


def test_sessions_and_all_that_was_written_outlive_a_leader_change(servers: Servers) -> None:
    old, places = servers.leader(), servers.followers
    clients = [servers.open(place) for place in places]
    wanderer = servers.open()
    first, second = clients
    first.create("/q", b"old")
    first.create("/q/mine", ephemeral=True)
    second.sync()
    assert second.watch("/q") == b"old"
    before = first.node("/q")
    ids = [client.store.session_id for client in (*clients, wanderer)]

    servers.stop(old)

    servers.until(lambda: all(one.states == ["suspended", "connected"] for one in (*clients, wanderer)), "all are back")
    assert servers.leader() != old
    assert second.events == ["/q"], "the end of the connection calls a watch, once"
    made = second.ask(lambda: second.store.commit([SetData("/q", b"new"), Create("/q/n-", b"", sequential=True)]))
    assert made == ["", "/q/n-0000000001"], "numbers go on"
    first.sync()
    node, mine = first.node("/q"), first.node("/q/mine")
    assert before is not None and node is not None and mine is not None
    assert node.stat.czxid == before.stat.czxid
    assert node.stat.mzxid >> 32 > before.stat.mzxid >> 32, "the epoch is the upper half"
    assert mine.stat.ephemeral_owner == first.store.session_id
    assert [client.store.session_id for client in (*clients, wanderer)] == ids
    assert second.events == ["/q"]
    servers.start(old)
    first.move(old)
    servers.until(lambda: first.states.count("connected") == 2, "it is with the old leader")
    assert first.read("/q") == b"new"


@pytest.mark.parametrize("happens", [False, True])
def test_commit_whose_reply_is_lost_in_an_election_has_happened_or_never_will(servers: Servers, happens: bool) -> None:
    leader, follower = servers.leader(), servers.followers[0]
    client, other = servers.open(follower), servers.open(servers.followers[1])
    client.create("/a", b"0")
    other.sync()
    (servers.lag if happens else servers.cut)(follower)
    outcome = client.start(lambda: client.store.commit([SetData("/a", b"1", 0), Create("/b")]))
    if happens:
        servers.until(lambda: other.read("/a") == b"1", "the others have it")
    servers.lapse(QUIET_S)
    assert outcome == []

    servers.stop(leader)
    (servers.catch_up if happens else servers.heal)(follower)

    servers.until(lambda: outcome and client.states == ["suspended", "connected"], "it is back")
    assert isinstance(outcome[0], OutcomeUnknown)
    client.sync()
    found = client.read("/a"), client.node("/b") is not None
    assert found == ((b"1", True) if happens else (b"0", False))
    servers.start(leader)
    client.sync()
    assert (client.read("/a"), client.node("/b") is not None) == found, "and so it stays"


def test_leader_that_is_cut_off_never_does_what_it_is_asked_to_write(servers: Servers) -> None:
    old = servers.leader()
    left, other = servers.open(old), servers.open(servers.followers[0])
    left.create("/a", b"0")
    other.sync()

    servers.cut(old)
    outcome = left.start(lambda: left.store.commit([SetData("/a", b"lost", 0), Create("/b")]))
    reader = servers.open(servers.leader())
    reader.write("/a", b"1")

    read = left.start(lambda: left.store.get("/a"))
    servers.lapse(QUIET_S)
    assert outcome == read == [], "an answer waits for those before it"
    servers.heal(old)
    servers.until(lambda: outcome and read and left.states == ["suspended", "connected"], "it is back")
    assert isinstance(outcome[0], OutcomeUnknown)
    assert isinstance(read[0], ConnectionLost)
    left.sync()
    assert (left.read("/a"), left.node("/b")) == (b"1", None)


def test_leader_that_is_cut_off_shows_its_past_until_it_hears_of_the_new_one(servers: Servers) -> None:
    old = servers.leader()
    left, other = servers.open(old), servers.open(servers.followers[0])
    left.create("/a", b"old")

    servers.cut(old)
    servers.until(lambda: servers.leader() != old and other.states == ["suspended", "connected"], "it is back")
    other.write("/a", b"new")

    assert (left.watch("/a"), left.states) == (b"old", [])
    servers.heal(old)
    servers.until(lambda: left.states == ["suspended", "connected"], "it is back")
    left.sync()
    assert left.events == ["/a"]
    assert left.read("/a") == b"new"


def test_nothing_is_written_without_a_majority(servers: Servers) -> None:
    client, followers = servers.open(servers.leader()), servers.followers
    client.create("/a", b"0")
    servers.stop(*followers)
    servers.until(lambda: client.states == ["suspended"], "it hears of it")

    outcome = client.start(lambda: client.store.commit([SetData("/a", b"1", 0)]))
    read = client.start(lambda: client.store.get("/a"))
    servers.lapse(QUIET_S)
    assert outcome == read == []
    servers.start(*followers)

    servers.until(lambda: outcome and read, "it is answered")
    assert outcome == [[""]]
    assert isinstance(read[0], Node) and read[0].data == b"1"
    assert client.states == ["suspended", "connected"]


# ---- sessions that move


@pytest.mark.parametrize("has_moved", [True, False])
def test_commit_held_up_at_a_server_is_done_unless_its_session_has_moved(servers: Servers, has_moved: bool) -> None:
    leader, follower = servers.leader(), servers.followers[0]
    client, other = servers.open(follower), servers.open(leader)
    client.create("/a", b"0")
    servers.cut(follower)
    outcome = client.start(lambda: client.store.commit([SetData("/a", b"1")]))
    servers.lapse(QUIET_S)
    assert outcome == []

    if has_moved:
        client.move(leader)
        servers.until(lambda: outcome and client.states == ["suspended", "connected"], "it has moved")
        assert isinstance(outcome[0], OutcomeUnknown)
        client.sync()
        assert client.read("/a") == b"0"
        servers.heal(follower)
        late = servers.open(follower)
        late.sync()
        assert late.read("/a") == b"0", "it comes behind the session's move"
    else:
        servers.heal(follower)
        servers.until(lambda: outcome, "it is answered")
        assert outcome == [[""]]
        other.sync()
        assert other.read("/a") == b"1"


def test_watch_is_called_once_when_its_session_moves_and_left_anew_it_works(servers: Servers) -> None:
    leader, follower = servers.leader(), servers.followers[0]
    writer, watcher = servers.open(leader), servers.open(follower)
    writer.create("/a", b"0")
    watcher.sync()
    watcher.watch("/a")
    servers.lag(follower)
    writer.write("/a", b"1")

    watcher.move(leader)
    servers.until(lambda: watcher.states == ["suspended", "connected"], "it has moved")
    assert watcher.read("/a") == b"1", "what happened meanwhile is there to read"
    writer.write("/a", b"2")
    watcher.sync()
    assert watcher.events == ["/a"], "no watch is left"
    watcher.watch("/a")
    servers.catch_up(follower)
    servers.open(follower).sync()
    watcher.sync()
    assert watcher.events == ["/a"], "the old server's event is for nobody"
    writer.write("/a", b"3")

    watcher.sync()
    servers.until(lambda: watcher.events == ["/a", "/a"], "the watch at the new server")
    writer.write("/a", b"4")
    watcher.sync()
    assert watcher.events == ["/a", "/a"]


# ---- sessions that end


def test_session_that_expired_while_its_server_was_away_is_over_when_it_is_back(servers: Servers) -> None:
    follower = servers.followers[0]
    client, other = servers.open(follower, SHORT_S), servers.open(servers.leader())
    client.create("/mine", ephemeral=True)
    assert other.watch("/mine") == b""
    servers.stop(follower)

    servers.until(lambda: other.events == ["/mine"], "its session expires")
    assert other.node("/mine") is None
    assert client.states == ["suspended"]
    servers.start(follower)

    servers.until(lambda: client.states.count("lost") == 2, "it is told")
    assert client.states == ["suspended", "lost", "lost"]
    with pytest.raises(SessionLost):
        client.read("/mine")
    assert servers.open(follower).node("/mine") is None


def test_cut_off_follower_shows_ephemerals_of_a_session_that_has_expired(servers: Servers) -> None:
    follower = servers.followers[0]
    client, other = servers.open(follower, SHORT_S), servers.open(servers.leader())
    client.create("/mine", ephemeral=True)
    assert other.watch("/mine") == b""
    servers.cut(follower)

    servers.until(lambda: other.events == ["/mine"], "its session expires")
    assert other.node("/mine") is None
    assert client.node("/mine") is not None
    assert client.states == [], "it does not know"
    outcome = client.start(lambda: client.store.commit([Create("/late")]))
    servers.give_up(follower)
    servers.until(lambda: outcome and client.states == ["suspended"], "it is sent away")
    assert isinstance(outcome[0], OutcomeUnknown)
    servers.heal(follower)

    servers.until(lambda: client.states.count("lost") == 2, "it is told")
    other.sync()
    assert other.node("/late") is None


def test_sessions_have_their_whole_timeout_when_all_servers_were_away(servers: Servers) -> None:
    timeout_s = 5.0
    client, other = servers.open(None, timeout_s), servers.open(None, timeout_s)
    client.create("/mine", ephemeral=True)
    servers.stop(0, 1, 2)
    servers.lapse(timeout_s)
    servers.start(0, 1, 2)

    servers.until(lambda: client.states == other.states == ["suspended", "connected"], "both are back")
    other.sync()
    mine = other.node("/mine")
    assert mine is not None and mine.stat.ephemeral_owner == client.store.session_id


@pytest.mark.parametrize("is_reported", [False, True])
def test_sync_through_a_follower_extends_a_session_once_it_is_reported(servers: Servers, is_reported: bool) -> None:
    """A client that was silent; its follower reports twice a tick whom it has heard."""
    follower, timeout_s = servers.followers[0], 4.0
    client, other = servers.open(follower, timeout_s), servers.open(servers.leader())
    client.create("/mine", ephemeral=True)
    assert other.watch("/mine") == b""
    client.hush()
    servers.lapse(0.6 * timeout_s)
    synced_at = servers.now()

    servers.sync_and_cut(client, follower, is_reported)

    servers.until(lambda: other.events, "its session expires")
    lasted_s = servers.now() - synced_at
    assert lasted_s > timeout_s if is_reported else lasted_s < timeout_s
