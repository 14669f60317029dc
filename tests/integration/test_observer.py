"""An observer's events, compared with ZooKeeper's own transaction log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.errors import OutcomeUnknown, Refused
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Check, Create, Delete, SetData, Store
from drills.checker.replay.txn_log import events_of
from drills.evidence.reconstruction import observed
from drills.evidence.watch_observer import WatchObserver
from drills.faults.packets import MULTI
from drills.faults.proxy import Proxy
from drills.faults.traffic_capture import Tap, Traffic
from tests.support.clients import connected
from tests.support.wait import eventually

Event = dict[str, Any]


class Watched:
    """Clients behind proxies that are listened to, and an observer, in a chroot of their own."""

    def __init__(self, zookeeper: Ensemble, chroot: str, stack: ExitStack) -> None:
        self.chroot = chroot
        self.tap = Tap()
        self.who: dict[int, str] = {}
        self._ensemble = zookeeper
        self._stack = stack
        self.observer = stack.enter_context(WatchObserver([zookeeper.hosts], self.tap, [chroot], chroot))

    def client(self, who: str) -> tuple[Store, Proxy]:
        """A session of a process, and its proxy."""
        proxy = self._stack.enter_context(Proxy(self._ensemble.hosts, self.tap))
        store = open_kazoo(proxy.hosts + self.chroot, 1000)
        self._stack.callback(store.close)
        self.who[store.session_id] = who
        return store, proxy

    def said(self, traffic: Traffic) -> tuple[list[Event], str]:
        """The events derived from some traffic, and the problem."""
        found = observed(traffic, self.who, [self.chroot], self.chroot, 0, max(zxid for _, zxid in traffic.marks))
        return comparable(found.events, self.who), found.problem

    def logged(self) -> list[Event]:
        """The truth."""
        folder = next(Path(self._ensemble.directory).rglob("log.*")).parent
        return comparable(events_of([folder], self.who, lambda ms: ms / 1000, self.chroot), self.who)


def comparable(events: list[Event], who: Mapping[int, str]) -> list[Event]:
    """Without times, without a stranger's session and why it ended, and without ends of sessions that had nothing."""
    found = []
    for event in events:
        of_ours = event.get("session") in who
        if event["event"] == "commit" or event.get("paths") or (of_ours and event.get("why") == "closed"):
            unknown = {"at"} if of_ours else {"at", "session", "why"}
            found.append({name: value for name, value in event.items() if name not in unknown})
    return found


@pytest.fixture
def watched(zookeeper: Ensemble, request: pytest.FixtureRequest) -> Iterator[Watched]:
    with ExitStack() as stack:
        chroot = f"/observed-{abs(hash(request.node.name)):x}"
        yield Watched(zookeeper, chroot, stack)


def a_little_of_everything(watched: Watched, zookeeper: Ensemble) -> None:
    first, first_proxy = watched.client("first#1")
    second, second_proxy = watched.client("second#2")
    first.commit([Create("/a", b"1"), Create("/a/own", b"", ephemeral=True), SetData("/a", b"\xff2", 0)])
    assert first.commit([Check("/a", 1), Create("/a/command-", b"x", sequential=True)])[1].endswith("0000000001")
    with pytest.raises(Refused):
        second.commit([SetData("/a", b"never", 1), Check("/a", 7), Create("/b")])
    second.commit([Check("/a", 1), Create("/b", b"\xc3\xa9"), Create("/b/e", b"mine", ephemeral=True)])
    second.commit([Delete("/b/e"), Create("/b/e", b"again", ephemeral=True), Create("/b/f", b"", ephemeral=True)])

    loss = first_proxy.drop_reply(MULTI)
    with pytest.raises(OutcomeUnknown):
        first.commit([SetData("/a", b"3", 1), Delete("/a/command-0000000001")])
    loss.wait()
    eventually(lambda: first.get("/a"), 5, "the session continues", ignoring=(Exception,))

    with connected(zookeeper.hosts + watched.chroot) as hand:
        hand.create("/by-hand", b"h", ephemeral=True)
        eventually(lambda: "h" in read(watched), 5, "it is read before it changes again")
        hand.set("/by-hand", b"i")
        eventually(lambda: "i" in read(watched), 5, "the change is read")
        hand.delete("/b/f")
        hand.create("/c", b"c")
        eventually(lambda: "c" in read(watched), 5, "it is read before it changes again")
    second_proxy.black_hole()
    eventually(lambda: first.get("/b/e") is None, 10, "the second session expires")
    first.commit([SetData("/c", b"end")])
    first.close()


def read(watched: Watched) -> set[str]:
    return {node.data for node in watched.tap.taken().reads.values()}


@pytest.mark.full("each environment and kind of drill")
def test_observer_agrees_with_the_transaction_log(watched: Watched, zookeeper: Ensemble) -> None:
    a_little_of_everything(watched, zookeeper)

    said = watched.observer.events(watched.who)

    assert "a stranger wrote /" in watched.observer.missing
    assert comparable(said, watched.who) == watched.logged()
    verbs = {op["op"] for event in said if event["event"] == "commit" for op in event["ops"]}
    assert verbs == {"create", "set", "delete", "check"}
    assert {e["why"] for e in said if e["event"] == "closed"} == {"closed", "expired"}


@pytest.mark.full("each environment and kind of drill")
def test_transaction_is_found_without_its_reply(watched: Watched, zookeeper: Ensemble) -> None:
    a_little_of_everything(watched, zookeeper)
    watched.observer.events(watched.who)
    whole = watched.tap.taken()
    truth = watched.logged()

    for number, (request, _) in enumerate(whole.answered):
        rest = [each for each in whole.answered if each[0] is not request]
        answer = watched.said(replace(whole, answered=rest, unanswered=[*whole.unanswered, request]))
        assert answer == (truth, ""), f"without the reply to request {number}"
    nothing_heard = sorted([*whole.unanswered, *(request for request, _ in whole.answered)])
    assert watched.said(replace(whole, answered=[], unanswered=nothing_heard)) == (truth, "")


@pytest.mark.full("each environment and kind of drill")
def test_observer_that_loses_its_connection_reports_it_and_no_later_change(
    watched: Watched, zookeeper: Ensemble
) -> None:
    first, _ = watched.client("first#1")
    first.commit([Create("/a")])
    eventually(
        lambda: [answer for answer in watched.tap.taken().observed if answer.path.endswith("/a")], 5, "it is observed"
    )

    for proxy in watched.observer.proxies:
        proxy.cut()
    eventually(lambda: watched.tap.taken().problem, 5, "it notices")
    first.commit([Create("/b")])
    said = watched.observer.events(watched.who)

    assert "the observer has lost its connection" in watched.observer.missing
    end = min(event["at"] for event in said if event["event"] == "end")
    known = [event for event in said if event["event"] == "commit" and event["at"] <= end]
    assert [op["path"] for event in known for op in event["ops"]] == ["/a"]


@pytest.mark.full("each environment and kind of drill")
def test_foreign_write_that_was_not_read_in_time_is_not_invented(watched: Watched, zookeeper: Ensemble) -> None:
    with connected(zookeeper.hosts) as hand:
        hand.create(watched.chroot)
        for number in range(50):
            hand.create(f"{watched.chroot}/a", b"%d" % number)
            hand.set(f"{watched.chroot}/a", b"again")
            hand.delete(f"{watched.chroot}/a")
    watched.observer.events(watched.who)
    traffic = replace(watched.tap.taken(), reads={})

    events, problem = watched.said(traffic)

    assert "a stranger has created" in problem
    assert not [event for event in events if event["event"] == "commit"]
