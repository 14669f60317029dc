"""Drills on an external ensemble: `--zk`, bounds granted by the servers, and refused drills."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.zk.errors import UsageError, ZooKeeperUnreachable
from drills.base.settings import Settings
from drills.environments import external
from drills.environments.external import External
from drills.evidence.files import granted_otherwise
from drills.runner import DRILLS

Servers = Callable[..., None]
SERVERS = {name for name in DRILLS if name.startswith(("zookeeper-", "kafka-"))}


class NoStore:
    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Servers with configurable answers."""

    def answer(least_ms: int, most_ms: int, conf: str = "", version: str = "3.9.5") -> None:
        words = {"conf": conf, "srvr": f"Zookeeper version: {version}-abc, built on" if version else ""}
        monkeypatch.setattr(
            external, "granted_ms", lambda address, asked_ms, tls: min(max(asked_ms, least_ms), most_ms)
        )
        monkeypatch.setattr(external, "four_letter_word", lambda host, port, word="srvr", access=None: words[word])
        monkeypatch.setattr(external, "open_kazoo", lambda *arguments, **options: NoStore())

    return answer


def test_tick_is_read_from_the_server(servers: Servers) -> None:
    servers(400, 60_000, conf="clientPort=2181\ntickTime=250\nmaxClientCnxns=60\n")

    environment = External("zk1:2181", 2000)

    assert (environment.tick_s, environment.session_timeout_ms) == (0.25, 2000)
    assert "conf" in str(environment.details["tick"])


def test_unreported_tick_is_derived_from_the_granted_sessions(servers: Servers) -> None:
    servers(1000, 10_000)

    environment = External("zk1:2181", 1000)

    assert environment.tick_s == 0.5
    assert environment.session_timeout_ms == 2000, "four ticks"


def test_configured_bounds_give_promises_the_shorter_tick_and_sessions_the_longer(servers: Servers) -> None:
    servers(400, 40_000)

    environment = External("zk1:2181", 1000)

    assert (environment.tick_s, environment.session_timeout_ms) == (0.2, 8000)
    assert str(environment.details["tick"]).startswith("assumed")


def test_promises_are_derived_from_the_granted_session_timeout(servers: Servers) -> None:
    servers(4000, 40_000)

    environment = External("zk1:2181/x", 2000)
    settings = environment.adjust(Settings())

    assert settings.session_timeout_ms == 8000
    assert settings.max_poll_interval_ms > 2 * settings.session_timeout_ms
    assert settings.bounds(environment.tick_s)["session_timeout"] == 8.0
    assert environment.chroot_of("now").startswith("/x/zk-group-drill-")


@pytest.mark.parametrize("version", ["3.8.4", "3.6.0"])
def test_zookeeper_without_zxids_in_watch_events_is_refused(servers: Servers, version: str) -> None:
    servers(400, 4000, version=version)

    with pytest.raises(UsageError, match=r"3\.9 or newer"):
        External("zk1:2181", 2000)


def test_session_timeouts_over_the_limit_are_refused(servers: Servers) -> None:
    servers(30_000, 300_000)

    with pytest.raises(UsageError, match="minSessionTimeout"):
        External("zk1:2181", 2000)


@pytest.mark.long
def test_unresponsive_ensemble_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "granted_ms", lambda address, asked_ms, tls: None)

    with pytest.raises(ZooKeeperUnreachable):
        External("zk1:2181", 2000)


def test_drills_with_faults_on_servers_cannot_run_on_an_external_ensemble() -> None:
    assert {one.name for one in DRILLS.values() if one.lacks(External.can)} == SERVERS


def test_a_process_that_was_granted_another_session_makes_a_run_inconclusive() -> None:
    events = [
        {"event": "session", "who": "node-1#5", "timeout": 4.0},
        {"event": "session", "who": "node-2#6", "timeout": 2.0},
        {"event": "session", "who": "hand", "timeout": 30.0},
    ]

    assert granted_otherwise(events, 2.0) == ["node-1#5 was granted a session of 4 s, not 2"]


def test_sessions_of_earlier_and_silent_processes_count() -> None:
    events = [
        {"event": "session", "session": 1, "who": "a#5", "timeout": 4.0, "asked": 2.0},
        {"event": "session", "session": 2, "who": "a#5", "timeout": 2.0, "asked": 2.0},
        {"event": "session", "session": 31, "who": "hand", "timeout": 3.0, "asked": 2.0},
        {"event": "session", "session": 4, "who": "hand", "timeout": 5.0, "asked": 4.0},
        {"event": "session", "session": 5, "who": "hand", "timeout": 20.0, "asked": 30.0},
    ]

    found = granted_otherwise(events, 2.0)

    assert found == ["a#5 was granted a session of 4 s, not 2", "session 0x1f was granted a session of 3 s, not 2"]
