"""Shared by both sides: the store and runtime seams, leases, retries and fenced transactions; the znodes in `znodes`.

Imports nothing else of the project.
"""
