"""Embedded servers for demos and tests: a ZooKeeper ensemble and a Kafka broker from PySpark's and Maven's jars.

Imports `zk` itself.
"""
