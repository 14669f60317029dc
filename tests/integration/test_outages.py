"""An outage of ZooKeeper in the logs: when it begins and when it ends, once each, with its length and its cost."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from coordinator.zk.errors import ZooKeeperUnreachable
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from tests.support.processes import ProjectProcess, consumer_process, node_process
from tests.support.proxy import Proxy
from tests.support.wait import eventually
from tests.support.world import World

pytestmark = pytest.mark.real_zookeeper("connections that are cut")


def outage(proxy: Proxy, seconds: float) -> None:
    """No server answers for so long."""
    proxy.refuse()
    proxy.cut()
    ThreadRuntime().sleep(seconds)
    proxy.resume()


def lines(process: ProjectProcess, event: str) -> list[str]:
    return [line for line in process.said().splitlines() if event in line]


def events(process: ProjectProcess) -> list[str]:
    """What it logs of ZooKeeper and its lease, in order."""
    found = re.findall(r" (ZooKeeper \w+|lease \w+): ", process.said())
    return [str(each) for each in found]


@pytest.mark.parametrize("is_long", [False, True], ids=["session kept", "session lost"])
def test_outage_is_a_line_at_either_end(world: World, zookeeper_proxy: Proxy, tmp_path: Path, is_long: bool) -> None:
    session_ms, away_s = (1000, 4.0) if is_long else (20_000, 2.0)
    through = f"{zookeeper_proxy.hosts}/{world.zk.partition('/')[2]}"
    options = ["--session-timeout-ms", str(session_ms)]
    with (
        node_process(tmp_path, through, "a", session_ms) as node,
        consumer_process(tmp_path, through, "g", "c1", tmp_path / "log", *options) as consumer,
    ):
        world.topic("t", 1)
        world.stable("g", 1, timeout_s=30)

        outage(zookeeper_proxy, away_s)

        for process in (node, consumer):
            eventually(lambda p=process: lines(p, "ZooKeeper available: "), 30, "it is back")
        if is_long:
            eventually(lambda: len(lines(node, "elected: node=a")) == 2, 30, "it is elected again")
            eventually(lambda: lines(consumer, "lease returned: "), 30, "it is a member again")
    for process, client in ((node, "node a"), (consumer, "consumer c1")):
        (begin,), (end,) = lines(process, "ZooKeeper unavailable: "), lines(process, "ZooKeeper available: ")
        assert f'client="{client}"' in begin and f'client="{client}"' in end
        assert "WARNING" in begin and through in begin
        after_s = re.search(r"after_s=([\d.]+)", end)
        assert after_s is not None and float(after_s[1]) >= away_s
        assert ("the session was lost, with its ephemeral znodes" if is_long else "the session was kept") in end
        assert "Connection refused" not in process.said() and "zk.kazoo" not in process.said()
        assert not re.search("retrying|deferred", process.said())
        leases = [event for event in events(process) if event.startswith("lease")]
        assert leases[:1] == (["lease lost"] if is_long else [])
        if is_long:
            assert lines(consumer, "lease returned: ")[0].split("after_s=")[1] > "1"


def test_kazoos_own_lines_are_for_debugging(world: World, zookeeper_proxy: Proxy, tmp_path: Path) -> None:
    through = f"{zookeeper_proxy.hosts}/{world.zk.partition('/')[2]}"
    with node_process(tmp_path, through, "a", 20_000, "--log-level", "debug") as node:
        eventually(lambda: "elected: node=a" in node.said(), 20, "it is elected")
        outage(zookeeper_proxy, 1.0)
        eventually(lambda: lines(node, "ZooKeeper available: "), 30, "it is back")

    assert lines(node, "coordinator.zk.kazoo")
    assert {line.split()[1] for line in lines(node, "coordinator.zk.kazoo")} == {"DEBUG"}


def test_first_session_that_cannot_be_opened_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ZooKeeperUnreachable):
        kazoo_factory("127.0.0.1:1", 1000, 0.3, "node a")()

    assert caplog.records == []
