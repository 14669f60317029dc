"""Matching of transactions to captured packets: by reply, by shape, by an ended session, or as foreign ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.zk.store import Check, Create, Delete, Operation, SetData
from drills.evidence.reconstruction import Observed, observed
from drills.evidence.watch_observer import somebody_else
from drills.faults import traffic_capture
from drills.faults.packets import CREATE, SET_DATA
from drills.faults.traffic_capture import CapturedLink, Tap
from tests.support import made_packets

ROOT = "/drill"
WHO = {1: "a#1", 2: "b#2"}


class Wire:
    """Connections of two processes and of the observer; a packet a second."""

    def __init__(self) -> None:
        self._now: Iterator[int] = iter(range(1, 1000))
        self.tap = Tap(lambda: float(next(self._now)))
        self._xids = iter(range(1, 1000))
        self.a, self.b, self.observer = self.link(1), self.link(2), self.link(9, is_observer=True)

    def link(self, session: int, is_observer: bool = False) -> CapturedLink:
        link = self.tap.link(is_observer)
        link.request(0, made_packets.connect(50_000))
        link.reply(0, made_packets.connected(session, 40_000))
        return link

    def asks(self, link: CapturedLink, *operations: Operation) -> int:
        xid = next(self._xids)
        link.request(1, made_packets.multi(xid, operations, ROOT))
        return xid

    def closes(self, link: CapturedLink) -> int:
        xid = next(self._xids)
        link.request(1, made_packets.close(xid))
        return xid

    def answers(self, link: CapturedLink, xid: int, zxid: int, *results: bytes) -> None:
        link.reply(1, made_packets.reply(xid, zxid, 0, b"".join(results) + (made_packets.DONE if results else b"")))

    def notifies(self, zxid: int, *changes: str) -> None:
        """The observer gets watch events, each as `created /a`."""
        for change in changes:
            kind, path = change.split()
            self.observer.reply(1, made_packets.event(zxid, kind, ROOT + path))

    def reads(self, path: str, data: str, mzxid: int, version: int = 0, owner: int = 0) -> None:
        xid = next(self._xids)
        self.observer.request(1, made_packets.get(xid, ROOT + path))
        body = made_packets.text(data) + made_packets.stat(mzxid, version, owner)
        self.observer.reply(1, made_packets.reply(xid, mzxid, 0, body))

    def observed(self) -> Observed:
        return observed(self.tap.taken(), WHO, [ROOT], ROOT, 0, 1000)

    def done(self) -> list[dict[str, Any]]:
        """The reconstructed events, when none is unknown."""
        found = self.observed()
        assert found.problem == ""
        return [event for event in found.events if event["event"] in ("commit", "closed")]


def made(path: str) -> bytes:
    return made_packets.result(CREATE, made_packets.text(ROOT + path))


def was_set(version: int) -> bytes:
    return made_packets.result(SET_DATA, made_packets.stat(version=version))


@pytest.fixture
def wire() -> Wire:
    return Wire()


def created(wire: Wire, link: CapturedLink, path: str, zxid: int, ephemeral: bool = True) -> None:
    xid = wire.asks(link, Create(path, b"x", ephemeral=ephemeral))
    wire.notifies(zxid, f"created {path}")
    wire.answers(link, xid, zxid, made(path))


def test_transaction_is_matched_to_its_request_by_the_reply(wire: Wire) -> None:
    xid = wire.asks(wire.a, Create("/c-", b"1", sequential=True), SetData("/s", b"2"), Check("/f", 3))
    wire.notifies(10, "created /c-0000000007", "changed /s")
    wire.answers(wire.a, xid, 10, made("/c-0000000007"), was_set(5), made_packets.result(13))

    (event,) = wire.done()

    assert (event["who"], event["session"], event["zxid"]) == ("a#1", 1, 10)
    assert event["ops"] == [
        {"op": "create", "path": "/c-0000000007", "data": "1", "ephemeral": False},
        {"op": "set", "path": "/s", "data": "2", "version": 5},
        {"op": "check", "path": "/f", "version": 3},
    ]


def test_transaction_is_timed_by_the_first_packet_with_its_zxid(wire: Wire) -> None:
    xid = wire.asks(wire.a, Create("/n"))
    wire.b.reply(1, made_packets.reply(-2, 12))
    before = wire.tap.taken().marks[-1][0]
    wire.notifies(11, "created /n")
    wire.answers(wire.a, xid, 11, made("/n"))

    (event,) = wire.done()

    assert event["at"] == before


def test_a_refused_request_is_no_transaction(wire: Wire) -> None:
    xid = wire.asks(wire.a, Create("/n"))
    wire.answers(wire.a, xid, 10, made_packets.result(-1, b"\xff\xff\xff\x92"))

    assert wire.done() == []


def test_request_without_a_reply_is_matched_by_its_changes(wire: Wire) -> None:
    wire.asks(wire.a, Create("/c-", b"1", sequential=True), SetData("/s", b"2", 4))
    wire.asks(wire.b, Create("/c-", b"1", sequential=True))
    wire.notifies(10, "created /c-0000000001", "changed /s")

    (event,) = wire.done()

    assert event["who"] == "a#1"
    assert event["ops"][0]["path"] == "/c-0000000001"
    assert event["ops"][1]["version"] == 5


def test_unanswered_request_is_matched_by_the_data_that_was_read(wire: Wire) -> None:
    wire.asks(wire.a, Create("/coordinator", b"a"))
    wire.asks(wire.b, Create("/coordinator", b"b"))
    wire.notifies(10, "created /coordinator")
    wire.reads("/coordinator", "b", 10)

    assert wire.done()[0]["who"] == "b#2"


def test_unanswered_request_is_matched_by_its_expected_version(wire: Wire) -> None:
    created(wire, wire.a, "/fence", 9, ephemeral=False)
    wire.asks(wire.a, SetData("/s", b""), Check("/fence", 1))
    wire.asks(wire.b, SetData("/s", b"", 6), Check("/fence", 0))
    wire.notifies(10, "changed /s")

    assert wire.done()[1]["who"] == "b#2"


def test_two_requests_with_the_same_changes_are_reported_as_unknown(wire: Wire) -> None:
    created(wire, wire.a, "/before", 9)
    wire.asks(wire.a, Create("/coordinator", b"a"))
    wire.asks(wire.b, Create("/coordinator", b"b"))
    wire.notifies(10, "created /coordinator")
    created(wire, wire.a, "/after", 11)

    found = wire.observed()

    assert "2 requests without a reply match these changes" in found.problem
    assert [event["zxid"] for event in found.events if event["event"] == "commit"] == [9]
    assert found.events[-1]["event"] == "end"


def test_later_or_answered_request_is_not_matched(wire: Wire) -> None:
    wire.answers(wire.a, 999, 10)
    wire.asks(wire.a, Delete("/n"))
    wire.notifies(10, "deleted /n")
    wire.notifies(12, "deleted /m")
    wire.asks(wire.b, Delete("/m"))

    assert [event["who"] for event in wire.done()] == ["hand", "hand"]


def test_request_sent_before_an_applied_one_is_not_applied_after_it(wire: Wire) -> None:
    wire.asks(wire.a, SetData("/s", b"1"))
    wire.asks(wire.a, SetData("/t", b"2", 0))
    wire.notifies(10, "changed /t")
    wire.notifies(11, "changed /s")
    wire.reads("/s", "1", 11, 8)

    assert [event["who"] for event in wire.done()] == ["a#1", "hand"]


def test_ephemerals_of_a_session_deleted_at_once_were_deleted_by_its_end(wire: Wire) -> None:
    created(wire, wire.a, "/e", 5)
    created(wire, wire.a, "/f", 6)
    wire.notifies(10, "deleted /f", "deleted /e")

    event = wire.done()[-1]

    assert (event["event"], event["who"], event["why"], event["session"]) == ("closed", "a#1", "expired", 1)
    assert event["paths"] == ["/f", "/e"]


def test_ephemeral_deleted_while_its_session_lives_was_removed_manually(wire: Wire) -> None:
    created(wire, wire.a, "/e", 5)
    created(wire, wire.b, "/f", 6)
    created(wire, wire.b, "/g", 7)
    wire.notifies(10, "deleted /e")
    wire.notifies(11, "deleted /f")
    wire.a.reply(1, made_packets.reply(500, 12))

    events = wire.done()[-2:]

    assert [(event["event"], event["who"]) for event in events] == [("commit", "hand")] * 2


def test_session_closed_by_its_client_is_closed_with_its_ephemerals(wire: Wire) -> None:
    created(wire, wire.a, "/e", 5)
    xid = wire.closes(wire.a)
    wire.notifies(10, "deleted /e")
    wire.answers(wire.a, xid, 10)

    assert (wire.done()[-1]["why"], wire.done()[-1]["paths"]) == ("closed", ["/e"])


@pytest.mark.parametrize(("late_s", "why"), [(0, "closed"), (60, "expired")])
def test_unanswered_close_counts_if_nothing_else_could_end_the_session_so_soon(
    wire: Wire, late_s: int, why: str
) -> None:
    created(wire, wire.a, "/e", 5)
    wire.closes(wire.a)
    for _ in range(late_s):
        wire.b.reply(1, made_packets.reply(-2, 6 + _))
    wire.notifies(100, "deleted /e")

    assert wire.done()[-1]["why"] == why


def test_write_of_an_unknown_session_has_the_data_that_was_read(wire: Wire) -> None:
    wire.notifies(10, "created /n", "changed /m", "deleted /o")
    wire.reads("/n", "new", 10, 0, owner=77)
    wire.reads("/m", "more", 10, 4)

    (event,) = wire.done()

    assert event["who"] == "hand"
    assert event["ops"] == [
        {"op": "create", "path": "/n", "data": "new", "ephemeral": True},
        {"op": "set", "path": "/m", "data": "more", "version": 4},
        {"op": "delete", "path": "/o"},
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("created /other", "do not match the request"),
        ("deleted /n", "do not match the request"),
    ],
)
def test_observer_notified_of_another_change_than_requested_is_not_believed(wire: Wire, change: str, why: str) -> None:
    xid = wire.asks(wire.a, Create("/n"))
    wire.notifies(10, change)
    wire.answers(wire.a, xid, 10, made("/n"))

    assert why in wire.observed().problem


def test_reply_to_a_change_without_a_watch_event_is_not_believed(wire: Wire) -> None:
    xid = wire.asks(wire.a, Create("/n"))
    wire.answers(wire.a, xid, 10, made("/n"))

    assert "do not match the request" in wire.observed().problem


def test_server_without_zxids_in_watch_events_is_too_old(wire: Wire) -> None:
    wire.notifies(-1, "created /n")

    assert "3.9 or newer" in wire.observed().problem


def test_unreadable_packet_ends_the_reconstruction(wire: Wire) -> None:
    created(wire, wire.a, "/e", 5)
    wire.a.reply(1, b"\0\0")

    found = wire.observed()

    assert "unreadable reply" in found.problem
    assert [event["event"] for event in found.events].count("end") == 1


def test_foreign_writes_are_reported_since_the_checker_excuses_them(wire: Wire) -> None:
    created(wire, wire.a, "/mine", 9)
    assert somebody_else(wire.observed().events) == ""

    wire.notifies(10, "deleted /mine")
    wire.notifies(11, "changed /m", "deleted /o")
    wire.reads("/m", "more", 11, 4)

    assert somebody_else(wire.observed().events) == "a stranger wrote /m and 1 more"


def test_write_that_bypasses_a_proxy_is_foreign_and_not_reported(wire: Wire) -> None:
    created(wire, wire.link(3), "/n", 9)

    assert somebody_else(wire.observed().events) == ""


@pytest.mark.parametrize("what", ["observed", "reads", "marks"])
def test_observer_capture_has_a_bound_and_the_history_ends_beyond_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(traffic_capture, "MOST_BYTES", 10_000)
    for zxid in range(10, 210):
        if what == "marks":
            wire.a.reply(1, made_packets.reply(-2, zxid))
        elif what == "observed":
            wire.notifies(10, "created /n")
        else:
            wire.reads("/n", "new", zxid)

    found = wire.observed()

    assert "the capture exceeds" in found.problem
    assert len(getattr(wire.tap.taken(), what)) <= 50
    assert "end" in [event["event"] for event in found.events]


def test_write_whose_reply_exceeds_the_bound_still_belongs_to_its_process(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    xid = wire.asks(wire.a, Create("/n"))
    wire.notifies(10, "created /n")
    monkeypatch.setattr(traffic_capture, "MOST_BYTES", 0)
    wire.answers(wire.a, xid, 10, made("/n"))

    (event,) = [event for event in wire.observed().events if event["event"] == "commit"]

    assert event["who"] == "a#1"


def test_session_has_its_requested_and_its_granted_timeout(wire: Wire) -> None:
    sessions = [event for event in wire.observed().events if event["event"] == "session"]

    assert {(event["who"], event["asked"], event["timeout"]) for event in sessions} >= {("a#1", 50.0, 40.0)}
