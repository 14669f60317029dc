"""Maintains the znode of a pool whose slots are processes of a drill, like the driver of a Spark application."""

from __future__ import annotations

from consumer.spark.fetchers.slot import UNANSWERED, PoolPost
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.znodes.json_fields import Fields

from .process import HangGate, emit, run

KEEP_S = 0.5


def main(fields: Fields) -> None:
    """Declare the slots below `slots` of `pool` in `group` as running, in its run `run`, until SIGTERM."""
    gate = HangGate()
    opener = kazoo_factory(fields.text("zk"), fields.number("session_timeout_ms"))
    post = PoolPost(opener, ThreadRuntime(), fields.text("group"), fields.text("pool"), fields.text("run"))
    is_posted = False
    while not gate.ended.wait(KEEP_S if is_posted else 0.05):
        try:
            post.keep(fields.number("slots"))
        except UNANSWERED:
            continue  # retried
        if not is_posted:
            is_posted = True
            emit("posted")
    post.close()


if __name__ == "__main__":
    run(main)
