"""Sealed segments as a streaming and a batch DataFrame.

Imports `consumer.spark` itself, `sealing`, `fetching` and `logs`; knows nothing of `fetchers`.
"""
