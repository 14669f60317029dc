"""Faults of connections: a proxy that drops, delays and cuts, and the packets that it parses.

Imports `coordinator.zk`.
"""
