"""Retention: removes channels of ended consumers, finished segments, and expired queries.

Imports `term`, `planning` and `zk`, but neither `rebalance` nor `listeners`.
"""
