"""What a session is told when its connection breaks or it ends: the same by the model and by a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.zk.errors import ConnectionLost, OutcomeUnknown, SessionLost, TooLarge
from coordinator.zk.store import Create, Delete, SetData
from tests.simulation.sides import Modelled, Real, Side


@pytest.fixture(params=["modelled", "real"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """A session with either."""
    its: Side = Modelled() if request.param == "modelled" else Real(request.getfixturevalue("zk"))
    its.ask(lambda: its.store.commit([Create("/a"), Create("/a/mine", b"", ephemeral=True), Create("/b")]))
    yield its
    its.close()


def _watch_everything(side: Side) -> None:
    store, heard = side.store, side.heard
    side.ask(lambda: store.get("/a", heard.watch("data")))
    side.ask(lambda: store.get("/a", heard.watch("data")))
    side.ask(lambda: store.children("/a", heard.watch("children")))
    side.ask(lambda: store.children("/missing", heard.watch("children")))


ALL = ["children /a", "children /missing", "data /a"]


def test_who_loses_the_connection_hears_from_every_watch_once_and_has_it_back(side: Side) -> None:
    _watch_everything(side)
    session = side.store.session_id

    side.drop_connection()
    side.until(lambda: "connected" in side.heard.all)

    assert side.heard.all[0] == "suspended"
    side.until(lambda: len(side.heard.all) == 5)
    assert sorted(side.heard.all) == sorted([*ALL, "suspended", "connected"])
    assert side.store.session_id == session
    side.ask_another(lambda: side.another().commit([SetData("/a", b"1")]))
    side.ask(side.store.sync)
    assert side.ask(lambda: side.store.get("/a")).data == b"1"
    assert len(side.heard.all) == 5, "no watch is left from before"


def test_the_outcome_of_a_commit_that_got_lost_is_unknown_and_it_did_not_happen(side: Side) -> None:
    side.lose_next_commit()

    with pytest.raises(OutcomeUnknown):
        side.ask(lambda: side.store.commit([Create("/c")]))

    side.until(lambda: "connected" in side.heard.all)
    side.ask(side.store.sync)
    assert side.ask(lambda: side.store.get("/c")) is None


def test_the_outcome_of_a_commit_whose_answer_got_lost_is_unknown_and_it_happened(side: Side) -> None:
    side.lose_next_reply()

    with pytest.raises(OutcomeUnknown):
        side.ask(lambda: side.store.commit([Create("/c")]))

    side.until(lambda: "connected" in side.heard.all)
    side.ask(side.store.sync)
    assert side.ask(lambda: side.store.get("/c")) is not None


def test_who_is_expired_hears_that_it_lost_the_connection_and_then_the_session(side: Side) -> None:
    _watch_everything(side)

    side.expire()
    side.until(lambda: side.heard.all.count("lost") == 2)

    assert side.heard.all.index("suspended") < side.heard.all.index("lost")
    assert sorted(side.heard.all) == sorted([*ALL, "suspended", "lost", "lost"])
    assert side.store.lost
    for call in (side.store.sync, lambda: side.store.get("/a"), lambda: side.store.commit([SetData("/a", b"")])):
        with pytest.raises(SessionLost):
            side.ask(call)
    assert side.ask_another(lambda: side.another().get("/a/mine")) is None


def test_who_closes_its_session_takes_its_ephemerals_along_at_once(side: Side) -> None:
    side.ask(side.store.close)

    assert side.heard.all == ["lost"]
    assert side.ask_another(lambda: side.another().children("/a")).names == []
    assert side.store.lost
    with pytest.raises(SessionLost):
        side.ask(lambda: side.store.get("/a"))
    side.ask(side.store.close)


def test_what_is_asked_while_no_server_is_there_is_answered_when_one_is(side: Side) -> None:
    side.go_away()
    side.until(lambda: side.heard.all == ["suspended"])

    read = side.start(lambda: side.store.get("/b"))
    written = side.start(lambda: side.store.commit([Create("/c")]))
    side.come_back()

    side.until(lambda: len(read) == len(written) == 1)
    assert read[0].data == b""
    assert written == [["/c"]]


def test_who_gets_no_answer_gives_the_connection_up(side: Side) -> None:
    side.fall_silent()

    read = side.start(lambda: side.store.get("/b"))
    written = side.start(lambda: side.store.commit([Create("/c")]))

    side.until(lambda: len(read) == len(written) == 1)
    assert isinstance(read[0], ConnectionLost)
    assert isinstance(written[0], OutcomeUnknown)
    assert side.heard.all == ["suspended"]


def test_a_commit_over_the_size_of_a_request_is_not_sent(side: Side) -> None:
    with pytest.raises(TooLarge):
        side.ask(lambda: side.store.commit([SetData("/a", b"x" * 1_000_000)]))

    assert side.heard.all == []
    side.ask(lambda: side.store.commit([SetData("/a", b"x" * 999_000)]))


def test_a_server_closes_the_connection_on_a_request_that_is_too_large(side: Side) -> None:
    with pytest.raises(ConnectionLost):
        side.ask(lambda: side.store.get_many([f"/{'x' * 70_000}{n}" for n in range(16)]))

    side.until(lambda: side.heard.all == ["suspended", "connected"])
    assert side.ask(lambda: side.store.get("/a")) is not None


def test_deleted_znode_fires_once_for_its_data_and_once_for_its_children(side: Side) -> None:
    both = side.heard.watch("both")
    for _ in range(2):
        side.ask(lambda: side.store.get("/b", both))
        side.ask(lambda: side.store.children("/b", both))
    side.ask(lambda: side.store.get("/b", side.heard.watch("data")))

    side.ask_another(lambda: side.another().commit([SetData("/a", b""), Delete("/b"), Create("/b")]))

    side.ask(side.store.sync)
    side.until(lambda: len(side.heard.all) >= 3)
    assert sorted(side.heard.all) == ["both /b", "both /b", "data /b"]
    assert side.ask(lambda: side.store.get("/b", both)) is not None
