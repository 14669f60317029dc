"""One ZooKeeper session, on kazoo: the store, with credentials, TLS and the ACLs of what it creates.

Imports `zk` itself and `zk.security`.
"""
