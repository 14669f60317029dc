"""`python -m zk_group.consumer.cli`, the same as `zk-consumer`."""

from . import main

main(prog_name="zk-consumer")
