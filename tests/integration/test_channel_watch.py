"""`channel watch`: every command and how it ended, live, however quickly it was gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run
from tests.support.hand import ManualStage
from tests.support.processes import REPOSITORY, ProjectProcess, on_terminal
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from tests.support.world import World, expire, parts
from zk_group.coordinator.admin.channel_watch import ChannelEvent, ChannelWatch
from zk_group.coordinator.zk.errors import StoreError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.session.kazoo_store import KazooStore, open_kazoo
from zk_group.coordinator.zk.store import Node, TreeEvent
from zk_group.coordinator.zk.wire import AddTreeWatch
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import STOP_FETCHER, Command

pytestmark = pytest.mark.real_zookeeper("tree watches")

PATHS = GroupPaths("g")


class Watching:
    """A watch that runs in a thread.

    :ivar seen: the events so far.
    """

    def __init__(self, zk: str, consumer: str | None, opener: Callable[[], KazooStore]) -> None:
        self.seen: list[ChannelEvent] = []
        self.stores: list[KazooStore] = []
        self.error: BaseException | None = None
        self._stop = ThreadRuntime().event()

        def opened() -> KazooStore:
            store = opener()
            if not self._stop.is_set():  # the last store only stops the thread and is closed with the watch
                self.stores.append(store)
            return store

        self._events = ChannelWatch(opened, ThreadRuntime(), "g", consumer)
        self._thread = ThreadRuntime().spawn(self._run, "watching")
        # Both watches are set, and all is read, before the first event of the test.
        eventually(lambda: self._events._has_read, 10, "it has read everything")

    def _run(self) -> None:
        try:
            with closing(self._events.events(60)) as events:
                for event in events:
                    if self._stop.is_set():
                        return
                    self.seen.append(event)
        except BaseException as error:  # noqa: BLE001  a test looks at it
            self.error = error

    def of(self, *events: str) -> list[ChannelEvent]:
        return [event for event in self.seen if event.event in events]

    def wait_for(self, event: str, count: int = 1) -> list[ChannelEvent]:
        """The events of one kind, once there are `count`."""

        def enough() -> list[ChannelEvent]:
            assert self.error is None, self.error
            found = self.of(event)
            assert len(found) >= count, self.seen
            return found

        return eventually(enough, 10, f"{count} times {event}")

    def close(self) -> None:
        self._stop.set()
        for store in tuple(self.stores):
            store.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), "its thread would run on in later tests"


def opener(zk: str, timeout_ms: int = 4000) -> Callable[[], Any]:
    return lambda: open_kazoo(zk, timeout_ms, make_chroot=False)


@contextmanager
def watching(zk: str, consumer: str | None = None, open_store: Callable[[], Any] | None = None) -> Iterator[Watching]:
    made = Watching(zk, consumer, open_store or opener(zk))
    try:
        yield made
    finally:
        made.close()


def test_each_command_and_each_acknowledgement_of_a_real_group_is_seen(world: World) -> None:
    world.coordinator()
    world.topic("t", 8)
    world.put(PATHS.root)
    with watching(world.zk) as watch:
        for number in range(4):
            world.consumer("g", f"c{number}", {"t": 1})
            world.stable("g", number + 1)
        sent = sum(world.created_commands("g", f"c{number}") for number in range(4))
        eventually(lambda: len(watch.of("acknowledged", "withdrawn", "removed")) == sent, 10, "each one's end")

        assert len(watch.of("command")) == sent >= 10
        assert watch.of("removed", "missed") == []
        assert len(watch.of("registered")) == 4
        keys = [(event.consumer, event.command) for event in watch.of("command")]
        assert len(set(keys)) == sent
        # On a busy machine one may be gone before it is read.
        assert {event.option for event in watch.of("command")} - {None} == {"start-fetcher", "stop-fetcher"}
        assert all(event.took_ms is not None or event.note for event in watch.of("acknowledged"))
        last = watch.of("acknowledged")[-1]
        assert (last.epoch, last.generation) == (1, world.state("g").generation)


def test_withdrawal_of_an_eviction_is_distinguished_from_an_acknowledgement(stage: ManualStage) -> None:
    hand, one = stage.hand(), stage.puppet("g", "c1", {"t": 1})
    stage.topic("t", 2)
    stuck = stage.puppet("g", "c2", {"t": 1}, max_poll_interval_ms=100)
    with watching(stage.zk) as watch:
        hand.turn("g")
        watch.wait_for("command", 2)
        one.obey()
        acknowledged = watch.wait_for("acknowledged")
        hand.evict(stuck, one)
        (ended,) = watch.wait_for("ended")
        (withdrawn,) = watch.wait_for("withdrawn")

    assert [event.consumer for event in acknowledged] == ["c1"]
    assert ended.note is not None and ended.note.startswith("evicted: ")
    assert (withdrawn.consumer, withdrawn.option, withdrawn.note) == ("c2", "start-fetcher", ended.note)
    assert withdrawn.took_ms is not None and ended.incarnation == stuck.registration.incarnation


def test_one_consumer_is_followed_alone(stage: ManualStage) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    with watching(stage.zk, "c2") as watch:
        stage.topic("t", 6)
        hand.settle("g", one, two)
        watch.wait_for("acknowledged", 2)

    assert {event.consumer for event in watch.seen} == {"c2"}


class LateStore(KazooStore):
    """Reads a command only after it is gone."""

    gone = ThreadRuntime().event()

    def send_get(self, path: str) -> Callable[[], Node | None]:
        if "/command-" not in path:
            return super().send_get(path)

        def read() -> Node | None:
            assert self.gone.wait(10)
            return self.get(path)

        return read


def test_command_removed_before_it_was_read_is_reported_from_the_channel(stage: ManualStage) -> None:
    hand = stage.hand()
    stage.topic("t", 2)
    one = stage.puppet("g", "c1", {"t": 1})
    LateStore.gone = ThreadRuntime().event()
    with watching(stage.zk, open_store=lambda: LateStore(stage.zk, 4000, 10, True, ZooKeeperAccess())) as watch:
        hand.turn("g")
        one.obey()
        LateStore.gone.set()
        (sent,) = watch.wait_for("command")
        (acknowledged,) = watch.wait_for("acknowledged")

    assert (sent.option, sent.note) == (None, "it was gone before it could be read")
    assert (acknowledged.generation, acknowledged.partitions) == (1, {"t": "0-1"})


def test_lost_connection_is_reported_as_a_gap_and_the_watch_goes_on(stage: ManualStage, zookeeper_proxy: Proxy) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    through = f"{zookeeper_proxy.hosts}/{stage.zk.split('/', 1)[1]}"
    with watching(stage.zk, open_store=opener(through)) as watch:
        zookeeper_proxy.refuse()
        zookeeper_proxy.cut()
        stage.topic("t", 6)
        hand.turn("g")  # these stops are sent while the watch is disconnected
        zookeeper_proxy.resume()
        watch.wait_for("missed")
        stood = watch.wait_for("command", 2)
        hand.settle("g", one, two)
        watch.wait_for("acknowledged", 4)

    assert [event.note for event in stood[:2]] == ["it was there already"] * 2
    assert watch.of("registered") == []


def test_watch_continues_with_a_new_session_after_an_expiration(stage: ManualStage) -> None:
    hand = stage.hand()
    one, two = stage.stable_pair(hand)
    with watching(stage.zk) as watch:
        expire(watch.stores[0])
        watch.wait_for("missed")
        stage.topic("t", 6)
        hand.settle("g", one, two)
        watch.wait_for("acknowledged", 4)

    assert len(watch.stores) == 2


def test_bad_data_is_reported_in_printable_form(world: World) -> None:
    world.put(PATHS.channel("c1"))
    with watching(world.zk) as watch:
        world.put(PATHS.command("c1", "command-0000000000"), b"\x1b[31m")
        world.put(f"{PATHS.channel('c1')}/junk", b"junk")
        (event,) = watch.wait_for("command")
    result = run(world.zk, "channel", "watch", "g", "--for", "0")
    lines = run(world.zk, "channel", "watch", "g", "-o", "json", "--for", "0").stdout.splitlines()

    assert event.note is not None and "holds no JSON" in event.note
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout and "command-0000000000" in result.stdout
    assert [json.loads(line)["event"] for line in lines] == ["command"], "a line an object here, too"


def test_tree_watch_reports_every_change_in_order(zk: str, world: World) -> None:
    store = open_kazoo(zk, 4000, make_chroot=False)
    seen: list[TreeEvent] = []
    store.watch_tree("/a", seen.append)

    for _ in range(50):
        world.put("/a/b/c", b"1")
        world.put("/a/b/c", b"2")
        world.remove("/a/b/c")
    world.put("/ab", b"a neighbour")
    last = "/a/last"
    world.put(last)

    eventually(lambda: seen and seen[-1].path == last, 5, "the last event was received")
    node = store.get(last)
    store.close()
    assert node is not None and seen[-1] == TreeEvent("created", last, node.stat.czxid)
    of_c = [event.kind for event in seen if event.path == "/a/b/c"]
    assert of_c == ["created", "changed", "deleted"] * 50
    assert all(event.path.startswith("/a") and event.path != "/ab" for event in seen)


def test_server_without_tree_watches_is_one_clear_error(zk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddTreeWatch, "type", 990)  # no server knows this one
    store = open_kazoo(zk, 4000, make_chroot=False)

    with pytest.raises(StoreError, match=r"ZooKeeper 3\.6 is required"):
        store.watch_tree("/a", lambda event: None)

    store.close()


# ---- the command line


def test_it_prints_flushed_json_lines_and_ends_after_so_many(world: World, tmp_path: Path) -> None:
    world.coordinator()
    world.topic("t", 2)
    world.put(PATHS.root)
    arguments = ["channel", "watch", "g", "--zk", world.zk, "-o", "jsonl", "--count", "3"]
    with ProjectProcess(tmp_path, "watch", "zk_group.coordinator.cli", *arguments) as process:
        # Until the watch is there: a consumer that registers earlier is not reported.
        def seen() -> bool:
            world.consumer("g", f"c{len(world.consumers)}", {"t": 1})
            return bool(process.printed())

        eventually(seen, 20, "the first lines", pause_s=0.5)
        assert process.ends() == 0
        lines = process.printed()

    assert len(lines) == 3
    assert all(set(line) == {
        "event", "at_ms", "group", "consumer", "command", "option", "epoch", "generation", "incarnation", "partitions",
        "took_ms", "note", "ask", "reason",
    } for line in lines)  # fmt: skip


def test_long_partitions_are_whole_on_a_terminal(world: World) -> None:
    every_second = range(0, 400, 2)
    command = Command(STOP_FETCHER, 1, 1, "c1-1", partitions=parts("t", *every_second), topics={"t": "t-1"})
    world.put(PATHS.command("c1", "command-0000000000"), command.to_bytes())

    printed = on_terminal("-m", "zk_group.coordinator.cli", "channel", "watch", "g", "--zk", world.zk, "--count", "1")

    assert f"t({','.join(map(str, every_second))}); it was there already\n" in printed


def test_a_pipe_that_is_closed_ends_it_without_a_traceback(world: World) -> None:
    world.put(PATHS.root)
    command = [sys.executable, "-m", "zk_group.coordinator.cli", "channel", "watch", "g", "--zk", world.zk]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=REPOSITORY, **pipes)
    assert process.stdout is not None and process.stderr is not None
    try:
        assert process.stdout.readline().startswith(b"TIME")
        process.stdout.close()

        def has_ended() -> bool:
            world.put(PATHS.channel("c1") + "/command-0000000000", b"{}")
            world.remove(PATHS.channel("c1") + "/command-0000000000")
            return process.poll() is not None

        eventually(has_ended, 15, "it has ended")
        assert (process.returncode, process.stderr.read()) == (0, b"")
    finally:
        process.kill()
        process.wait(5)
        process.stderr.close()
