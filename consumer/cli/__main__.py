"""`python -m consumer.cli`, the same as `zk-consumer`."""

from consumer.cli import main

main(prog_name="zk-consumer")
