"""Consumer groups coordinated through ZooKeeper: the packages `coordinator`, `consumer` and `drills`."""

__version__ = "0.1.0"
