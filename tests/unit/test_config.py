"""Configuration: options before the environment before the file, a sentence for each bad value, and `--zk`."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from kazoo.hosts import collect_hosts

from zk_group.consumer.cli import main as consumer_main
from zk_group.consumer.cli.run import run as consumer_run
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.coordinator.cli import main
from zk_group.coordinator.cli.run import run as coordinator_run
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk.embedded.ensemble import LONGEST_ANSWER, four_letter_word
from zk_group.coordinator.zk.errors import UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session import kazoo_client
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.values import checked_hosts, load, parsed_hosts

ZK = {"zk": "localhost:2181"}


def written(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text)
    return file


def refused(kind: type, options: dict[str, Any], file: Path | None = None, **env: str) -> str:
    """The message with which the configuration is refused: one printable sentence."""
    with pytest.raises(UsageError) as caught:
        load(kind, options, file, env)
    message = str(caught.value)
    assert message
    assert message.isprintable()
    return message


@pytest.mark.parametrize("command", [consumer_run, coordinator_run], ids=["zk-consumer", "zk-coordinator"])
def test_every_option_of_run_has_a_line_of_help(command: click.Command) -> None:
    helps = {option.name: option.help or "" for option in command.params if isinstance(option, click.Option)}

    assert [name for name, text in helps.items() if not text or text.lstrip().startswith("[")] == []
    assert [*helps][:3] == (["config", "zk", "group"] if "group" in helps else ["config", "zk", "node"])


# ---- sources of values


CONSUMER = {**ZK, "group": "g", "consumer": "a"}
BOTH = ("cooperative-sticky", "range")
LIMITS = "session_timeout_ms = 3000\nsweep_interval_ms = 3000\nrebalance_handlers = 3\n"
SOURCES: dict[str, tuple[type, dict[str, Any], str, dict[str, str], dict[str, Any]]] = {
    "unset options keep their defaults": (
        CoordinatorConfig, ZK, "", {},
        {
            "session_timeout_ms": 10_000, "rebalance_handlers": 4, "max_rebalance_retries": 4,
            "rebalance_debounce_ms": 100, "sweep_interval_ms": 10_000, "query_retention_ms": 7 * 24 * 3600 * 1000,
            "segment_retention_ms": 3600 * 1000, "segment_retention_bytes": 256 * 1024**2,
            "max_backlog_bytes": 4 * 1024**3, "max_backlog_segments": 20_000,
            "backlog_interval_ms": 1000, "max_seals_per_s": 500,
        },
    ),
    "the environment names an option in capitals after its prefix": (
        CoordinatorConfig, ZK, "", {"SESSION_TIMEOUT_MS": "4000"}, {"session_timeout_ms": 4000},
    ),
    "a file names options as they are": (
        CoordinatorConfig, {}, 'zk = "zoo:2181/test"\nsession_timeout_ms = 4000\n', {},
        {"zk": "zoo:2181/test", "session_timeout_ms": 4000},
    ),
    "an option overrides the environment which overrides the file": (
        CoordinatorConfig, {**ZK, "session_timeout_ms": 5000}, LIMITS,
        {"SESSION_TIMEOUT_MS": "4000", "SWEEP_INTERVAL_MS": "4000"},
        {"session_timeout_ms": 5000, "sweep_interval_ms": 4000, "rebalance_handlers": 3},
    ),
    "an unset option hides no value of the environment": (
        CoordinatorConfig, {**ZK, "session_timeout_ms": None}, "", {"SESSION_TIMEOUT_MS": "4000"},
        {"session_timeout_ms": 4000},
    ),
    "several protocols in a file": (
        ConsumerConfig, CONSUMER, 'protocols = ["cooperative-sticky", "range"]\n', {}, {"protocols": BOTH},
    ),
    "several protocols in the environment": (
        ConsumerConfig, CONSUMER, "", {"PROTOCOLS": "cooperative-sticky,range"}, {"protocols": BOTH},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "file", "env", "expected"), SOURCES.values(), ids=SOURCES)
def test_values_come_from_their_sources(
    tmp_path: Path, kind: type, options: dict[str, Any], file: str, env: dict[str, str], expected: dict[str, Any]
) -> None:
    of_process = {f"ZK_GROUP_{name}": value for name, value in env.items()}
    config: object = load(kind, options, written(tmp_path, file) if file else None, of_process)

    assert {name: getattr(config, name) for name in expected} == expected


# ---- values that are refused

BAD_OF_THE_COORDINATOR: dict[str, tuple[Any, ...]] = {
    "session_timeout_ms": ("soon", "", "1e3", 99),
    "connect_timeout_ms": (0,),
    "rebalance_handlers": (0, 65),
    "max_rebalance_retries": (-1,),
    "rebalance_debounce_ms": (-1,),
    "sweep_interval_ms": (99,),
    "channel_retention_ms": (19_999,),
    "query_retention_ms": (999,),
    "segment_retention_ms": (-1,),
    "segment_retention_bytes": (-1,),
    "max_backlog_bytes": (0,),
    "max_backlog_segments": (0, 40_001),
    "backlog_interval_ms": (9,),
    "max_seals_per_s": (0,),
    "brokers_path": ("brokers",),
    "metrics_port": (-1, 65_536),
    "metrics_host": ("",),
}
BAD_OF_A_CONSUMER: dict[str, tuple[Any, ...]] = {
    "session_timeout_ms": (99,),
    "connect_timeout_ms": (0,),
    "max_poll_interval_ms": (999, 2**31),
    "max_poll_records": (0, -2),
    "poll_order": ("random",),
    "prefetch": ("all",),
    "fetch_max_bytes": (0,),
    "max_partition_fetch_bytes": (0,),
    "buffer_memory": (0,),
    "enable_auto_commit": ("perhaps", 1),
    "auto_commit_interval_ms": (0,),
    "offsets_interval_ms": (0,),
    "protocols": ((),),
    "metrics_port": (65_536,),
    "metrics_host": ("",),
}
BAD = [
    pytest.param(kind, {**options, name: value}, name, id=f"{kind.__name__}-{name}-{value}")
    for kind, options, table in (
        (CoordinatorConfig, ZK, BAD_OF_THE_COORDINATOR),
        (ConsumerConfig, CONSUMER, BAD_OF_A_CONSUMER),
    )
    for name, values in table.items()
    for value in values
]
NO_NAMES = [
    *(
        (CoordinatorConfig, {**ZK, "node": value}, "cannot name a node")
        for value in ("", "a b", "../x", "a\n", "x" * 250)
    ),
    *(
        (ConsumerConfig, {**CONSUMER, name: value}, f"cannot name a {name}")
        for name in ("group", "consumer")
        for value in ("", "..", "a/b", "\x1b[31m")
    ),
]


@pytest.mark.parametrize(("kind", "options", "name"), [*BAD, *NO_NAMES])
def test_a_bad_value_is_refused_by_name(kind: type, options: dict[str, Any], name: str) -> None:
    assert name in refused(kind, options)


@pytest.mark.parametrize(("text", "value"), [("true", True), (" True ", True), ("false", False), ("FALSE", False)])
def test_switch_is_true_or_false_in_the_environment_and_a_file(tmp_path: Path, text: str, value: bool) -> None:
    file = written(tmp_path, f"enable_auto_commit = {str(value).lower()}\n")

    assert load(ConsumerConfig, CONSUMER, env={"ZK_GROUP_ENABLE_AUTO_COMMIT": text}).enable_auto_commit is value
    assert load(ConsumerConfig, CONSUMER, file, env={}).enable_auto_commit is value
    assert load(ConsumerConfig, CONSUMER, env={}).enable_auto_commit is False


def test_one_configuration_gives_each_consumer_a_readable_name_of_its_own() -> None:
    config = load(ConsumerConfig, {**ZK, "group": "g"}, env={})
    runtime = ThreadRuntime()
    names = [config.named(runtime).consumer for _ in range(100)]

    assert len(set(names)) == 100
    assert all(re.fullmatch(rf"[A-Za-z0-9_-]+-{os.getpid()}-[0-9a-f]{{12}}", name) for name in names)
    assert {config.named(runtime).named(runtime).group, config.group} == {"g"}


def test_a_given_name_and_that_of_a_static_member_stay() -> None:
    runtime = ThreadRuntime()

    assert ConsumerConfig("z:1", "g", "billing").named(runtime).consumer == "billing"
    assert ConsumerConfig("z:1", "g", group_instance_id="i").named(runtime).consumer == "i"
    assert "leave out consumer" in refused(ConsumerConfig, {**CONSUMER, "group_instance_id": "i"})


@pytest.mark.parametrize("kind", [CoordinatorConfig, ConsumerConfig])
def test_missing_servers_are_reported_with_the_option_to_set(kind: type) -> None:
    options = {"group": "g", "consumer": "a"} if kind is ConsumerConfig else {}

    assert "--zk" in refused(kind, {**options, "zk": ""})
    assert "zk" in refused(kind, options)


@pytest.mark.parametrize(
    "text",
    [
        "session_timeout_ms = inf\n", "session_timeout_ms = nan\n", "session_timeout_ms = []\n",
        "session_timeout_ms = true\n", "session_timeout_ms = 4000.5\n", "node = 5\n", "zk = 5\n",
        'zk = ["a:1", "b:1"]\n', "brokers_path = 5\n", "no_such_option = 1\n", "[run]\nnode = 'a'\n",
        "session_timeout_ms = \n", "not toml", '"\\u001b[31m" = 1\n',
    ],
)  # fmt: skip
def test_invalid_file_is_refused_with_one_sentence(tmp_path: Path, text: str) -> None:
    refused(CoordinatorConfig, {} if text.startswith("zk") else ZK, written(tmp_path, text))


def test_unreadable_file_is_reported_with_its_name(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")

    assert "missing.toml" in refused(CoordinatorConfig, ZK, tmp_path / "missing.toml")
    assert "binary.toml" in refused(CoordinatorConfig, ZK, binary)
    assert tmp_path.name in refused(CoordinatorConfig, ZK, tmp_path)


def test_unknown_option_in_a_file_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    message = refused(CoordinatorConfig, ZK, written(tmp_path, "sesion_timeout_ms = 1\n"))

    assert "'sesion_timeout_ms'" in message and "session_timeout_ms" in message


@pytest.mark.parametrize(
    ("topics", "pattern"),
    [
        ({}, "static"),
        ({"t": 0}, "static"),
        ({"a/b": 1}, "static"),
        ({"a": 1, "b": 1}, "white_list"),
        ({"a": 1}, "grey_list"),
        ({"(": 1}, "white_list"),
    ],
)
def test_empty_subscription_is_refused(topics: dict[str, int], pattern: str) -> None:
    with pytest.raises(UsageError):
        Subscription(topics, pattern)


def test_a_consumers_own_fields_are_named_except_its_name() -> None:
    """A fifth positional argument would change its meaning with the order of the fields."""
    positional = [name for name, it in signature(ConsumerConfig).parameters.items() if it.kind is not it.KEYWORD_ONLY]

    assert positional == ["zk", "group", "consumer"]


# ---- the connect string that `--zk` takes


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
def test_zk_option_names_servers_and_maybe_a_chroot(hosts: str, addresses: list[tuple[str, int]], chroot: str) -> None:
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
def test_waiting_is_a_line_of_the_log_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
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


def test_answer_is_read_whole_and_one_without_an_end_is_truncated(answers: Answers) -> None:
    whole, endless = iter([b"Zookeeper ", b"version"]), (b"x" * 10_000 for _ in range(1000))

    assert four_letter_word("127.0.0.1", answers(whole), timeout_s=10.0) == "Zookeeper version"
    assert len(four_letter_word("127.0.0.1", answers(endless), timeout_s=10.0)) == LONGEST_ANSWER


@pytest.mark.long
def test_slow_answer_ends_at_the_timeout(answers: Answers) -> None:
    over = threading.Event()
    trickle = (b"x" for _ in range(1000) if not over.wait(0.02))
    began = time.monotonic()

    assert four_letter_word("127.0.0.1", answers(trickle), timeout_s=0.3) == ""

    assert time.monotonic() - began < 5
    over.set()
