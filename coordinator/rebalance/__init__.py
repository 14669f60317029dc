"""A group's turn: read it, plan, and commit the plan under the coordinator's fence.

Imports `regions`, `term`, `planning`, `assignors` and `zk`, but neither `listeners` nor `retention`.
"""
