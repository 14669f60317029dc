"""How many examples a property is tried with: few on every run, PROPERTY_EFFORT times as many when asked."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def effort(examples: int) -> settings:
    """Settings for a property that is worth `examples` on every run."""
    times = int(os.environ.get("PROPERTY_EFFORT", "1"))
    return settings(
        max_examples=examples * times,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
