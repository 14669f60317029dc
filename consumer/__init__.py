"""The consumer side of zk-group-coordinator: a member's life, its fetchers, and Spark."""
