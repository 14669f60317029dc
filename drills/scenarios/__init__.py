"""The drills: what is done, and what must hold afterwards.

Imports the other folders of `drills` except `workloads`, and `coordinator.admin`.
"""
