"""Matching of transactions to recorded commits: by reply, by shape, by an ended session, or as foreign ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import made_packets
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.session.kazoo_store import RecordedMulti, WriteRecord
from zk_group.coordinator.zk.store import Check, Create, Delete, Operation, SetData, TreeEvent
from zk_group.coordinator.zk.wire import Multi
from zk_group.drills.evidence.watch_observer import Observed, observed, writes_in
from zk_group.drills.faults.proxy import ZxidClock

ROOT = "/drill"
WHO = {0xA: "a#1", 0xB: "b#2"}
A, B = WHO


class Recorded:
    """Sessions of two processes, and the observer's events; something happens every second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._now: Iterator[int] = iter(range(1, 1000))
        self.clock = ZxidClock(self.now)
        self._records: dict[int, WriteRecord] = {}
        self.heard = dict.fromkeys(WHO, 0)
        self.seen: list[TreeEvent] = []
        for session in WHO:
            self.opens(session)

    def now(self) -> float:
        return float(next(self._now))

    def opens(self, session: int) -> None:
        self._records[session] = WriteRecord(str(self.folder), session, 40.0, 50.0, self.now)

    def asks(self, session: int, *operations: Operation) -> RecordedMulti:
        multi = self._records[session].of(Multi(operations, ROOT), lambda: self.heard.get(session, 0))
        assert multi.serialize() == multi.multi.serialize()
        return multi

    def answers(self, multi: RecordedMulti, zxid: int, *results: bytes) -> None:
        self.clock.saw(zxid)
        multi.deserialize(made_packets.reply(1, zxid, 0, b"".join(results) + made_packets.DONE), 16)

    def closes(self, session: int) -> None:
        self._records[session].add("closing")

    def notifies(self, zxid: int, *changes: str) -> None:
        """The observer gets watch events, each as `created /a`."""
        for change in changes:
            kind, _, path = change.partition(" ")
            self.clock.saw(zxid)
            self.seen.append(TreeEvent(kind, ROOT + path, zxid))

    def observed(self) -> Observed:
        return observed(writes_in(self.folder, ROOT), self.seen, self.clock, WHO, ROOT, 0, 1000)

    def done(self) -> list[dict[str, Any]]:
        """The reconstructed events, when none is unknown."""
        found = self.observed()
        assert found.problem == ""
        return [event for event in found.events if event["event"] in ("commit", "closed")]


def made(path: str) -> bytes:
    return made_packets.result(1, made_packets.text(ROOT + path))


def was_set() -> bytes:
    return made_packets.result(5, made_packets.stat())


@pytest.fixture
def drill(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "writes")


def created(drill: Recorded, session: int, path: str, zxid: int, ephemeral: bool = True) -> None:
    multi = drill.asks(session, Create(path, b"x", ephemeral=ephemeral))
    drill.notifies(zxid, f"created {path}")
    drill.answers(multi, zxid, made(path))


def test_transaction_is_matched_to_its_commit_by_the_reply(drill: Recorded) -> None:
    multi = drill.asks(A, Create("/c-", b"\xff", sequential=True), SetData("/s", b"2", 4), Delete("/d"), Check("/f", 3))
    drill.notifies(10, "created /c-0000000007", "changed /s", "deleted /d")
    drill.answers(multi, 10, made("/c-0000000007"), was_set(), made_packets.result(2), made_packets.result(13))

    (event,) = drill.done()

    assert (event["who"], event["session"], event["zxid"]) == ("a#1", A, 10)
    assert event["ops"] == [
        {"op": "create", "path": "/c-0000000007", "data": "\\xff", "ephemeral": False},
        {"op": "set", "path": "/s", "data": "2", "version": 5},
        {"op": "delete", "path": "/d"},
        {"op": "check", "path": "/f", "version": 3},
    ]


def test_transaction_is_timed_by_the_first_packet_that_shows_it(drill: Recorded) -> None:
    multi = drill.asks(A, Create("/n"))
    drill.clock.saw(12)
    before = drill.clock.at(12)
    drill.notifies(11, "created /n")
    drill.answers(multi, 11, made("/n"))

    (event,) = drill.done()

    assert event["at"] == before


def test_progress_that_shows_late_changes_no_earlier_time(drill: Recorded) -> None:
    for zxid in (5, 12, 7, 8, 20):
        drill.clock.saw(zxid)

    assert drill.clock.at(8) == drill.clock.at(7) == drill.clock.at(12) < drill.clock.at(13) == drill.clock.at(20)


def test_a_refused_commit_is_no_transaction_and_matches_none(drill: Recorded) -> None:
    drill.answers(drill.asks(A, Create("/n")), 9, made_packets.result(-1, b"\xff\xff\xff\x92"))
    assert drill.done() == []

    drill.notifies(10, "created /n")

    assert "a stranger wrote /n" in drill.observed().problem


def test_commit_without_a_reply_is_matched_by_its_changes(drill: Recorded) -> None:
    drill.asks(A, Create("/c-", b"1", sequential=True), Check("/f", 1), SetData("/s", b"2", 4))
    drill.asks(B, Create("/c-", b"1", sequential=True))
    drill.notifies(10, "created /c-0000000001", "changed /s")

    (event,) = drill.done()

    assert event["who"] == "a#1"
    assert event["ops"] == [
        {"op": "create", "path": "/c-0000000001", "data": "1", "ephemeral": False},
        {"op": "check", "path": "/f", "version": 1},
        {"op": "set", "path": "/s", "data": "2", "version": 5},
    ]


