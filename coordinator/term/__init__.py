"""Shared parts of a coordinator's term: election, fence, request queue, bad data, configuration, metrics.

Imports `planning` (for the metrics) and `zk`.
"""
