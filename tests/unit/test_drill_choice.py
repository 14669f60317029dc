"""Which drills run where: what they do to servers, and what a ground lets them do."""

from __future__ import annotations

import pytest

from coordinator.cli.drill import _chosen
from coordinator.drills.catalog import DRILLS
from coordinator.drills.containers import Containers
from coordinator.drills.ground import BROKER, Embedded
from coordinator.zk.errors import UsageError

NOTHING: frozenset[str] = frozenset()
NO_ROOM = "zookeeper-leader-cut-off needs servers that can be cut off from each other: give --docker or --namespaces"


def test_a_drill_that_was_named_and_has_no_room_there_is_a_mistake() -> None:
    with pytest.raises(UsageError) as mistake:
        _chosen(["zookeeper-leader-cut-off"], False, False, 3, Embedded.can)

    assert str(mistake.value) == NO_ROOM


def test_of_all_drills_those_without_room_are_left_out_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = _chosen([], False, True, 3, Embedded.can | {BROKER})

    assert set(DRILLS) - {one.name for one in chosen} == {"zookeeper-leader-cut-off"}
    assert capsys.readouterr().err == f"left out: {NO_ROOM}\n"


def test_in_containers_every_drill_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert _chosen([], False, True, 3, Containers.can | {BROKER}) == list(DRILLS.values())
    assert capsys.readouterr().err == ""


def test_where_no_server_may_be_touched_no_drill_that_touches_one_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = _chosen([], False, True, 3, NOTHING)

    assert {name for name in DRILLS if name.startswith(("zookeeper-", "kafka-"))} == {
        line.split()[2] for line in capsys.readouterr().err.splitlines()
    }
    assert not any(one.needs for one in chosen)


@pytest.mark.parametrize(("short", "is_all"), [(True, False), (False, True)])
def test_without_a_broker_the_drills_on_kafka_are_left_out_and_that_is_said(
    short: bool, is_all: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    without = _chosen([], short, is_all, 3, Containers.can)

    assert capsys.readouterr().err == "left out: kafka-broker-sigkill needs a Kafka broker: give --kafka\n"
    assert [*without, DRILLS["kafka-broker-sigkill"]] == _chosen([], short, is_all, 3, Containers.can | {BROKER})


def test_at_the_operators_own_servers_no_broker_is_started() -> None:
    with pytest.raises(UsageError) as mistake:
        _chosen(["kafka-broker-sigkill"], False, False, 3, NOTHING)

    assert str(mistake.value) == "kafka-broker-sigkill needs a Kafka broker: no broker is started at --zk"
