"""Every drill."""

from __future__ import annotations

from .scenarios.consumers import CONSUMERS
from .scenarios.coordinators import COORDINATORS
from .scenarios.definition import Drill
from .scenarios.ensembles import ENSEMBLES
from .scenarios.kafka import KAFKA
from .scenarios.leaders import LEADERS
from .scenarios.regions import REGIONS
from .scenarios.spark import SPARK
from .scenarios.znode_changes import CHANGES

DRILLS: dict[str, Drill] = {
    drill.name: drill for drill in (*COORDINATORS, *CONSUMERS, *LEADERS, *REGIONS, *ENSEMBLES, *CHANGES, *SPARK, *KAFKA)
}
