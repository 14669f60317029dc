"""The embedded ensemble on real java processes; and the proxy before a server: what it breaks, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from tests.support.clients import connected, fresh_chroot
from tests.support.proxy import Loss, Proxy
from tests.support.wait import eventually
from zk_group.coordinator.zk.embedded.ensemble import (
    Ensemble,
    EnsembleConfig,
    EnsembleError,
    stands_still,
    zkcli_command,
)
from zk_group.coordinator.zk.errors import MissingProgram, UsageError
from zk_group.drills.faults.proxy import CREATE, GET_DATA, SET_DATA, op_code

pytestmark = pytest.mark.real_zookeeper("it is about the servers")


def zkcli(hosts: str, *args: str) -> subprocess.CompletedProcess[str]:
    """One command of ZooKeeper's own client."""
    return subprocess.run(
        zkcli_command(hosts, *args), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )


def test_zookeepers_own_client_reads_written_data(zk: str) -> None:
    with connected(zk) as client:
        client.create("/said", b'{"version":1}')
    hosts, chroot = zk.split("/")

    found = zkcli(hosts, "get", f"/{chroot}/said")
    missing = zkcli(hosts, "get", f"/{chroot}/unsaid")

    # Its watcher prints the connection event at any time, sometimes after the answer.
    assert found.returncode == 0
    assert '{"version":1}' in found.stdout.splitlines()
    assert missing.returncode == 1


def test_a_session_outlives_the_death_of_the_leader(ensemble3: Ensemble) -> None:
    with connected(fresh_chroot(ensemble3.hosts)) as client:
        client.create("/kept", ephemeral=True)
        session = client.client_id[0]
        old = ensemble3.leader()

        old.kill()

        eventually(lambda: client.set("/kept", b"x"), 15, "a write after the leader died", ignoring=(KazooException,))
        assert client.client_id[0] == session
        assert ensemble3.leader().id != old.id
        assert not ensemble3.is_healthy()


def test_a_paused_leader_is_replaced_and_follows_when_it_wakes(ensemble3: Ensemble) -> None:
    old = ensemble3.leader()

    old.pause()
    assert old.is_running
    assert old.mode() is None
    new = ensemble3.leader()
    old.resume()

    assert new.id != old.id
    ensemble3.wait_healthy()
    assert eventually(old.mode, 10, "the old leader serves") == "follower"


def test_server_is_stopped_when_pause_returns(ensemble3: Ensemble) -> None:
    server = ensemble3.servers[0]
    assert server.pid is not None

    stood_still = []
    for _ in range(20):
        server.pause()
        stood_still.append(stands_still(server.pid))
        server.resume()

    assert all(stood_still)


def test_written_data_survives_a_restart_on_the_same_ports(tmp_path: Path) -> None:
    with Ensemble(tmp_path, EnsembleConfig(servers=1, tick_ms=200)) as first, connected(first.hosts) as client:
        client.create("/kept", b"kept")

    with Ensemble(tmp_path) as second, connected(second.hosts) as client:
        assert second.hosts == first.hosts
        assert client.get("/kept")[0] == b"kept"


def test_another_process_finds_and_stops_it(tmp_path: Path) -> None:
    with Ensemble(tmp_path, EnsembleConfig(servers=1, tick_ms=200, durable=False)) as started:
        found = Ensemble.load(tmp_path)
        assert [server.mode for server in found.status()] == ["standalone"]

        found.stop()

        assert [server.pid for server in found.status()] == [None]
        assert [server.pid for server in started.status()] == [None]


def test_a_process_that_only_has_the_old_number_is_left_alone(tmp_path: Path) -> None:
    ensemble = Ensemble(tmp_path, EnsembleConfig(servers=1))
    (ensemble.servers[0].directory / "pid").write_text(f"{os.getpid()}\n")

    assert not ensemble.servers[0].is_running
    ensemble.servers[0].kill()  # would end this very test
    ensemble.stop()


def test_port_in_use_is_reported_before_the_start(tmp_path: Path) -> None:
    ensemble = Ensemble(tmp_path, EnsembleConfig(servers=1))
    port = ensemble.servers[0].port
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(EnsembleError, match=f"port {port} of server 1 is in use"):
            ensemble.start()
        with pytest.raises(UsageError, match=f"port {port} is in use"):
            Ensemble(tmp_path / "other", EnsembleConfig(servers=1), base_port=port)


def test_a_server_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    ensemble = Ensemble(tmp_path, EnsembleConfig(servers=1, extra={"dataDir": "/dev/null/nowhere"}))
    try:
        ensemble.start()
        with pytest.raises(EnsembleError, match=r"server 1 has ended .*server\.log.*: .*nowhere"):
            ensemble.wait_healthy()
    finally:
        ensemble.stop()


def test_a_directory_keeps_its_configuration(tmp_path: Path) -> None:
    Ensemble(tmp_path, EnsembleConfig(servers=1))

    with pytest.raises(EnsembleError, match="holds an ensemble of 1 server"):
        Ensemble(tmp_path, EnsembleConfig(servers=3))
    with pytest.raises(EnsembleError, match="no ensemble in"):
        Ensemble.load(tmp_path / "elsewhere")


def test_directory_of_an_earlier_release_with_a_host_of_each_server_is_read(tmp_path: Path) -> None:
    made = Ensemble(tmp_path)
    path = tmp_path / "ensemble.json"
    state = json.loads(path.read_text())
    for each in state["ports"]:
        each.update(host="127.0.0.1", namespace="")
    path.write_text(json.dumps(state))

    assert Ensemble.load(tmp_path).hosts == made.hosts


