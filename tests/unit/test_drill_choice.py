"""Choice of drills: their faults on servers, and the faults that an environment permits."""

from __future__ import annotations

import pytest

from coordinator.zk.errors import UsageError
from drills.runner import DRILLS, DrillOptions

NO_ROOM = "zookeeper-leader-cut-off needs servers that can be cut off from each other: use --docker"
OWN = "zk1:2181/test"


def test_named_drill_that_cannot_run_in_the_environment_is_a_usage_error() -> None:
    with pytest.raises(UsageError) as mistake:
        DrillOptions(("zookeeper-leader-cut-off",)).chosen()

    assert str(mistake.value) == NO_ROOM


def test_drills_that_cannot_run_in_the_environment_are_skipped_and_reported() -> None:
    chosen, left_out = DrillOptions(is_all=True, kafka=True).chosen()

    assert set(DRILLS) - {one.name for one in chosen} == {"zookeeper-leader-cut-off"}
    assert left_out == [NO_ROOM]


def test_every_drill_can_run_in_containers() -> None:
    options = DrillOptions(is_all=True, kafka=True, in_docker=True)

    assert options.chosen() == (list(DRILLS.values()), [])


def test_drills_with_faults_on_servers_are_skipped_where_servers_are_off_limits() -> None:
    chosen, left_out = DrillOptions(is_all=True, zk=OWN).chosen()

    assert {name for name in DRILLS if name.startswith(("zookeeper-", "kafka-"))} == {
        sentence.split()[0] for sentence in left_out
    }
    assert not any(one.needs for one in chosen)


@pytest.mark.parametrize(("short", "is_all"), [(True, False), (False, True)])
def test_drills_on_kafka_are_skipped_and_reported_without_a_broker(short: bool, is_all: bool) -> None:
    without, left_out = DrillOptions(short=short, is_all=is_all, in_docker=True).chosen()
    with_broker, _ = DrillOptions(short=short, is_all=is_all, in_docker=True, kafka=True).chosen()

    assert left_out == ["kafka-broker-sigkill needs a Kafka broker: use --kafka"]
    assert [*without, DRILLS["kafka-broker-sigkill"]] == with_broker


def test_no_broker_is_started_beside_an_external_ensemble() -> None:
    with pytest.raises(UsageError) as mistake:
        DrillOptions(("kafka-broker-sigkill",), zk=OWN).chosen()

    assert str(mistake.value) == "kafka-broker-sigkill needs a Kafka broker: no broker is started with --zk"


def test_no_broker_is_started_beside_a_secured_ensemble() -> None:
    _, left_out = DrillOptions(is_all=True, kafka=True, is_secured=True).chosen()

    assert left_out == [NO_ROOM, "kafka-broker-sigkill needs a Kafka broker: no broker is started with --secure"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"is_all": True, "in_docker": True, "zk": OWN}, "--docker and --zk are mutually exclusive"),
        (
            {"is_all": True, "in_docker": True, "is_secured": True},
            "--docker and --secure are mutually exclusive: the servers in containers have no TLS",
        ),
        (
            {"is_all": True, "zk": OWN, "group": "g", "is_secured": True},
            "--group and --secure are mutually exclusive: the ACLs of the path of --zk are yours",
        ),
        (
            {"is_all": True, "zk": OWN, "keep": True, "is_secured": True},
            "--keep cannot be used with --zk and --secure: the kept znodes could not be removed later",
        ),
        ({"is_all": True, "group": "g"}, "--group needs --zk, and --execute needs --group"),
        ({"is_all": True, "zk": OWN, "execute": True}, "--group needs --zk, and --execute needs --group"),
        ({"is_all": True, "short": True}, "name the drills to run, or give one of --short and --all (see: drill list)"),
        ({}, "name the drills to run, or give one of --short and --all (see: drill list)"),
    ],
)
def test_mutually_exclusive_options_are_a_usage_error(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as mistake:
        DrillOptions(**options)  # type: ignore[arg-type]

    assert str(mistake.value) == sentence
