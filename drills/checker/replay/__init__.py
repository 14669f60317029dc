"""Replay of a history: events, the znodes after each commit, and the expected target.

Imports the records of `coordinator.zk`, and no library.
"""
