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


def coordinator(options: dict[str, Any] | None = None, **env: str) -> CoordinatorConfig:
    return load(CoordinatorConfig, {**ZK, **(options or {})}, env=env)


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


def test_unset_options_keep_their_defaults() -> None:
    config = coordinator()

    assert (config.session_timeout_ms, config.rebalance_handlers, config.max_rebalance_retries) == (10_000, 4, 4)
    assert (config.rebalance_debounce_ms, config.sweep_interval_ms) == (100, 10_000)
    assert config.query_retention_ms == 7 * 24 * 3600 * 1000
    assert (config.segment_retention_ms, config.segment_retention_bytes) == (3600 * 1000, 256 * 1024**2)
    assert (config.max_backlog_bytes, config.max_backlog_segments) == (4 * 1024**3, 20_000)
    assert (config.backlog_interval_ms, config.max_seals_per_s) == (1000, 500)


def test_the_environment_names_an_option_in_capitals_after_its_prefix() -> None:
    assert coordinator(ZK_GROUP_SESSION_TIMEOUT_MS="4000").session_timeout_ms == 4000


def test_a_file_names_options_as_they_are(tmp_path: Path) -> None:
    file = written(tmp_path, 'zk = "zoo:2181/test"\nsession_timeout_ms = 4000\n')

    config = load(CoordinatorConfig, {}, file, {})

    assert (config.zk, config.session_timeout_ms) == ("zoo:2181/test", 4000)


def test_option_overrides_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "session_timeout_ms = 3000\nsweep_interval_ms = 3000\nrebalance_handlers = 3\n")
    env = {"ZK_GROUP_SESSION_TIMEOUT_MS": "4000", "ZK_GROUP_SWEEP_INTERVAL_MS": "4000"}

    config = load(CoordinatorConfig, {**ZK, "session_timeout_ms": 5000}, file, env)

    assert (config.session_timeout_ms, config.sweep_interval_ms, config.rebalance_handlers) == (5000, 4000, 3)


def test_unset_option_hides_no_environment_or_file_value() -> None:
    assert coordinator({"session_timeout_ms": None}, ZK_GROUP_SESSION_TIMEOUT_MS="4000").session_timeout_ms == 4000


def test_several_protocols_are_read_from_the_environment_as_from_a_file(tmp_path: Path) -> None:
    options = {**ZK, "group": "g", "consumer": "a"}
    file = written(tmp_path, 'protocols = ["cooperative-sticky", "range"]\n')

    from_file = load(ConsumerConfig, options, file, {})
    from_env = load(ConsumerConfig, options, env={"ZK_GROUP_PROTOCOLS": "cooperative-sticky,range"})

    assert from_file.protocols == ("cooperative-sticky", "range")
    assert from_env.protocols == ("cooperative-sticky", "range")


# ---- values that are refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_timeout_ms", "soon"),
        ("session_timeout_ms", ""),
        ("session_timeout_ms", "1e3"),
        ("session_timeout_ms", 99),
        ("connect_timeout_ms", 0),
        ("rebalance_handlers", 0),
        ("rebalance_handlers", 65),
        ("max_rebalance_retries", -1),
        ("rebalance_debounce_ms", -1),
        ("sweep_interval_ms", 99),
        ("channel_retention_ms", 19_999),
        ("query_retention_ms", 999),
        ("segment_retention_ms", -1),
        ("segment_retention_bytes", -1),
        ("max_backlog_bytes", 0),
        ("max_backlog_segments", 0),
        ("max_backlog_segments", 40_001),
        ("backlog_interval_ms", 9),
        ("max_seals_per_s", 0),
        ("brokers_path", "brokers"),
        ("metrics_port", -1),
        ("metrics_port", 65_536),
        ("metrics_host", ""),
    ],
)
def test_a_bad_value_of_the_coordinator_is_refused_by_name(name: str, value: Any) -> None:
    assert name in refused(CoordinatorConfig, {**ZK, name: value})


@pytest.mark.parametrize("value", ["", "a b", "../x", "a\n", "x" * 250])
def test_a_node_needs_a_name_that_a_znode_may_have(value: str) -> None:
    assert "cannot name a node" in refused(CoordinatorConfig, {**ZK, "node": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_timeout_ms", 99),
        ("connect_timeout_ms", 0),
        ("max_poll_interval_ms", 999),
        ("max_poll_interval_ms", 2**31),
        ("max_poll_records", 0),
        ("max_poll_records", -2),
        ("poll_order", "random"),
        ("prefetch", "all"),
        ("fetch_max_bytes", 0),
        ("max_partition_fetch_bytes", 0),
        ("buffer_memory", 0),
        ("enable_auto_commit", "perhaps"),
        ("enable_auto_commit", 1),
        ("auto_commit_interval_ms", 0),
        ("offsets_interval_ms", 0),
        ("protocols", ()),
        ("metrics_port", 65_536),
        ("metrics_host", ""),
    ],
)
def test_a_bad_value_of_a_consumer_is_refused_by_name(name: str, value: Any) -> None:
    assert name in refused(ConsumerConfig, {**ZK, "group": "g", "consumer": "a", name: value})


@pytest.mark.parametrize(("text", "value"), [("true", True), (" True ", True), ("false", False), ("FALSE", False)])
def test_a_switch_is_true_or_false_in_the_environment_and_a_boolean_in_a_file(
    tmp_path: Path, text: str, value: bool
) -> None:
    options = {**ZK, "group": "g", "consumer": "a"}
    file = written(tmp_path, f"enable_auto_commit = {str(value).lower()}\n")

    assert load(ConsumerConfig, options, env={"ZK_GROUP_ENABLE_AUTO_COMMIT": text}).enable_auto_commit is value
    assert load(ConsumerConfig, options, file, env={}).enable_auto_commit is value
    assert load(ConsumerConfig, options, env={}).enable_auto_commit is False


@pytest.mark.parametrize("name", ["group", "consumer"])
@pytest.mark.parametrize("value", ["", "..", "a/b", "\x1b[31m"])
def test_a_group_and_a_consumer_need_names_that_znodes_may_have(name: str, value: str) -> None:
    assert f"cannot name a {name}" in refused(ConsumerConfig, {**ZK, "group": "g", "consumer": "a", name: value})


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
    assert "leave out consumer" in refused(
        ConsumerConfig, {**ZK, "group": "g", "consumer": "a", "group_instance_id": "i"}
    )


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
