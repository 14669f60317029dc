"""Client-side assignment: the decisions that a group leaves to its members.

Here are the client assignors (`base`, `adapter`, `lag`, `rack`), the member metadata of protocol type `consumer`
(`metadata`), and what the leader does with them (`consumers`). Generations and fences are the coordinator's.

Imports `membership`, `logs`, the types of `consumer` itself, and `coordinator.assignors`; assignors read neither
ZooKeeper nor a log themselves, they ask their `Cluster`.
"""
