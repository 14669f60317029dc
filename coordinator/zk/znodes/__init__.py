"""The znodes: paths, names, and one frozen record for each kind (`zk_paths.md`).

Imports `zk` itself.
"""
