"""A consistent region's turn: checkpoints and resets over all its groups (sources R17 to R28).

Imports `term`, `planning` and `zk`; `rebalance` and `listeners` use it.
"""
