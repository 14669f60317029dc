"""The environments of drills: one machine, containers, the operator's ensemble.

Imports `base` and `faults`.
"""
