"""Fetchers in Spark executors, and their sealed records as a streaming DataFrame. Imports all of `consumer` but `cli`.

from consumer.spark import FetcherPool, register

register(spark)
with FetcherPool(spark, zk="host:2181/app", group="g", topics={"flights": 1}, log_dir="...", segments_dir="...") as p:
    spark.readStream.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()
    p.resize(8)
spark.read.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()  # sealed so far
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fetchers.pool import FetcherPool
    from .fetchers.supervisor import SlotStatus
    from .source.data_source import ZkGroupDataSource, register

__all__ = ["FetcherPool", "SlotStatus", "ZkGroupDataSource", "register"]

_PLACES = {
    "FetcherPool": "fetchers.pool",
    "SlotStatus": "fetchers.supervisor",
    "ZkGroupDataSource": "source.data_source",
    "register": "source.data_source",
}


def __getattr__(name: str) -> Any:
    """Loaded on access: a slot's process needs some modules of this package, but not PySpark."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    """Includes names that are not loaded yet."""
    return sorted({*globals(), *__all__})
