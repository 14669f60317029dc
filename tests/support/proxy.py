"""The drills' proxy, which counts requests and remembers what was lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.drills.faults import proxy
from zk_group.drills.faults.proxy import ZxidClock, op_code

Match = int | proxy.Match
"""An op code, or a predicate over a request's body."""


class Loss(proxy.Loss):
    """A loss that can be waited for."""

    def __init__(self, match: Match, *, is_request: bool, then: Callable[[], None] = lambda: None) -> None:
        predicate = match if not isinstance(match, int) else lambda request: op_code(request) == match
        super().__init__(predicate, is_request=is_request, then=then)
        self.match = match

    def wait(self, timeout_s: float = 10.0) -> bytes:
        """Wait until the packet is lost and its connection cut; the body of the request.

        :raises AssertionError: after `timeout_s`.
        """
        assert self.lost.wait(timeout_s), f"no packet that matches {self.match} was lost within {timeout_s:g} s"
        return self.request


class Proxy(proxy.Proxy):
    """A proxy of a test.

    :ivar requests: number of client requests by op code.
    :ivar losses: the packets that were lost, in order.
    """

    def __init__(self, upstream: str, clock: ZxidClock | None = None, access: ZooKeeperAccess | None = None) -> None:
        super().__init__(upstream, clock, access)
        self.requests: Counter[int] = Counter()
        self.losses: list[Loss] = []
        self._flows = threading.Event()
        self._flows.set()

    def hold(self) -> None:
        """Hold back all bytes in both directions until `resume`."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()
        super().resume()

    def swallows(self, link: proxy._Link) -> bool:
        while not self._flows.wait(0.02):
            if link.is_cut:
                return True
        return super().swallows(link)

    @property
    def connections(self) -> int:
        """The number of open client connections."""
        with self._lock:
            return len(self._links)

    def drop_reply(self, match: Match) -> Loss:
        """Drop the reply to the next matching request, then cut its connection: once."""
        return self._armed_with(Loss(match, is_request=False))

    def drop_request(self, match: Match) -> Loss:
        """Drop the next matching request, then cut its connection: the server never receives it."""
        return self._armed_with(Loss(match, is_request=True))

    def _armed_with(self, loss: Loss) -> Loss:
        self.arm(loss)
        return loss

    def claim(self, request: bytes) -> proxy.Loss | None:
        with self._lock:
            self.requests[op_code(request)] += 1
        return super().claim(request)

    def report(self, loss: proxy.Loss) -> None:
        if isinstance(loss, Loss):
            with self._lock:
                self.losses.append(loss)
        super().report(loss)
