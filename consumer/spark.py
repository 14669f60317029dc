"""Fetchers in Spark executors, and their sealed records as a streaming DataFrame.

from zk_group.consumer.spark import FetcherPool, register

register(spark)
with FetcherPool(spark, zk="host:2181/app", group="g", topics={"flights": 1}, log_dir="...", segments_dir="...") as p:
    spark.readStream.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()
    p.resize(8)
spark.read.format("zk_group").option("zk", "host:2181/app").option("group", "g").load()  # sealed so far
"""

from .streaming.fetchers.pool import FetcherPool
from .streaming.fetchers.supervisor import SlotStatus
from .streaming.source.data_source import ZkGroupDataSource, register

__all__ = ["FetcherPool", "SlotStatus", "ZkGroupDataSource", "register"]
