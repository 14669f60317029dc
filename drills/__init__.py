"""Failover drills: faults on real processes, with promises and a verdict. See docs/drills.md.

Imports all of the project; the commands load it by name.
"""
