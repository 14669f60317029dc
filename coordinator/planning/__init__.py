"""Decisions of a turn, as pure functions of a snapshot: departures, assignment, the next commands.

Imports `assignors` and `zk` (its records and errors), and nothing that acts.
"""
