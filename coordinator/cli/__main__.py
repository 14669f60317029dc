"""`python -m coordinator.cli`, the same as `zk-coordinator`."""

from coordinator.cli import main

main(prog_name="zk-coordinator")
