"""Kafka as a log: one librdkafka client per process, its partitions, their share of memory, availability.

Imports `logs` itself.
"""