def test_two_commits_with_the_same_changes_are_reported_as_unknown(drill: Recorded) -> None:
    created(drill, A, "/before", 9)
    drill.asks(A, Create("/coordinator", b"a"))
    drill.asks(B, Create("/coordinator", b"b"))
    drill.notifies(10, "created /coordinator")
    created(drill, A, "/after", 11)

    found = drill.observed()

    assert "2 commits without a reply match these changes" in found.problem
    assert [event["zxid"] for event in found.events if event["event"] == "commit"] == [9]
    assert found.events[-1]["event"] == "end"


@pytest.mark.parametrize("how", ["sent later", "answered before", "followed by an earlier one"])
def test_commit_that_cannot_be_the_transaction_is_not_matched(drill: Recorded, how: str) -> None:
    if how == "answered before":
        drill.heard[A] = 10
    if how != "sent later":
        drill.asks(A, Delete("/n"))
    if how == "followed by an earlier one":
        created(drill, A, "/m", 9)
    drill.notifies(10, "deleted /n")
    if how == "sent later":
        drill.asks(A, Delete("/n"))

    assert "a stranger wrote /n" in drill.observed().problem


def test_commit_sent_before_an_applied_one_is_not_applied_after_it(drill: Recorded) -> None:
    drill.asks(A, SetData("/s", b"1"))
    drill.asks(A, SetData("/t", b"2", 0))
    drill.notifies(10, "changed /t")
    drill.notifies(11, "changed /s")

    found = drill.observed()

    assert "a stranger wrote /s" in found.problem
    assert [event["zxid"] for event in found.events if event["event"] == "commit"] == [10]


def test_ephemerals_of_a_session_deleted_at_once_were_deleted_by_its_end(drill: Recorded) -> None:
    created(drill, A, "/e", 5)
    created(drill, A, "/f", 6)
    drill.notifies(10, "deleted /f", "deleted /e")

    event = drill.done()[-1]

    assert (event["event"], event["who"], event["why"], event["session"]) == ("closed", "a#1", "expired", A)
    assert event["paths"] == ["/f", "/e"]


@pytest.mark.parametrize("later", ["", "it has another one", "it goes on"])
def test_ephemeral_deleted_while_its_session_lives_was_removed_by_a_stranger(drill: Recorded, later: str) -> None:
    created(drill, A, "/e", 5)
    if later == "it has another one":
        created(drill, A, "/f", 6)
    drill.notifies(10, "deleted /e")
    if later == "it goes on":
        created(drill, A, "/f", 11)

    assert ("a stranger wrote /e" in drill.observed().problem) is bool(later)


@pytest.mark.parametrize(("late_s", "why"), [(0, "closed"), (60, "expired"), (-1, "expired")])
def test_close_counts_if_nothing_else_could_end_the_session_so_soon(drill: Recorded, late_s: int, why: str) -> None:
    created(drill, A, "/e", 5)
    if late_s >= 0:
        drill.closes(A)
    for _ in range(late_s):
        drill.now()
    drill.notifies(100, "deleted /e")
    if late_s < 0:
        drill.closes(A)

    assert drill.done()[-1]["why"] == why


def test_write_of_a_stranger_ends_the_history(drill: Recorded) -> None:
    created(drill, A, "/mine", 9)
    drill.notifies(10, "changed /m", "deleted /o")
    created(drill, A, "/after", 11)

    found = drill.observed()

    assert "a stranger wrote /m and 1 more" in found.problem
    assert [event["zxid"] for event in found.events if event["event"] == "commit"] == [9]
    assert found.events[-1] == {"at": drill.clock.at(10), "who": "server", "event": "end"}


def test_creation_of_the_chroot_itself_is_no_strangers_write(drill: Recorded) -> None:
    drill.notifies(1, "created ")

    assert drill.done() == []


@pytest.mark.parametrize("change", ["created /other", "deleted /n", ""])
def test_another_change_than_the_recorded_one_is_not_believed(drill: Recorded, change: str) -> None:
    multi = drill.asks(A, Create("/n"))
    if change:
        drill.notifies(10, change)
    drill.answers(multi, 10, made("/n"))

    assert "do not match the recorded commit" in drill.observed().problem


def test_server_without_zxids_in_watch_events_is_too_old(drill: Recorded) -> None:
    drill.notifies(0, "created /n")

    assert "3.9 or newer" in drill.observed().problem


def test_commit_of_a_session_without_a_known_process_is_reconstructed(drill: Recorded) -> None:
    drill.opens(0xC)
    created(drill, 0xC, "/n", 9)

    assert [(event["who"], event["session"]) for event in drill.done()] == [("hand", 0xC)]


def test_session_has_its_requested_and_its_granted_timeout(drill: Recorded) -> None:
    sessions = [event for event in drill.observed().events if event["event"] == "session"]

    assert [(event["who"], event["asked"], event["timeout"]) for event in sessions] == [
        ("a#1", 50.0, 40.0),
        ("b#2", 50.0, 40.0),
    ]


def test_line_that_a_killed_process_has_not_finished_is_no_commit(drill: Recorded) -> None:
    created(drill, A, "/n", 9)
    with (drill.folder / "a.jsonl").open("a") as file:
        file.write('{"at": 9.0, "event": "asked", "num')

    assert [event["zxid"] for event in drill.done()] == [9]


@pytest.mark.parametrize(
    "line", ["no JSON", "[]", json.dumps({"at": 1, "event": "done", "number": 77, "zxid": 5, "paths": []})]
)
def test_malformed_record_is_refused(drill: Recorded, line: str) -> None:
    with (drill.folder / "b.jsonl").open("a") as file:
        file.write(line + "\n")

    with pytest.raises(BadData, match=r"unreadable record b\.jsonl"):
        drill.observed()
