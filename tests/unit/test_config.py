"""Configuration: options before the environment before the file, and one sentence for each bad value."""

from __future__ import annotations

import os
import re
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest

from consumer.cli.run import run as consumer_run
from consumer.config import ConsumerConfig, Subscription
from coordinator.cli.run import run as coordinator_run
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.errors import UsageError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.values import load

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
    *((CoordinatorConfig, {**ZK, "node": value}, "a node") for value in ("", "a b", "../x", "a\n", "x" * 250)),
    *(
        (ConsumerConfig, {**CONSUMER, name: value}, f"a {name}")
        for name in ("group", "consumer")
        for value in ("", "..", "a/b", "\x1b[31m")
    ),
]


@pytest.mark.parametrize(("kind", "options", "name"), BAD)
def test_a_bad_value_is_refused_by_name(kind: type, options: dict[str, Any], name: str) -> None:
    assert name in refused(kind, options)


@pytest.mark.parametrize(("kind", "options", "what"), NO_NAMES)
def test_nodes_groups_and_consumers_need_names_that_znodes_may_have(
    kind: type, options: dict[str, Any], what: str
) -> None:
    assert f"cannot name {what}" in refused(kind, options)


@pytest.mark.parametrize(("text", "value"), [("true", True), (" True ", True), ("false", False), ("FALSE", False)])
def test_a_switch_is_true_or_false_in_the_environment_and_a_boolean_in_a_file(
    tmp_path: Path, text: str, value: bool
) -> None:
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
        "session_timeout_ms = inf\n",
        "session_timeout_ms = nan\n",
        "session_timeout_ms = []\n",
        "session_timeout_ms = true\n",
        "session_timeout_ms = 4000.5\n",
        "node = 5\n",
        "zk = 5\n",
        'zk = ["a:1", "b:1"]\n',
        "brokers_path = 5\n",
        "no_such_option = 1\n",
        "[run]\nnode = 'a'\n",
        "session_timeout_ms = \n",
        "not toml",
        '"\\u001b[31m" = 1\n',
    ],
)
def test_invalid_file_is_refused_with_one_sentence(tmp_path: Path, text: str) -> None:
    refused(CoordinatorConfig, {} if text.startswith("zk") else ZK, written(tmp_path, text))


def test_unknown_option_in_a_file_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    message = refused(CoordinatorConfig, ZK, written(tmp_path, "sesion_timeout_ms = 1\n"))

    assert "'sesion_timeout_ms'" in message
    assert "session_timeout_ms" in message


def test_unreadable_file_is_reported_with_its_name(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")

    assert "missing.toml" in refused(CoordinatorConfig, ZK, tmp_path / "missing.toml")
    assert "binary.toml" in refused(CoordinatorConfig, ZK, binary)
    assert tmp_path.name in refused(CoordinatorConfig, ZK, tmp_path)


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
