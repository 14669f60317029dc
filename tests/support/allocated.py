"""How much memory Arrow holds in this process."""

from __future__ import annotations

import pyarrow as pa

from consumer.logs.columns import POOL


def allocated_bytes() -> int:
    """Of all pools: what waits may be in another than the default one."""
    pools = {pool.backend_name: pool for pool in (pa.default_memory_pool(), POOL)}
    return sum(pool.bytes_allocated() for pool in pools.values())
