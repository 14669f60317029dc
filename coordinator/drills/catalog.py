"""Every drill."""

from __future__ import annotations

from .changes import CHANGES
from .consumers import CONSUMERS
from .coordinators import COORDINATORS
from .drill import Drill
from .ensembles import ENSEMBLES
from .kafka import KAFKA
from .leaders import LEADERS
from .regions import REGIONS
from .spark import SPARK

DRILLS: dict[str, Drill] = {
    drill.name: drill for drill in (*COORDINATORS, *CONSUMERS, *LEADERS, *REGIONS, *ENSEMBLES, *CHANGES, *SPARK, *KAFKA)
}
