"""Three ZooKeeper servers in containers, and the faults that only containers can have."""

from __future__ import annotations

import subprocess

from coordinator.zk.ensemble import four_letter_word, mode_in, modes_are_healthy
from tests.support.wait import eventually

HOST = "127.0.0.1"
PORTS = {"zk1": 14811, "zk2": 14812, "zk3": 14813}
"""The servers' names in docker-compose.yml, and the ports that it publishes."""


class DockerEnsemble:
    """The servers of one Compose project, by their names `zk1`, `zk2`, `zk3`."""

    hosts = ",".join(f"{HOST}:{port}" for port in PORTS.values())

    def __init__(self, project: str) -> None:
        self.project = project
        self._isolated: set[str] = set()

    def modes(self) -> dict[str, str | None]:
        """What each server calls itself; None for one that serves nobody."""
        return {name: mode_in(four_letter_word(HOST, port)) for name, port in PORTS.items()}

    def is_healthy(self) -> bool:
        """All serve, and exactly one leads."""
        return modes_are_healthy(list(self.modes().values()))

    def leader(self, timeout_s: float = 20.0) -> str:
        """The name of the leader, once exactly one server calls itself that: one just cut off still does, for a moment.

        :raises AssertionError: after `timeout_s`.
        """

        def leaders() -> list[str]:
            found = [name for name, mode in self.modes().items() if mode == "leader"]
            assert len(found) == 1, f"leaders: {found}"
            return found

        return eventually(leaders, timeout_s, "exactly one leader")[0]

    def kill(self, name: str) -> None:
        """SIGKILL to the container's process."""
        docker("kill", self._container(name))

    def stop(self, name: str) -> None:
        """SIGTERM, and SIGKILL after two seconds."""
        docker("stop", "--time", "2", self._container(name))

    def start(self, name: str) -> None:
        """After `kill` or `stop`; the server keeps its data and its port."""
        docker("start", self._container(name))

    def pause(self, name: str) -> None:
        """Freeze every process of the container."""
        docker("pause", self._container(name))

    def unpause(self, name: str) -> None:
        """After `pause`."""
        docker("unpause", self._container(name))

    def isolate(self, name: str) -> None:
        """Take the container off the network: from the other servers and from its clients."""
        docker("network", "disconnect", self._network, self._container(name))
        self._isolated.add(name)

    def rejoin(self, name: str) -> None:
        """After `isolate`. The alias is what the others know it by; a plain connect would not give it back."""
        docker("network", "connect", "--alias", name, self._network, self._container(name))
        self._isolated.discard(name)

    def heal(self) -> None:
        """Undo whatever a test has left behind, without waiting for the ensemble to be whole."""
        for name in list(self._isolated):
            self.rejoin(name)
        for name in PORTS:
            state = docker("inspect", "--format", "{{.State.Status}}", self._container(name))
            if state == "paused":
                self.unpause(name)
            elif state != "running":
                self.start(name)

    @property
    def _network(self) -> str:
        return f"{self.project}_ensemble"

    def _container(self, name: str) -> str:
        """Its id, by label: the two Composes do not agree on the names of containers."""
        project, service = f"com.docker.compose.project={self.project}", f"com.docker.compose.service={name}"
        return docker("ps", "-aq", "--filter", f"label={project}", "--filter", f"label={service}").split()[0]


def docker(*arguments: str) -> str:
    """Run the docker client; what it printed.

    :raises AssertionError: when it fails, with what it said.
    """
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout.strip()
