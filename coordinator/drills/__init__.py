"""Failover drills: a fault, done to real processes, that costs what was promised and no more. See docs/drills.md."""
