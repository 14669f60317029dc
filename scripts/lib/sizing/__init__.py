"""The costs of a group's parts in ZooKeeper, measured on a real server."""
