"""The environments of drills: one machine, containers, network namespaces, the operator's ensemble.

Imports `base` and `faults`.
"""
