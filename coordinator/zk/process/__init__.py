"""Shared by every process: options, configuration, logging, the metrics server, the history file.

Imports `zk` itself and `znodes`.
"""
