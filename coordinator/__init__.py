"""The coordinator of zk-group-coordinator: election, listeners, turns of a group, and the commands it sends."""

__version__ = "0.1.0"
