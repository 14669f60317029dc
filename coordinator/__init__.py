"""The coordinator of zk-group-coordinator: election, listeners, turns of a group, and the commands it sends.

Imports nothing of `consumer` and `drills`, but for `coordinator.cli`.
"""
