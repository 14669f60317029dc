"""Failover drills: faults on real processes, with promises and a verdict. See docs/drills.md."""
