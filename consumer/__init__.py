"""The consumer: group membership, fetchers, Spark."""
