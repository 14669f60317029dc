"""Fetching of a member's partitions: positions, buffers, the order and limits of a poll, lag.

Imports `membership` and `logs`.
"""
