"""What a user gives: messages about a value with its source, and the connect string that `--zk` takes."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.hosts import collect_hosts

from consumer.cli import main as consumer_main
from consumer.config import ConsumerConfig
from consumer.logs.kafka.options import kafka_options, with_sources
from consumer.spark.source.options import SourceConfig
from coordinator.cli import main
from coordinator.cli import main as coordinator_main
from coordinator.term.config import CoordinatorConfig
from coordinator.zk import values
from coordinator.zk.embedded.ensemble import LONGEST_ANSWER, four_letter_word
from coordinator.zk.errors import UsageError, ZooKeeperUnreachable
from coordinator.zk.session import kazoo_client
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.values import checked_hosts, load, parsed_hosts
from tests.unit.test_config import refused

LINKS = {
    "ZK_GROUP_METRICS_PORT": "tcp://10.0.0.1:9400",
    "ZK_GROUP_METRICS_PORT_9400_TCP": "tcp://10.0.0.1:9400",
    "ZK_GROUP_METRICS_PORT_9400_TCP_ADDR": "10.0.0.1",
    "ZK_GROUP_METRICS_SERVICE_HOST": "10.0.0.1",
    "ZK_GROUP_METRICS_SERVICE_PORT": "9400",
    "ZK_GROUP_KAFKA_PORT": "tcp://10.0.0.2:9092",
    "ZK_GROUP_KAFKA_PORT_9092_TCP": "tcp://10.0.0.2:9092",
    "ZK_GROUP_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.2",
    "ZK_GROUP_KAFKA_PORT_9092_TCP_PORT": "9092",
    "ZK_GROUP_KAFKA_PORT_9092_TCP_PROTO": "tcp",
    "ZK_GROUP_KAFKA_SERVICE_HOST": "10.0.0.2",
    "ZK_GROUP_KAFKA_SERVICE_PORT": "9092",
    "ZK_GROUP_KAFKA_SERVICE_PORT_CLIENTS": "9092",
    "ZK_GROUP_KAFKA_UI_SERVICE_HOST": "10.0.0.3",
}


@pytest.fixture(autouse=True)
def unwarned() -> None:
    values._warn.cache_clear()


def test_a_value_of_the_environment_is_refused_with_its_variable() -> None:
    message = refused(CoordinatorConfig, {"zk": "zk:1"}, ZK_GROUP_METRICS_PORT="http")

    assert message == "metrics_port must be a whole number, not 'http' (metrics_port from ZK_GROUP_METRICS_PORT)"


def test_a_value_of_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('# a node\nzk = "zk:1"\n\nsession_timeout_ms = 50\nsession_timeout = 1\n')
    assert f"{file} has an unknown option 'session_timeout' in line 5" in refused(CoordinatorConfig, {}, file)

    file.write_text('# a node\nzk = "zk:1"\n\nsession_timeout_ms = 50\n')
    assert refused(CoordinatorConfig, {}, file).endswith(f"(session_timeout_ms from {file}, line 4)")


def test_a_rule_of_two_values_names_where_both_are_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("channel_retention_ms = 1000\n")

    with pytest.raises(UsageError) as raised:
        options = {"zk": "zk:1", "session_timeout_ms": 4000}
        load(CoordinatorConfig, options, file, {}, is_command=True)

    assert f"channel_retention_ms from {file}, line 1" in str(raised.value)
    assert "session_timeout_ms from --session-timeout-ms" in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GROUP", "a/b"), ("CONSUMER", ".."), ("ZK", "zk:1/a,zk:2/a"), ("PROTOCOLS", "a/b"), ("START_POSITION", "soon")],
)
def test_a_name_and_servers_are_refused_with_their_variable(variable: str, value: str) -> None:
    given = {"zk": "zk:1", "group": "g"}
    options = {name: text for name, text in given.items() if name != variable.lower()}

    message = refused(ConsumerConfig, options, **{f"ZK_GROUP_{variable}": value})

    assert message.endswith(f"({variable.lower()} from ZK_GROUP_{variable})")


def test_a_keyword_in_python_is_refused_by_its_name_alone() -> None:
    assert (
        refused(CoordinatorConfig, {"zk": "zk:1", "metrics_port": -1}) == "metrics_port must be from 0 (off) to 65535"
    )


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        ("status", "ZK_GROUP_ZK", "zk:1/x,zk:2/x"),
        ("topics list", "ZK_GROUP_BROKERS_PATH", "brokers"),
        ("run --node a", "ZK_GROUP_ZK", "http://zk"),
        ("status", "ZK_GROUP_ZK_AUTH_FILE", "/no/such/file"),
        ("groups describe g", "ZK_GROUP_LOG_DIR", "kafka://broker"),
    ],
)
def test_a_command_names_the_variable_of_a_refused_value(words: str, variable: str, value: str) -> None:
    env = {"ZK_GROUP_ZK": "127.0.0.1:1", variable: value}

    done = CliRunner().invoke(coordinator_main, words.split(), env=env)

    assert done.exit_code == 2
    assert f"from {variable})" in done.output and value in done.output


def test_a_command_names_no_variable_that_an_option_hides() -> None:
    done = CliRunner().invoke(coordinator_main, ["status", "--zk", "http://zk"], env={"ZK_GROUP_ZK": "zk:1"})

    assert done.exit_code == 2
    assert "ZK_GROUP_ZK" not in done.output


def test_an_option_of_librdkafka_is_refused_with_its_variable() -> None:
    env = {"ZK_GROUP_KAFKA_GROUP_ID": "mine", "ZK_GROUP_KAFKA_NO_SUCH": "1"}

    with pytest.raises(UsageError, match=r"kafka.group.id cannot .* \(group.id from ZK_GROUP_KAFKA_GROUP_ID\)"):
        kafka_options({}, env)
    with pytest.raises(UsageError) as raised:
        kafka_options({"group.id": "mine"}, env)
    assert "ZK_GROUP" not in str(raised.value)
    refusal = 'No such configuration property: "no.such"'
    assert with_sources(refusal, env=env) == f"{refusal} (no.such from ZK_GROUP_KAFKA_NO_SUCH)"


def test_what_kubernetes_writes_for_a_service_is_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        config = load(CoordinatorConfig, {"zk": "zk:1"}, env=LINKS)
        assert config.metrics_port == 0
        assert kafka_options({}, LINKS) == kafka_options({}, {})

    warned = [message for message in caplog.messages if "variable=ZK_GROUP_METRICS_PORT " in message]
    assert len(warned) == 1 and "Kubernetes" in warned[0]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.messages) == len(set(caplog.messages)) == 10


def test_a_port_and_a_kerberos_service_of_the_user_are_values() -> None:
    config = load(ConsumerConfig, {"zk": "zk:1", "group": "g"}, env={"ZK_GROUP_METRICS_PORT": "9400"})
    assert config.metrics_port == 9400

    options = kafka_options({}, {"ZK_GROUP_KAFKA_SASL_KERBEROS_SERVICE_NAME": "kafka"})
    assert options["sasl.kerberos.service.name"] == "kafka"


def test_consumer_command_starts_beside_a_service_of_metrics() -> None:
    done = CliRunner().invoke(consumer_main, ["run", "--zk", "zk:1", "--group", "g", "--topics", "t"], env=LINKS)

    assert "name the log to read" in done.output


# ---- the connect string: parsed, or refused in one sentence with an example


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
