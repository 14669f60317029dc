"""The consumer: group membership, fetchers, Spark.

Imports `coordinator.zk`; client-side assignment also imports `coordinator.assignors`.
"""
