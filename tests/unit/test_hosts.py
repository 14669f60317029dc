"""The connect string that `--zk` takes, names in it that do not resolve, and answers of what listens there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.hosts import collect_hosts

from consumer.cli import main as consumer_main
from consumer.config import ConsumerConfig
from consumer.spark.source.options import SourceConfig
from coordinator.cli import main
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.embedded.ensemble import LONGEST_ANSWER, four_letter_word
from coordinator.zk.errors import UsageError, ZooKeeperUnreachable
from coordinator.zk.session import kazoo_client
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.values import checked_hosts, parsed_hosts


@pytest.mark.parametrize(
    ("hosts", "addresses", "chroot"),
    [
        ("zk1:2181", [("zk1", 2181)], ""),
        ("zk1,zk2:2182/groups", [("zk1", 2181), ("zk2", 2182)], "/groups"),
        ("zk1:2181,zk2:2182/team/test", [("zk1", 2181), ("zk2", 2182)], "/team/test"),
        ("zk1:2181/", [("zk1", 2181)], ""),
        ("zk1:2181//a//b/", [("zk1", 2181)], "/a/b"),
        ("[::1]:2181", [("::1", 2181)], ""),
        ("[::1]", [("::1", 2181)], ""),
        (" zk1:2181 , zk2:2182 /groups \n", [("zk1", 2181), ("zk2", 2182)], "/groups"),
    ],
)
def test_zk_option_names_servers_and_an_optional_chroot(
    hosts: str, addresses: list[tuple[str, int]], chroot: str
) -> None:
    assert parsed_hosts(hosts) == (addresses, chroot)


@pytest.mark.parametrize("hosts", ["zk1, zk2:2182 /a/b/ ", "[::1],zk1"])
def test_session_gets_the_same_servers_without_blanks(hosts: str) -> None:
    checked = checked_hosts(hosts)

    assert " " not in checked and parsed_hosts(checked) == parsed_hosts(hosts)
    assert collect_hosts(checked) == (list(parsed_hosts(hosts)[0]), parsed_hosts(hosts)[1] or None)


MALFORMED = [
    "", " ", "zk1:", ":2181", "zk1:0", "zk1:abc", "zk1:65536", "zk1:2181,", "/groups",
    "zk1:2181/a/../b", "zk1:2181/zookeeper/x", "user@zk1:2181", "zk1:2181/a\nb", "zk1:99999999999",
    "zk1:2181/x,zk2:2181/x", "zk1:2181/x,zk2:2181", "zk1:2181, ", "zk 1:2181", "http://zk1:2181", "::1", ",", "zk1 zk2",
]  # fmt: skip


@pytest.mark.parametrize("hosts", MALFORMED)
@pytest.mark.parametrize(
    "build",
    [
        parsed_hosts,
        lambda hosts: open_kazoo(hosts, 1000),
        lambda hosts: ConsumerConfig(hosts, "g", "c1"),
        lambda hosts: CoordinatorConfig(hosts, "a"),
        lambda hosts: SourceConfig(hosts, "g"),
    ],
    ids=["parsed", "session", "consumer", "node", "source"],
)
def test_value_without_servers_is_refused_in_one_sentence(build: Callable[[str], object], hosts: str) -> None:
    with pytest.raises(UsageError) as refused:
        build(hosts)

    assert "--zk" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("hosts", ["", "/groups", "zk1:abc"])
def test_commands_refuse_it_as_a_usage_error_without_an_exceptions_text(hosts: str) -> None:
    for command, words in (
        (main, ["status"]),
        (main, ["run", "--node", "a"]),
        (consumer_main, ["run", "--group", "g", "--topics", "t", "--log-dir", "/tmp"]),
    ):
        done = CliRunner().invoke(command, [*words, "--zk", hosts])

        assert done.exit_code == 2
        assert "as in --zk zk1:2181,zk2:2181/groups" in done.output
        assert "Error(" not in done.output


# ---- a name that does not resolve: the message has it, and after some seconds so has the log


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


@pytest.mark.long
@pytest.mark.usefixtures("name_service")
def test_a_name_without_an_address_is_in_the_message() -> None:
    said = refusal("gone1:2181,gone2:2181/app")

    assert said.endswith("within 0.3 s: the name service has no address of gone1 and gone2, check the name")


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.usefixtures("mute_name_service")
def test_a_name_service_that_does_not_answer_is_in_the_message() -> None:
    assert "the name service has no address of gone1" in refusal("gone1:2181")


@pytest.mark.long
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


# ---- four-letter words to a server that need not be ZooKeeper, with bounds of bytes and time


Answers = Callable[[Iterator[bytes]], int]


@pytest.fixture
def answers() -> Iterator[Answers]:
    """A server that sends the given pieces to each client; returns its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(pieces: Iterator[bytes]) -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(16)  # unread bytes at the close of a connection make the other end lose the answer
                for piece in pieces:
                    connection.sendall(piece)

        def start(pieces: Iterator[bytes]) -> int:
            threading.Thread(target=serve, args=[pieces], daemon=True).start()
            return int(server.getsockname()[1])

        yield start


def test_answer_is_read_whole(answers: Answers) -> None:
    assert (
        four_letter_word("127.0.0.1", answers(iter([b"Zookeeper ", b"version"])), timeout_s=10.0) == "Zookeeper version"
    )


def test_answer_without_an_end_is_truncated(answers: Answers) -> None:
    endless = (b"x" * 10_000 for _ in range(1000))

    assert len(four_letter_word("127.0.0.1", answers(endless), timeout_s=10.0)) == LONGEST_ANSWER


@pytest.mark.long
def test_slow_answer_ends_at_the_timeout(answers: Answers) -> None:
    over = threading.Event()
    trickle = (b"x" for _ in range(1000) if not over.wait(0.02))
    began = time.monotonic()

    assert four_letter_word("127.0.0.1", answers(trickle), timeout_s=0.3) == ""

    assert time.monotonic() - began < 5
    over.set()
