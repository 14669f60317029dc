"""Embedded servers in one network namespace each, connected by veth pairs that can be taken down.

One veth pair for each two servers, and one for each server and this machine. There is no bridge: where Docker has run,
the machine's firewall drops bridged packets. Needs root and iproute2. Nothing but these pairs is touched.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Self

from coordinator.zk.embedded.directory import EnsembleError, Ports
from coordinator.zk.errors import MissingProgram, UsageError

from ..base.signals import finished, held
from .base import NETWORK, Embedded

_log = logging.getLogger(__name__)

NETWORKS = tuple(IPv4Network("198.18.0.0/15").subnets(new_prefix=20))
"""One per concurrent run, from the range that RFC 2544 reserves for benchmarks; networks in use are skipped."""
TO_MACHINE = "machine"
IP_S = 20.0
NARROW = 8
"""A VPN routes everything by shorter prefixes, 0.0.0.0/1 and 128.0.0.0/1; the drill's routes are more specific."""


class Namespaces:
    """The network of one run. As a context manager it creates the namespaces, and always removes them.

    :ivar places: the listener of each server.
    """

    def __init__(self, servers: int) -> None:
        if os.geteuid() != 0:
            raise UsageError("--namespaces needs root; --docker only needs a Docker engine")
        if shutil.which("ip") is None:
            raise MissingProgram("--namespaces needs the program ip: install iproute2")
        self._servers = range(servers)
        self._number = 0
        self._is_claimed = False

    @property
    def places(self) -> list[Ports]:
        """The listener of each server."""
        return [Ports(2181, 2888, 3888, self._address(server), self._name(server)) for server in self._servers]

    def cut_off(self, server: int) -> None:
        """Take down the interfaces between a server and its peers."""
        for peer in self._peers(server):
            _ip("-n", self._name(server), "link", "set", f"to{peer}", "down")

    def join(self, server: int) -> None:
        """Bring the interfaces up again."""
        for peer in self._peers(server):
            self._up(server, f"to{peer}", self._address(peer))

    def __enter__(self) -> Self:
        try:
            with held():
                self._claim()
                self._is_claimed = True
            self._make()
        except BaseException:
            if self._is_claimed:  # else the number belongs to another run
                self._remove()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._remove()

    def _claim(self) -> None:
        """Create the first namespace under a free number.

        :raises EnsembleError: when this machine cannot create namespaces.
        """
        in_use = _networks_in_use()
        for self._number, network in enumerate(NETWORKS):
            if any(network.overlaps(used) for used in in_use):
                continue
            try:
                _ip("netns", "add", self._name(0))
                return
            except EnsembleError as error:
                if "File exists" not in str(error):
                    raise
        raise EnsembleError(f"each of the {len(NETWORKS)} networks for drills is in use (see: ip netns list, ip route)")

    def _make(self) -> None:
        for server in self._servers[1:]:
            _ip("netns", "add", self._name(server))
        for server in self._servers:
            name, address = self._name(server), self._address(server)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{address}/32", "dev", "lo")
            _ip("link", "add", name, "type", "veth", "peer", "name", TO_MACHINE, "netns", name)
            _ip("address", "add", f"{self._machine}/32", "dev", name)
            _ip("link", "set", name, "up")
            _ip("route", "add", f"{address}/32", "dev", name, "src", self._machine)
            self._up(server, TO_MACHINE, self._machine)
        for server in self._servers:
            for peer in self._servers[server + 1 :]:
                ends = ("netns", self._name(server)), ("netns", self._name(peer))
                _ip("link", "add", f"to{peer}", *ends[0], "type", "veth", "peer", "name", f"to{server}", *ends[1])
        for server in self._servers:
            self.join(server)

    def _up(self, server: int, interface: str, address: str) -> None:
        """Bring an interface up, and restore its route."""
        name = self._name(server)
        _ip("-n", name, "link", "set", interface, "up")
        _ip("-n", name, "route", "replace", f"{address}/32", "dev", interface, "src", self._address(server))

    def _remove(self) -> None:
        """Remove everything. Failures are logged, and do not stop the removal of the rest."""
        names = [self._name(server) for server in self._servers]
        with held():
            for words in [(kind, "delete", name) for name in names for kind in ("link", "netns")]:
                try:
                    _ip(*words)
                except EnsembleError:
                    pass  # not created, or removed with its peer
                except (OSError, subprocess.SubprocessError) as error:
                    _log.warning("not removed: %s", error)

    def _peers(self, server: int) -> list[int]:
        return [peer for peer in self._servers if peer != server]

    def _name(self, server: int) -> str:
        """The name of a server's namespace, and of this machine's interface to it."""
        return f"zkdrill{self._number}-{server + 1}"

    def _address(self, server: int) -> str:
        return str(NETWORKS[self._number][2 + server])

    @property
    def _machine(self) -> str:
        return str(NETWORKS[self._number][1])


class Namespaced(Embedded):
    """See `Environment`. Created by `namespaced`."""

    kind = "namespaces"
    can = Embedded.can | {NETWORK}

    def __init__(self, directory: Path, servers: int, network: Namespaces, is_secured: bool = False) -> None:
        super().__init__(directory, servers, network.places, is_secured)
        self._network = network

    def cut_off(self, server: int) -> None:
        self._network.cut_off(server)

    def join(self, server: int) -> None:
        self._network.join(server)

    def heal(self) -> None:
        for server in range(len(self.addresses)):
            self.join(server)
        super().heal()


@contextmanager
def namespaced(directory: Path, servers: int, is_secured: bool = False) -> Iterator[Namespaced]:
    """Embedded servers in namespaces; `is_secured` as of `Embedded`.

    :raises UsageError: without root.  :raises MissingProgram: without iproute2.
    :raises EnsembleError: when this machine cannot create namespaces, with the error of `ip`.
    """
    with Namespaces(servers) as network, Namespaced(directory, servers, network, is_secured) as environment:
        yield environment


def _networks_in_use() -> list[IPv4Network]:
    """The networks of this machine's addresses and routes, without default routes, also those of a VPN."""
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all"))
    networks = [IPv4Network(route["dst"], strict=False) for route in routes if route["dst"] != "default"]
    return [network for network in networks if network.prefixlen >= NARROW]


def _ip(*words: str) -> str:
    done = finished("ip", *words, timeout_s=IP_S)
    if done.returncode:
        output = (done.stderr.strip() or "no output").splitlines()[-1]
        raise EnsembleError(f"no network namespaces here: ip {' '.join(words)}: {output}")
    return done.stdout
