"""A consumer in a consistent region: drains, checkpoints and resets on the member's side (seed 002).

Imports all of `consumer` but `streaming` and `cli`.
"""