def test_missing_java_is_one_sentence_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(MissingProgram, match="install a Java 17 runtime") as raised:
        Ensemble(tmp_path / "e", EnsembleConfig(servers=1)).start()
    assert raised.value.exit_code == 69


# ---- the proxy, with plain kazoo


@pytest.fixture
def proxy(zk: str) -> Iterator[Proxy]:
    with Proxy(zk.split("/")[0]) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy, zk: str) -> Iterator[Any]:
    """A client that goes through the proxy, in this test's chroot."""
    with connected(f"{proxy.hosts}/{zk.split('/')[1]}", session_timeout_s=2.0) as client:
        yield client
        proxy.resume()  # so that it can close its session


@pytest.fixture
def witness(zk: str) -> Iterator[Any]:
    """A client that goes round the proxy."""
    with connected(zk) as client:
        yield client


def test_a_loss_that_several_proxies_wait_for_is_used_up_in_one(zk: str) -> None:
    open_then: list[int] = []
    with Proxy(zk.partition("/")[0]) as one, Proxy(zk.partition("/")[0]) as other:
        loss = Loss(CREATE, is_request=True, then=lambda: open_then.append(one.connections))
        for proxy in (one, other):
            proxy.arm(loss)
        chroot = zk.partition("/")[2]
        with connected(f"{one.hosts}/{chroot}") as first, connected(f"{other.hosts}/{chroot}") as second:
            with pytest.raises(ConnectionLoss):
                first.create("/never")
            loss.wait()
            second.create("/always")

            assert second.get_children("/") == ["always"]
            assert open_then == [1], "what shall happen then happens before the connection is cut"


def test_a_request_that_is_lost_has_not_happened(proxy: Proxy, client: Any, witness: Any) -> None:
    loss = proxy.drop_request(CREATE)

    with pytest.raises(ConnectionLoss):
        client.create("/never")

    assert op_code(loss.wait()) == CREATE
    assert witness.get_children("/") == []


def test_exactly_the_chosen_reply_is_lost(proxy: Proxy, client: Any, witness: Any) -> None:
    client.create("/a")
    client.create("/b")
    loss = proxy.drop_reply(lambda request: op_code(request) == SET_DATA and b"/b" in request)

    client.set("/a", b"1")
    assert not loss.lost.is_set()
    with pytest.raises(ConnectionLoss):
        client.set("/b", b"1")
    loss.wait()

    eventually(lambda: client.set("/b", b"2"), 5, "a second set is answered", ignoring=(KazooException,))
    assert witness.get("/b")[1].version == 2
    assert proxy.losses == [loss]


def test_pipelined_requests_lose_the_replies_after_the_lost_one(proxy: Proxy, client: Any) -> None:
    for name in "abc":
        client.create(f"/{name}")
    loss = proxy.arm(
        Loss(
            lambda request: op_code(request) == GET_DATA and b"/b" in request,
            is_request=False,
            # a request that kazoo has not sent before the cut is sent over its next connection, and answered
            then=lambda: eventually(lambda: proxy.requests[GET_DATA] == 3, 5, "the three requests are sent"),
        )
    )

    answers = [client.get_async(f"/{name}") for name in "abc"]

    assert answers[0].get(timeout=5)[0] == b""
    for answer in answers[1:]:
        with pytest.raises(ConnectionLoss):
            answer.get(timeout=5)
    loss.wait()


def test_black_hole_is_silent_until_the_session_expires(proxy: Proxy, client: Any, witness: Any) -> None:
    client.create("/life", ephemeral=True)
    lost = threading.Event()
    client.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)

    proxy.black_hole()
    with pytest.raises(KazooTimeoutError):
        client.get_async("/life").get(timeout=0.3)
    assert client.state == KazooState.CONNECTED
    eventually(lambda: not witness.exists("/life"), 10, "the server ends the session")
    assert not lost.is_set()  # kazoo reports an expired session only after a server's reply

    proxy.resume()
    assert lost.wait(10)


def test_muted_server_answers_pings_only_until_it_resumes(proxy: Proxy, client: Any, witness: Any) -> None:
    client.create("/life", ephemeral=True)
    session, states = client.client_id[0], []
    client.add_listener(states.append)

    proxy.mute()
    late = [client.create_async("/late"), client.get_async("/late")]
    with pytest.raises(KazooTimeoutError):
        late[0].get(timeout=3.0)  # one and a half times the session timeout
    assert witness.exists("/late") is not None, "requests pass"
    proxy.resume()

    assert late[0].get(timeout=5) == "/late"
    assert late[1].get(timeout=5)[0] == b""
    assert client.exists("/life") is not None
    assert (states, client.client_id[0]) == ([], session)


def test_held_traffic_arrives_late_and_whole(proxy: Proxy, client: Any, witness: Any) -> None:
    proxy.hold()
    late = client.create_async("/late")
    with pytest.raises(KazooTimeoutError):
        late.get(timeout=0.3)
    assert witness.exists("/late") is None

    proxy.resume()

    assert late.get(timeout=5) == "/late"
    assert witness.exists("/late") is not None


def test_traffic_held_at_a_cut_connection_never_arrives(proxy: Proxy, client: Any, witness: Any) -> None:
    proxy.hold()
    late = client.create_async("/late")

    proxy.cut()

    with pytest.raises(ConnectionLoss):
        late.get(timeout=5)
    proxy.resume()
    eventually(lambda: client.state == KazooState.CONNECTED, 5, "connected again")
    assert client.exists("/late") is None
