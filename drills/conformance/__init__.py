"""The conformance kit: a consumer in any language, tried on real processes and a real ZooKeeper.

Imports `testbed`, `evidence`, `environments`, `checker`, `base`, `coordinator.admin`, `coordinator.cli`, and the
embedded log's producer.
"""
