"""A consumer in a consistent region: drains, checkpoints and resets on the member's side (sources R6 to R28).

Imports all of `consumer` but `streaming` and `cli`.
"""
