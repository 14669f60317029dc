"""`python -m zk_group.coordinator.cli`, the same as `zk-coordinator`."""

from . import main

main(prog_name="zk-coordinator")
