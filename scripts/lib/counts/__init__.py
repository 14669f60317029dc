"""Example: exact counts per key, in memory only. `worker.py` is the part that an application would write."""
