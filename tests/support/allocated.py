"""How much memory this process holds: Arrow's pools, and all of it."""

from __future__ import annotations

import resource

import pyarrow as pa

from zk_group.consumer.logs.base import POOL


def allocated_bytes() -> int:
    """Of all pools: what waits may be in another than the default one."""
    pools = {pool.backend_name: pool for pool in (pa.default_memory_pool(), POOL)}
    return sum(pool.bytes_allocated() for pool in pools.values())


def peak_bytes() -> int:
    """The most memory that the process has had so far, of every library."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
