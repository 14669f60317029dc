"""Fetchers in Spark executors, and what they seal as a streaming DataFrame.

from consumer.spark import FetcherPool, register

register(spark)
with FetcherPool(spark, zk="host:2181/app", group="g", topics={"flights": 1}, log_dir="...", segments_dir="...") as p:
    spark.readStream.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()
    p.resize(8)
spark.read.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()  # what is sealed by now
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pool import FetcherPool
    from .source import ZkGroupDataSource, register
    from .supervisor import SlotStatus

__all__ = ["FetcherPool", "SlotStatus", "ZkGroupDataSource", "register"]

_PLACES = {"FetcherPool": "pool", "SlotStatus": "supervisor", "ZkGroupDataSource": "source", "register": "source"}


def __getattr__(name: str) -> Any:
    """Loaded when they are asked for: a slot's process needs some modules of this package, and no PySpark."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_PLACES[name]}", __name__), name)


def __dir__() -> list[str]:
    """Also what is not loaded yet."""
    return sorted({*globals(), *__all__})
