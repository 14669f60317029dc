"""Fetchers in Spark executors: the pool on the driver, a slot in each task.

Imports `consumer.spark` itself and all of `consumer` below it; knows nothing of `source`.
"""
