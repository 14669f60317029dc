"""Shared parts of a coordinator's term: election, fence, directory, request queue, bad data, configuration, metrics.

Imports `planning` (for the metrics) and `zk`.
"""
