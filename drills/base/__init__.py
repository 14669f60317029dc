"""Settings, processes, signals, and waiting with a deadline. Imports `coordinator.zk`."""
