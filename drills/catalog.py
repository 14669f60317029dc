"""Every drill."""

from __future__ import annotations

from .scenarios.consumers import CONSUMERS, LYING_MEMBERS
from .scenarios.coordinators import COORDINATORS
from .scenarios.definition import Drill
from .scenarios.ensembles import ENSEMBLES
from .scenarios.kafka import KAFKA
from .scenarios.leaders import LEADERS
from .scenarios.regions import REGIONS
from .scenarios.spark import SPARK
from .scenarios.znode_changes import CHANGES

_ALL = (
    *COORDINATORS, *CONSUMERS, *LEADERS, *REGIONS, *LYING_MEMBERS, *ENSEMBLES, *CHANGES, *SPARK, *KAFKA,
)  # fmt: skip
DRILLS: dict[str, Drill] = {drill.name: drill for drill in _ALL}
