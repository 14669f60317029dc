"""Access control: how a process authenticates to ZooKeeper, and the ACL of each znode.

Imports `zk` itself and `zk.znodes`.
"""
