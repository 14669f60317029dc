"""Access control: a process's authentication to ZooKeeper, and the ACL of each znode.

Imports `zk` itself and `zk.znodes`.
"""
