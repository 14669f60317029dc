"""Shared by every process: command lines, log formats, the metrics server.

Imports `zk` itself and `znodes`.
"""
