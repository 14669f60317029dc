"""Preconditions of the units in deploy/, and the costs in docs/deploy.md."""

from __future__ import annotations

import importlib
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clients import fresh_chroot
from tests.support.processes import consumer_process, node_process
from tests.support.wait import eventually
from tests.support.world import a_world
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
PAGE = ROOT / "docs" / "deploy.md"
SESSION_MS = 3000
DEFAULT_SESSION_MS = 10_000
SLOTS = 4
OFFSETS = GroupPaths("g").offsets_of("t")


def stop_limit_s(unit: str) -> float:
    """`TimeoutStopSec`, scaled from default sessions to the sessions of this test."""
    found = re.search(r"^TimeoutStopSec=(\d+)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * SESSION_MS / DEFAULT_SESSION_MS


def test_processes_stop_in_time_for_systemd_without_zookeeper(tmp_path: Path) -> None:
    config = EnsembleConfig(servers=1, tick_ms=500, durable=False)
    with Ensemble(tmp_path / "zookeeper", config) as ensemble, a_world(fresh_chroot(ensemble.hosts)) as world:
        world.topic("t", 4)
        options = ("--session-timeout-ms", str(SESSION_MS))
        with (
            node_process(tmp_path, world.zk, "a", SESSION_MS) as node,
            consumer_process(tmp_path, world.zk, "g", "c1", tmp_path / "log", *options) as consumer,
        ):
            world.stable("g", 1, timeout_s=30)
            ensemble.servers[0].pause()
            try:
                began = time.monotonic()
                node.signal(signal.SIGTERM)
                consumer.signal(signal.SIGTERM)

                assert consumer.ends(stop_limit_s("zk-consumer@.service")) == 0, consumer.said()
                left_s = stop_limit_s("zk-coordinator@.service") - (time.monotonic() - began)
                assert node.ends(max(left_s, 0.1)) == 0, node.said()
            finally:
                ensemble.servers[0].resume()
            assert "Traceback" not in node.said() + consumer.said()


def costs(what: str) -> list[int]:
    """Znodes, of them ephemeral, watches: the page's figures for one process."""
    (row,) = re.findall(rf"^\| {what} \| (\d+) \| (\d+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    return [int(cell) for cell in row]


def test_cost_of_nodes_and_fetchers_is_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "lib"))
    sizing = importlib.import_module("sizing.__main__")
    with Ensemble(tmp_path / "zookeeper", EnsembleConfig(servers=1, tick_ms=500, durable=False)) as ensemble:
        ensemble.wait_healthy()
        group = sizing.Group(f"{ensemble.hosts}/sizing", tmp_path / "segments")

        def counts() -> list[int]:
            found = sizing.figures(ensemble.servers[0])
            return [round(found.znodes), round(found.ephemerals), round(found.watches)]

        def have_offsets() -> bool:
            listing = group.store.children(OFFSETS)
            return listing is not None and len(listing.names) == 4

        def came(before: list[int], wanted: list[int], what: str) -> None:
            wanted = [here + more for here, more in zip(before, wanted, strict=True)]

            def are_there() -> bool:
                *znodes, watches = found = counts()
                # A channel whose command was acknowledged before the coordinator could watch it is still watched.
                assert znodes == wanted[:2] and abs(watches - wanted[2]) <= SLOTS, found
                return True

            eventually(are_there, 10, f"{what}: from {before} to {wanted}")

        try:
            group.node()
            create_topic(group.store, Brokers(), "t", 4)
            group.driver()
            group.slots(2)
            settled(counts)
            group.slots(3)  # from now on each partition has been given up once, and has its offset
            eventually(have_offsets, 10, "each has its offset")
            before = settled(counts)
            group.node()
            came(before, costs("a node, standby"), "a standby")
            before = settled(counts)
            group.slots(SLOTS)
            znodes, ephemerals, watches = costs("a fetcher, idle")
            came(before, [znodes + 1, ephemerals, watches], "a fetcher, and the history of one more rebalance")
        finally:
            group.close()


def settled(counts: Callable[[], list[int]]) -> list[int]:
    """The counts, once they stay for half a second."""
    seen: list[list[int]] = []

    def stays() -> bool:
        seen.append(counts())
        return len(seen) >= 10 and all(each == seen[-1] for each in seen[-10:])

    eventually(stays, 15, "the counts stay", pause_s=0.05)
    return seen[-1]
