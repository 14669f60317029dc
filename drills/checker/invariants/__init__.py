"""The invariants of the design, S1 to S11 and L1 to L6, in files named after them. Imports `replay`."""
