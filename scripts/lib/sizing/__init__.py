"""What the parts of a group cost ZooKeeper, measured at a real server."""
