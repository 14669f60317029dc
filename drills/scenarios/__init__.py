"""The drills: their faults, and their promises.

Imports the other folders of `drills` except `workloads`, and `coordinator.admin`.
"""
