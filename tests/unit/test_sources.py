"""A message about a value says where the value is from; what Kubernetes writes for a Service is no value."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumer.cli import main as consumer_main
from consumer.config import ConsumerConfig
from consumer.logs.kafka.options import kafka_options, with_sources
from coordinator.cli import main as coordinator_main
from coordinator.term.config import CoordinatorConfig
from coordinator.zk import values
from coordinator.zk.errors import UsageError
from coordinator.zk.values import load
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
