"""Client-side assignment: the decisions that a group leaves to its members.

Here are the client assignors (`base`, `adapter`, `lag`, `rack`, `registry`), the member metadata of protocol type
`consumer` (`metadata`), and what the leader does with them. Membership, generations and fences are the coordinator's.

Modules of this package import `coordinator.zk`, `coordinator.assignors` and `consumer.logs`, and nothing else of the
project; assignors read neither ZooKeeper nor a log themselves, they ask their `Cluster`.
"""
