"""A consumer in a consistent region: drains, checkpoints and resets on the member's side (seed 002)."""
