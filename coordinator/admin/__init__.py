"""Admin operations: groups, offsets, segments, queries, regions, topics; status, health and `verify`.

Reads ZooKeeper and writes requests, never under the coordinator's fence. Imports `planning` and `zk`; `cli` prints it.
"""
