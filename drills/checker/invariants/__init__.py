"""One class for each invariant of the design: S1 to S11 and L1 to L6. A file is named for its invariants. Imports `replay`."""
