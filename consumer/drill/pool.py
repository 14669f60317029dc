"""Keeps the znode of a pool whose slots are processes of a drill, as the driver of a Spark application does."""

from __future__ import annotations

from consumer.spark.post import UNANSWERED, PoolPost
from coordinator.zk.fields import Fields
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.runtime import ThreadRuntime

from .process import Gate, run, tell

KEEP_S = 0.5


def main(fields: Fields) -> None:
    """Say that the slots below `slots` of `pool` in `group` run, in its life `run`, until SIGTERM."""
    gate = Gate()
    opener = kazoo_factory(fields.text("zk"), fields.number("session_timeout_ms"))
    post = PoolPost(opener, ThreadRuntime(), fields.text("group"), fields.text("pool"), fields.text("run"))
    is_told = False
    while not gate.ended.wait(KEEP_S if is_told else 0.05):
        try:
            post.keep(fields.number("slots"))
        except UNANSWERED:
            continue  # later
        if not is_told:
            is_told = True
            tell("posted")
    post.close()


if __name__ == "__main__":
    run(main)
