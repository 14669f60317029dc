"""The conformance kit: a consumer in any language, tried on real processes and a real ZooKeeper.

Imports `testbed`, `evidence`, `environments`, `checker`, `faults`, `base`, `coordinator.admin`, and the embedded log's
producer.
"""
