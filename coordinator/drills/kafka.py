"""Drills that hit the Kafka broker that the records are in."""

from __future__ import annotations

import time
from dataclasses import replace

from .drill import Drill
from .ground import BROKER
from .measure import BROKER_RETURNS
from .promises import FETCHING_GOES_ON, KEEPS_ITS_GENERATION, NOBODY_MOVES
from .sight import READY_S
from .stage import Stage
from .waiting import NotReached, wait_for

AWAY_S = 3.0
"""Longer than the broker's own session (`broker.SESSION_MS`) and its ticks."""


def _broker_killed(stage: Stage) -> set[str]:
    """It counts as back when the producer, which has nothing of this project, has written to every partition again."""
    if stage.broker is None:
        raise NotReached("the records of this drill are in no Kafka")
    stage.fault("kill-broker")
    stage.broker.kill()
    time.sleep(AWAY_S)
    before = stage.produced_by_partition()
    stage.broker.start()

    def is_back() -> bool:
        now = stage.produced_by_partition()
        return all(now[part] > count for part, count in before.items())

    wait_for(is_back, READY_S, "the broker takes records of every partition again")
    stage.fault(BROKER_RETURNS)
    return stage.slots()


KAFKA = (
    Drill(
        name="kafka-broker-sigkill",
        title="Kill the Kafka broker that the records are in",
        proves="A broker that dies is waited for: the group stays as it is, and goes on with the record that was next.",
        hypothesis="No partition changes its owner; fetching goes on when the broker is back; every record comes once.",
        fault="SIGKILL to the only Kafka broker, which is started again after 3 s",
        run=_broker_killed,
        promises=(FETCHING_GOES_ON, KEEPS_ITS_GENERATION, NOBODY_MOVES),
        needs=frozenset({BROKER}),
        adjust=lambda settings: replace(settings, kafka=True),
        touches=("a Kafka broker of its own",),
    ),
)
