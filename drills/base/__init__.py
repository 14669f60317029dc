"""Settings, processes with signals, and waiting with a deadline. Imports `coordinator.zk`."""
