"""Example: counts per key that are in memory only, and exact. `worker.py` is what an application would write."""
