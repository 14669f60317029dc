"""The proxy itself, on a real server and with plain kazoo: what it breaks, and that it breaks nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from drills.faults.proxy import CREATE, GET_DATA, MULTI, SET_DATA, op_code
from tests.support.clients import connected
from tests.support.proxy import Loss, Proxy
from tests.support.wait import eventually

pytestmark = pytest.mark.real_zookeeper("a proxy is in front of it")


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


def test_a_multi_whose_reply_is_lost_has_happened(proxy: Proxy, client: Any, witness: Any) -> None:
    session = client.client_id[0]
    loss = proxy.drop_reply(MULTI)
    multi = client.transaction()
    multi.create("/first")
    multi.create("/second", b"x")

    with pytest.raises(ConnectionLoss):
        multi.commit()

    assert b"/second" in loss.wait()
    assert sorted(witness.get_children("/")) == ["first", "second"]
    assert eventually(lambda: client.exists("/second"), 5, "the session continues", ignoring=(KazooException,))
    assert client.client_id[0] == session
    assert proxy.requests[MULTI] == 1


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
