"""Drills on the Kafka broker that holds the records."""

from __future__ import annotations

import time
from dataclasses import replace

from ..base.waiting import NotReached, wait_for
from ..environments.base import BROKER
from ..evidence.measurements import BROKER_RETURNS
from ..testbed.probes import READY_S
from ..testbed.testbed import Stage
from .definition import Drill
from .promises import FETCHING_GOES_ON, KEEPS_ITS_GENERATION, OWNERS_UNCHANGED

AWAY_S = 3.0
"""Longer than the broker's session (`broker.SESSION_MS`) and its ticks."""


def _broker_killed(stage: Stage) -> None:
    """The broker is back when the independent producer has written to every partition again."""
    if stage.broker is None:
        raise NotReached("the records of this drill are not in Kafka")
    stage.fault("kill-broker")
    stage.broker.kill()
    time.sleep(AWAY_S)
    before = stage.produced_by_partition()
    stage.broker.start()

    def is_back() -> bool:
        now = stage.produced_by_partition()
        return all(now[part] > count for part, count in before.items())

    wait_for(is_back, READY_S, "the broker accepts records for every partition again")
    stage.fault(BROKER_RETURNS)


KAFKA = (
    Drill(
        name="kafka-broker-sigkill",
        title="Kill the Kafka broker",
        proves="While the broker is down the group is not rebalanced; then it continues at its offsets.",
        hypothesis="No partition changes its owner; fetching resumes when the broker is up; every record comes once.",
        fault="SIGKILL to the only Kafka broker, which is restarted after 3 s",
        run=_broker_killed,
        promises=(FETCHING_GOES_ON, KEEPS_ITS_GENERATION, OWNERS_UNCHANGED),
        needs=frozenset({BROKER}),
        adjust=lambda settings: replace(settings, kafka=True),
        touches=("its own Kafka broker",),
    ),
)
