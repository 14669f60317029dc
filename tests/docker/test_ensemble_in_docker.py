"""An ensemble of three in containers: healthy, and still writable after its leader has died."""

from __future__ import annotations

import pytest
from kazoo.exceptions import KazooException

from tests.docker.docker_ensemble import DockerEnsemble
from tests.support.clients import connected, fresh_chroot
from tests.support.wait import eventually

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("fault", ["kill", "pause", "isolate"])
def test_a_session_outlives_the_leader(docker_ensemble: DockerEnsemble, fault: str) -> None:
    assert docker_ensemble.is_healthy()
    with connected(fresh_chroot(docker_ensemble.hosts)) as client:
        client.create("/kept", ephemeral=True)
        session = client.client_id[0]
        old = docker_ensemble.leader()

        getattr(docker_ensemble, fault)(old)

        eventually(lambda: client.set("/kept", b"x"), 20, "a write after the fault", ignoring=(KazooException,))
        assert client.client_id[0] == session
        assert docker_ensemble.leader() != old
