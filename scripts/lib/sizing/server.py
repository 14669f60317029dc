"""A ZooKeeper server's figures: its four-letter words `mntr` and `srvr`."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from coordinator.zk.embedded.ensemble import Server


class Figures(NamedTuple):
    """One sample of a server's figures.

    :ivar data_bytes: paths and data of all znodes (`zk_approximate_data_size`).
    :ivar requests: packets from clients so far, pings included.
    :ivar transactions: writes so far; a multi counts as one, and so do the start and the end of a session.
    """

    at_s: float
    znodes: float
    ephemerals: float
    watches: float
    data_bytes: float
    requests: float
    transactions: float

    def since(self, before: Figures) -> Figures:
        """The difference since `before`."""
        return Figures(*(after - earlier for after, earlier in zip(self, before, strict=True)))


def figures(server: Server) -> Figures:
    """Take a sample."""
    monitored = dict(re.findall(r"^(zk_\w+)\t(\d+)", server.ask("mntr", 5.0), re.MULTILINE))
    zxid = re.search(r"^Zxid: 0x([0-9a-f]+)", server.ask("srvr", 5.0), re.MULTILINE)
    if zxid is None or "zk_znode_count" not in monitored:
        raise RuntimeError("the server gave no figures")
    return Figures(
        at_s=time.monotonic(),
        znodes=int(monitored["zk_znode_count"]),
        ephemerals=int(monitored["zk_ephemerals_count"]),
        watches=int(monitored["zk_watch_count"]),
        data_bytes=int(monitored["zk_approximate_data_size"]),
        requests=int(monitored["zk_packets_received"]),
        transactions=int(zxid[1], 16) & 0xFFFFFFFF,
    )


def watched(server: Server, seconds: float) -> Figures:
    """The difference over `seconds`."""
    before = figures(server)
    time.sleep(seconds)
    return figures(server).since(before)
