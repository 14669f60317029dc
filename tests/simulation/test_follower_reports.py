"""What the model says of sessions on a follower that is cut off, seen on three real servers."""

from __future__ import annotations

import time

from kazoo.client import KazooClient

from coordinator.zk.embedded.ensemble import Ensemble, Server
from tests.support.clients import connected
from tests.support.wait import eventually

TIMEOUT_S = 4.0
TRIES = 3


def test_sync_through_a_follower_cut_off_at_once_does_not_extend_the_session(ensemble3: Ensemble) -> None:
    """The leader never hears of it: the session ends a timeout after what the follower had reported before."""
    modes = {status.id: status.mode for status in ensemble3.status()}
    follower = next(server for server in ensemble3.servers if modes[server.id] == "follower")

    # Now and then the follower has reported in the moment between the answer and its end.
    lasted_s = [_lasts_after_sync(ensemble3, follower, ensemble3.leader())]
    while min(lasted_s) > TIMEOUT_S / 2 and len(lasted_s) < TRIES:
        lasted_s.append(_lasts_after_sync(ensemble3, follower, ensemble3.leader()))

    assert min(lasted_s) < TIMEOUT_S / 2, f"ephemerals lasted {lasted_s} s after a sync"


def _lasts_after_sync(ensemble: Ensemble, follower: Server, leader: Server) -> float:
    """Seconds for which an ephemeral outlives a sync of a client that had been silent, when its follower hangs then."""
    client = KazooClient(hosts=follower.address, timeout=TIMEOUT_S)
    client._connection._send_ping = lambda *_: None
    try:
        client.start()
        client.create("/silent", ephemeral=True)
        heard_at = time.monotonic()
        eventually(lambda: time.monotonic() - heard_at > 0.8 * TIMEOUT_S, TIMEOUT_S, "the client was silent")
        sent_at = time.monotonic()
        client.sync("/")
        follower.pause()
        with connected(leader.address) as other:
            eventually(lambda: other.exists("/silent") is None, 3 * TIMEOUT_S, "the session ends")
        return time.monotonic() - sent_at
    finally:
        follower.resume()
        client.stop()
        client.close()
        ensemble.wait_healthy()
