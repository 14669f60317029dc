"""Consistent regions on the coordinator's side: what groups read of them, and the turns of a region itself."""
