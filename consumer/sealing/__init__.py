"""Sealing of fetched records: Arrow files, and the multi that makes each a segment of the group.

Imports `fetching`, `membership` and `logs`.
"""
