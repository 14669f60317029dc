"""What the units in deploy/ rely on."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from coordinator.zk.ensemble import Ensemble, EnsembleConfig
from tests.support.clients import fresh_chroot
from tests.support.processes import consumer_process, node_process
from tests.support.world import a_world

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
SESSION_MS = 3000
DEFAULT_SESSION_MS = 10_000


def stop_limit_s(unit: str) -> float:
    """`TimeoutStopSec`, which stands for default sessions, for the sessions of this test."""
    found = re.search(r"^TimeoutStopSec=(\d+)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * SESSION_MS / DEFAULT_SESSION_MS


def test_what_systemd_stops_ends_in_time_though_zookeeper_does_not_answer(tmp_path: Path) -> None:
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
