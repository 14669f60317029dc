"""Decisions of a turn, pure: same snapshot, same plan. Imports `assignors`, `zk` records and nothing that acts."""
