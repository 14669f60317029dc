"""Example: named jobs divided among workers. `worker.py` is the part that an application would write."""
