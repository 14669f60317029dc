"""Fetchers in Spark executors, and what they seal as a streaming DataFrame.

from consumer.spark import FetcherPool, register

register(spark)
with FetcherPool(spark, zk="host:2181/app", group="g", topics={"flights": 1}, log_dir="...", segments_dir="...") as p:
    spark.readStream.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()
    p.resize(8)
spark.read.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()  # what is sealed by now
"""

from __future__ import annotations

from .pool import FetcherPool
from .source import ZkGroupDataSource, register
from .supervisor import SlotStatus

__all__ = ["FetcherPool", "SlotStatus", "ZkGroupDataSource", "register"]
