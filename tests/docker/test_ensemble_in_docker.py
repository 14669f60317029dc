"""An ensemble of three in containers: writable after its leader has died, and a group at work goes on."""

from __future__ import annotations

import pytest
from kazoo.exceptions import KazooException

from tests.support.clients import connected
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import a_world
from zk_group.drills.environments.base import Action
from zk_group.drills.environments.containers import Containers

pytestmark = pytest.mark.docker

SESSION_MS = 6000


@pytest.mark.parametrize("fault", ["kill", "pause", "cut off"])
def test_a_session_outlives_the_leader(docker_ensemble: Containers, docker_zk: str, fault: Action) -> None:
    assert docker_ensemble.is_healthy()
    with connected(docker_zk) as client:
        client.create("/kept", ephemeral=True)
        session = client.client_id[0]
        old = docker_ensemble.leader()

        docker_ensemble.act(fault, old)

        eventually(lambda: client.set("/kept", b"x"), 20, "a write after the fault", ignoring=(KazooException,))
        assert client.client_id[0] == session
        assert docker_ensemble.leader() != old


def test_group_continues_after_the_ensembles_leader_is_killed(docker_ensemble: Containers, docker_zk: str) -> None:
    log = MemoryLog(end=50)
    with a_world(docker_zk) as world:
        world.coordinator("a", session_timeout_ms=SESSION_MS)
        world.coordinator("b", session_timeout_ms=SESSION_MS)
        world.topic("t", 6)
        consumers = [
            world.consumer("g", name, {"t": 1}, log=log, session_timeout_ms=SESSION_MS) for name in ("c1", "c2")
        ]
        before = world.stable("g", 2, timeout_s=30)

        docker_ensemble.act("kill", docker_ensemble.leader())
        log.end = 200

        def read() -> list[tuple[object, int]]:
            return [record for consumer in consumers for record in consumer.records]

        eventually(lambda: len(set(read())) == 6 * 200, 30, "every record is read and committed", ignoring=())
        assert len(read()) == 6 * 200, "no record was committed twice"
        world.consumer("g", "c3", {"t": 1}, log=log, session_timeout_ms=SESSION_MS)
        after = world.stable("g", 3, timeout_s=30, above=before.generation)
        assert {part for target in after.target.values() for part in target.partitions} == set(world.owners("g"))
