"""An observer's events, compared with ZooKeeper's own transaction log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import connected
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.errors import OutcomeUnknown, Refused
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Check, Create, Delete, SetData, Store
from zk_group.drills.checker.replay.txn_log import events_of
from zk_group.drills.evidence.watch_observer import WatchObserver
from zk_group.drills.faults.proxy import MULTI, ZxidClock

pytestmark = pytest.mark.full("each environment and kind of drill")
Event = dict[str, Any]


class Watched:
    """Clients behind proxies that record their commits, and an observer, in a chroot of their own."""

    def __init__(self, zookeeper: Ensemble, chroot: str, stack: ExitStack, writes: Path) -> None:
        self.chroot = chroot
        self.clock = ZxidClock()
        self.writes = writes
        self.who: dict[int, str] = {}
        self._ensemble = zookeeper
        self._stack = stack
        with connected(zookeeper.hosts) as hand:
            hand.create(chroot)
        self.through = stack.enter_context(Proxy(zookeeper.hosts))
        self.observer = stack.enter_context(
            WatchObserver([self.through.hosts], self.clock, [chroot], chroot, str(writes))
        )

    def client(self, who: str) -> tuple[Store, Proxy]:
        """A session of a process, and its proxy."""
        proxy = self._stack.enter_context(Proxy(self._ensemble.hosts, self.clock))
        store = open_kazoo(proxy.hosts + self.chroot, 1000, writes_dir=str(self.writes))
        self._stack.callback(store.close)
        self.who[store.session_id] = who
        return store, proxy

    def logged(self) -> list[Event]:
        """The truth."""
        folder = next(Path(self._ensemble.directory).rglob("log.*")).parent
        return comparable(events_of([folder], self.who, lambda ms: ms / 1000, self.chroot), self.who)


def comparable(events: list[Event], who: Mapping[int, str]) -> list[Event]:
    """Without times, without versions, and without ends of sessions that had nothing."""
    return [
        {name: value for name, value in event.items() if name != "at"}
        | {"ops": [{name: value for name, value in op.items() if name != "version"} for op in event.get("ops", ())]}
        for event in events
        if event.get("session") in who and (event["event"] == "commit" or event.get("paths"))
    ]


@pytest.fixture
def watched(zookeeper: Ensemble, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        chroot = f"/observed-{abs(hash(request.node.name)):x}"
        yield Watched(zookeeper, chroot, stack, tmp_path / "writes")


def a_little_of_everything(watched: Watched) -> None:
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

    second_proxy.black_hole()
    eventually(lambda: first.get("/b/e") is None, 10, "the second session expires")
    first.commit([SetData("/a", b"end")])
    first.close()


@pytest.mark.parametrize("has_replies", [True, False], ids=["with the replies", "without a reply"])
def test_observer_agrees_with_the_transaction_log(watched: Watched, has_replies: bool) -> None:
    a_little_of_everything(watched)
    for path in watched.writes.iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if has_replies or json.loads(line)["event"] != "done"))

    said = watched.observer.events(watched.who)

    assert watched.observer.missing == ""
    assert comparable(said, watched.who) == watched.logged()
    verbs = {op["op"] for event in said if event["event"] == "commit" for op in event["ops"]}
    assert verbs == {"create", "set", "delete", "check"}
    assert {e["why"] for e in said if e["event"] == "closed"} == {"closed", "expired"}


def test_observer_that_loses_its_connection_reports_it_and_no_later_change(watched: Watched) -> None:
    first, _ = watched.client("first#1")
    first.commit([Create("/a")])
    first.commit([Create("/b")])

    eventually(lambda: len(watched.observer.seen) == 2, 5, "both are observed")

    watched.through.cut()
    eventually(lambda: watched.observer.is_lost, 5, "it notices")
    first.commit([Create("/c")])
    said = watched.observer.events(watched.who)

    assert "the observer has lost its connection" in watched.observer.missing
    end = min(event["at"] for event in said if event["event"] == "end")
    known = [event for event in said if event["event"] == "commit" and event["at"] <= end]
    assert [op["path"] for event in known for op in event["ops"]] == ["/a"]
