"""`scripts/bench`: benchmarks of the product on real components, with JSON output."""
