"""A name in `--zk` that does not resolve: the message has it, and after some seconds so has the log."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.zk.errors import ZooKeeperUnreachable
from coordinator.zk.session import kazoo_client
from coordinator.zk.session.kazoo_store import open_kazoo

pytestmark = pytest.mark.long

RESOLVE = socket.getaddrinfo


def no_address(host: str, *rest: Any) -> Any:
    if host.startswith("gone"):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return RESOLVE(host, *rest)


@pytest.fixture
def name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_address)


def refusal(hosts: str, wait_s: float = 0.3) -> str:
    with pytest.raises(ZooKeeperUnreachable) as raised:
        open_kazoo(hosts, 1000, wait_s)
    return str(raised.value)


@pytest.mark.usefixtures("name_service")
def test_a_name_without_an_address_is_in_the_message() -> None:
    said = refusal("gone1:2181,gone2:2181/app")

    assert said.endswith("within 0.3 s: the name service has no address of gone1 and gone2, check the name")


@pytest.mark.usefixtures("name_service")
def test_one_of_two_names_without_an_address_is_in_the_message_of_both() -> None:
    said = refusal("127.0.0.1:1,gone1:2181")

    assert "quorum; the name service has no address of gone1" in said
    assert "name service" not in refusal("127.0.0.1:1")


@pytest.fixture
def mute_name_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    answers = threading.Event()

    def mute(host: str, *rest: Any) -> Any:
        answers.wait(10)
        return no_address(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", mute)
    opened = kazoo_client.OneSession.stop

    def stop(self: Any) -> None:
        answers.set()
        opened(self)

    monkeypatch.setattr(kazoo_client.OneSession, "stop", stop)
    yield
    answers.set()


@pytest.mark.usefixtures("mute_name_service")
def test_a_name_service_that_does_not_answer_is_in_the_message() -> None:
    assert "the name service has no address of gone1" in refusal("gone1:2181")


@pytest.mark.usefixtures("name_service")
def test_waiting_is_a_line_in_the_log_with_the_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusal("gone1:2181", wait_s=0.2)
    assert caplog.messages == []
    monkeypatch.setattr(kazoo_client, "NOTICE_S", 0.1)

    refusal("gone1:2181", wait_s=0.2)

    reason = "the name service has no address of gone1, check the name"
    assert caplog.messages == [f"ZooKeeper not reached yet: servers=gone1:2181 reason={reason}"]
