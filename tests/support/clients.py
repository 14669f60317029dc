"""Plain kazoo clients for tests that look at ZooKeeper from outside the product."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient


@contextmanager
def connected(hosts: str, session_timeout_s: float = 4.0, **options: Any) -> Iterator[Any]:
    """A started kazoo client, closed at the end. It reconnects within 0.1 s of the server's return."""
    retry = {"max_tries": -1, "delay": 0.02, "backoff": 1, "max_jitter": 0.1, "max_delay": 0.1}
    client = KazooClient(hosts=hosts, timeout=session_timeout_s, connection_retry=retry, **options)
    try:
        client.start(timeout=15)
        yield client
    finally:
        client.stop()
        client.close()


def fresh_chroot(hosts: str) -> str:
    """Create a znode that no other test uses; the connect string with it as chroot, as `127.0.0.1:15123/t-1f2e3d`."""
    chroot = f"/t-{secrets.token_hex(6)}"
    with connected(hosts) as client:
        client.create(chroot)
    return hosts + chroot
