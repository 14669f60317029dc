"""What both sides share: paths, records, the store and runtime seams, leases and fenced transactions."""
