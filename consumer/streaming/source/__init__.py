"""Sealed segments as a streaming and a batch DataFrame.

Imports `consumer.streaming` itself, `sealing`, `fetching` and `logs`; knows nothing of `fetchers`.
"""
