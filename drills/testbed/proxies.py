"""The proxies between a drill's processes and the ensemble: one per process and server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from coordinator.zk.security.access import ZooKeeperAccess

from ..environments.base import connect_string
from ..faults.proxy import Loss, Proxy
from ..faults.zxid_clock import ZxidClock


class Proxies:
    """Started on first use.

    :param clock: sees the progress of the servers.
    :param access: the TLS to the servers; None for none.
    """

    def __init__(
        self, addresses: Sequence[str], chroot: str, clock: ZxidClock | None, access: ZooKeeperAccess | None = None
    ) -> None:
        self._addresses = addresses
        self._chroot = chroot
        self._clock = clock
        self._access = access
        self._stack = ExitStack()
        self._of: dict[str, list[Proxy]] = {}

    def hosts(self, name: str) -> str:
        """The connect string of a process."""
        if name not in self._of:
            # One after the other: a port that is chosen and not bound yet is free for the next one.
            proxies = (Proxy(address, self._clock, self._access) for address in self._addresses)
            self._of[name] = [self._stack.enter_context(proxy) for proxy in proxies]
        return connect_string([proxy.hosts for proxy in self._of[name]], self._chroot)

    def close(self) -> None:
        """Close all of them."""
        self._stack.close()

    def cut(self, name: str) -> None:
        """Drop all packets of a process, in both directions."""
        for proxy in self._of[name]:
            proxy.black_hole()

    def mute(self, name: str) -> None:
        """Hold back all replies to a process, except those to pings."""
        for proxy in self._of[name]:
            proxy.mute()

    def resume(self, name: str) -> None:
        """Pass packets again."""
        for proxy in self._of[name]:
            proxy.resume()

    def lose(self, name: str, loss: Loss) -> None:
        """Lose one packet between a process and its current server."""
        for proxy in self._of[name]:
            proxy.arm(loss)
