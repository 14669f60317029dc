"""`scripts/bench`: what the product takes, measured on real parts and told as JSON."""
