"""An ensemble of three in containers: healthy, and still writable after its leader has died."""

from __future__ import annotations

import pytest
from kazoo.exceptions import KazooException

from drills.environments.base import Action
from drills.environments.containers import Containers
from tests.support.clients import connected
from tests.support.wait import eventually

pytestmark = pytest.mark.docker


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
