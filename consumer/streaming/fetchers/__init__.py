"""Fetchers in Spark executors: the pool on the driver, a slot in each task.

Imports `consumer.streaming` itself and all of `consumer` below it; knows nothing of `source`.
"""
