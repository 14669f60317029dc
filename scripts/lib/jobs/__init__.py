"""Example: named jobs divided among workers. `worker.py` is what an application would write."""
