"""The processes of one drill, and probes of their state.

Imports `evidence`, `environments`, `faults`, `base` and `coordinator.admin`.
"""
