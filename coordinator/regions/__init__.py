"""A consistent region's turn: checkpoints and resets over all its groups (seed 002).

Imports `term`, `planning` and `zk`; `rebalance` and `listeners` use it.
"""
