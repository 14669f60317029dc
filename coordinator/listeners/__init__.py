"""Watches on topics, groups, regions and requests, which request turns.

Imports `regions`, `term` and `zk`, but neither `rebalance` nor `retention`.
"""
